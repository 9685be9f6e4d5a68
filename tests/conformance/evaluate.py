"""One case: compiled with DeepSHAP and with the gradient, in float32 and in float64, run and measured.

The body of a function consists of operators that are cases themselves: it is measured once for each method,
with DeepSHAP in float32 and with the gradient in float64.
"""

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import TensorProto

from rationale import DeepShap, Gradient
from rationale.errors import InvalidModelError, RationaleError
from rationale.graph.tensor import Chunks
from rationale.graph.variants import VariantChoices
from rationale.lowering import Lowered, lower
from rationale.methods.engine import Method, Selection, combine
from rationale.methods.propagation.path import choose_path
from rationale.references.reference_set import prepare
from rationale.schema.machine import HERE
from rationale.schema.request import CompileRequest
from tests.conformance.cases import EXPLAINED, ConformanceCase
from tests.conformance.engines import Arrays, Run, engines, in_runtime
from tests.conformance.types import retyped

MOST_TARGETS = 6
STEP = 1e-5
QUIET = 1e-12  # second differences of an evaluator in float64 stay below
EPSILON_32, LARGEST_32 = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).max)


@dataclass
class CaseOutcome:
    """What came of a case.

    Attributes:
        varying, answers: the inputs that vary and the outputs that are explained; empty if nothing compiled.
        refused: why not all of them do.
        measures: errors over the largest value, by name.
    """

    case: str
    operator: str
    varying: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    refused: str = ""
    measures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class CaseDifference:
    """A finite difference along a direction: the model's slope, by how much it may be off, what it counts."""

    direction: Arrays
    slope: np.ndarray
    unsure: np.ndarray
    size: np.ndarray


def evaluate(case: ConformanceCase) -> CaseOutcome:
    """All inputs and outputs together; where that is refused, those that are not refused alone."""
    started = time.perf_counter()
    outcome = CaseOutcome(case.name, case.operator)
    floats, answers = case.filled
    if _measured(outcome, case, floats, answers) and len(floats) + len(answers) > 2:
        refused = outcome.refused
        inputs = [i for i in floats if not _measured(outcome, case, (i,), answers[:1])]
        if inputs and (len(inputs), len(answers)) != (1, 1) and _measured(outcome, case, inputs, answers):
            _measured(outcome, case, inputs, answers[:1])
        outcome.refused = refused
    outcome.seconds = time.perf_counter() - started
    return outcome


def _measured(
    outcome: CaseOutcome, case: ConformanceCase, varying: Sequence[str], answers: Sequence[str]
) -> str:
    """Why it is refused; empty where it was measured."""
    outcome.refused = ""
    try:
        outcome.measures = dict(OneRow(case, varying, answers).measure())
        outcome.varying, outcome.answers = tuple(varying), tuple(answers)
    except RationaleError as error:
        outcome.refused = reason(error)
    except Exception as error:  # a crash is an outcome, too
        outcome.refused = f"{type(error).__name__}: {reason(error)}"
    return outcome.refused


def reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


