"""Random graphs of every operator there is: complete, equal to finite differences, row by row.

A failure prints the graph's seed and steps, from which it is made again, shrunk to the steps it needs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, note, seed, settings
from onnx import numpy_helper

from rationale import DeepShap, Gradient, compile_model
from rationale.graph.memory.fit import fit
from rationale.graph.runtime.session import Runner
from rationale.graph.variants import VariantChoices
from rationale.lowering import Lowered, lower
from rationale.lowering.loading.load import load
from rationale.methods.engine import Method, combine
from rationale.references.reference_set import prepare
from rationale.schema.machine import HERE
from rationale.schema.request import CompileRequest
from tests.fuzz.graphs import CLASSES, ROWS, Fuzzed, fuzzed_graphs, in_float32, in_float64
from tests.references.engine import computing_in_float64
from tests.references.interpreter import run64
from tests.tolerances import FUZZED_32, FUZZED_64, FUZZED_SLOPE, KINK

TARGETS = list(range(CLASSES))
FUZZ = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
NUDGE, NUDGES = 32, 4  # roundings that rows are moved by, and how many times; 2 of 150 graphs are left out
STRADDLE = 1e-5  # over the larger of 1 and the value before a step; roundings of 1e-16 pass 1e-11 on
STEPS = frozenset(
    {"Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "QuantizeLinear"}
    | {"Round", "Sign"}
)
Arrays = dict[str, np.ndarray]


def check_in_float64(graph: Fuzzed) -> None:
    assume(not jumps(graph) and not straddles_a_step(graph))
    with computing_in_float64():
        lowered = lower(graph.model)
        check_deepshap(graph, lowered)
        check_gradient(graph, lowered)


def jumps(graph: Fuzzed) -> bool:
    """Whether the model's own answers change with roundings of its rows, or its references, in float64.

    What should be 0 is 1e-17 somewhere: a comparison with 0 is an accident then, and has no share to give.
    """
    rows = every_row(graph)
    expected = run64(graph.model, rows)
    moved = [run64(graph.model, nudged(rows, i)) for i in range(NUDGES)]
    return any(
        np.abs(m[name] - value).max() > FUZZED_64 * max(1.0, np.abs(value).max())
        for m in moved
        for name, value in expected.items()
    )


def straddles_a_step(graph: Fuzzed) -> bool:
    """Tell whether two rows lie on both sides of a step of the model, and less than STRADDLE apart before it.

    Their secant is larger than 1 / STRADDLE, and multiplies the rounding of the values before the step.
    """
    rows = every_row(graph)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.model.graph.initializer}
    values = {**rows, **constants, **run64(with_every_value(graph.model), rows)}
    return any(parts_neighbours(node, values) for node in graph.model.graph.node if node.op_type in STEPS)


def parts_neighbours(step: onnx.NodeProto, values: Arrays) -> bool:
    before, after = values[step.input[0]].astype(np.float64), values[step.output[0]].astype(np.float64)
    if len(step.input) == 2:  # a comparison: its step lies where both are equal
        before = before - values[step.input[1]]
    gaps, jumps = (np.abs(value[:, None] - value[None]) for value in (before, after))
    return bool(((jumps > 0) & (gaps < STRADDLE * np.maximum(1.0, np.abs(before)))).any())


def every_row(graph: Fuzzed) -> Arrays:
    return {name: np.concatenate([row, graph.references[name]]) for name, row in graph.rows.items()}


def check_deepshap(graph: Fuzzed, lowered: Lowered) -> None:
    """The model's own answer is kept, attributions add up, and rows do not mix."""
    references = {n: graph.references[n] for n in graph.explained}
    model = combined(graph, lowered, DeepShap(references, graph.weights))
    answer = finite(run64(model, graph.rows))
    shares = summed(answer)
    size = max([1.0, *(magnitude.max() for magnitude in summed(answer, lambda m, _: np.abs(m)).values())])
    for name, answer64 in run64(graph.model, graph.rows).items():
        np.testing.assert_allclose(
            answer[name], answer64, atol=FUZZED_64 * max(1.0, np.abs(answer64).max()), rtol=0
        )
    change = answer["explained_value"] - answer["base_value"]
    assert np.abs(sum(shares.values()) - change).max() <= FUZZED_64 * size
    assert np.abs(answer["completeness_gap"]).max() <= FUZZED_64 * size
    for i in range(ROWS):
        alone = run64(model, {n: a[i : i + 1] for n, a in graph.rows.items()})
        for name, value in alone.items():
            limit = FUZZED_64 * max(size, np.abs(value).max())
            np.testing.assert_allclose(value[0], answer[name][i], atol=limit, rtol=0, err_msg=name)


def check_gradient(graph: Fuzzed, lowered: Lowered) -> None:
    """In a random direction; where two step sizes disagree, a kink lies between."""
    answer = finite(run64(combined(graph, lowered, Gradient()), graph.rows))
    if not graph.smooth:
        return
    random = np.random.default_rng(0)
    directions = {n: random.choice([-1.0, 1.0], graph.rows[n].shape) for n in graph.explained}
    slope = sum(summed(answer, lambda m, name: m * directions[name][:, None]).values())
    coarse, fine = (central_difference(graph, directions, h) for h in (1e-5, 3e-6))
    scale = max(1.0, np.abs(fine).max())
    same = np.abs(coarse - fine) <= KINK * scale
    np.testing.assert_array_less(np.abs(slope - fine)[same], FUZZED_SLOPE * scale)


