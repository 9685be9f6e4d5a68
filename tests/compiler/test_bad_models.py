"""Models that cannot be compiled: an error of ours names the fault and says what to do."""

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from rationale import Compiled, DeepShap, ExactShap, Gradient, Lrp, compile_model
from rationale.errors import InvalidModelError, InvalidOptionError, UnsupportedModelError
from rationale.methods.engine import Method
from tests.compiler.models import CLASSES, FEATURES, HIDDEN, changed, mlp, parsed, rows, saved_apart

REFERENCES = rows(4, FEATURES)


def compile_mlp(model: onnx.ModelProto | Path) -> Compiled:
    return compile_model(model, DeepShap(REFERENCES))


def graph(body: str, output: str = f"float[N, {FEATURES}] y", **weights: np.ndarray) -> onnx.ModelProto:
    return parsed(f"g (float[N, {FEATURES}] x) => ({output}) {{ {body} }}", weights)


# -- files ---------------------------------------------------------------------------------------------


def an_archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("model.txt", "not a model")
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"this is no model at all\n",
        b"",
        b'{"model": 1}',
        an_archive(),
        np.random.default_rng(0).bytes(1000),
        b"\x89PNG\r\n\x1a\n" + bytes(50),
    ],
    ids=["text", "empty", "json", "zip", "random", "png"],
)
def test_a_file_that_is_no_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=r"model\.onnx: not an ONNX model.*(Export|copy) it again"):
        compile_mlp(path)


@pytest.mark.parametrize("name", ["first_layer", "hidden_value", "some_comment", "the_answer"])
def test_a_name_that_is_no_text(tmp_path: Path, name: str) -> None:
    """Protobuf reads it; nothing could write it."""
    body = "hidden_value = Relu (x) the_answer = Softmax (hidden_value)"
    model = graph(body, f"float[N, {FEATURES}] the_answer")
    model.graph.node[0].name, model.graph.doc_string = "first_layer", "some_comment"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(name.encode(), name[:-1].encode() + b"\x80"))
    with pytest.raises(InvalidModelError, match=r"is not UTF-8 text\. Export or copy it again"):
        compile_mlp(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"none\.onnx: cannot be read: No such file"):
        compile_mlp(tmp_path / "none.onnx")
    with pytest.raises(InvalidModelError, match=r"without config\.json"):
        compile_mlp(tmp_path)
    with pytest.raises(InvalidModelError, match=r"int is not a model: give a path"):
        compile_model(3, Gradient())


@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_truncated_file(tmp_path: Path, tenth: int) -> None:
    whole = mlp().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: len(whole) * tenth // 10])
    with pytest.raises(InvalidModelError, match=r"truncated one .* Export or copy it again"):
        compile_mlp(path)


# -- opsets and domains --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [99, 0, -1, 2**40])
def test_an_unknown_opset(version: int) -> None:
    model = changed(lambda m: m.opset_import[0].ClearField("version"))
    model.opset_import[0].version = version
    with pytest.raises(
        InvalidModelError, match=rf"opset {version} is not known; .* knows 1 to \d+\. Export with"
    ):
        compile_mlp(model)


def test_no_opset_or_two() -> None:
    with pytest.raises(InvalidModelError, match="no opset"):
        compile_mlp(changed(lambda m: m.ClearField("opset_import")))
    with pytest.raises(InvalidModelError, match=r"opset of ai\.onnx twice, as \[21, 13\]"):
        compile_mlp(changed(lambda m: m.opset_import.add(domain="", version=13)))


def test_an_opset_that_cannot_be_converted(caplog: pytest.LogCaptureFixture) -> None:
    model = changed(lambda m: setattr(m.opset_import[0], "version", 1))
    with pytest.raises((UnsupportedModelError, InvalidModelError), match=r"opset|Export"):
        compile_mlp(model)
    assert not caplog.records, "the converter's own traceback is of no use to anyone"


def test_an_unknown_domain_is_listed_like_any_operator_without_a_rule() -> None:
    model = mlp()
    model.opset_import.add(domain="com.acme", version=3)
    model.graph.node[1].domain, model.graph.node[1].op_type = "com.acme", "Warp"
    with pytest.raises(
        UnsupportedModelError, match=r"com\.acme\.Warp \(opset 3\), node 'activation1', 2 of 4"
    ):
        compile_mlp(model)


