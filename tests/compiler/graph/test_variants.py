"""Every variant of a task answers what the others answer; which one is taken is a matter of speed alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from rationale.graph.ops import Ops, along
from rationale.graph.tensor import Tensor
from rationale.graph.variants import TASKS, Site, Task, TaskVariant, VariantChoices
from rationale.rules.linear.conv_adjoint import Geometry
from rationale.rules.windows.pool import PoolGeometry
from rationale.schema.machine import HERE, Deployment
from tests.references.interpreter import run64
from tests.tolerances import COMPLETE_64

ROWS = 3
RNG = np.random.default_rng(0)


def geometry(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    **more: int,
) -> Geometry:
    n = len(size)
    dilation = more.pop("dilation", 1)
    window = [(k - 1) * dilation + 1 for k in kernel]
    out = tuple((size[i] + pads[i] + pads[n + i] - window[i]) // strides[i] + 1 for i in range(n))
    sizes = {"group": 1, "channels": 4, "filters": 6} | more
    return Geometry(size, out, kernel, strides, (dilation,) * n, pads, **sizes)


CONVOLUTIONS = [
    geometry((6, 5), (3, 3), (1, 1), (1, 1, 1, 1)),
    geometry((7, 8), (3, 3), (1, 1), (0, 0, 0, 0)),
    geometry((7, 8), (3, 3), (1, 1), (1, 0, 0, 1), channels=16, filters=32),
    geometry((6, 5), (3, 2), (1, 1), (2, 0, 1, 1), channels=9),
    geometry((6, 5), (1, 1), (1, 1), (0, 0, 0, 0)),
    geometry((8, 6), (3, 3), (2, 2), (1, 1, 1, 1)),
    geometry((7, 9), (3, 3), (2, 2), (1, 1, 1, 1)),
    geometry((7, 8), (3, 3), (2, 2), (0, 0, 1, 1)),
    geometry((14, 12), (7, 7), (2, 2), (3, 3, 3, 3), channels=3),
    geometry((9, 11), (4, 3), (3, 2), (1, 0, 2, 1)),
    geometry((8, 8), (5, 5), (2, 2), (2, 2, 2, 2), group=4, filters=8),
    geometry((8, 6), (1, 1), (2, 2), (0, 0, 0, 0)),
    geometry((9, 7), (3, 3), (1, 1), (1, 1, 1, 1), dilation=2),
    geometry((9,), (3,), (2,), (1, 0)),
    geometry((5, 4, 6), (2, 3, 2), (1, 1, 1), (1, 1, 1, 0, 1, 0)),
]
RESCALINGS = [False, True]  # whether references share m
POOLS = [PoolGeometry((4, 6, 8), (3, 4), (2, 2), True), PoolGeometry((4, 9), (3,), (3,), True)]


def convolution_operands(g: Geometry) -> list[np.ndarray]:
    weights = RNG.standard_normal((g.filters, g.channels // g.group, *g.kernel))
    return [RNG.standard_normal((ROWS, g.filters, *g.out)), weights]


def pool_operands(g: PoolGeometry) -> list[np.ndarray]:
    """A winner inside each window, as a place in the plane."""
    channels, *size = g.shape
    values = RNG.standard_normal((ROWS, channels, *g.out))
    corners = np.meshgrid(*(np.arange(o) * s for o, s in zip(g.out, g.strides, strict=True)), indexing="ij")
    inside = [c + RNG.integers(0, s, values.shape) for c, s in zip(corners, g.strides, strict=True)]
    places = np.ravel_multi_index(tuple(inside), tuple(size))
    return [values, places.astype(np.int32)]


def relu_operands(_: object) -> list[np.ndarray]:
    """m, x and r [ROWS, …], ties and zeros among them."""
    m, x, r = RNG.standard_normal((3, ROWS, 4, 5))
    x[0, :, ::2], x[1, 0], r[1, 0, :2] = r[0, :, ::2], 0.0, 0.0
    return [m, x[:1], r]


# by task: geometries, their operands, and the axes over which each of them varies
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "convolution adjoint": (CONVOLUTIONS, convolution_operands, ["NK", ""]),
    "values to a pool's winners": (POOLS, pool_operands, ["NK", "NK"]),
    "rescale rule of a ReLU": (RESCALINGS, relu_operands, ["NK", "N", "K"]),
}
EVERY = [
    pytest.param(TASKS[name], g, make, varying_axes, id=f"{name}-{i}")
    for name, (geometries, make, varying_axes) in CASES.items()
    for i, g in enumerate(geometries)
]


def emitted(
    emit: Callable[..., Tensor], arrays: list[np.ndarray], varying_axes: list[str], on: Deployment = HERE
) -> tuple[Ops, dict[str, np.ndarray]]:
    """Emits into a graph of its own: what varies over the batch is its input, everything else a constant."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="scratch")
    op = Ops(graph, 21, {"T": 1, "K": ROWS, "S": 1}, ir.DataType.DOUBLE, VariantChoices(on))
    operands, inputs = [], {}
    for array, batch_axes in zip(arrays, varying_axes, strict=True):
        if "N" not in batch_axes:
            operands.append(along(op, array, "K") if batch_axes else op.constant(array))
            continue
        name, dtype = f"operand_{len(operands)}", ir.DataType.from_numpy(array.dtype)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None, *array.shape[1:]]))
        graph.inputs.append(value)
        inputs[name] = array
        operands.append(Tensor(value, (1, *array.shape[1:]), dtype, frozenset(batch_axes), rows=True))
        op.bind_batch(replace(operands[-1], shape=array.shape))
    result = op.flat(emit(op, *operands))
    result.value.dtype = result.dtype
    graph.outputs.append(result.value)
    return op, inputs


