"""Repository entries: written whole or not at all, and with the shapes that Triton compares."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier, MLPRegressor
from tritonclient.grpc import model_config_pb2 as pb

from rationale import Compiled, DeepShap, Gradient, Manifest, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.schema.machine import MAX_BATCH
from tests.compiler.models import FEATURES, cnn, contents, mlp, parsed, rows, two_inputs

R = rows(4, FEATURES)
ORT_TYPES = {"tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64", "tensor(int64)": "TYPE_INT64"}
ORT_TYPES |= {"tensor(string)": "TYPE_STRING", "tensor(bool)": "TYPE_BOOL"}
TYPE_BYTES = {"TYPE_FP32": 4, "TYPE_FP64": 8, "TYPE_INT64": 8, "TYPE_BOOL": 1}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(R))


@pytest.fixture(scope="module")
def other() -> Compiled:
    return compile_model(mlp(seed=5), Gradient())


# -- names ---------------------------------------------------------------------------------------------

BAD_NAMES = [
    *(
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "a..b",
        "/a",
        "a\\b",
        "a b",
        "a\n",
        "-a",
        "_a",
        ".hidden",
        "a:b",
        "ä",
        "a%2f",
    ),
    *("credit_explain", "x" * 202, "a\x00", "~", "a?"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name(tmp_path: Path, compiled: Compiled, name: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(repr(name))):
        compiled.write(tmp_path, name)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["a", "Credit-2.1_b", "0", "x" * 201])
def test_a_good_name(tmp_path: Path, compiled: Compiled, name: str) -> None:
    assert (
        compiled.write(tmp_path / "new" / "folder", name) == tmp_path / "new" / "folder" / f"{name}_explain"
    )
    assert Manifest.read(tmp_path / "new" / "folder" / f"{name}_explain" / "explanation.json").model == name


# -- what is in an entry -------------------------------------------------------------------------------


def classifier(labels: np.ndarray, zipmap: bool | str) -> onnx.ModelProto:
    x = rows(len(labels), FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not converge
        fitted = MLPClassifier((4,), max_iter=3, random_state=0).fit(x, labels)
    return to_onnx(fitted, x[:1], options={"zipmap": zipmap})


def regressor() -> onnx.ModelProto:
    x = rows(30, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return to_onnx(
            MLPRegressor(hidden_layer_sizes=(4,), max_iter=3, random_state=0).fit(x, x[:, 0]), x[:1]
        )


NUMBERS = np.arange(30) % 3
WORDS = np.array(["low", "mid", "high"])[NUMBERS]


def declared(change: Callable[[onnx.TensorShapeProto], object]) -> onnx.ModelProto:
    model = mlp()
    change(model.graph.output[0].type.tensor_type.shape)
    return model


ENTRIES: dict[str, Callable[[], Compiled]] = {
    "mlp": lambda: compile_model(mlp(), DeepShap(R)),
    "all targets": lambda: compile_model(mlp(), DeepShap(R), targets="all"),
    "gradient": lambda: compile_model(mlp(), Gradient()),
    "two inputs": lambda: compile_model(two_inputs(), DeepShap({"a": rows(4, 3), "b": rows(4, 4)})),
    "one of two inputs": lambda: compile_model(two_inputs(), DeepShap(rows(4, 3)), inputs=["a"]),
    "cnn": lambda: compile_model(cnn(), DeepShap(rows(3, 2, 6, 8))),
    "classifier": lambda: compile_model(classifier(NUMBERS, False), DeepShap(R)),
    "classifier with a ZipMap": lambda: compile_model(classifier(NUMBERS, True), DeepShap(R)),
    "words and a ZipMap": lambda: compile_model(classifier(WORDS, True), DeepShap(R)),
    "ZipMap by columns": lambda: compile_model(classifier(WORDS, "columns"), DeepShap(R)),
    "regressor": lambda: compile_model(regressor(), DeepShap(R)),
    "unknown width": lambda: compile_model(declared(lambda s: s.dim[1].Clear()), DeepShap(R)),
    "output declared with batch 1": lambda: compile_model(
        declared(lambda s: setattr(s.dim[0], "dim_value", 1)), DeepShap(R)
    ),
    "vectors": lambda: compile_model(
        parsed("g (float[N] x) => (float[N] y) { y = Tanh (x) }"), DeepShap(rows(4))
    ),
    "doubles": lambda: compile_model(
        parsed("g (double[N, 5] x) => (double[N, 5] y) { y = Tanh (x) }"), DeepShap(R)
    ),
    "strings beside": lambda: compile_model(
        parsed(
            "g (float[N, 5] x, string[N, 2] s) => (float[N, 5] y, string[N, 2] t)"
            " { y = Tanh (x) t = Identity (s) }"
        ),
        DeepShap(R),
    ),
    "integers beside": lambda: compile_model(
        parsed(
            "g (float[N, 5] x, int64[N, 5] i) => (float[N, 5] y) { z = Cast <to = 1> (i) y = Mul (x, z) }"
        ),
        DeepShap(R),
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_config_says_what_onnx_runtime_reports(tmp_path: Path, name: str) -> None:
    """Triton compares dims with ONNX Runtime's, wants axis 0 symbolic, and reads the warmup's bytes."""
    ENTRIES[name]().write(tmp_path, "m")
    for entry in ("m", "m_explain"):
        session = ort.InferenceSession(tmp_path / entry / "1" / "model.onnx")
        config = text_format.Parse((tmp_path / entry / "config.pbtxt").read_text(), pb.ModelConfig())
        assert (config.name, config.backend) == (entry, "onnxruntime")
        assert 1 <= config.max_batch_size <= MAX_BATCH
        assert_tensors(session.get_inputs(), config.input)
        assert_tensors(session.get_outputs(), config.output)
        assert [w.batch_size for w in config.model_warmup] == sorted({1, config.max_batch_size})
        for warmup in config.model_warmup:
            assert set(warmup.inputs) == {i.name for i in config.input}
            for item in warmup.inputs.values():
                assert_bytes(item, (tmp_path / entry / "warmup" / item.input_data_file).read_bytes())


def assert_tensors(reported: list[ort.NodeArg], written: list[pb.ModelInput]) -> None:
    assert [v.name for v in reported] == [v.name for v in written]
    for value, item in zip(reported, written, strict=True):
        assert not isinstance(value.shape[0], int), f"{value.name}: the batch is fixed"
        dims = [d if isinstance(d, int) else -1 for d in value.shape[1:]]
        assert list(item.dims) == (dims or [1])
        assert item.HasField("reshape") == (not dims)
        assert pb.DataType.Name(item.data_type) == ORT_TYPES[value.type]


def assert_bytes(item: pb.ModelWarmup.Input, data: bytes) -> None:
    kind, count = pb.DataType.Name(item.data_type), int(np.prod(item.dims))
    if kind == "TYPE_STRING":
        assert data == b"\0\0\0\0" * count  # empty strings, each behind its length
        return
    assert len(data) == TYPE_BYTES[kind] * count
    if kind in ("TYPE_FP32", "TYPE_FP64"):
        assert np.isfinite(np.frombuffer(data, np.float32 if kind == "TYPE_FP32" else np.float64)).all()


def test_the_warmup_row_is_the_mean_of_the_references(tmp_path: Path, compiled: Compiled) -> None:
    compiled.write(tmp_path, "m")
    data = (tmp_path / "m_explain" / "warmup" / "input_0").read_bytes()
    np.testing.assert_allclose(np.frombuffer(data, np.float32), R.mean(axis=0), rtol=1e-6)


def test_entries_answer_as_the_compiled_model_does(tmp_path: Path, compiled: Compiled) -> None:
    compiled.write(tmp_path, "m")
    x = rows(3, FEATURES, seed=9)
    expected = compiled.explain(x)
    plain = ort.InferenceSession(tmp_path / "m" / "1" / "model.onnx").run(["y"], {"x": x})[0]
    np.testing.assert_allclose(plain, expected["y"], rtol=1e-6)
    reopened = open_entry(tmp_path, "m").explain(x)
    assert set(reopened) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(reopened[name], value)
    assert check_entry(tmp_path, "m").measured.outputs_error < 1e-6


UNSERVABLE = {
    "a scalar input": ("(float[N, 5] x, float s) => (float[N, 5] y)", "z = Relu (x) y = Mul (z, s)", "['s']"),
    "a constant output": ("(float[N, 5] x) => (float[N, 5] y, float[2] c)", "y = Relu (x)", "['c']"),
    "a sequence": (
        "(float[N, 5] x) => (float[N, 5] y, seq(float[N, 5]) q)",
        "y = Relu (x) q = SequenceConstruct (y)",
        "['q']",
    ),
}


@pytest.mark.parametrize("name", UNSERVABLE)
def test_what_cannot_be_batched_is_explained_here_but_not_written(tmp_path: Path, name: str) -> None:
    head, body, culprit = UNSERVABLE[name]
    weights = {"c": np.ones(2, np.float32)} if "c)" in head else {}
    compiled = compile_model(
        parsed(f"g {head} {{ {body} }}", weights), DeepShap(R), inputs=["x"], output="y", targets=[0]
    )
    with pytest.raises(UnsupportedModelError) as caught:
        compiled.write(tmp_path, "m")
    assert str(caught.value).startswith(f"{culprit} cannot be served")
    assert contents(tmp_path) == {}
