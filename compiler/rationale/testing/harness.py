"""The checks of every rule: completeness, slopes, ties, rows in a batch, conservation of relevance."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from rationale import Compiled, DeepShap, Gradient, Lrp, RationaleError, Zero, compile_model
from rationale.methods.engine import Method
from rationale.rules.rule import Kind, Rule, Trait, find_rule
from rationale.testing.engine import Rows, RunModel, by_onnx, computing_by
from rationale.testing.sample import Sample, Var

# float64: rules are algebra, so the remaining errors are rounding over a few dozen operations.
COMPLETE_64 = 1e-12  # |Σ m·Δ − Δy| relative to max(1, largest |y|)
# central differences in float64: error h²·f‴ + ε/h with h = 1e-5.
FINITE_DIFFERENCE = 1e-8
# DeepSHAP at x = r·(1 + 1e-12) against the gradient, relative to the largest; quotients round to 1e-4 there.
NEAR = 1e-6
# a float32 graph against the same in float64: ε = 6e-8 over sums of some hundred terms.
PARITY_32 = 2e-5  # relative to the largest attribution
# relevance in float64 relative to the largest: the share that a denominator's stabiliser absorbs.
CONSERVED = 1e-5

N, K = 2, 3
STEP, NUDGE = 1e-5, 1e-12


def check_rule(sample: Sample, run: RunModel = by_onnx) -> tuple[str, ...]:
    """Check the rule of an operator on a sample, like Rationale's own rules.

    In float64: attributions add up for one reference and for several weighted ones, at ties and zeros too;
    the gradient is the finite difference; near the reference DeepSHAP is the gradient, and at the reference
    it is 0; LRP conserves relevance. In float32: ONNX Runtime's answers are the same, for single rows as in a
    batch. Checks that do not apply to the rule's kind, or the sample, are left out; a warning names methods
    for which the rule has no form.

    Args:
        run: function that computes graphs in float64; ONNX's reference evaluator, unless that is wrong.

    Returns:
        The names of the completed checks.

    Raises:
        AssertionError: if the rule fails a check, or there is no rule; the text names the check, the place
            and the error.
    """
    harness = Harness(sample, run)
    completed, missing = harness.check(), harness.without_form()
    if missing:
        warnings.warn(f"{sample.label}: not checked, since {'; '.join(missing)}", stacklevel=2)
    return completed


class Harness:
    """The checks of one sample; each raises AssertionError on failure, and all share their graphs."""

    def __init__(self, sample: Sample, run: RunModel) -> None:
        self.sample, self.run = sample, run
        self.dtype: Any = np.float64 if sample.float64 else np.float32
        self.model = sample.model(self.dtype)
        self.targets = targets_of(self.model)
        self._graphs: dict[str, onnx.ModelProto] = {}

    def check(self) -> tuple[str, ...]:
        self._rule()  # raises if there is none
        deepshap = self._has_deepshap
        exact, smooth = self.sample.float64, self.sample.float64 and self.sample.smooth
        checks = {
            "completeness": (self.completeness, deepshap),
            "ties and zeros": (self.ties, deepshap and exact),
            "finite differences": (self.finite_differences, smooth),
            "the limit at the reference": (self.near_the_reference, deepshap and smooth),
            "at the reference": (self.at_the_reference, deepshap and exact),
            "conservation": (self.conservation, self.conserves()),
            "float32": (self.in_float32, exact),
            "batching": (self.batching, True),
        }
        completed = []
        for name, (check, applies) in checks.items():
            if applies:
                try:
                    check()
                except AssertionError:
                    raise
                except Exception as error:  # a rule is foreign code
                    reason = f"{error}" if isinstance(error, RationaleError) else repr(error)
                    raise AssertionError(f"{self.sample.label}, {name}: {reason}") from error
                completed.append(name)
        return tuple(completed)

    def without_form(self) -> list[str]:
        """Return the reasons why methods refuse the operator, so that its rule was not checked for them."""
        rule = self._rule()
        local, name = rule.kind is Kind.LOCAL, rule.op_type.lower()
        missing = []
        if local and rule.deeplift_form is None:
            missing.append(f"the rule has no `@{name}.deeplift`: DeepSHAP, completeness and ties")
        if local and not rule.has_relevance:
            missing.append(f"the rule has no `@{name}.relevance`: LRP and what it conserves")
        return missing

    # -- in float64 ---------------------------------------------------------------------------------

    def completeness(self) -> None:
        """Check completeness for one reference, and for several with weights."""
        for weights in ([1.0], [0.5, 0.2, 0.3]):
            x = self._draw(N, 1)
            references = self.one_reference if len(weights) == 1 else self._draw(len(weights), 2)
            self.demand_sum(self.answer(x, references, weights), f"{len(weights)} reference(s)")

    def ties(self) -> None:
        """Check sums if half of the features equal their reference, or both are one number everywhere."""
        x, references = self.tied()
        self.demand_sum(self.answer(x, references, [1.0]), "ties and zeros")

    def finite_differences(self) -> None:
        x = self._draw(N, 3)
        for name, value in attributions(self.run(self.graph("gradient"), x)).items():
            expected = self.central_differences(x, name)[:, self.targets].reshape(value.shape)
            self._demand(value, expected, FINITE_DIFFERENCE, "gradient", name, "of the finite difference")

    def near_the_reference(self) -> None:
        """Check that multipliers keep their precision as x − r shrinks: here to 1e-12 of x."""
        references = self.one_reference
        x = {name: a * (1 + NUDGE) for name, a in references.items()}
        gradient, deepshap = (attributions(self.run(self.graph(m), x)) for m in ("gradient", "deepshap"))
        for name, value in deepshap.items():
            expected = gradient[name] * (x[name] - references[name])[:, None]
            size = max(np.abs(expected).max(), 1e-300)
            value, expected = value / size, expected / size
            self._demand(value, expected, NEAR, "DeepSHAP near the reference", name, "of gradient·Δ")

    def at_the_reference(self) -> None:
        for name, value in attributions(self.run(self.graph("deepshap"), self.one_reference)).items():
            self._demand(value, np.zeros_like(value), 0.0, "DeepSHAP at the reference", name, "of nothing")

    def conservation(self) -> None:
        """Check that LRP's relevance of the inputs is the explained value."""
        answer = self.run(self.graph("lrp"), self._draw(N, 1))
        total = sums(answer)
        self._demand(total, answer["explained_value"], CONSERVED, "LRP", "the inputs' sum", "of the output")

    # -- in float32 ---------------------------------------------------------------------------------

    def in_float32(self) -> None:
        """Check that ONNX Runtime's answers agree with the float64 graph."""
        x = self.sample.draw(N, 9, np.float32)
        pairs = {"gradient": (self.gradient_in_float32, self.graph("gradient"))}
        if self._has_deepshap:
            references = {k: v.astype(np.float32) for k, v in self.one_reference.items()}
            narrow = compile_model(self._narrow, DeepShap(references), targets=self.targets)
            wide = DeepShap({k: v.astype(np.float64) for k, v in references.items()})
            pairs = {"deepshap": (narrow, self._compiled(wide)), **pairs}
        for name, (compiled, graph) in pairs.items():
            got = compiled.explain(x)
            want = self.run(graph, {k: v.astype(np.float64) for k, v in x.items()})
            for output, value in attributions(want).items():
                own = got[f"{output}_attributions"]
                self._demand(own, value, PARITY_32, f"{name} in float32", output, "of float64")

    def batching(self) -> None:
        """Demand that a single row gets the same answer as in a batch, and that no node runs row by row."""
        compiled = self.gradient_in_float32
        if any(node.op_type == "Scan" for node in compiled.model.graph.node):
            raise AssertionError(f"{self.sample.label}: its graph runs row by row, in a Scan, which is slow")
        x = self.sample.draw(K, 10, np.float32)
        whole = compiled.explain(x)
        for i in range(K):
            alone = compiled.explain({name: value[i : i + 1] for name, value in x.items()})
            for name, value in attributions(dict(alone)).items():
                batched_value = whole[f"{name}_attributions"][i : i + 1]
                self._demand(batched_value, value, PARITY_32, "gradient in a batch", name, "of the row alone")

    # -- parts --------------------------------------------------------------------------------------

    def graph(self, method: str) -> onnx.ModelProto:
        """Return the graph emitted for a method by its name, with one reference if it needs one."""
        if method not in self._graphs:
            methods: dict[str, Callable[[], Method]] = {
                "gradient": Gradient,
                "deepshap": lambda: DeepShap(self.one_reference),
                "lrp": lambda: Lrp(rules=self._linear_rules()),  # only for operators that have a rule
            }
            self._graphs[method] = self._compiled(methods[method]())
        return self._graphs[method]

    def answer(self, x: Rows, references: Rows, weights: Sequence[float]) -> Rows:
        """Return the answer of the DeepSHAP graph for these references."""
        is_one = references is self.one_reference
        graph = self.graph("deepshap") if is_one else self._compiled(DeepShap(references, weights))
        return self.run(graph, x)

    def demand_sum(self, answer: Rows, where: str) -> None:
        """Demand that attributions add up to the explained value, also by the graph's own gap."""
        tolerance = COMPLETE_64 if self.sample.float64 else PARITY_32
        difference = answer["explained_value"] - answer["base_value"]
        scale = max(1.0, np.abs(answer["explained_value"]).max())
        total, expected = sums(answer) / scale, difference / scale
        self._demand(total, expected, tolerance, where, "the sum of attributions", "of output − base value")
        gap = answer["completeness_gap"] / scale
        self._demand(gap, np.zeros_like(gap), tolerance, where, "completeness_gap", "of nothing")

    @cached_property
    def gradient_in_float32(self) -> Compiled:
        return compile_model(self._narrow, Gradient(), targets=self.targets)

    @cached_property
    def one_reference(self) -> Rows:
        return self._draw(1, 4)

    def tied(self) -> tuple[Rows, Rows]:
        references, x = (on_a_grid(self.sample, self.sample.draw(n, 5 + n, np.float64)) for n in (1, N))
        for name, value in x.items():
            flat, reference = value.reshape(N, -1), references[name].reshape(1, -1)
            flat[:, ::2] = reference[:, ::2]
            if value.min() < 0 < value.max():
                flat[0, 1::2] = 0.0
                reference[0, 1::4] = 0.0
        return x, references

    def central_differences(self, x: Rows, name: str) -> np.ndarray:
        """Return [N, outputs, features of `name`]; the F steps of each row are rows of one run."""
        features = x[name][0].size
        steps = np.eye(features).reshape(features, 1, *x[name].shape[1:]) * STEP
        many = {other: np.concatenate([a] * features) for other, a in x.items()}
        moved = [(x[name] + sign * steps).reshape(many[name].shape) for sign in (1, -1)]
        ends = [self.values({**many, name: value}) for value in moved]
        change = (ends[0] - ends[1]) / (2 * STEP)
        return np.moveaxis(change.reshape(features, N, -1), 0, -1)

    def values(self, x: Rows) -> np.ndarray:
        """Return the model's own answer; row by row if it takes only one."""
        name = self.model.graph.output[0].name
        if not self.sample.bare:
            return self.run(self.model, x)[name]
        count = len(next(iter(x.values())))
        rows = [{k: v[i : i + 1] for k, v in x.items()} for i in range(count)]
        return np.concatenate([self.run(self.model, row)[name] for row in rows])

    def _compiled(self, method: Method) -> onnx.ModelProto:
        if not self.sample.float64:
            return compile_model(self.model, method, targets=self.targets).model
        with computing_by(self.run):
            return compile_model(self.model, method, targets=self.targets).model

    def _linear_rules(self) -> list[tuple[str, Zero]]:
        """Return the rule that splits by contributions: other rules may find none of their sign."""
        rule = self._rule()
        return [] if rule.layer_form is None else [(rule.op_type, Zero())]

    def _draw(self, count: int, seed: int) -> Rows:
        return self.sample.draw(count, seed, self.dtype)

    @cached_property
    def _narrow(self) -> onnx.ModelProto:
        return self.sample.model(np.float32)

    def _rule(self) -> Rule:
        rule = find_rule(self.sample.op_type, self.sample.domain)
        if rule is None:
            name = f"{self.sample.domain}.{self.sample.op_type}".lstrip(".")
            raise AssertionError(
                f"no rule is declared for {name}: import the module that declares it, and compare the names"
            )
        return rule

    @property
    def _has_deepshap(self) -> bool:
        rule = find_rule(self.sample.op_type, self.sample.domain)
        return rule is None or rule.kind is not Kind.LOCAL or rule.deeplift_form is not None

    def conserves(self) -> bool:
        """Tell whether LRP serves the rule, and no constant, offset or condition absorbs relevance."""
        rule, sample = self._rule(), self.sample
        conserving = rule.kind is not Kind.LOCAL or Trait.CONSERVING in rule.traits
        if not (conserving and sample.float64) or sample.given_as or sample.counted:
            return False
        if rule.kind is Kind.SELECTION and not all(isinstance(o, Var) for o in sample.operands):
            return False
        rows = self._draw(N, 1)
        nothing = {name: np.zeros_like(a) for name, a in rows.items()}
        if Trait.CHOOSING in rule.traits or (rule.kind is not Kind.POINTWISE and self.values(nothing).any()):
            return False
        rng = np.random.default_rng(0)  # any rows, like the compiler's check of graphs without references
        anywhere = {name: rng.normal(0, 3, a.shape) for name, a in rows.items()}
        return bool(np.isfinite(self.values(anywhere)).all())

    def _demand(
        self,
        value: np.ndarray,
        expected: np.ndarray,
        tolerance: float,
        subject: str,
        name: str,
        standard: str,
    ) -> None:
        """Demand that a value is as expected; `tolerance` is relative to max(1, largest of `expected`)."""
        off = np.abs(value.astype(np.float64) - expected)
        if off.size == 0 or off.max() <= tolerance * max(1.0, np.abs(expected).max()):
            return
        position = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
        raise AssertionError(
            f"{self.sample.label}: {subject}: {name} at {[int(i) for i in position]} is "
            f"{value[position]:.9g}, where {expected[position]:.9g} is due "
            f"({standard}; tolerance {tolerance:g})"
        )


def targets_of(model: onnx.ModelProto) -> list[int]:
    """Return a few elements of the output, not all of them."""
    size = math.prod(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim[1:])
    return sorted({0, size // 2, size - 1})


def attributions(answer: Mapping[str, np.ndarray]) -> Rows:
    return {k.removesuffix("_attributions"): v for k, v in answer.items() if k.endswith("_attributions")}


def sums(answer: Rows) -> np.ndarray:
    """Return the sums of the attributions over all inputs: [N, T]."""
    return sum((a.reshape(*a.shape[:2], -1).sum(-1) for a in attributions(answer).values()), np.zeros(()))


def on_a_grid(sample: Sample, values: Rows) -> Rows:
    """Round values to eighths of each operand's range, which include equal values, zeros and bounds."""
    ranges = [(o.low, (o.high - o.low) / 8) for o in sample.operands if isinstance(o, Var)]
    pairs = zip(values.items(), ranges, strict=True)
    return {name: low + np.round((a - low) / step) * step for (name, a), (low, step) in pairs}