def answer(variant: TaskVariant, arrays: list[np.ndarray], varying_axes: list[str], g: object) -> np.ndarray:
    op, inputs = emitted(lambda op, *operands: variant.emit(op, *operands, g), arrays, varying_axes)
    (result,) = run64(ir.to_proto(ir.Model(op.graph, ir_version=10)), inputs).values()
    return result


def test_every_task_has_cases() -> None:
    assert set(CASES) == set(TASKS)


def test_every_variant_fits_somewhere() -> None:
    for name, (geometries, _, _) in CASES.items():
        tried = {v.name for g in geometries for v in TASKS[name].fitting(g)}
        assert tried == set(TASKS[name].variants)


@pytest.mark.parametrize(("task", "g", "make", "varying_axes"), EVERY)
def test_variants_agree(
    task: Task, g: object, make: Callable[[object], list[np.ndarray]], varying_axes: list[str]
) -> None:
    arrays = make(g)
    variants = task.fitting(g)
    answers = [answer(variant, arrays, varying_axes, g) for variant in variants]
    assert np.abs(answers[0]).max() > 0
    for variant, got in zip(variants, answers, strict=True):
        assert got.shape == answers[0].shape, variant.name
        assert np.abs(got - answers[0]).max() <= COMPLETE_64 * np.abs(answers[0]).max(), variant.name


@pytest.mark.parametrize(("task", "g", "make", "varying_axes"), EVERY)
def test_the_least_cost_is_taken(
    task: Task, g: object, make: Callable[[object], list[np.ndarray]], varying_axes: list[str]
) -> None:
    for deployment in (Deployment(threads=1), Deployment(threads=2), Deployment(provider="cuda")):
        op, _ = emitted(partial(task, geometry=g), make(g), varying_axes, deployment)
        variant = next(iter(op.variants.uses))  # it may take others in turn
        cost = {f"{task.name}: {v.name}": v.cost(Site(g, ROWS, deployment)) for v in task.fitting(g)}
        assert cost[variant] == min(cost.values())
