"""What is put right in every graph that a converter writes."""

import pytest

from compiler.conversion.graphs import tidied
from tests.compiler.models import parsed


@pytest.mark.parametrize("opsets", ['"" : 17, "ai.onnx.ml" : 3', '"ai.onnx.ml" : 3, "" : 17'])
def test_opsets_have_an_order(opsets: str) -> None:
    """Converters keep them in a set, whose order is another in each process; digests are over the bytes."""
    model = parsed("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }", opsets=opsets)
    assert [(o.domain, o.version) for o in tidied(model, ["x"]).opset_import] == [("", 17), ("ai.onnx.ml", 3)]