def test_a_domain_that_is_not_imported() -> None:
    model = changed(lambda m: setattr(m.graph.node[1], "domain", "com.acme"))
    with pytest.raises(InvalidModelError, match=r"for domain 'com\.acme' .*activation1.* Export"):
        compile_mlp(model)


# -- external data -------------------------------------------------------------------------------------


def test_external_data_is_read_and_counts_in_the_digest(tmp_path: Path) -> None:
    path = saved_apart(tmp_path)
    first = compile_mlp(path)
    np.testing.assert_allclose(
        first.explain(REFERENCES)["x_attributions"],
        compile_mlp(mlp()).explain(REFERENCES)["x_attributions"],
        atol=1e-7,
    )
    data = tmp_path / "model.data"
    content = bytearray(data.read_bytes())
    content[1] ^= 1  # a low bit of the first weight
    data.write_bytes(content)
    assert compile_mlp(path).manifest.digests.model != first.manifest.digests.model


@pytest.mark.parametrize("fault", ["missing", "short", "folder", "link"])
def test_external_data_that_cannot_be_used(tmp_path: Path, fault: str) -> None:
    path, data = saved_apart(tmp_path), tmp_path / "model.data"
    content = data.read_bytes()
    data.unlink()
    if fault == "short":
        data.write_bytes(content[:100])
    elif fault == "folder":
        data.mkdir()
    elif fault == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        InvalidModelError, match=r"external data cannot be read: .*w1.* Copy the complete data file"
    ):
        compile_mlp(path)


@pytest.mark.parametrize("location", ["../secret.data", "/etc/hostname", "a/../../secret.data", ""])
@pytest.mark.parametrize("in_memory", [False, True])
def test_external_data_stays_inside_the_models_folder(tmp_path: Path, location: str, in_memory: bool) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = saved_apart(folder)
    (tmp_path / "secret.data").write_bytes((folder / "model.data").read_bytes())
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidModelError, match=r"outside the directory|absolute path|not be empty"):
        compile_mlp(model if in_memory else path)


# -- inconsistent models -------------------------------------------------------------------------------

INCONSISTENT = {
    "unsorted": (lambda m: m.graph.node.append(m.graph.node.pop(0)), "topologically sorted"),
    "cycle": (lambda m: m.graph.node[0].input.__setitem__(0, "y"), "topologically sorted"),
    "dangling": (lambda m: m.graph.node.add(op_type="Relu", input=["nil"], output=["q"]), "'nil'"),
    "unknown operator": (lambda m: setattr(m.graph.node[1], "op_type", "Warp"), "No Op registered for Warp"),
    "unknown attribute": (lambda m: m.graph.node[0].attribute.add(name="bogus", type=1, f=1.0), "bogus"),
    "short weights": (lambda m: m.graph.initializer[0].dims.__setitem__(0, 6), "raw_data size"),
    "negative dimension": (lambda m: m.graph.initializer[0].dims.__setitem__(0, -5), "Negative dimension"),
    "unknown type": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99),
        "99 is not a valid",
    ),
    "wrong type": (lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 11), "tensor.double."),
    "no such output": (lambda m: setattr(m.graph.output[0], "name", "nil"), "'nil'"),
    "output twice": (lambda m: m.graph.output.append(m.graph.output[0]), r"outputs \['y'\] are listed twice"),
    "input twice": (lambda m: m.graph.input.append(m.graph.input[0]), "'x' has been used"),
    "no inputs": (lambda m: m.graph.ClearField("input"), "'x'"),
    "no outputs": (lambda m: m.graph.ClearField("output"), "no outputs"),
    "no name": (lambda m: m.graph.ClearField("name"), "'name'"),
    "unshaped input": (lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"), "'x' has no shape"),
    "unshaped output": (lambda m: m.graph.output[0].type.tensor_type.ClearField("shape"), "'y' has no shape"),
    "names repeat": (
        lambda m: [setattr(n, "name", "same") for n in m.graph.node],
        r"same node name \(same\)",
    ),
    "no IR version": (lambda m: m.ClearField("ir_version"), "ir_version"),
    "a later IR version": (lambda m: setattr(m, "ir_version", 99), "99"),
    "a missing input": (lambda m: m.graph.node[0].input.__setitem__(1, ""), "empty string"),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_an_inconsistent_model(name: str) -> None:
    change, words = INCONSISTENT[name]
    with pytest.raises(InvalidModelError, match=f"(?s){words}.*(Export|add them)"):
        compile_mlp(changed(change))


def test_weights_of_another_width_are_found_before_any_work() -> None:
    model = mlp()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(rows(FEATURES - 1, HIDDEN), "w1"))
    with pytest.raises(InvalidModelError, match=r"cannot load it: .*layer1.* Dimension mismatch"):
        compile_mlp(model)


