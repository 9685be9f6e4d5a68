"""Triton model repository entries, written atomically."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from google.protobuf import text_format

from rationale.artifact.comparisons import CompiledComparison
from rationale.artifact.names import check_name, is_entry_name
from rationale.artifact.repository.digest import graph_digest
from rationale.artifact.repository.folder import hold_lock
from rationale.artifact.repository.model_config import DATA_TYPES, ModelConfig
from rationale.errors import RepositoryError, UnsupportedModelError
from rationale.graph.runtime.session import LOAD_ERRORS, NO_KERNEL, SerializedGraph, as_ir, register, save
from rationale.lowering.precision import on_cpu
from rationale.schema.machine import MAX_BATCH
from rationale.schema.manifest import (
    DATATYPES,
    EXPLAIN,
    EXPLAIN_SUFFIX,
    FILE_NAME,
    OPEN_SUFFIX,
    Manifest,
    TensorSpec,
)
from rationale.schema.probes import Probes

QUEUE_DELAY_US = 200
MAX_QUEUE = 256
GATES = {"explain_no": b"\0", "explain_yes": b"\1"}  # warmup files of a one-shot entry's gate
_OWN_FILES = frozenset({"1", "config.pbtxt", "warmup", FILE_NAME})


def write_entries(
    source: onnx.ModelProto,
    combined: SerializedGraph,
    manifest: Manifest,
    sample: Mapping[str, np.ndarray],
    probes: Probes | None,
    repository: Path,
    name: str,
    libraries: Sequence[Path] = (),
    comparisons: Sequence[CompiledComparison] = (),
) -> Path:
    """Write `NAME/` and `NAME_explain/`, or `NAME/` alone for a one-shot model; see `Compiled.write`.

    If references are an input, `NAME_explain_open/` is written, next to other explainers of the same model.

    Args:
        sample: one row of each input, for a server's warmup.
        probes: rows that prove any runtime of the entries; each entry stores its own answers.
        libraries: libraries of kernels; each entry gets a copy.
        comparisons: further entries that the manifest's decision names.
    """
    check_name(name)
    manifest = manifest.model_copy(update={"model": name, "graphs": {}})
    alternatives = {other.comparison(name).entry: other for other in comparisons}
    if manifest.decision is not None:
        update = {"comparisons": tuple(other.comparison(name) for other in comparisons)}
        manifest = manifest.model_copy(update={"decision": manifest.decision.model_copy(update=update)})
    plain, explain = name, f"{name}{manifest.suffix}"
    try:
        repository.mkdir(parents=True, exist_ok=True)
        entries = (name, f"{name}{EXPLAIN_SUFFIX}", f"{name}{OPEN_SUFFIX}", *alternatives)
        with hold_lock(repository):  # nobody moves them meanwhile
            _spare_foreign_folders([repository / entry for entry in entries])
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=repository) as folder:
            new = Path(folder)
            if manifest.one_shot:
                explain = plain
            else:
                own_probes = None if probes is None else probes.of([v.name for v in manifest.outputs])
                _write_entry(new / plain, source, sample, own_probes, MAX_BATCH, libraries)
                manifest = manifest.model_copy(update={"graphs": _graph_of(new / plain)})
            _write_explanation(new / explain, combined, manifest, sample, probes, libraries)
            for entry, other in alternatives.items():
                described = other.manifest.model_copy(update={"model": name, "graphs": manifest.graphs})
                _write_explanation(
                    new / entry, other.graph, described, other.sample, other.probes, libraries, audited=True
                )
            with hold_lock(repository):  # both entries are of one compile
                stale = _of_another_model(repository, name, manifest)
                if f"{name}{EXPLAIN_SUFFIX}" in (explain, *stale):
                    stale += _comparisons(repository, name)
                _move_into_place(
                    list(dict.fromkeys([*alternatives, plain, explain, *stale])), repository, new
                )
    except OSError as error:
        raise RepositoryError(
            f"{repository}: cannot be written: {error.strerror or error}. Nothing was changed."
        ) from error
    return repository / explain


def write_explainer(
    combined: SerializedGraph,
    manifest: Manifest,
    sample: Mapping[str, np.ndarray],
    probes: Probes | None,
    entry: Path,
    libraries: Sequence[Path] = (),
) -> None:
    """Write one explain entry, and no plain one; see `Compiled.write_explainer`."""
    try:
        _write_explanation(entry, combined, manifest, sample, probes, libraries)
    except OSError as error:
        raise RepositoryError(f"{entry}: cannot be written: {error.strerror or error}.") from error


def _write_explanation(
    folder: Path,
    combined: SerializedGraph,
    manifest: Manifest,
    sample: Mapping[str, np.ndarray],
    probes: Probes | None,
    libraries: Sequence[Path],
    *,
    audited: bool = False,
) -> None:
    """Write an entry with its manifest.

    No server mixes rows of several callers in a run whose answers are audited: their last bits would depend
    on each other (docs/adr/0038).
    """
    max_batch, is_mixed = manifest.measured.max_batch, manifest.decision is None and not audited
    _write_entry(
        folder, combined, sample, probes, max_batch, libraries, gated=manifest.one_shot, mixed=is_mixed
    )
    manifest = manifest.model_copy(update={"graphs": manifest.graphs | _graph_of(folder)})
    (folder / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")


def _graph_of(entry: Path) -> dict[str, str]:
    """Return the digest of the files that a server runs of an entry, by its place in the repository."""
    return {f"{entry.name}/1": graph_digest(entry / "1")}


def _of_another_model(repository: Path, name: str, manifest: Manifest) -> list[str]:
    """Return entries that explain an earlier model `NAME`.

    A one-shot entry explains itself, so it has no other.
    """
    entries = {f"{name}{suffix}": suffix for suffix in (EXPLAIN_SUFFIX, OPEN_SUFFIX)}
    return [
        entry
        for entry, suffix in entries.items()
        if (manifest.one_shot and suffix == EXPLAIN_SUFFIX)
        or _model_digest(repository / entry) not in (None, manifest.digests.model)
    ]


def _comparisons(repository: Path, name: str) -> list[str]:
    """Return the names of the comparisons' entries, NAME_explain_*, of earlier compiles."""
    entries = [path.parent for path in repository.glob(f"{name}{EXPLAIN_SUFFIX}_*/{FILE_NAME}")]
    return [entry.name for entry in entries if is_entry_name(entry.name, name) and _explains(entry, name)]


