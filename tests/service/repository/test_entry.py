"""Reading a repository: what is understood, and how broken entries are told."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tritonclient.utils import InferenceServerException

from rationale.errors import RepositoryError
from rationale_service.engine.backends.onnxruntime import load, session_options
from rationale_service.engine.backends.triton_client import not_loaded
from rationale_service.errors import NotExplainableError, UnknownModelError
from rationale_service.repository.entry import read_entry, stamp_of
from rationale_service.repository.registry import read_repository
from tests.service import handmade

WARMUP = """
dynamic_batching { max_queue_delay_microseconds: 1500 default_queue_policy { max_queue_size: 7 } }
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "intra_op_thread_count" value { string_value: "3" } }
model_warmup {
  name: "two" batch_size: 2 count: 3
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [4] input_data_file: "x" } }
}
"""


def edit(folder: Path, old: str, new: str, name: str = "config.pbtxt") -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


@pytest.fixture
def score(tmp_path: Path) -> Path:
    """The folder of a fresh `score` entry, its explain twin beside it."""
    handmade.write_score(tmp_path)
    return tmp_path / "score"


def test_a_config_is_understood(tmp_path: Path) -> None:
    handmade.write_score(tmp_path, extra=WARMUP)
    folder = tmp_path / "score"
    (folder / "warmup").mkdir()
    (folder / "warmup" / "x").write_bytes(handmade.X[:1].tobytes())
    (folder / "3").mkdir()
    (folder / "1" / "model.onnx").rename(folder / "3" / "model.onnx")
    entry = read_entry(folder)
    assert (entry.version, entry.max_batch_size, entry.batching) == ("3", 4, True)
    assert (entry.max_queue_delay_s, entry.max_queue_size) == (0.0015, 7)
    assert (entry.instances, entry.intra_op_threads) == (2, 3)
    assert (entry.inputs, entry.outputs) == (
        (handmade.spec("x", "FP32", 4),),
        (handmade.spec("y", "FP32", 3),),
    )
    (warmup,) = entry.warmups
    assert (warmup.rows, warmup.count) == (2, 3)
    assert warmup.inputs[0].data == handmade.X[:1].tobytes()
    options = session_options(entry, cores=8)
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.dynamic_block_base") == "4"
    y = load(entry).run(["y"], {"x": handmade.X})[0]
    np.testing.assert_allclose(y, handmade.predict(handmade.X), rtol=1e-6)


@pytest.mark.parametrize("name", ["config.pbtxt", "1/model.onnx"])
@pytest.mark.parametrize("part", ["nothing", "size", "time", "file", "name"])
def test_a_stamp_shows_each_change_of_a_file(score: Path, name: str, part: str) -> None:
    """Another file of the same size and time too, as an archive that is unpacked again brings it."""
    file, before = score / name, stamp_of(score)
    status = file.stat()
    content = file.read_bytes() + b"#" * (part == "size")
    if part == "name":
        file.rename(file.with_name("another"))
    elif part == "file":
        new = score / "new"
        new.write_bytes(content)
        new.rename(file)
    else:
        file.write_bytes(content)
    if file.exists():
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + (part == "time")))
    assert (stamp_of(score) == before) == (part == "nothing")


def test_hidden_folders_and_files_are_passed_over(score: Path) -> None:
    (score.parent / ".half-written").mkdir()
    (score.parent / "README.md").write_text("hello")
    repository = read_repository(score.parent)
    assert list(repository.entries) == ["score", "score_explain"]
    assert repository.explainer("score").name == "score_explain"
    assert repository.explainer("score_explain").name == "score_explain"
    with pytest.raises(UnknownModelError):
        repository.entry("score", "2")


def test_a_plain_entry_has_no_explainer(repository: Path) -> None:
    with pytest.raises(NotExplainableError, match="rationale compile"):
        read_repository(repository).explainer("typed")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('backend: "onnxruntime"', 'backend: "python"', "its backend is not onnxruntime"),
        ("max_batch_size: 4", "max_batch_size: 0", "max_batch_size must be 1 or more"),
        ('name: "score"', 'name: "other"', "it names the model 'other'"),
        ("TYPE_FP32", "TYPE_BF16", "tensor 'x': TYPE_BF16 is not supported"),
        ("dims: 4", "dims: 0", "dims must be -1, or 1 or more, not [0]"),
        (
            "dims: 4",
            "dims: 4 reshape { shape: [2, 3] }",
            "reshape [2, 3] does not hold as many values as its dims [4]",
        ),
        ("dims: 4", "dims: 4 allow_ragged_batch: true", "allow_ragged_batch is not supported"),
        ("dims: 4", "dims: [4", "is not a model configuration"),
        ("dynamic_batching {}", "nonsense {}", "nonsense"),
        (
            "dynamic_batching {}",
            'parameters { key: "intra_op_thread_count" value { string_value: "two" } }',
            "intra_op_thread_count must be a whole number, not 'two'",
        ),
        (
            "dynamic_batching {}",
            WARMUP,
            "warmup/x: cannot be read",
        ),
    ],
)
def test_a_broken_config(score: Path, old: str, new: str, message: str) -> None:
    edit(score, old, new)
    with pytest.raises(RepositoryError) as caught:
        read_repository(score.parent)
    assert message in str(caught.value)
    assert str(score) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{", "[", "the file"),
        ('"version": 1', '"version": 2', "version"),
        ('"base_value": "base_value"', '"base_value": "gone"', "lists output 'gone'"),
        ('"max_reasons": 4', '"max_reasons": 5', "the decision profile differs from the compiled one"),
        ('"late_payments"\n', '"income"\n', "feature names of 'x'"),
        ('"late_payments"\n', '"late_payments", "more"\n', "feature names of 'x'"),
    ],
)
def test_a_broken_manifest(score: Path, old: str, new: str, message: str) -> None:
    edit(score.parent / "score_explain", old, new, "explanation.json")
    with pytest.raises(RepositoryError) as caught:
        read_repository(score.parent)
    assert message in str(caught.value)
    assert "explanation.json" in str(caught.value)


def test_a_manifest_of_another_graph(score: Path) -> None:
    path = score.parent / "score_explain" / "explanation.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"targets": [0, 1]}))
    with pytest.raises(RepositoryError, match=r"has shape \[2\], but \[3\] in config.pbtxt"):
        read_repository(score.parent)
    path.write_text(json.dumps(manifest | {"inputs": []}))
    with pytest.raises(RepositoryError, match=r"inputs .*config\.pbtxt"):
        read_repository(score.parent)


def test_every_broken_entry_is_named(score: Path) -> None:
    (score / "1" / "model.onnx").unlink()
    (score.parent / "empty").mkdir()
    (score.parent / "bad name").mkdir()
    with pytest.raises(RepositoryError) as caught:
        read_repository(score.parent)
    message = str(caught.value).splitlines()
    assert len(message) == 3
    assert "bad name: " in message[0]
    assert "empty/config.pbtxt: " in message[1]
    assert "score/1/model.onnx: is missing" in message[2]


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="such folder"):
        read_repository(tmp_path / "absent")
    with pytest.raises(RepositoryError, match="no model"):
        read_repository(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name: "x"', 'name: "z"', "has no input 'z'"),
        ('name: "y"', 'name: "z"', "has no output 'z'"),
        ("TYPE_FP32", "TYPE_FP64", "input 'x' is FP32, but FP64 in config.pbtxt"),
        ("dims: 3", "dims: 2", "output 'y' has shape [3] per row, but [2] in config.pbtxt"),
        ("dims: 3", "dims: [3, 1]", "output 'y' has shape [3] per row, but [3, 1] in config.pbtxt"),
    ],
)
def test_a_config_that_is_not_the_models(score: Path, old: str, new: str, message: str) -> None:
    edit(score, old, new)
    with pytest.raises(RepositoryError) as caught:
        load(read_entry(score))
    assert message in str(caught.value)


def test_a_model_with_a_fixed_batch(score: Path) -> None:
    path = score / "1" / "model.onnx"
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    with pytest.raises(RepositoryError, match=r"'x' .*batch of 1"):
        load(read_entry(score))


def test_a_model_that_is_no_onnx(score: Path) -> None:
    (score / "1" / "model.onnx").write_bytes(b"not onnx")
    with pytest.raises(RepositoryError, match="ONNX Runtime"):
        load(read_entry(score))


def test_a_model_whose_locale_the_machine_lacks(score: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["N"]) for name in "xy")
    lower: dict[str, Any] = {"case_change_action": "LOWER", "is_case_sensitive": 1, "locale": "xx_XX.UTF-8"}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("StringNormalizer", ["x"], ["y"], **lower)], "lower", [x], [y]
    )
    imports = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), score / "1" / "model.onnx")
    expected = r"cannot load .*: Its StringNormalizer needs the locale xx_XX\.UTF-8, .*localedef -i xx_XX"
    entry = read_entry(score)
    with pytest.raises(RepositoryError, match=expected):
        load(entry)
    why = "Exception: Failed to construct locale with name:xx_XX.UTF-8:locale::facet name not valid"
    assert re.search(expected, str(not_loaded(entry, InferenceServerException(why))))


def test_a_warmup_that_fails_stops_the_start(tmp_path: Path) -> None:
    handmade.write_faulty(tmp_path)
    sample = """model_warmup { name: "w" inputs {
        key: "ids" value { data_type: TYPE_INT64 dims: [1] input_data_file: "ids" } } }"""
    edit(tmp_path / "table", "dynamic_batching {}", sample)
    (tmp_path / "table" / "warmup").mkdir()
    (tmp_path / "table" / "warmup" / "ids").write_bytes(np.array([9]).tobytes())
    with pytest.raises(RepositoryError, match=r"table: .*warmup sample.*data bounds"):
        load(read_entry(tmp_path / "table"))
    (tmp_path / "table" / "warmup" / "ids").write_bytes(b"123")
    with pytest.raises(RepositoryError, match=r"3 bytes; .*'ids' takes 8"):
        read_entry(tmp_path / "table")