def combined(graph: Fuzzed, lowered: Lowered, method: Method) -> onnx.ModelProto:
    """The middle of `compile_model`: the combined graph, not checked."""
    request = CompileRequest(targets=TARGETS, inputs=graph.explained)
    selection = method.engine.select(lowered, method, request)
    rows = {n: (selection.lowered.specs[n][0], np.dtype(np.float64)) for n in selection.target.inputs}
    rows_of_set = method.reference_set
    references = None if rows_of_set is None else prepare(rows_of_set, method.reference_weights, rows)
    plan = combine(selection, references, VariantChoices(HERE), lambda *_: None)
    return ir.to_proto(fit(plan, HERE, lambda *_: None).model)


def finite(answer: Arrays) -> Arrays:
    for name, value in answer.items():
        assert np.isfinite(value).all(), f"{name} is not finite"
    return answer


def summed(answer: Arrays, of: Callable[..., Any] = lambda m, _: m) -> Arrays:
    """Σ over the features of what `of(attributions, input's name)` makes: [N, T] by the input's name."""
    names = [k.removesuffix("_attributions") for k in answer if k.endswith("_attributions")]
    parts = {n: of(answer[f"{n}_attributions"], n) for n in names}
    return {n: attributions.reshape(ROWS, CLASSES, -1).sum(axis=-1) for n, attributions in parts.items()}


def central_difference(graph: Fuzzed, directions: Arrays, h: float) -> np.ndarray:
    ends = [
        run64(graph.model, {n: a + s * h * directions.get(n, 0.0) for n, a in graph.rows.items()})
        for s in (1, -1)
    ]
    (up,), (down,) = (end.values() for end in ends)
    return np.asarray((up - down) / (2 * h))


def check_in_float32(graph: Fuzzed) -> None:
    """All of the compiler, its own checks too, and ONNX Runtime beside the interpreter."""
    assume(not lies_on_a_step(load(graph.model).proto, every_row(graph)))
    method = DeepShap({n: graph.references[n] for n in graph.explained}, graph.weights)
    compiled = compile_model(graph.model, method, targets=TARGETS, inputs=graph.explained)
    got, want = compiled.explain(graph.rows), run64(compiled.model, graph.rows)
    size = max(np.abs(value).max() for name, value in want.items() if name != "completeness_gap")
    assume(not steps_elsewhere(compiled.model, graph.rows))
    for i in range(NUDGES):
        moved = run64(compiled.model, nudged(graph.rows, i))
        assume(all(np.abs(moved[name] - value).max() <= FUZZED_32 * size for name, value in want.items()))
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= FUZZED_32 * size, name
    assert np.abs(got["completeness_gap"]).max() <= FUZZED_32 * size


def nudged(rows: Arrays, seed: int) -> Arrays:
    """Rows moved by some roundings of their type, up or down.

    Where one and a reference lie close to a step, on both sides of it, the multipliers of what stands before
    the step are large and cancel: shares then change by 1e-4 with such a move of float32, in float64 too.
    """
    random = np.random.default_rng(seed)
    return {
        name: row * (1 + NUDGE * np.finfo(row.dtype).eps * random.choice([-1, 1], row.shape))
        for name, row in rows.items()
    }


def lies_on_a_step(model: onnx.ModelProto, rows: Arrays) -> bool:
    """Whether float32 alone, without us, takes a value of the model to another side of a step than float64.

    What is 3 times 0.1 times a whole number, cut off to a whole number, is one of two that are as right.
    """
    return not all(same_in_float32(model, rows).values())


def steps_elsewhere(model: onnx.ModelProto, rows: Arrays) -> bool:
    """Whether a step in an emitted graph has another value in float32, from operands that are the same."""
    same = same_in_float32(model, rows)
    steps = (node for node in model.graph.node if node.op_type in STEPS)
    return any(
        all(same.get(name, True) for name in node.input) and not same[node.output[0]] for node in steps
    )


def same_in_float32(model: onnx.ModelProto, rows: Arrays) -> dict[str, bool]:
    """Whether ONNX Runtime's values are the float64 interpreter's, by name."""
    every = with_every_value(model)
    narrow, wide = Runner(every, optimise=False)(rows), run64(every, rows)
    errors = {name: np.abs(narrow[name] - value.astype(np.float64)) for name, value in wide.items()}
    return {
        name: bool(error.max(initial=0) <= FUZZED_32 * np.abs(wide[name]).max(initial=1.0))
        for name, error in errors.items()
    }


def with_every_value(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose outputs are the values of all nodes."""
    every = onnx.ModelProto()
    every.CopyFrom(model)
    listed = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in listed]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return every


@pytest.mark.parametrize("examples", [10, pytest.param(90, marks=pytest.mark.full)])
def test_random_graphs_in_float64(examples: int) -> None:
    fuzz(check_in_float64, in_float64, settings(FUZZ, max_examples=examples, derandomize=True))


@pytest.mark.full
@pytest.mark.parametrize("examples", [5, pytest.param(30, marks=pytest.mark.full)])
def test_random_graphs_in_onnx_runtime(examples: int) -> None:
    fuzz(check_in_float32, in_float32, settings(FUZZ, max_examples=examples, derandomize=True))


def fuzz(check: Callable[[Fuzzed], None], make: Callable[..., Fuzzed], how: Callable[[Any], Any]) -> None:
    @how
    @given(fuzzed_graphs(make))
    def drawn(graph: Fuzzed) -> None:
        note(f"{make.__name__}({graph.recipe})")
        check(graph)

    drawn()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize(("check", "make"), [(check_in_float64, in_float64), (check_in_float32, in_float32)])
def test_many_random_graphs(
    check: Callable[[Fuzzed], None], make: Callable[..., Fuzzed], number: int
) -> None:
    """2000 in float64, 2000 in ONNX Runtime; the test's name holds the seed they are drawn from."""

    def seeded(function: Callable[..., None]) -> Callable[..., None]:
        return seed(number)(settings(FUZZ, max_examples=100)(function))

    fuzz(check, make, seeded)
