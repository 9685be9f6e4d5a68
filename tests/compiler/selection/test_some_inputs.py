"""Several inputs of which some are explained: the others are their own references."""

import numpy as np
import pytest

from rationale import DeepShap, ExactShap, Gradient, InvalidReferencesError, compile_model
from rationale.graph.runtime.session import Runner
from tests.compiler.models import parsed, rows, two_inputs

A, B = rows(4, 3, seed=1), rows(4, 4, seed=2)


def test_the_other_input_is_its_own_reference() -> None:
    references = rows(6, 3)
    compiled = compile_model(two_inputs(), DeepShap({"a": references}), inputs=["a"], targets=[1, 0])
    answer = compiled.explain({"a": A, "b": B})
    model = Runner(two_inputs())
    for i in range(len(A)):
        at_references = model({"a": references, "b": np.repeat(B[i : i + 1], len(references), axis=0)})["y"]
        np.testing.assert_allclose(answer["base_value"][i], at_references.mean(axis=0)[[1, 0]], atol=1e-6)
    assert np.abs(answer["completeness_gap"]).max() <= 1e-6
    assert np.abs(answer["explained_value"] - answer["base_value"]).max() > 0.1
    assert "b_attributions" not in answer


def test_the_gradient_of_one_input() -> None:
    answer = compile_model(two_inputs(), Gradient(), inputs=["b"], targets=[0]).explain({"a": A, "b": B})
    model, step = Runner(two_inputs()), 1e-2
    for j in range(B.shape[1]):
        shift = step * np.eye(B.shape[1], dtype=np.float32)[j]
        up, down = (model({"a": A, "b": B + s})["y"][:, 0] for s in (shift, -shift))
        np.testing.assert_allclose(answer["b_attributions"][:, 0, j], (up - down) / (2 * step), atol=1e-3)


def test_a_batch_mixes_nothing_when_only_some_inputs_are_explained() -> None:
    compiled = compile_model(two_inputs(), DeepShap({"a": rows(6, 3)}), inputs=["a"], targets="all")
    together = compiled.explain({"a": A, "b": B})["a_attributions"]
    for i in range(len(A)):
        alone = compiled.explain({"a": A[i : i + 1], "b": B[i : i + 1]})["a_attributions"]
        np.testing.assert_allclose(alone[0], together[i], atol=1e-6)


def test_the_base_value_of_the_predicted_target_differs_by_row() -> None:
    inputs = {"a": rows(9, 3, seed=3), "b": rows(9, 4, seed=4)}
    method = DeepShap({"a": rows(6, 3)})
    answer = compile_model(two_inputs(), method, inputs=["a"], targets="predicted").explain(inputs)
    every = compile_model(two_inputs(), method, inputs=["a"], targets="all").explain(inputs)
    winner = answer["y"].argmax(axis=1)
    assert set(winner) == {0, 1}
    np.testing.assert_allclose(
        answer["base_value"][:, 0], every["base_value"][np.arange(9), winner], atol=1e-6
    )
    assert np.abs(answer["completeness_gap"]).max() <= 1e-6


@pytest.mark.parametrize("method", [DeepShap, ExactShap])
@pytest.mark.parametrize("inputs", [None, ["x", "u"]])
@pytest.mark.parametrize("more", ["", "z = Relu (u)"], ids=["read by nothing", "read by another output"])
def test_references_of_an_input_that_the_output_is_not_computed_from(
    more: str, inputs: list[str] | None, method: type[DeepShap | ExactShap]
) -> None:
    """An .npz of all inputs has them; that the input is not explained was said, and not why."""
    outputs = "float[N, 1] y" + ", float[N, 2] z" * bool(more)
    text = f"g (float[N, 3] x, float[N, 2] u) => ({outputs}) {{ y = MatMul (x, w) {more} }}"
    model = parsed(text, {"w": rows(3, 1, seed=2)})
    references = {"x": rows(4, 3, seed=3), "u": rows(4, 2, seed=4)}
    with pytest.raises(InvalidReferencesError, match=r"'y' .*\['u'\].*--output"):
        compile_model(model, method(references), inputs=inputs)
    compile_model(model, method({"x": references["x"]}))
