"""Every rule, by the same tests: complete, equal to finite differences, alive at ties, right in float32."""

import functools

import numpy as np
import onnx
import pytest

from compiler import DeepShap, Gradient, compile_model
from compiler.lowering.rewrites.engine import rewritten_operators
from compiler.rules.rule import all_rules
from tests.compiler.samples import SAMPLES, Sample, Var
from tests.compiler.samples.expected import Rows, expected
from tests.references.interpreter import run64
from tests.tolerances import COMPLETE_64, DUE_64, FINITE_DIFFERENCE, NEAR, PARITY_32

N, K = 2, 3

SAMPLES_64 = [s for s in SAMPLES if s.float64]

# RoiAlign is a graph of some dozen operators by definition, each of them held here, which no values say
PINNED = [s for s in SAMPLES if s.label not in ("RoiAlign-max", "RoiAlign-regions vary")]

any_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.label)
each_sample = pytest.mark.parametrize("sample", SAMPLES_64, ids=lambda s: s.label)
each_smooth_sample = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES_64 if s.smooth], ids=lambda s: s.label
)


def targets_of(model: onnx.ModelProto) -> list[int]:
    """A few elements of the output, not all of them."""
    size = int(np.prod([d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim[1:]]))
    return sorted({0, size // 2, size - 1})


@functools.cache
def compiled64(sample: Sample, method: str) -> onnx.ModelProto:
    """The graph emitted for a float64 model, made once for all that is asked of it."""
    model = sample.model(np.float64)
    chosen = Gradient() if method == "gradient" else DeepShap(one_reference(sample))
    return compile_model(model, chosen, targets=targets_of(model)).model


def one_reference(sample: Sample) -> Rows:
    return sample.draw(1, 4, np.float64)


def run_rows(sample: Sample, model: onnx.ModelProto, x: Rows) -> np.ndarray:
    """The model's own answer; one row at a time where it was made for one."""
    name = model.graph.output[0].name
    if not sample.bare:
        return run64(model, x)[name]
    count = len(next(iter(x.values())))
    rows = [{k: v[i : i + 1] for k, v in x.items()} for i in range(count)]
    return np.concatenate([run64(model, row)[name] for row in rows])


def attributions(answer: Rows) -> Rows:
    return {k.removesuffix("_attributions"): v for k, v in answer.items() if k.endswith("_attributions")}


ROW_BY_ROW = {"Resize-axis 0"}  # what no layout of rows suits, so that it runs in a Scan


def test_every_operator_has_a_sample() -> None:
    sampled = {(s.domain, s.op_type) for s in SAMPLES}
    known = {(r.domain, r.op_type) for r in all_rules()} | set(rewritten_operators())
    assert known - sampled == {("", "EyeLike")}  # of its input nothing but the shape counts


def demand_equal(sample: Sample, x: Rows, references: Rows, weights: list[float]) -> None:
    """The attributions of N rows are those expected, finite, and add up."""
    model = sample.model(np.float64 if sample.float64 else np.float32)
    targets, tolerance = targets_of(model), COMPLETE_64 if sample.float64 else PARITY_32
    answer = run64(compile_model(model, DeepShap(references, weights), targets=targets).model, x)
    want = expected(sample, model, x, references, weights)
    for name, value in attributions(answer).items():
        due = want[name][:, targets]
        near = DUE_64 if sample.float64 else PARITY_32
        np.testing.assert_allclose(value, due, atol=near * max(1.0, np.abs(due).max()), rtol=0)
    total = sum(a.reshape(*a.shape[:2], -1).sum(-1) for a in attributions(answer).values())
    difference = answer["explained_value"] - answer["base_value"]
    scale = max(1.0, np.abs(answer["explained_value"]).max())
    assert np.abs(total - difference).max() <= tolerance * scale
    assert np.abs(answer["completeness_gap"]).max() <= tolerance * scale


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.2, 0.3]], ids=["one reference", "several"])
@pytest.mark.parametrize("sample", PINNED, ids=lambda s: s.label)
def test_attributions_are_what_is_due(
    sample: Sample, weights: list[float], request: pytest.FixtureRequest
) -> None:
    """Value by value, as the references have it: what is added in every order, or the method's formula."""
    if sample.float64:
        request.getfixturevalue("float64_engine")
    dtype = np.float64 if sample.float64 else np.float32
    demand_equal(sample, sample.draw(N, 1, dtype), sample.draw(len(weights), 2, dtype), weights)