@pytest.mark.parametrize(("part", "row"), [("input", FEATURES), ("output", CLASSES)])
def test_what_is_advised_for_a_missing_shape_helps(part: str, row: int) -> None:
    """No inference adds the shape of an input."""
    model = mlp()
    getattr(model.graph, part)[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InvalidModelError) as caught:
        compile_mlp(model)
    assert ("infer_shapes" in str(caught.value)) is (part == "output")
    (code,) = re.findall(r"model\.graph.*\)\)", str(caught.value))
    exec(code.replace("…", str(row)), {"model": model, "onnx": onnx})  # noqa: S102 (the advice is what is tested)
    compile_mlp(model)


def sparse_weight(model: onnx.ModelProto) -> onnx.SparseTensorProto:
    """The first weight, with one value that is not zero, among the sparse ones."""
    weight = model.graph.initializer[0]
    values = numpy_helper.from_array(np.asarray([0.5], np.float32), weight.name)
    indices = helper.make_tensor("indices", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, weight.dims))
    del model.graph.initializer[0]
    return model.graph.sparse_initializer[0]


SPARSE: dict[str, tuple[Callable[[onnx.SparseTensorProto], object], str]] = {
    "too large": (
        lambda t: t.dims.__setitem__(0, 1 << 40),
        r"sparse tensors \(w1\) take .* as dense ones, and 2 GB is the limit",
    ),
    "in a file": (
        lambda t: (external_data_helper.set_external_data(t.values, "w"), t.values.ClearField("raw_data")),
        "'w1' is in a separate file. Save the model with its sparse tensors inside",
    ),
    "an index outside": (
        lambda t: t.indices.int64_data.__setitem__(0, 1 << 20),
        "invalid entry in coordinates",
    ),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_weight_that_cannot_be_read(name: str) -> None:
    change, words = SPARSE[name]
    with pytest.raises((InvalidModelError, UnsupportedModelError), match=words):
        compile_mlp(changed(lambda m: change(sparse_weight(m))))


# -- what cannot be explained --------------------------------------------------------------------------


def test_every_node_without_a_rule_is_listed_at_once() -> None:
    rows_of = f"float[N, {FEATURES}]"
    model = parsed(
        f"""g ({rows_of} x) => ({rows_of} y) {{
            [first] a = com.microsoft.SampleOp (x) [second] b = com.microsoft.SampleOp (a)
            c = Relu (b) d = com.microsoft.SampleOp (c) y = Tanh (d)
        }}""",
        opsets='"" : 21, "com.microsoft" : 1',
    )
    with pytest.raises(UnsupportedModelError) as caught:
        compile_mlp(model)
    text = str(caught.value)
    assert text.startswith("3 nodes on the way to 'y' have no rule:")
    assert "  com.microsoft.SampleOp (opset 1), node 'first', 1 of 5 on the path, x -> a\n" in text
    assert "  com.microsoft.SampleOp (opset 1), node 'second', 2 of 5 on the path, a -> b\n" in text
    assert "  com.microsoft.SampleOp (opset 1), node 'd', 4 of 5 on the path, c -> d\n" in text
    assert "--output" not in text  # nothing comes before the first
    assert "`rationale operators`" in text


def test_an_output_before_the_unknown_node_can_be_explained() -> None:
    rows_of = f"float[N, {FEATURES}]"
    text = f"g ({rows_of} x) => ({rows_of} y) {{ a = Sigmoid (x) y = com.microsoft.SampleOp (a) }}"
    model = parsed(text, opsets='"" : 21, "com.microsoft" : 1')
    compiled = compile_model(model, DeepShap(REFERENCES), output="a", targets=[2])
    x = rows(3, FEATURES, seed=9)
    np.testing.assert_allclose(compiled.explain(x)["explained_value"][:, 0], 1 / (1 + np.exp(-x[:, 2])), 1e-5)


def test_control_flow_that_stays_is_named() -> None:
    body = f"""body = b (int64 i, bool go, float[N, {FEATURES}] h) => (bool go, float[N, {FEATURES}] n) {{
        n = Tanh (h) }}"""
    rows_of = f"float[N, {FEATURES}]"
    text = f"g ({rows_of} x, int64 m) => ({rows_of} y) {{ [again] y = Loop (m, , x) <{body}> }}"
    with pytest.raises(UnsupportedModelError, match=r"ai\.onnx\.Loop \(opset 21\), node 'again'.*trip count"):
        compile_mlp(parsed(text))


UNEXPLAINABLE = {
    "ArgMax": (
        graph("y = ArgMax <axis = 1> (x)", "int64[N, 1] y"),
        r"none of the outputs \['y'\] holds floats .* inner tensor",
    ),
    "ArgMax as a float": (
        graph("a = ArgMax <axis = 1> (x) y = Cast <to = 1> (a)", "float[N, 1] y"),
        "'y' depends on x only through integers or conditions.* Explain another output",
    ),
    "no float inputs": (
        parsed("g (int64[N, 5] x) => (float[N, 5] y) { s = Mul (x, x) y = Cast <to = 1> (s) }"),
        r"none of the model's inputs \['x'\] holds rows of floats.* Explain a model that takes floats",
    ),
    "strings": (
        parsed("g (string[N, 5] x) => (string[N, 5] y) { y = Identity (x) }"),
        r"none of the model's inputs \['x'\] holds rows of floats",
    ),
    "float8": (
        parsed("g (float8e4m3fn[N, 5] x) => (float8e4m3fn[N, 5] y) { y = Reshape (x, s) }", {"s": [0, 5]}),
        "'x' holds FLOAT8E4M3FN.* Convert the model to float32",
    ),
    "no features": (
        parsed("g (float[N, 0] x) => (float[N, 0] y) { y = Relu (x) }"),
        "input 'x' has no features",
    ),
    "BatchNormalization in training": (
        graph(
            "[bn] y, mean, var = BatchNormalization <training_mode = 1> (x, s, b, m, v)",
            **{k: np.ones(FEATURES, np.float32) for k in "sbmv"},
        ),
        r"BatchNormalization node 'bn': .*training mode.* model\.eval\(\)",
    ),
    "Dropout in training": (
        graph("[drop] y = Dropout (x, r, t)", r=np.float32(0.5), t=np.bool_(True)),
        r"Dropout node 'drop' draws random numbers.* evaluation mode \(model\.eval\(\)\)",
    ),
    "a sequence": (graph("[seq] y = SequenceConstruct (x)", "seq(float[N, 5]) y"), "node 'seq'"),
}


@pytest.mark.parametrize("name", UNEXPLAINABLE)
def test_a_sound_model_that_cannot_be_explained(name: str) -> None:
    model, words = UNEXPLAINABLE[name]
    with pytest.raises(UnsupportedModelError, match=f"(?s){words}"):
        compile_mlp(model)


STATES = {"RNN": 1, "GRU": 3, "LSTM": 4}  # gates


@pytest.mark.parametrize("op_type", STATES)
@pytest.mark.parametrize("whole", [True, False], ids=["directions", "layers"])
@pytest.mark.parametrize(("first", "batch"), [(2, "n"), (2, "1"), (2, "3"), (1, "n")])
def test_a_recurrent_state_has_the_batch_on_axis_1(op_type: str, whole: bool, first: int, batch: str) -> None:
    """As torch has it: layers × directions come first."""
    inner = "h" if whole else "part"
    two = "h, " if op_type == "LSTM" else ""
    rows, directions = (batch if batch != "n" else "N"), first if whole else 1
    model = parsed(
        f"""g (float[{rows}, 3, 4] x, float[{first}, {batch}, 5] h) => (float[a, b, c, d] y) {{
            part = Slice (h, zero, one, zero)  t = Transpose <perm = [1, 0, 2]> (x)
            [layer] y = {op_type} <hidden_size = 5{', direction = "bidirectional"' * (directions == 2)}>
                (t, w, r, , , {two}{inner})
        }}""",
        {
            "w": np.zeros((directions, 5 * STATES[op_type], 4), np.float32),
            "r": np.zeros((directions, 5 * STATES[op_type], 5), np.float32),
            "zero": np.zeros(1, np.int64),
            "one": np.ones(1, np.int64),
        },
    )
    says = rf"input 'h' \[{first}, {batch}, 5\] is a state of {op_type} node 'layer'.*\[N, {first}, 5\]"
    with pytest.raises(UnsupportedModelError, match=says):
        compile_model(model, Gradient())


def test_a_fixed_axis_0_that_is_no_batch() -> None:
    model = parsed(
        "g (float[N, 3] x, float[2, 3] z) => (float[N, 2] y) { t = Transpose (z) y = MatMul (x, t) }"
    )
    with pytest.raises(
        UnsupportedModelError, match=r"'z' has the fixed length 2 on axis 0, .* make 'z' a const"
    ):
        compile_model(model, Gradient())


RANDOM = {
    "like x": "[dice] a = RandomNormalLike (x) y = Add (a, x)",
    "of no input": "[dice] a = RandomUniform <shape = [1, 5]> () y = Add (a, x)",
    "by x": "p = Sigmoid (x) [dice] a = Bernoulli (p) y = Mul (a, x)",
    "trained": "[dice] a = Dropout (x, half, true) y = Neg (a)",
    "in a branch": """y = If (true) <
        then_branch = t () => (float[N, 5] u) { [dice] u = RandomNormalLike (x) },
        else_branch = e () => (float[N, 5] v) { v = Neg (x) }
    >""",
    "beside": "[dice] k = Multinomial <sample_size = 2> (x) y = Relu (x)",
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("method", [DeepShap(REFERENCES), Lrp(), ExactShap(REFERENCES)])
def test_a_random_model_is_said_to_be_random(method: Method, name: str) -> None:
    """It was said to mix the rows of a batch, or to have no rule, with advice that was of no use."""
    output = f"float[N, {FEATURES}] y" + ", int32[N, 2] k" * (name == "beside")
    model = graph(RANDOM[name], output, half=np.float32(0.5), true=np.bool_(True))
    with pytest.raises(UnsupportedModelError, match=r"node 'dice' draws random numbers: .*\(model\.eval\(\)"):
        compile_model(model, method)


def test_what_no_output_is_made_of_may_be_random() -> None:
    text = "a = RandomNormalLike (x) m = Neg (a) b, c = Dropout (x, half, off) y = Tanh (b)"
    compile_mlp(graph(text, half=np.float32(0.5), off=np.bool_(False)))


MIXING = {
    "Softmax": graph("[mix] y = Softmax <axis = 0> (x)"),
    "ReduceMean": graph("[mix] m = ReduceMean (x, ax) y = Sub (x, m)", ax=np.array([0])),
    "Transpose": graph("[mix] y = Transpose <perm = [1, 0]> (x)", "float[5, N] y"),
    "Gather": graph("[mix] a = Gather <axis = 0> (x, i) y = Relu (a)", "float[1, 5] y", i=np.array([0])),
    "Concat": graph("[mix] y = Concat <axis = 0> (x, x)", "float[M, 5] y"),
    "Reshape": graph("[mix] y = Reshape (x, s)", "float[M, 1] y", s=np.array([-1, 1])),
}


@pytest.mark.parametrize("name", MIXING)
def test_the_node_that_mixes_rows_is_named(name: str) -> None:
    operator = name.split()[0]
    with pytest.raises(UnsupportedModelError, match=f"{operator} node 'mix': .*(batch|rows)"):
        compile_mlp(MIXING[name])


@pytest.mark.parametrize("size", [7, 0, -1])
def test_a_fixed_batch(size: int) -> None:
    model = changed(lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", size))
    with pytest.raises(
        UnsupportedModelError, match=rf"input 'x' has a fixed batch of {size}\. Export .* dynamic"
    ):
        compile_mlp(model)


@pytest.mark.parametrize("name", ["base_value", "explained_value", "completeness_gap", "x_attributions"])
def test_a_name_that_the_explanation_needs(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=rf"\['{name}'\].*: rename"):
        compile_mlp(graph(f"{name} = Relu (x)", f"float[N, {FEATURES}] {name}"))
    compile_mlp(graph(f"{name} = Relu (x) y = Tanh ({name})"))  # an inner tensor gives way