class OneRow:
    """A case with chosen inputs and outputs."""

    def __init__(self, case: ConformanceCase, varying: Sequence[str], answers: Sequence[str]) -> None:
        self.model, self.is_body = case.one_row(varying, answers), case.is_body
        row_inputs = {f"{n}_row": _finite(case.inputs[n])[None] for n in varying}
        self.original = self._original(row_inputs)
        self.x, self.r = self._points(row_inputs)
        finite = np.flatnonzero(np.isfinite(self.answer(self.x)))
        self.targets = sorted(set(finite[np.linspace(0, finite.size - 1, MOST_TARGETS).astype(int)].tolist()))

    def _original(self, row_inputs: Arrays) -> "Run":
        """The model itself: in float64 where its operators can be evaluated so."""
        wide = retyped(self.model, TensorProto.DOUBLE)
        want = None
        try:
            narrow = in_runtime(retyped(self.model, TensorProto.FLOAT))
            want = _endless(narrow(row_inputs)[EXPLAINED])
        except InvalidModelError:
            narrow = None
        for engine in engines(wide):
            with contextlib.suppress(Exception):  # it does not know an operator, or not this use of it
                run = engine(wide)
                got = run(row_inputs)[EXPLAINED]
                if want is None or _close(got, want):
                    return run
        if narrow is None:
            raise NotImplementedError("no engine evaluates the model itself")
        return narrow

    def target_answers(self, x: Arrays) -> np.ndarray:
        """The model's own answers at the targets."""
        return self.answer(x)[self.targets]

    def answer(self, x: Arrays) -> np.ndarray:
        with np.errstate(all="ignore"):
            return _endless(np.asarray(self.original(x)[EXPLAINED], np.float64).reshape(-1))

    def _points(self, row_inputs: Arrays) -> tuple[Arrays, Arrays]:
        """Two points near the case's own inputs, where the model's answers are as finite as there."""
        is_finite = np.isfinite(self.answer(row_inputs))
        points = [row_inputs, row_inputs]
        for low, high, zero in ((0.7, 1.3, 0.2), (0.7, 1.3, 0.0), (0.7, 1.0, 0.0), (1.0, 1.3, 0.0)):
            rng = np.random.default_rng(5)
            points = [{n: _moved(a, low, high, zero, rng) for n, a in row_inputs.items()} for _ in range(2)]
            if all(np.array_equal(np.isfinite(self.answer(p)), is_finite) for p in points):
                break
        return points[0], points[1]

    def measure(self) -> Iterator[tuple[str, float]]:
        lowered = lowered_alike(self.model)
        for bits in (32, 64):
            emitted = Emitted(lowered if bits == 32 else _in_double(lowered), self.targets, self.r)
            if bits == 32 or not self.is_body:
                yield from self._completeness(emitted.by(DeepShap(self.r)), bits)
            if bits == 64 or not self.is_body:
                yield from self._slope(emitted.by(Gradient()), bits)

    def _slack(self, bits: int) -> float:
        """What half a unit in the last place of the inputs is worth, over the tolerance of float32."""
        most = max(np.abs(a).max() for x in (self.x, self.r) for a in x.values())
        return float(most) * EPSILON_32 / 1e-4 if bits == 32 else 0.0

    def _completeness(self, run: Run, bits: int) -> Iterator[tuple[str, float]]:
        answer_x, base = self.target_answers(self.x), self.target_answers(self.r)
        answer = run(self.x)
        total = sum(v.reshape(len(self.targets), -1).sum(-1) for v in attributions(answer).values())
        sizes = np.maximum(np.maximum(1.0, self._slack(bits)), np.maximum(np.abs(answer_x), np.abs(base)))
        yield f"value {bits}", worst((answer["explained_value"][0] - answer_x) / sizes)
        yield f"base {bits}", worst((answer["base_value"][0] - base) / sizes)
        change = answer["explained_value"][0].astype(float) - answer["base_value"][0]
        yield f"completeness {bits}", worst((total - change) / sizes)

    def _slope(self, run: Run, bits: int) -> Iterator[tuple[str, float]]:
        """Along a few directions."""
        answer = attributions(run(self.x))
        errors = []
        for difference in self._differences:
            slope = sum(
                answer[n].astype(float).reshape(len(self.targets), -1) @ v.reshape(-1)
                for n, v in difference.direction.items()
                if n in answer
            )
            errors.append(
                np.maximum(np.abs(slope - difference.slope) - difference.unsure, 0) / difference.size
            )
        yield f"gradient {bits}", worst(np.asarray(errors))

    @functools.cached_property
    def _differences(self) -> list["CaseDifference"]:
        """At a kink the slope lies between the one-sided ones."""
        here, noise = self.target_answers(self.x), self._noise()
        step = STEP if noise <= QUIET else max(1e-3, noise ** (1 / 3))
        slopes = []
        for direction in self._directions():
            up, down = (
                self.target_answers({n: a + s * step * direction[n] for n, a in self.x.items()})
                for s in (1, -1)
            )
            right, slope_below = (up - here) / step, (here - down) / step
            middle = (right + slope_below) / 2
            unsure = np.abs(right - slope_below) / 2 + (2 * noise / step if noise > QUIET else 0)
            size = np.maximum(1.0, np.maximum(np.abs(middle), np.abs(here)))
            slopes.append(CaseDifference(direction, middle, unsure, size))
        return slopes

    def _noise(self) -> float:
        """What an evaluator that computes in float32 inside adds to the answers."""
        rng = np.random.default_rng(11)
        direction = {n: rng.normal(size=a.shape) for n, a in self.x.items()}
        places = [
            self.target_answers({n: a + i * 1e-10 * direction[n] for n, a in self.x.items()})
            for i in range(6)
        ]
        if all(np.array_equal(np.float32(p), p) for p in places):
            return EPSILON_32 * float(np.abs(places).max())
        return float(np.abs(np.diff(places, 2, axis=0)).max())

    def _directions(self) -> Iterator[Arrays]:
        """Three in which all features move, and a few in which one does."""
        rng = np.random.default_rng(7)
        for _ in range(3):
            yield {n: rng.normal(size=a.shape) for n, a in self.x.items()}
        for name, a in self.x.items():
            for place in sorted({0, a.size // 2, a.size - 1}):
                unit = {n: np.zeros(b.shape) for n, b in self.x.items()}
                unit[name].reshape(-1)[place] = 1.0
                yield unit


def _endless(array: np.ndarray) -> np.ndarray:
    """ONNX Runtime's Attention masks by the lowest number of float32, where ONNX has −∞."""
    return np.where(np.abs(array) < LARGEST_32, array, np.sign(array) * np.inf)


def _close(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether float32 may answer so."""
    largest = np.abs(want[np.isfinite(want)]).max(initial=1.0)
    return np.allclose(got, want, rtol=1e-3, atol=1e-4 * largest, equal_nan=True)


def _finite(array: np.ndarray) -> np.ndarray:
    """A mask's −∞ as a number: references must be finite."""
    return np.nan_to_num(np.asarray(array, np.float64), nan=0.5, posinf=2.0, neginf=-2.0)


def _moved(array: np.ndarray, low: float, high: float, zero: float, rng: np.random.Generator) -> np.ndarray:
    """Elements times something between `low` and `high`; zeros leave what may be a kink by up to `zero`."""
    factor = rng.uniform(low, high, array.shape)
    moved = np.where(array == 0, factor * zero, factor * array)
    return moved.astype(np.float32).astype(np.float64)


def lowered_alike(model: onnx.ModelProto) -> Lowered:
    """The model lowered; in float32 where ONNX Runtime has its operators in no other type."""
    try:
        return lower(model)
    except InvalidModelError:
        return lower(retyped(model, TensorProto.FLOAT))


def _in_double(lowered: Lowered) -> Lowered:
    model = ir.from_proto(retyped(ir.to_proto(lowered.model), TensorProto.DOUBLE))
    specs = {
        name: (shape, ir.DataType.DOUBLE if dtype.is_floating_point() else dtype)
        for name, (shape, dtype) in lowered.specs.items()
    }
    constants = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in lowered.constants.items()}
    return replace(lowered, model=model, specs=specs, constants=constants)


class Emitted:
    """A lowered case, and the graphs made of it."""

    def __init__(self, lowered: Lowered, targets: Sequence[int], references: Arrays) -> None:
        self.lowered, self.target, self.path = choose_path(lowered, CompileRequest(targets=list(targets)))
        rows = {n: (lowered.specs[n][0], lowered.specs[n][1].numpy()) for n in self.target.inputs}
        self.references = prepare({n: references[n] for n in rows}, None, rows)
        self.narrow = all(dtype.itemsize < 8 for _, dtype in rows.values())

    def by(self, method: Method) -> Run:
        """The combined graph, in which all that depends on references alone is left to be computed."""
        references = None if method.reference_set is None else self.references
        selection = Selection(self.lowered, self.target, method, None, self.path)
        plan = combine(selection, references, VariantChoices(HERE), lambda *_: None)
        model = plan.build(Chunks())
        for step in (passes.RemoveUnusedNodesPass(), passes.TopologicalSortPass()):
            step(model)
        proto = ir.to_proto(model)
        return in_runtime(proto) if self.narrow else engines(proto)[0](proto)


def attributions(answer: Arrays) -> Arrays:
    return {k.removesuffix("_attributions"): v for k, v in answer.items() if k.endswith("_attributions")}


def worst(errors: np.ndarray) -> float:
    """The largest; infinite where something is no number."""
    return float(np.abs(errors).max()) if np.isfinite(errors).all() else np.inf