def _explains(entry: Path, name: str) -> bool:
    try:
        return Manifest.read(entry / FILE_NAME).model == name
    except RepositoryError:
        return False


def _model_digest(entry: Path) -> str | None:
    """Return the digest of the model that an entry explains; None if there is no such entry."""
    if not entry.exists():
        return None
    try:
        return Manifest.read(entry / FILE_NAME).digests.model
    except RepositoryError:
        return ""


def _spare_foreign_folders(targets: list[Path]) -> None:
    """Raise RepositoryError if a target folder exists that this project did not write."""
    for target in targets:
        strange = (
            sorted(p.name for p in target.iterdir() if p.name not in _OWN_FILES) if target.is_dir() else []
        )
        if strange or (target.exists() and not target.is_dir()):
            raise RepositoryError(
                f"{target}: exists, and `rationale compile` did not write it "
                f"({', '.join(strange[:3]) or 'a file'}). Choose another --name, or move it away."
            )


def _move_into_place(names: list[str], repository: Path, new: Path) -> None:
    """Move entries by renames only; if one fails, put the earlier ones back.

    An existing entry that is not among the new ones is stale, and goes with those that they replace.
    """
    renames: list[tuple[Path, Path]] = []
    try:
        for name in names:
            entry, target, old = new / name, repository / name, new / f"old-{name}"
            if target.exists():
                target.rename(old)
                renames.append((old, target))
            if entry.exists():
                entry.rename(target)
                renames.append((target, entry))
    except BaseException:  # an interrupt too: entries moved aside are deleted with their folder
        for now, before in reversed(renames):
            now.rename(before)
        raise


def _write_entry(
    folder: Path,
    model: SerializedGraph,
    sample: Mapping[str, np.ndarray],
    probes: Probes | None,
    max_batch: int,
    libraries: Sequence[Path],
    *,
    gated: bool = False,
    mixed: bool = True,
) -> None:
    """Write an entry.

    Raises:
        UnsupportedModelError: if Triton cannot batch a tensor.
    """
    (folder / "1").mkdir(parents=True)
    path = folder / "1" / "model.onnx"
    save(_with_free_outputs(as_ir(model)), path)
    for library in libraries:
        shutil.copyfile(library, folder / "1" / library.name)
    if probes is not None:
        probes.write(path.parent)
    inputs, outputs = _tensors(path)
    warmup = folder / "warmup"
    warmup.mkdir()
    rows = {spec.name: _bytes(spec, sample[spec.name]) for spec in inputs if spec.name in sample}
    files = {name: f"input_{i}" for i, name in enumerate(rows)}
    for name, content in rows.items():
        (warmup / files[name]).write_bytes(content)
    samples = [files]
    if gated:
        for file, bit in GATES.items():
            (warmup / file).write_bytes(bit)
        samples = [files | {EXPLAIN: file} for file in GATES]
    shapes = {
        spec.name: sample[spec.name].shape[1:] if spec.name in sample else spec.shape for spec in inputs
    }
    names = [library.name for library in libraries]
    config = _config(folder.name, inputs, outputs, samples, shapes, max_batch, names, mixed=mixed)
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")


