"""Texts in lower case: without the locale en_US.UTF-8, which images lack, and by its letters all the same."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from rationale import ExactShap, InvalidModelError, compile_model
from rationale.lowering.loading.load import load
from rationale.schema.locales import EVERYWHERE

NOBODYS = "xx_XX.UTF-8"
TEXTS = np.array([["GOOD"], ["bad"], ["Été"], ["ÉTÉ"]], object)


def words(**normalizer: str) -> onnx.ModelProto:
    """Return a model that counts words of one letter's case."""
    change = {"case_change_action": "LOWER", "is_case_sensitive": 1, **normalizer}
    pool = {"pool_strings": ["good", "été"], "ngram_indexes": [0, 1], "ngram_counts": [0]}
    gram = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "flat"], ["row"]),
            helper.make_node("StringNormalizer", ["row"], ["lower"], **change),
            helper.make_node("Reshape", ["lower", "column"], ["token"]),
            helper.make_node("TfIdfVectorizer", ["token"], ["counts"], **gram, **pool),
            helper.make_node("MatMul", ["counts", "w"], ["y"]),
        ],
        "words",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["N", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
        [
            onnx.numpy_helper.from_array(np.array([-1]), "flat"),
            onnx.numpy_helper.from_array(np.array([-1, 1]), "column"),
            onnx.numpy_helper.from_array(np.array([[1], [2]], np.float32), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("named", [{}, {"locale": "en_US.UTF-8"}], ids=["default", "named"])
def test_the_default_locale_is_not_needed(named: dict[str, str]) -> None:
    model = words(**named)
    before = model.SerializeToString()
    compiled = compile_model(model, ExactShap(TEXTS))
    y = compiled.explain(TEXTS)["y"]
    np.testing.assert_array_equal(y[:, 0], [1, 0, 2, 2])
    for served in (compiled.model, compiled.source):
        nodes = ir.from_proto(served).graph.all_nodes()
        assert {n.attributes.get_string("locale") for n in nodes if n.op_type == "StringNormalizer"} == {
            EVERYWHERE
        }
    assert model.SerializeToString() == before


def test_a_locale_that_the_machine_lacks_is_refused_with_the_command_that_installs_it() -> None:
    with pytest.raises(InvalidModelError) as refused:
        compile_model(words(locale=NOBODYS), ExactShap(TEXTS))
    assert "xx_XX.UTF-8" in str(refused.value)
    assert "localedef -i xx_XX -f UTF-8 xx_XX.UTF-8" in str(refused.value)
    assert "Export it again" not in str(refused.value)


def test_a_locale_of_the_machine_stays() -> None:
    (node,) = [n for n in load(words(locale="C")).proto.graph.node if n.op_type == "StringNormalizer"]
    assert {a.name: a.s for a in node.attribute}["locale"] == b"C"


def test_every_letter_is_lowered_as_python_does_but_one() -> None:
    letters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    node = helper.make_node(
        "StringNormalizer", ["x"], ["y"], case_change_action="LOWER", is_case_sensitive=1, locale=EVERYWHERE
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["N"]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "lower", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (lowered,) = session.run(None, {"x": np.array(letters, object)})
    differ = {a for a, b in zip(letters, lowered, strict=True) if a.lower() != b}
    assert "İ" in differ  # Python makes two letters of it
    assert len(differ) < 100  # letters that one side's Unicode alone knows
    assert all(ord(a) > 0x24F for a in differ - {"İ"})
