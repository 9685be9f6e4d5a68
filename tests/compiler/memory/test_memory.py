"""A smaller budget walks the references in chunks, recomputes them, and answers the same."""

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale import (
    Compiled,
    DeepShap,
    Deployment,
    ExpectedGradients,
    Gradient,
    IntegratedGradients,
    SmoothGrad,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.errors import InvalidOptionError
from rationale.graph.memory.budget import (
    COPIES,
    SHARE,
    SLOWER,
    START,
    WORK_FACTOR,
    Need,
    Region,
    RowNeed,
    budget_warnings,
    check_budget,
    choose_axes,
    choose_precomputed,
    peak,
    rows_that_fit,
    sizes,
)
from rationale.graph.memory.scan import to_float16
from rationale.graph.runtime.session import MAPPED_BYTES, ModelFile
from rationale.graph.tensor import DOMAIN, Axis, Chunks
from rationale.schema.manifest import Memory
from tests.compiler.models import cnn, mlp, parsed, rows, two_inputs
from tests.references.interpreter import run64
from tests.tolerances import COMPLETE_64, PARITY_32

K = 23  # no multiple of a chunk of 2 to 22
WIDE = (5, 60, 3)
WEIGHTS = np.random.default_rng(3).random(K) + 0.1

MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Any]] = {
    "perceptron": (lambda: mlp(WIDE), rows(K, 5)),
    "one output": (lambda: mlp((5, 60, 1), last="Sigmoid"), rows(K, 5)),
    "two inputs": (two_inputs, {"a": rows(K, 3), "b": rows(K, 4, seed=1)}),
    "images": (cnn, rows(K, 2, 6, 8)),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "deepshap": lambda r: DeepShap(r, WEIGHTS, standard_error=True),
    "equal weights": lambda r: DeepShap(r),
    "no weight at first": lambda r: DeepShap(r, np.where(np.arange(K) < 12, 0, WEIGHTS), standard_error=True),
    "integrated, references in chunks": lambda r: IntegratedGradients(r, steps=3, standard_error=True),
    "integrated, points in chunks": lambda r: IntegratedGradients(r, steps=17),
    "one baseline": lambda _: IntegratedGradients(0.1, steps=17),
    "expected": lambda r: ExpectedGradients(r, samples=17, standard_error=True),
    "smooth": lambda _: SmoothGrad(17, 0.3, standard_error=True),
}


def compiled(model: onnx.ModelProto, method: Any, budget: int | None = None) -> Compiled:
    machine = Deployment() if budget is None else Deployment(memory_budget=budget)
    return compile_model(model, method, targets="all", deployment=machine)


def memory_of(compiled: Compiled) -> Memory:
    assert compiled.manifest.memory is not None
    return compiled.manifest.memory


def walked(model: onnx.ModelProto, method: Any) -> list[tuple[str, Compiled]]:
    """By ever smaller budgets, as long as one is accepted: each way in which the references are walked."""
    whole = compiled(model, method)
    by_size = {(memory_of(whole).chunk, memory_of(whole).recomputed): whole}
    for share in (0.8, 0.5, 0.25, 0.125):
        try:
            chunked = compiled(model, method, int(memory_of(whole).needed * share))
        except InvalidOptionError:
            break
        memory = memory_of(chunked)
        assert memory.needed <= memory.budget
        by_size.setdefault((memory.chunk, memory.recomputed), chunked)
    return [(f"{chunk} at a time, {recomputed:.0%} again", c) for (chunk, recomputed), c in by_size.items()]


def inputs_of(model: onnx.ModelProto, count: int = 2) -> dict[str, np.ndarray]:
    tensors = {v.name: v.type.tensor_type for v in model.graph.input}
    return {
        name: rows(count, *(d.dim_value for d in t.shape.dim[1:]), seed=7 + i)
        for i, (name, t) in enumerate(tensors.items())
    }


CASES = [("perceptron", method) for method in METHODS]
CASES += [(name, method) for name in ("two inputs", "images") for method in ("deepshap", "equal weights")]
CASES += [("one output", "deepshap")]
CASES += [("images", "integrated, references in chunks")]


