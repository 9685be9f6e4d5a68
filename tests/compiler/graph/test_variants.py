"""Every form of a task answers what the others answer; which one is taken is a matter of speed alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from compiler import DeepShap, Deployment, compile_model
from compiler.deployment import HERE
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.graph.tune import trial
from compiler.graph.variants import Form, Forms, Site, Task, all_tasks
from compiler.rules.linear.conv_adjoint import Geometry
from compiler.rules.secants import Rescaling
from compiler.rules.windows.pool import PoolGeometry
from tests.compiler.samples import SAMPLES
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
    given = {"group": 1, "channels": 4, "filters": 6} | more
    return Geometry(size, out, kernel, strides, (dilation,) * n, pads, **given)


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
RESCALINGS = [Rescaling(5, shared=False), Rescaling(5, shared=True)]
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
CASES = {
    "convolution adjoint": (CONVOLUTIONS, convolution_operands, ["NK", ""]),
    "values to a pool's winners": (POOLS, pool_operands, ["NK", "NK"]),
    "rescale rule of a ReLU": (RESCALINGS, relu_operands, ["NK", "N", "K"]),
}
EVERY = [
    pytest.param(all_tasks()[name], g, make, leads, id=f"{name}-{i}")
    for name, (geometries, make, leads) in CASES.items()
    for i, g in enumerate(geometries)
]


def scratch() -> Ops:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="scratch")
    return Ops(graph, 21, {"T": 1, "K": ROWS, "S": 1}, ir.DataType.DOUBLE)


def tensors(op: Ops, arrays: list[np.ndarray], leads: list[str]) -> list[Tensor]:
    """As a rule would hand them over."""
    made = []
    for array, lead in zip(arrays, leads, strict=True):
        held = op.along(array, "K") if lead else op.constant(array)
        computed = replace(held, value=ir.Value(name="computed"), lead=frozenset(lead))
        made.append(computed if "N" in lead else held)
    return made


def answer(form: Form, arrays: list[np.ndarray], leads: list[str], g: object) -> np.ndarray:
    model = ir.to_proto(trial(scratch(), form, tensors(scratch(), arrays, leads), g))
    inputs = {f"operand_{i}": a for i, (a, lead) in enumerate(zip(arrays, leads, strict=True)) if "N" in lead}
    (result,) = run64(model, inputs).values()
    return result


def test_every_task_has_cases() -> None:
    assert set(CASES) == set(all_tasks())


def test_every_form_fits_somewhere() -> None:
    for name, (geometries, _, _) in CASES.items():
        tried = {form.name for g in geometries for form in all_tasks()[name].fitting(g)}
        assert tried == set(all_tasks()[name].forms)


@pytest.mark.parametrize(("task", "g", "make", "leads"), EVERY)
def test_forms_agree(
    task: Task, g: object, make: Callable[[object], list[np.ndarray]], leads: list[str]
) -> None:
    arrays = make(g)
    forms = task.fitting(g)
    answers = [answer(form, arrays, leads, g) for form in forms]
    assert np.abs(answers[0]).max() > 0
    for form, got in zip(forms, answers, strict=True):
        assert got.shape == answers[0].shape, form.name
        assert np.abs(got - answers[0]).max() <= COMPLETE_64 * np.abs(answers[0]).max(), form.name


@pytest.mark.parametrize(("task", "g", "make", "leads"), EVERY)
def test_the_least_cost_is_taken(
    task: Task, g: object, make: Callable[[object], list[np.ndarray]], leads: list[str]
) -> None:
    for deployment in (Deployment(threads=1), Deployment(threads=2), Deployment(provider="cuda")):
        op, site = scratch(), Site(g, ROWS, deployment)
        chosen = Forms(deployment).choose(task, op, tensors(op, make(g), leads), g)
        assert chosen.cost(site) == min(form.cost(site) for form in task.fitting(g))


def test_a_stopwatch_decides_and_is_recorded() -> None:
    (task, g, make, leads) = EVERY[0].values
    forms = [form.name for form in task.fitting(g)]
    chooser = Forms(HERE, stopwatch=lambda *_: {name: float(i == 1) * -1.0 for i, name in enumerate(forms)})
    op = scratch()
    assert chooser.choose(task, op, tensors(op, make(g), leads), g).name == forms[1]
    assert chooser.choose(task, op, tensors(op, make(g), leads), g).name == forms[1]
    assert chooser.taken == {f"{task.name}: {forms[1]}": 2}
    assert [list(times) for times in chooser.timed.values()] == [forms]


def test_tuning_changes_nothing_but_the_forms() -> None:
    sample = next(s for s in SAMPLES if s.label == "Conv-stride 2")
    model, references = sample.model(np.float32), sample.draw(4, 1, np.float32)
    x = sample.draw(2, 2, np.float32)
    plain = compile_model(model, DeepShap(references), targets=[0]).explain(x)
    tuned = compile_model(model, DeepShap(references), targets=[0], deployment=Deployment(tune=True))
    assert tuned.manifest.forms is not None
    assert set(tuned.manifest.forms.taken) <= {
        f"{task.name}: {form}" for task in all_tasks().values() for form in task.forms
    }
    assert all(min(times.values()) > 0 for times in tuned.manifest.forms.timed.values())
    assert len(tuned.manifest.forms.timed) == 1
    for name, value in tuned.explain(x).items():
        np.testing.assert_allclose(value, plain[name], atol=1e-5, rtol=0)