def _with_free_outputs(model: ir.Model) -> ir.Model:
    """Free axis 0 of every output, as ONNX Runtime infers it, if the file notes a fixed batch."""
    for value in model.graph.outputs:
        if value.shape is not None and value.shape.rank() and isinstance(value.shape[0], int):
            value.shape = ir.Shape([None, *value.shape[1:]])
    return model


def _tensors(path: Path) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return inputs and outputs with the shapes that ONNX Runtime reports, with which Triton compares.

    Raises:
        RepositoryError: if ONNX Runtime cannot run the file.
        UnsupportedModelError: if a tensor has no symbolic batch on axis 0.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False  # it is not run
    register(options)
    try:
        with _runnable_on_cpu(path) as file:
            session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except (*LOAD_ERRORS, NO_KERNEL) as error:
        raise RepositoryError(f"ONNX Runtime cannot run the entry: {' '.join(str(error).split())}") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    unfit = [v.name for v in (*inputs, *outputs) if not _is_batched(v)]
    if unfit:
        raise UnsupportedModelError(
            f"{unfit} cannot be served, because the server batches requests: every input and output must "
            "be a tensor with the batch on axis 0. Remove it from the model, or make it a constant or a "
            "column [N, 1]."
        )
    return [_spec(v) for v in inputs], [_spec(v) for v in outputs]


@contextmanager
def _runnable_on_cpu(path: Path) -> Iterator[Path]:
    """Yield the file, or a float32 twin of one that computes in bfloat16, for reading its tensors."""
    original = ir.load(path)
    model, _ = on_cpu(original)
    if model is original:
        yield path
        return
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
        twin = Path(folder) / path.name
        save(model, twin)
        yield twin


def _is_batched(value: ort.NodeArg) -> bool:
    return _oip_type(value) is not None and bool(value.shape) and not isinstance(value.shape[0], int)


def _oip_type(value: ort.NodeArg) -> str | None:
    return DATATYPES.get(value.type.removeprefix("tensor(").removesuffix(")").upper())


def _spec(value: ort.NodeArg) -> TensorSpec:
    dims = tuple(d if isinstance(d, int) else -1 for d in value.shape[1:])
    return TensorSpec(name=value.name, datatype=_oip_type(value) or "", shape=dims)


def _bytes(spec: TensorSpec, row: np.ndarray) -> bytes:
    """Return one row as a server reads it: raw.

    Strings stand each behind their length (uint32, little endian).
    """
    if spec.datatype != "BYTES":
        return row.tobytes()
    words = [str(word).encode() for word in row.reshape(-1)]
    return b"".join(len(word).to_bytes(4, "little") + word for word in words)


def _config(
    name: str,
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    samples: Sequence[Mapping[str, str]],
    shapes: Mapping[str, tuple[int, ...]],
    max_batch: int,
    libraries: Sequence[str],
    *,
    mixed: bool,
) -> str:
    """Return an entry's configuration, in text format.

    Args:
        samples: the file of each input, for each warmup.
        shapes: the shape of the row in it, by input.
        libraries: libraries of kernels, by their names next to the model.
        mixed: True if one run may hold rows of several requests.
    """
    config = ModelConfig(name=name, backend="onnxruntime", max_batch_size=max_batch)
    for specs, field in ((inputs, config.input), (outputs, config.output)):
        for spec in specs:
            field.add(name=spec.name, data_type=_data_type(spec), dims=spec.shape or (1,))
            if not spec.shape:
                field[-1].reshape.SetInParent()
    if mixed:
        config.dynamic_batching.max_queue_delay_microseconds = QUEUE_DELAY_US
        policy = config.dynamic_batching.default_queue_policy
        policy.max_queue_size, policy.allow_timeout_override = MAX_QUEUE, True
    for library in libraries:  # Triton takes it as it stands: it has to run in the repository's folder
        config.model_operations.op_library_filename.append(f"{name}/1/{library}")
    config.instance_group.add(count=1)  # of KIND_AUTO, the default
    for batch, files in itertools.product(sorted({1, max_batch}), samples):
        gate = f", {files[EXPLAIN]}" if files.get(EXPLAIN) in GATES else ""
        entry = config.model_warmup.add(name=f"batch of {batch}{gate}", batch_size=batch, count=1)
        for spec in sorted(inputs, key=lambda spec: spec.name):
            item = entry.inputs.add(key=spec.name).value
            item.data_type, item.input_data_file = _data_type(spec), files[spec.name]
            item.dims.extend(shapes[spec.name] or (1,))
    return str(text_format.MessageToString(config))


def _data_type(spec: TensorSpec) -> int:
    names = {"BYTES": "TYPE_STRING"}
    return DATA_TYPES.index(names.get(spec.datatype, f"TYPE_{spec.datatype}"))