def central_differences(
    sample: Sample, model: onnx.ModelProto, x: Rows, name: str, h: float = 1e-5
) -> np.ndarray:
    """[N, outputs, features of `name`]; the F steps of each row are rows of one run."""
    features = x[name][0].size
    steps = np.eye(features).reshape(features, 1, *x[name].shape[1:]) * h
    many = {other: np.concatenate([a] * features) for other, a in x.items()}
    ends = [
        run_rows(sample, model, {**many, name: (x[name] + sign * steps).reshape(many[name].shape)})
        for sign in (1, -1)
    ]
    change = (ends[0] - ends[1]) / (2 * h)
    return np.moveaxis(change.reshape(features, N, -1), 0, -1)


@each_smooth_sample
@pytest.mark.usefixtures("float64_engine")
def test_the_gradient_is_the_finite_difference(sample: Sample) -> None:
    x = sample.draw(N, 3, np.float64)
    model = sample.model(np.float64)
    targets = targets_of(model)
    got = attributions(run64(compiled64(sample, "gradient"), x))
    for name, value in got.items():
        want = central_differences(sample, model, x, name)[:, targets].reshape(value.shape)
        np.testing.assert_allclose(value, want, atol=FINITE_DIFFERENCE * max(1.0, np.abs(want).max()), rtol=0)


@each_smooth_sample
@pytest.mark.usefixtures("float64_engine")
def test_near_the_reference_deepshap_is_the_gradient(sample: Sample) -> None:
    """Multipliers must not lose their precision as x − r shrinks: here to 1e-9 of x."""
    references = one_reference(sample)
    x = {name: a * (1 + 1e-9) for name, a in references.items()}
    gradient, deepshap = (attributions(run64(compiled64(sample, m), x)) for m in ("gradient", "deepshap"))
    for name, value in deepshap.items():
        delta = (x[name] - references[name])[:, None]
        want = gradient[name] * delta
        np.testing.assert_allclose(value, want, atol=NEAR * max(np.abs(want).max(), 1e-300), rtol=0)


@each_sample
@pytest.mark.usefixtures("float64_engine")
def test_at_the_reference_there_is_nothing_to_attribute(sample: Sample) -> None:
    answer = run64(compiled64(sample, "deepshap"), one_reference(sample))
    for value in attributions(answer).values():
        assert np.array_equal(value, np.zeros_like(value))


def on_a_grid(sample: Sample, values: Rows) -> Rows:
    """Eighths of each operand's range: equal values, zeros, and the bounds that samples have there."""
    ranges = [(o.low, (o.high - o.low) / 8) for o in sample.operands if isinstance(o, Var)]
    pairs = zip(values.items(), ranges, strict=True)
    return {name: low + np.round((a - low) / step) * step for (name, a), (low, step) in pairs}


@pytest.mark.parametrize("sample", [s for s in PINNED if s.float64], ids=lambda s: s.label)
@pytest.mark.usefixtures("float64_engine")
def test_at_ties_and_zeros_attributions_are_what_is_due(sample: Sample) -> None:
    """Half of the features equal their reference, or both are the same number everywhere."""
    references, x = (on_a_grid(sample, sample.draw(n, 5 + n, np.float64)) for n in (1, N))
    for name, value in x.items():
        flat, own = value.reshape(N, -1), references[name].reshape(1, -1)
        flat[:, ::2] = own[:, ::2]
        if value.min() < 0 < value.max():
            flat[0, 1::2] = 0.0
            own[0, 1::4] = 0.0
    demand_equal(sample, x, references, [1.0])


@any_sample
@pytest.mark.parametrize("method", ["deepshap", "gradient"])
def test_the_float32_graph_means_what_its_nodes_mean_in_float64(sample: Sample, method: str) -> None:
    model = sample.model(np.float32)
    chosen = DeepShap(sample.draw(K, 8, np.float32)) if method == "deepshap" else Gradient()
    x = sample.draw(N, 9, np.float32)
    compiled = compile_model(model, chosen, targets=targets_of(model))
    assert ("Scan" in {n.op_type for n in compiled.model.graph.node}) <= (sample.label in ROW_BY_ROW)
    got, want = compiled.explain(x), run64(compiled.model, x)
    size = max(np.abs(value).max() for name, value in want.items() if name != "completeness_gap")
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= PARITY_32 * size, name
    assert np.abs(got.get("completeness_gap", np.zeros(1))).max() <= PARITY_32 * size
