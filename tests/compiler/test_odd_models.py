"""Options that do not fit, models that look bad and are fine, and damaged files."""

import functools
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier

from rationale import Compiled, DeepShap, ExactShap, Lrp, compile_model
from rationale.errors import InvalidModelError, InvalidOptionError, RationaleError
from tests.compiler.models import (
    CLASSES,
    FEATURES,
    HIDDEN,
    changed,
    mlp,
    parsed,
    rows,
    saved_apart,
    with_floats_in,
)
from tests.references.interpreter import run64

REFERENCES = rows(4, FEATURES)


def compile_mlp(model: onnx.ModelProto | Path) -> Compiled:
    return compile_model(model, DeepShap(REFERENCES))


OPTIONS = {
    "target too large": ({"targets": [CLASSES]}, r"targets \[3\]: output 'y' has indices 0 to 2"),
    "negative target": ({"targets": [-1]}, "indices 0 to 2"),
    "no target": ({"targets": []}, "indices 0 to 2"),
    "half a target": ({"targets": [0.5]}, "indices 0 to 2"),
    "a mask": ({"targets": [True, False, True]}, "indices 0 to 2"),
    "a word in a list": ({"targets": ["all"]}, "indices 0 to 2"),
    "a number": (
        {"targets": 1},
        r"give a list of indices \(or contrasts such as '1-0'\), 'all' or 'predicted'",
    ),
    "another word": (
        {"targets": "best"},
        r"give a list of indices \(or contrasts such as '1-0'\), 'all' or 'predicted'",
    ),
    "no such output": ({"output": "nil"}, r"no tensor 'nil' .*outputs are \['y'\]"),
    "an input as output": ({"output": "x"}, "no tensor 'x' depends on the explained inputs"),
    "a weight": ({"output": "w1"}, "no tensor 'w1' depends on the explained inputs"),
    "no such input": ({"inputs": ["nil"]}, r"no input \['nil'\]; the model has \['x'\]"),
    "no input": ({"inputs": []}, r"give a list of different names out of \['x'\]"),
    "an input twice": ({"inputs": ["x", "x"]}, r"give a list of different names out of \['x'\]"),
    "inputs as one word": ({"inputs": "x"}, r"give a list of different names out of \['x'\]"),
    "digits of another script": ({"targets": ["\u0661-0"]}, "indices 0 to 2"),
    "concepts as a pair": ({"concepts": ("h1", 2)}, r"give Concepts\(layer, count\)"),
    "a library by itself": ({"custom_ops": "kernels.so"}, "'kernels.so': give a list of the files"),
    "no libraries": ({"custom_ops": None}, "None: give a list of the files"),
    "few feature names": ({"feature_names": ["a"]}, "1 feature names for 'x', which has 5 features"),
    "equal feature names": ({"feature_names": list("aabcd")}, r"unique; \['a'\] are not"),
    "feature names as one word": ({"feature_names": "abcde"}, "must be a list of words"),
    "numbers for feature names": ({"feature_names": [1, 2, 3, 4, 5]}, "must be a list of words"),
    "an empty feature name": ({"feature_names": ["a", "b", "", "d", "e"]}, "must be a list of words"),
    "feature names of no input": ({"feature_names": {"z": list("abcde")}}, r"\['z'\]; .*inputs are \['x'\]"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_does_not_fit(name: str) -> None:
    options, words = OPTIONS[name]
    with pytest.raises(InvalidOptionError, match=words):
        compile_model(mlp(), DeepShap(REFERENCES), **options)


# -- what looks bad and is fine ------------------------------------------------------------------------


def answers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return dict(compile_mlp(model).explain(rows(3, FEATURES, seed=9)))


@pytest.fixture(scope="module")
def plain() -> dict[str, np.ndarray]:
    return answers(mlp())


def old_style(model: onnx.ModelProto) -> None:
    """IR version 3: weights are inputs too."""
    model.ir_version, model.opset_import[0].version = 3, 9
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )


def sparse(tensor: onnx.TensorProto, indices: np.ndarray) -> onnx.SparseTensorProto:
    """All values of a tensor, by the indices [V] or [V, axes] of each."""
    array = numpy_helper.to_array(tensor)
    values = numpy_helper.from_array(array.reshape(-1), tensor.name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "indices"), array.shape)


def sparse_weights(model: onnx.ModelProto) -> None:
    """An initializer by flat indices, another by one for each axis, and a constant."""
    w1, b1, w2, *others = model.graph.initializer
    places = np.argwhere(np.ones(list(w1.dims), bool))
    model.graph.sparse_initializer.extend([sparse(w1, places), sparse(b1, np.arange(HIDDEN))])
    constant = sparse(w2, np.arange(HIDDEN * CLASSES))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w2"], "w2", sparse_value=constant))
    del model.graph.initializer[:]
    model.graph.initializer.extend(others)