@pytest.mark.usefixtures("float64_engine")
@pytest.mark.parametrize(("name", "method"), CASES)
def test_every_budget_gives_the_same_answer(name: str, method: str) -> None:
    make, references = MODELS[name]
    model = make()
    (_, whole), *chunked = walked(model, METHODS[method](references))
    x = inputs_of(model)
    expected = run64(whole.model, x)
    assert chunked
    assert all(any(n.op_type == "Scan" for n in c.model.graph.node) for _, c in chunked)
    for how, in_chunks in chunked:
        answer = run64(in_chunks.model, x)
        assert set(answer) == set(expected)
        for output, value in expected.items():
            scale = max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(
                answer[output] / scale, value / scale, rtol=0, atol=COMPLETE_64, err_msg=f"{how}: {output}"
            )


def test_a_budget_that_one_reference_does_not_fit() -> None:
    with pytest.raises(
        InvalidOptionError, match=r"budget of 1 KB .* at a time take .* Raise --memory-budget"
    ):
        compiled(mlp(WIDE), DeepShap(rows(K, 5)), 1024)


def test_constants_that_a_chunk_reads_stand_in_its_graph() -> None:
    model, method = mlp(WIDE), DeepShap(rows(K, 5))
    graph = compiled(model, method, memory_of(compiled(model, method)).needed // 2).model
    (scan,) = (node for node in graph.graph.node if node.op_type == "Scan")
    (body,) = (a.g for a in scan.attribute if a.name == "body")
    outside = {tensor.name for tensor in graph.graph.initializer}
    assert body.initializer
    assert outside.isdisjoint(name for node in body.node for name in node.input)


def test_without_references_there_is_nothing_to_chunk() -> None:
    gradient = compiled(mlp(WIDE), Gradient(), 1024)
    memory = memory_of(gradient)
    assert (memory.chunk, memory.chunks) == (None, 1)
    assert "memory budget of 1 KB" in gradient.manifest.warnings[-1]


def test_an_entry_in_chunks_is_written_and_opened_again(tmp_path: Path) -> None:
    method = DeepShap(rows(K, 5), WEIGHTS)
    whole = compiled(mlp(WIDE), method)
    in_chunks = compiled(mlp(WIDE), method, memory_of(whole).needed // 2)
    assert memory_of(in_chunks).chunk is not None
    in_chunks.write(tmp_path, "m")
    reopened = open_entry(tmp_path, "m")
    assert reopened.manifest.memory == in_chunks.manifest.memory
    x = inputs_of(mlp(WIDE))
    for name, value in whole.explain(x).items():
        np.testing.assert_allclose(reopened.explain(x)[name], value, rtol=0, atol=PARITY_32)


@pytest.mark.parametrize("name", MODELS)
def test_float16_halves_what_is_baked_at_an_error_that_is_measured(name: str) -> None:
    make, references = MODELS[name]
    x = inputs_of(make())
    whole = compiled(make(), DeepShap(references))
    halved = compile_model(
        make(), DeepShap(references), targets="all", deployment=Deployment(storage="float16")
    )
    memory = memory_of(halved)
    assert memory.storage == "float16"
    assert memory.chunks == 1
    assert memory.storage_error is not None
    assert 0 < memory.storage_error < 1e-2
    assert memory.baked < memory_of(whole).baked
    answers, expected = halved.explain(x), whole.explain(x)
    for entry in whole.manifest.explained:
        value = expected[entry.attributions]
        error = np.abs(answers[entry.attributions] - value).max() / np.abs(value).max()
        assert 0 < error < 1e-2
    np.testing.assert_array_equal(answers["base_value"], expected["base_value"])


CUTS: dict[tuple[int, int], list[list[int]]] = {
    (6, 3): [[0, 1, 2], [3, 4, 5]],
    (5, 3): [[0, 1, 2], [3, 4, 4]],
    (4, 3): [[0, 1, 2], [3, 3, 3]],
    (3, 1): [[0], [1], [2]],
    (2, 2): [[0, 1]],
}


@pytest.mark.parametrize(("count", "size"), CUTS)
def test_the_last_chunk_is_filled_up(count: int, size: int) -> None:
    axis, expected = Axis(count, size), np.asarray(CUTS[count, size])
    array = np.arange(1, count + 1)[:, None] * np.float32([1, 10])
    assert (axis.chunks, axis.is_even) == (len(expected), count % size == 0)
    np.testing.assert_array_equal(axis.cut(array), (expected[..., None] + 1) * [1, 10])
    real = np.arange(expected.size).reshape(expected.shape)[..., None] < count
    np.testing.assert_array_equal(axis.cut(array, zeros=True), axis.cut(array) * real)


def test_numbers_that_float16_does_not_hold_stay_as_they_are() -> None:
    array = rows(3, 4, 5)
    assert to_float16(array).dtype == np.float16
    for scale in (1e6, 1e-9):
        assert to_float16(array * np.float32(scale)).dtype == np.float32
    assert to_float16(np.arange(6).reshape(2, 3)).dtype == np.int64


def test_nodes_stand_as_early_as_what_they_read_allows() -> None:
    """Of what a node reads ONNX Runtime computes first what stands last: the walk, not what it needs."""
    deepshap = compiled(mlp(WIDE), DeepShap(rows(K, 5)))
    level: dict[str, int] = {}
    levels = []
    for node in deepshap.model.graph.node:
        levels.append(1 + max((level.get(name, 0) for name in node.input), default=0))
        level.update(dict.fromkeys(node.output, levels[-1]))
    assert levels == sorted(levels)
    assert len(set(levels)) < len(levels)


def test_a_model_in_a_file_leaves_nothing_behind() -> None:
    file = ModelFile(ir.from_proto(mlp()))
    folder = file.path.parent
    assert (folder / "model.onnx").is_file()
    del file
    gc.collect()
    assert not folder.exists()


def test_the_later_layers_are_kept_whatever_order_the_walk_back_reads_them_in() -> None:
    """Activations shrink with depth, and stand in the reverse order of their layers."""
    chunk = ir.node("Chunk", [], {"axis": "k", "part": 0}, domain=DOMAIN)
    layers = [chunk]
    for _ in range(3):
        layers.append(ir.node("Relu", [layers[-1].outputs[0]]))
    read = [ir.node("Identity", [layer.outputs[0]]) for layer in reversed(layers[1:])]
    body = [ir.node("Neg", [node.outputs[0]]) for node in read]
    size = {v: n for layer, n in zip(layers[1:], (100, 10, 1), strict=True) for v in layer.outputs}
    size |= {v: n for node, n in zip(read, (1, 10, 100), strict=True) for v in node.outputs}
    region = Region("k", [*layers, *read], body)
    chosen = choose_precomputed(region, size, size, room=12)
    assert set(chosen.values) == {read[0].outputs[0], read[1].outputs[0]}
    assert chosen.recomputed == pytest.approx(200 / 222)  # the first layer and what is read of it


# -- arithmetic -------------------------------------------------------------------------------------------


def test_what_a_graph_takes_in_all() -> None:
    """The work as often as ONNX Runtime holds it, or what compiling takes; weights twice if not mapped."""
    assert Need(100, 10, 7, 20).total == COPIES * 100 + 10 + WORK_FACTOR * 7
    assert Need(100, 10, 7, 22).total == COPIES * 100 + 10 + 22
    assert Need(100, 10, 7, 20, chunked=True).total == COPIES * 100 + 10 + WORK_FACTOR * 7
    large = Need(MAPPED_BYTES - 1, 1, 7, 0, chunked=True)
    assert large.total == MAPPED_BYTES + WORK_FACTOR * 7
    assert Need(MAPPED_BYTES - 1, 1, 7, 0).total == COPIES * (MAPPED_BYTES - 1) + 1 + WORK_FACTOR * 7


@pytest.mark.parametrize(
    ("count", "work", "room", "size"),
    [
        (10, 1.0, 1e9, 10),
        (10, START, 3 * START, 2),
        (9, START, 2.9 * START, 2),
        (10, START, 2.9 * START, 2),
        (10, START, 0.5 * START, 1),
        (9, START, 3 * START, 3),
        (7, 100 * START, 1e12, 1),
    ],
)
def test_chunks_are_as_quick_as_the_room_allows(count: int, work: float, room: float, size: int) -> None:
    """Against the least size within 3% of the quickest, tried one by one."""
    need = Need(50, 0, int(count * work), 0)
    budget = int(COPIES * 50 + room * SHARE)
    chosen = choose_axes(need, {"K": RowNeed(count, work, 0.0)}, budget)["K"]
    fitting = [n for n in range(1, count + 1) if n == 1 or n * work <= room]
    times = {n: -(-count // n) * (n * work + START) for n in fitting}
    assert chosen == Axis(count, min(n for n in fitting if times[n] <= SLOWER * min(times.values())))
    assert chosen.size == size


def test_what_is_not_of_the_axis_stands_beside_its_chunks() -> None:
    """Work that the rows have no part in is held whatever the chunk is; folding counts where it is more."""
    work = START
    beside = Need(0, 0, int(8 * work + 1000 * work), 0)
    rows_ = {"K": RowNeed(8, work, 0.0)}
    full = int(WORK_FACTOR * 1000 * work + SHARE * 4 * work)
    assert choose_axes(beside, rows_, full)["K"].size == 4
    assert choose_axes(beside, rows_, int(WORK_FACTOR * 1000 * work))["K"].size == 1
    assert choose_axes(beside, {"K": RowNeed(8, work, 2 * work)}, full)["K"].size == 2


@pytest.mark.parametrize(("room", "most"), [(0, 1), (2, 1), (29, 9), (30, 10), (10**9, 64)])
def test_rows_of_a_batch(room: int, most: int) -> None:
    memory = Memory(budget=COPIES * 100 + 50 + room, needed=0, weights=100, baked=50, work=1)
    assert rows_that_fit(memory) == most


def test_what_is_told_of_a_budget() -> None:
    fits = Memory(budget=2048, needed=2048, weights=0, baked=0, work=1)
    assert budget_warnings(fits) == ()
    (warning,) = budget_warnings(fits.model_copy(update={"needed": 3072}))
    assert re.search(r"\b3 KB\b.*\b2 KB\b", warning)
    need = Need(1024, 0, 0, 0)
    check_budget(need, COPIES * 1024)
    with pytest.raises(InvalidOptionError, match=r"\b2 KB .*2 KB \(1 KB .*--memory-budget"):
        check_budget(need, COPIES * 1024 - 1)


def test_the_most_that_is_alive_at_once() -> None:
    """Each value until its last reader; what is a view of another takes nothing, and keeps it alive."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 4]))
    a = ir.node("Relu", [x])
    b = ir.node("Neg", [a.outputs[0]])
    view = ir.node("Flatten", [b.outputs[0]])
    c = ir.node("Abs", [a.outputs[0]])
    d = ir.node("Neg", [view.outputs[0]])
    nodes = [a, b, view, c, d]
    size = dict(zip((n.outputs[0] for n in nodes), (100, 10, 10, 40, 3), strict=True))
    assert peak(nodes, size) == 150
    assert peak([a, b, view, d, c], size) == 140
    assert peak(nodes, size, [b.outputs[0], d.outputs[0], x]) == 13
    assert peak([], size) == 0


def test_bytes_of_one_row() -> None:
    text = """g (float[N, 3, 4] x) => (float[N, 3] y, bool[N, 3, 4] b) {
        h = Tanh (x)  s = Cast <to = 11> (h)  y = ReduceSum <keepdims = 0> (h, axes)  b = Greater (h, h)
    }"""
    model = ir.from_proto(parsed(text, {"axes": np.int64([2])}))
    bytes_of = {str(v.name): n for v, n in sizes(model, Chunks()).items()}
    assert bytes_of == {"h": 48, "s": 96, "y": 12, "b": 12}
