"""Every operator of the registry between Transposes, as ONNX Runtime optimises it at each of its levels.

Its optimiser moves Transposes past other operators, and so rewrites what these are told of their axes.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorShapeProto, ValueInfoProto, helper

from rationale import DeepShap, Gradient, compile_model
from rationale.errors import InvalidModelError
from rationale.testing.harness import targets_of
from tests.compiler.samples import SAMPLES, Sample
from tests.tolerances import PARITY_32

K, N = 3, 2
Level = ort.GraphOptimizationLevel
UNOPTIMISED = Level.ORT_DISABLE_ALL
LEVELS = [getattr(Level, name) for name in dir(Level) if name.startswith("ORT_ENABLE")]
QUICK = {
    "CumProd-both",
    "Pad-[3,4,5]x[8]x[]",
    "Pad-axes, negative",
    "Resize-linear by 2 and 1.5, half_pixel",
    "Resize-nearest, floor",
    "Upsample-[2,5,6]x[4]",
}

Order = Callable[[int], list[int]]


def to_second(rank: int) -> list[int]:
    """[N, H, W, C] to [N, C, H, W]."""
    return [0, rank - 1, *range(1, rank - 1)]


def to_last(rank: int) -> list[int]:
    """[N, C, H, W] to [N, H, W, C]."""
    return [0, *range(2, rank), 1]


def swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def as_it_is(rank: int) -> list[int]:
    return list(range(rank))


def transposed(model: onnx.ModelProto, before: Order, after: Order) -> onnx.ModelProto:
    """The model behind and before a Transpose, where there are axes to move; a Softsign ends it.

    With the last, what is walked back depends on x also where the model is linear.
    """
    turned = onnx.ModelProto()
    turned.CopyFrom(model)
    graph, (output,) = turned.graph, turned.graph.output
    del graph.value_info[:]
    inner = {v.name: f"{v.name}_turned" for v in graph.input} | {output.name: f"{output.name}_own"}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [inner.get(name, name) for name in names]
    nodes = list(graph.node)
    del graph.node[:]
    for value in graph.input:
        order = before(rank_of(value)) if rank_of(value) > 2 else as_it_is(rank_of(value))
        graph.node.append(helper.make_node("Transpose", [value.name], [inner[value.name]], perm=order))
        reorder(value, np.argsort(order))
    order = after(rank_of(output)) if rank_of(output) > 2 else as_it_is(rank_of(output))
    graph.node.extend(nodes)
    graph.node.append(helper.make_node("Transpose", [inner[output.name]], ["back"], perm=order))
    graph.node.append(helper.make_node("Softsign", ["back"], [output.name]))
    reorder(output, order)
    return onnx.shape_inference.infer_shapes(turned)


def rank_of(value: ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def reorder(value: ValueInfoProto, order: Sequence[int]) -> None:
    shape = value.type.tensor_type.shape
    dims = list(shape.dim)
    shape.CopyFrom(TensorShapeProto(dim=[dims[i] for i in order]))


def draw(sample: Sample, count: int, seed: int, before: Order) -> dict[str, np.ndarray]:
    """Rows as the model behind a Transpose takes them."""
    rows = sample.draw(count, seed, np.float32)
    return {
        name: a if a.ndim < 3 else np.ascontiguousarray(a.transpose(np.argsort(before(a.ndim))))
        for name, a in rows.items()
    }


def answers(
    model: onnx.ModelProto, x: dict[str, np.ndarray], level: ort.GraphOptimizationLevel
) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, x), strict=True))


def runs(model: onnx.ModelProto, x: dict[str, np.ndarray], level: ort.GraphOptimizationLevel) -> bool:
    try:
        answers(model, x, level)
    except Exception:  # of many kinds
        return False
    return True


def check(sample: Sample, before: Order, after: Order, gradient: bool = False) -> None:
    model = transposed(sample.model(np.float32), before, after)
    method = Gradient() if gradient else DeepShap(draw(sample, K, 8, before))
    x = draw(sample, 1 if sample.bare else N, 9, before)
    if runs(model, x, UNOPTIMISED) and not runs(model, x, Level.ORT_ENABLE_ALL):
        with pytest.raises(InvalidModelError, match=r"ONNX Runtime \d.* graph optimisations"):
            compile_model(model, method, targets=targets_of(model))
        return
    compiled = compile_model(model, method, targets=targets_of(model))
    want = answers(compiled.model, x, UNOPTIMISED)
    size = max(np.abs(value).max() for name, value in want.items() if name != "completeness_gap")
    for level in LEVELS:
        for name, value in answers(compiled.model, x, level).items():
            assert np.abs(value - want[name]).max() <= PARITY_32 * size, (level, name)


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe rows are where a cast to uint8 is not defined; here rows are drawn where it is."""
    monkeypatch.setattr("rationale.artifact.checks.check.demand", lambda *_: ())


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.label in QUICK], ids=lambda s: s.label)
def test_axes_are_what_they_were(sample: Sample) -> None:
    check(sample, to_second, to_last)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.label)
def test_every_operator_between_transposes(sample: Sample) -> None:
    check(sample, to_second, to_last)
    check(sample, to_second, as_it_is)
    check(sample, as_it_is, to_last)
    check(sample, swapped, swapped, gradient=True)