SOUND = {
    "sparse weights": sparse_weights,
    "no node names": lambda m: [n.ClearField("name") for n in m.graph.node],
    "an unnamed batch": lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].Clear(),
    "weights listed as inputs": old_style,
    "a weight whose shape is not noted": lambda m: m.graph.value_info.append(
        helper.make_tensor_value_info("w1", onnx.TensorProto.FLOAT, None)
    ),
    "opset 13": lambda m: setattr(m.opset_import[0], "version", 13),
    "opset 22": lambda m: setattr(m.opset_import[0], "version", 22),
    "an output of unknown width": lambda m: m.graph.output[0].type.tensor_type.shape.dim[1].Clear(),
    "a fixed batch of 1": lambda m: [
        setattr(v.type.tensor_type.shape.dim[0], "dim_value", 1)
        for v in (m.graph.input[0], m.graph.output[0])
    ],
}


@pytest.mark.parametrize("name", SOUND)
def test_a_model_that_looks_odd_gives_the_same_answer(name: str, plain: dict[str, np.ndarray]) -> None:
    odd = answers(changed(SOUND[name]))
    assert set(odd) == set(plain)
    for key, value in plain.items():
        np.testing.assert_allclose(odd[key], value, rtol=1e-5, atol=1e-6)


OUTPUTS = {
    "one value twice": ("a, float[N, 2] b", "a = MatMul (x, w) b = Identity (a)"),
    "the second one first": ("b, float[N, 2] a", "a = MatMul (x, w) b = Identity (a)"),
    "one value by two nodes": ("a, float[N, 2] b", "h = MatMul (x, w) a = Identity (h) b = Identity (h)"),
    "equal nodes": ("a, float[N, 2] b", "h = MatMul (x, w) a = Neg (h) b = Neg (h)"),
    "three times": (
        "a, float[N, 2] b, float[N, 2] c",
        "a = MatMul (x, w) b = Identity (a) c = Identity (b)",
    ),
    "an input": ("a, float[N, 3] x", "a = MatMul (x, w)"),
    "an input and a copy of it": ("a, float[N, 3] x, float[N, 3] b", "a = MatMul (x, w) b = Identity (x)"),
    "from a branch": (
        "a, float[N, 2] b",
        """yes = Constant <value = bool {1}> ()
        a = If (yes) <then_branch = t () => (float[N, 2] u) { u = MatMul (x, w) },
                      else_branch = e () => (float[N, 2] v) { v = MatMul (x, w2) }>
        b = Identity (a)""",
    ),
}
METHODS = {
    "deepshap": DeepShap(rows(4, 3)),
    "lrp": Lrp(),
    "exactshap": ExactShap(rows(4, 3)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", ["N", "1"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_one_value_and_inputs_as_outputs(name: str, batch: str, method: str) -> None:
    outputs, nodes = OUTPUTS[name]
    text = f"g (float[N, 3] x) => (float[N, 2] {outputs}) {{ {nodes} }}".replace("[N,", f"[{batch},")
    model = parsed(text, {"w": rows(3, 2, seed=1), "w2": rows(3, 2, seed=3)})
    session = ort.InferenceSession(model.SerializeToString())
    x = rows(5, 3, seed=2)
    for explained in ("a", "b") if "float[N, 2] b" in outputs else ("a",):
        answer = compile_model(model, METHODS[method], output=explained, targets=[1]).explain(x)
        for value in model.graph.output:
            due = np.concatenate([session.run([value.name], {"x": row[None]})[0] for row in x])
            np.testing.assert_allclose(answer[value.name], due, rtol=1e-5, atol=1e-6)
        attributions = answer["x_attributions" if "x_attributions" in answer else "attributions"]
        added = attributions.sum((1, 2)) + (answer["base_value"][:, 0] if method != "lrp" else 0)
        np.testing.assert_allclose(added, answer[explained][:, 1], rtol=1e-4, atol=1e-5)


def test_an_input_in_half_precision_as_an_output() -> None:
    model = parsed(
        "g (float[N, 3] x) => (float[N, 3] x, float[N, 2] a) { a = MatMul (x, w) }", {"w": rows(3, 2)}
    )
    x = rows(5, 3, seed=2).astype(np.float16)
    half = with_floats_in(model, np.float16)
    answer = compile_model(half, DeepShap(rows(4, 3).astype(np.float16))).explain(x)
    np.testing.assert_array_equal(answer["x"], x)
    assert answer["x"].dtype == np.float16


def test_a_zip_map_becomes_its_tensor() -> None:
    x = rows(40, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not converge
        model = to_onnx(MLPClassifier((4,), max_iter=3, random_state=0).fit(x, x[:, 0] > 0), x[:1])
    given = model.SerializeToString()
    compiled = compile_model(model, DeepShap(REFERENCES))
    assert model.SerializeToString() == given, "the caller's model was changed"
    assert any("'output_probability' is a ZipMap" in w for w in compiled.manifest.warnings)
    answer = compiled.explain(x[:3])
    session = ort.InferenceSession(given)
    labels, dictionaries = session.run(None, {"X": x[:3]})
    expected = [[d[label] for label in sorted(d)] for d in dictionaries]
    np.testing.assert_allclose(answer["output_probability"], expected, rtol=1e-6)
    np.testing.assert_array_equal(answer["output_label"], labels)
    assert np.abs(answer["completeness_gap"]).max() < 1e-6


def test_models_too_large_for_protobuf_take_the_way_through_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_apart(tmp_path)
    small = compile_mlp(path).manifest.digests
    monkeypatch.setattr(sys.modules["rationale.lowering.loading.load"], "LARGE", 10)
    assert compile_mlp(path).manifest.digests == small
    assert len(compile_mlp(mlp()).manifest.digests.model) == 64
    with pytest.raises(InvalidModelError, match="listed twice"):
        compile_mlp(changed(lambda m: m.graph.output.append(m.graph.output[0])))


@pytest.mark.parametrize("batch", ["N", "1"])
def test_shapes_that_onnx_does_not_infer(batch: str) -> None:
    """ONNX knows no shape of a GroupNormalization's output, nor of anything behind it."""
    model = parsed(
        f"""g (float[{batch}, 6, 3, 2] x) => (float[{batch}, 4] y) {{
            [first] a = GroupNormalization <num_groups = 3> (x, s, b)
            b1 = Tanh (a)
            [second] c = GroupNormalization <num_groups = 2> (b1, s, b)
            d = Flatten (c)
            y = MatMul (d, w)
        }}""",
        {"s": 1 + rows(6, seed=1) / 4, "b": rows(6, seed=2), "w": rows(36, 4, seed=3)},
    )
    x = rows(5, 6, 3, 2)
    answer = compile_model(model, DeepShap(x[:2]), targets=[1]).explain(x[2:])
    want = run64(model, {"x": x[2:3]})["y"]
    np.testing.assert_allclose(answer["y"][:1], want, rtol=1e-4, atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() <= 1e-5


@pytest.mark.parametrize("pool", ["GlobalMaxPool", "LpPool <kernel_shape = [3, 2]>"])
def test_a_rewrite_waits_for_a_shape_that_another_makes_known(pool: str) -> None:
    text = f"""g (float[N, 6, 3, 2] x) => (float[N, 6] y) {{
        a = GroupNormalization <num_groups = 3> (x, s, b)
        c = Tanh (a)
        p = {pool} (c)
        y = Flatten (p)
    }}"""
    model = parsed(text, {"s": 1 + rows(6, seed=1) / 4, "b": rows(6, seed=2)})
    x = rows(5, 6, 3, 2)
    answer = compile_model(model, DeepShap(x[:2]), targets=[1]).explain(x[2:])
    assert np.abs(answer["explained_value"] - answer["base_value"]).max() > 1e-2
    assert np.abs(answer["completeness_gap"]).max() <= 1e-6


# -- damage --------------------------------------------------------------------------------------------


@functools.cache
def intact() -> bytes:
    return mlp((FEATURES, 4, CLASSES)).SerializeToString()


def compile_or_refuse(content: bytes, folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(content)
    try:
        compiled = compile_model(path, DeepShap(REFERENCES))
    except RationaleError:
        return
    assert compiled.manifest.measured.outputs_error <= 1e-4


@pytest.mark.full
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_byte_changed(tmp_path: Path, place: float, byte: int) -> None:
    content = bytearray(intact())
    content[int(place * len(content))] = byte
    compile_or_refuse(bytes(content), tmp_path)


@pytest.mark.full
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(a=st.floats(0, 1), b=st.floats(0, 1), filler=st.binary(max_size=12))
def test_a_stretch_replaced(tmp_path: Path, a: float, b: float, filler: bytes) -> None:
    content = intact()
    low, high = sorted((int(a * len(content)), int(b * len(content))))
    compile_or_refuse(content[:low] + filler + content[high:], tmp_path)


def test_the_batch_may_be_named_anything() -> None:
    model = parsed("g (float[rows, 5] x) => (float[rows, 5] y) { y = Tanh (x) }")
    assert compile_mlp(model).explain(rows(2, FEATURES))["y"].shape == (2, FEATURES)
