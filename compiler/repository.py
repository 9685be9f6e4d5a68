"""Triton model repository entries, written whole or not at all."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf import text_format

from compiler.describe import is_tensor, tensor_spec
from compiler.errors import InvalidOptionError, RepositoryError
from compiler.manifest import EXPLAIN_SUFFIX, FILE_NAME, Manifest, TensorSpec
from compiler.runtime import save

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
MAX_BATCH = 64
EXPLAIN_ROWS = 4096  # rows (N·T·K) that one explain batch may walk
QUEUE_DELAY_US = 200
MAX_QUEUE = 256


def check_name(name: str) -> str:
    """Raises InvalidOptionError for a name that Triton or a URL would not take."""
    if not NAME.fullmatch(name) or ".." in name or name.endswith(EXPLAIN_SUFFIX):
        raise InvalidOptionError(
            f"{name!r} is no model name: letters, digits, '.', '_' and '-', beginning with a letter or digit, "
            f"and not ending in {EXPLAIN_SUFFIX!r}."
        )
    return name


def write_entries(
    source: onnx.ModelProto,
    combined: onnx.ModelProto,
    manifest: Manifest,
    sample: Mapping[str, np.ndarray],
    repository: Path,
    name: str,
) -> Path:
    """Writes `NAME/` and `NAME_explain/`; see `Compiled.write`.

    Args:
        sample: one row for each input, with which a server warms up.
    """
    check_name(name)
    manifest = manifest.model_copy(update={"model": name})
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=repository) as folder:
            plain, explain = Path(folder) / name, Path(folder) / f"{name}{EXPLAIN_SUFFIX}"
            _write_entry(plain, source, sample, MAX_BATCH)
            _write_entry(explain, combined, sample, explain_batch(manifest))
            (explain / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
            _move_into_place([plain, explain], repository, Path(folder))
    except OSError as error:
        raise RepositoryError(f"{repository}: cannot be written: {error.strerror or error}.") from error
    return repository / f"{name}{EXPLAIN_SUFFIX}"


def explain_batch(manifest: Manifest) -> int:
    """How many rows one explain request may hold: each costs K·T rows of the model."""
    references = manifest.references.count if manifest.references else 1
    return max(1, min(MAX_BATCH, EXPLAIN_ROWS // (references * manifest.target_count)))


def _move_into_place(entries: list[Path], repository: Path, aside: Path) -> None:
    """By renames only; what stood there before is put back when one of them fails."""
    moved: list[tuple[Path, Path]] = []
    try:
        for entry in entries:
            target, old = repository / entry.name, aside / f"old-{entry.name}"
            if target.exists():
                target.rename(old)
                moved.append((old, target))
            entry.rename(target)
            moved.append((target, entry))
    except OSError:
        for now, before in reversed(moved):
            now.rename(before)
        raise


def _write_entry(
    folder: Path, model: onnx.ModelProto, sample: Mapping[str, np.ndarray], max_batch: int
) -> None:
    (folder / "1").mkdir(parents=True)
    save(ir.from_proto(model), folder / "1" / "model.onnx")
    initializers = {t.name for t in model.graph.initializer}
    inputs = [tensor_spec(v) for v in model.graph.input if v.name not in initializers]
    outputs = [tensor_spec(v) for v in model.graph.output if is_tensor(v)]
    warmup = folder / "warmup"
    warmup.mkdir()
    files = {}
    for i, spec in enumerate(inputs):
        files[spec.name] = f"input_{i}"
        (warmup / files[spec.name]).write_bytes(sample[spec.name].tobytes())
    config = _config(folder.name, inputs, outputs, files, max_batch)
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")


def _config(
    name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], warmup: Mapping[str, str], max_batch: int
) -> str:
    from tritonclient.grpc import model_config_pb2  # here, because importing gRPC takes a while

    config = model_config_pb2.ModelConfig(name=name, backend="onnxruntime", max_batch_size=max_batch)
    for specs, field in ((inputs, config.input), (outputs, config.output)):
        for spec in specs:
            field.add(name=spec.name, data_type=_data_type(spec), dims=spec.shape or (1,))
            if not spec.shape:
                field[-1].reshape.SetInParent()
    config.dynamic_batching.max_queue_delay_microseconds = QUEUE_DELAY_US
    policy = config.dynamic_batching.default_queue_policy
    policy.max_queue_size, policy.allow_timeout_override = MAX_QUEUE, True
    config.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_AUTO)
    for batch in sorted({1, max_batch}):
        entry = config.model_warmup.add(name=f"batch of {batch}", batch_size=batch, count=1)
        for spec in inputs:
            item = entry.inputs[spec.name]
            item.data_type, item.input_data_file = _data_type(spec), warmup[spec.name]
            item.dims.extend(spec.shape or (1,))
    return str(text_format.MessageToString(config))


def _data_type(spec: TensorSpec) -> int:
    from tritonclient.grpc import model_config_pb2

    names = {"BYTES": "TYPE_STRING"}
    return int(model_config_pb2.DataType.Value(names.get(spec.datatype, f"TYPE_{spec.datatype}")))


def remove_entry(repository: Path, name: str) -> None:
    """Deletes `NAME_explain/` with the references it holds; the plain model stays."""
    entry = repository / f"{check_name(name)}{EXPLAIN_SUFFIX}"
    if not (entry / FILE_NAME).is_file():
        raise RepositoryError(f"{entry}: no such entry.")
    shutil.rmtree(entry)
