"""What is put right in every graph that a converter writes."""

import numpy as np
import onnxruntime
import pytest

from rationale.conversion.graphs import tidy_graph
from tests.compiler.models import parsed


@pytest.mark.parametrize("opsets", ['"" : 17, "ai.onnx.ml" : 3', '"ai.onnx.ml" : 3, "" : 17'])
def test_opsets_have_an_order(opsets: str) -> None:
    """Converters keep them in a set, whose order is another in each process; digests are over the bytes."""
    model = parsed("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }", opsets=opsets)
    assert [(o.domain, o.version) for o in tidy_graph(model, ["x"]).opset_import] == [
        ("", 17),
        ("ai.onnx.ml", 3),
    ]


HANDED_ON = {
    "an input": "a = Identity (x) y = Relu (a)",
    "an input, and read itself": "a = Identity (x) y = Add (a, x)",
    "an input, as an output": "y = Identity (x)",
    "an inner tensor": "a = Relu (x) b = Identity (a) y = Neg (b)",
    "one that others read too": "a = Relu (x) b = Mul (a, one) y = Sub (b, a)",
    "one after another": "a = Relu (x) b = Identity (a) c = Mul (b, one) y = Neg (c)",
    "as an output": "a = Relu (x) y = Identity (a)",
    "times two": "y = Mul (x, two)",
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_what_is_tidied_answers_the_same(name: str) -> None:
    constants = {"one": np.array([1.0], np.float32), "two": np.array([2.0], np.float32)}
    text = f"g (float[N, 3] x) => (float[N, 3] y) {{ {HANDED_ON[name]} }}"
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    before, after = (
        onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        for model in (parsed(text, constants), tidy_graph(parsed(text, constants), ["x"]))
    )
    np.testing.assert_array_equal(after, before)
