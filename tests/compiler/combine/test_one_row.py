"""Models that were exported for one row: a batch of rows is answered as the model answers each."""

import numpy as np
import pytest

from rationale import DeepShap, Gradient, compile_model
from rationale.graph.runtime.session import Runner
from tests.compiler.models import parsed, rows
from tests.tolerances import COMPLETE_32, PARITY_32

N, K = 4, 5
CHOSEN = """
    s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)
    y = If (c) <then_branch = a () => (float[1, 4] p) { p = Tanh (k) },
                else_branch = b () => (float[1, 4] q) { q = Neg (k) }>"""
READ_ON = {
    "what is chosen": ("float[1, 4] k", "k = MatMul (x, w)"),
    "the condition": ("bool c", "k = MatMul (x, w)"),
    "a place where attributions end": (
        "int64[1, 1] i",
        "i = ArgMax <axis = 1> (x)  g = Gather (table, i)  e = Squeeze (g, one)"
        "h = MatMul (x, w)  k = Mul (h, e)",
    ),
}


@pytest.mark.parametrize("name", READ_ON)
def test_an_output_may_be_read_by_another(name: str) -> None:
    output, nodes = READ_ON[name]
    constants = {"w": rows(3, 4, seed=1), "table": rows(3, 4, seed=2), "zero": np.float32(0), "one": [1]}
    model = parsed(f"g (float[1, 3] x) => ({output}, float[1, 4] y) {{ {nodes} {CHOSEN} }}", constants)
    x, references = rows(N, 3, seed=3), rows(K, 3, seed=4)
    compiled = compile_model(model, DeepShap(references), output="y", targets=[0, 2])
    answer = compiled.explain(x)
    run = Runner(model)
    for row in range(N):
        for key, value in run({"x": x[row : row + 1]}).items():
            np.testing.assert_allclose(answer[key][row], np.squeeze(value), atol=PARITY_32, rtol=PARITY_32)
    base = np.mean([run({"x": r[None]})["y"][0] for r in references], axis=0)
    np.testing.assert_allclose(answer["base_value"], np.tile(base[[0, 2]], (N, 1)), rtol=PARITY_32)
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * np.abs(answer["explained_value"]).max()


def test_rows_of_ids_that_mix_in_a_batch_are_answered_one_by_one() -> None:
    """Equal rows would not show that a row attends to the others: each would attend to itself."""
    model = parsed(
        """g (int64[1, 4] ids) => (float[1, 3] y) {
            e = Gather (table, ids)  m = ReduceMean <keepdims = 0> (e, one)  t = Transpose (m)
            a = MatMul (m, t)  p = Softmax (a)  y = MatMul (p, m)
        }""",
        {"table": rows(5, 3, seed=5), "one": [1]},
    )
    ids = np.random.default_rng(6).integers(0, 5, (N, 4))
    answer = compile_model(model, Gradient(times_input=True), targets=[0, 2]).explain(ids)
    alone = [Runner(model)({"ids": row[None]})["y"][0] for row in ids]
    np.testing.assert_allclose(answer["y"], alone, atol=PARITY_32)
