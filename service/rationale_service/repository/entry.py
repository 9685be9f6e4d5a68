"""The entries of a model repository, read from their `config.pbtxt` and `explanation.json`."""

import contextlib
import functools
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from rationale.artifact.repository.digest import graph_digest
from rationale.errors import RepositoryError
from rationale.schema.manifest import EXPLAIN, EXPLAIN_SUFFIX, EXPLAINED, FILE_NAME, Manifest, TensorSpec
from rationale_service.tensors import DTYPES

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_DATATYPES = {
    pb.DataType.Value(f"TYPE_{'STRING' if name == 'BYTES' else name}"): name for name in DTYPES
}  # TYPE_BF16 is left out: numpy has no such type
PLATFORM = "onnxruntime_onnx"
Stamp = tuple[tuple[str, int, int, int], ...]  # for each file: path, time of change (ns), size, inode
_UNSUPPORTED_FIELDS = ("optional", "allow_ragged_batch", "is_shape_tensor")


@dataclass(frozen=True)
class WarmupInput:
    """One tensor of a warmup sample; `data` is one row, None for zeros."""

    spec: TensorSpec
    data: bytes | None


@dataclass(frozen=True)
class Warmup:
    rows: int
    count: int
    inputs: tuple[WarmupInput, ...]


@dataclass(frozen=True)
class InstanceGroup:
    """Instances on the CPU or on each of `gpus`; on every GPU if `gpus` is empty."""

    count: int = 1
    kind: str = "KIND_AUTO"  # a kind of ModelInstanceGroup
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of the repository, at its newest version. Reading it again gives another object.

    Two of them stand for a one-shot entry, as if it had been compiled into two: its gate is no input here;
    the backend feeds it `gate`.
    """

    name: str
    version: str
    model_path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    batching: bool = False  # True if rows of several requests may share a batch
    max_queue_delay_s: float = 0.0
    max_queue_size: int | None = None
    queue_timeout_s: float | None = None  # limit in the queue, besides the request's deadline
    delays_overdue: bool = False  # True: overdue requests run last; else they are refused
    instance_groups: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    instances: int = 1  # number of instances on the CPU
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    warmups: tuple[Warmup, ...] = ()
    custom_ops: tuple[Path, ...] = ()  # libraries of kernels, in the entry's own folder
    manifest: Manifest | None = None
    stored: "Entry | None" = None  # entry on disk, if this is a side of one
    gate: bool | None = None  # a side's input `explain` for every row
    # The model's own shapes of tensors whose config has `reshape`: {name: shape without the batch axis}.
    reshapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    config: pb.ModelConfig = field(default_factory=pb.ModelConfig, repr=False)  # as read; never changed
    stamp: Stamp = field(default=(), repr=False)  # stamp of its files when they were read
    graph_digest: str | None = None  # digest of its version's files, if it decides

    @property
    def model(self) -> str:
        """The entry's name on a server with the same repository."""
        return self.stored.name if self.stored else self.name

    @functools.cached_property
    def explained_model(self) -> str:
        """The name of the model that the entry explains; its own name without a manifest."""
        return self.name if self.manifest is None else self.manifest.model

    @functools.cached_property
    def has_profile(self) -> bool:
        """True if the entry was compiled with a decision profile."""
        return self.manifest is not None and self.manifest.decision is not None

    @functools.cached_property
    def input_specs(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.inputs}

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.outputs)

    @functools.cached_property
    def output_bytes(self) -> dict[str, int]:
        """Size of a row of each output, {name: bytes}; sizes that the config leaves open count as 1."""
        return {
            spec.name: math.prod(max(size, 1) for size in spec.shape) * DTYPES[spec.datatype].itemsize
            for spec in self.outputs
        }

    @property
    def variable_shape(self) -> bool:
        """True if the config leaves open the size of an input's axis other than the batch."""
        return any(-1 in spec.shape for spec in self.inputs)


def read_entry(folder: Path) -> Entry:
    """Read one entry.

    Raises:
        RepositoryError: if the entry is broken; names its folder and the fault.
    """
    if not _NAME.fullmatch(folder.name) or ".." in folder.name:
        raise RepositoryError(f"{folder}: a model's name must consist of letters, digits, '_', '-' and '.'")
    stamp = stamp_of(folder)
    config = _read_config(folder)
    version, model_path = _newest_version(folder, config.default_model_filename or "model.onnx")
    queue = config.dynamic_batching
    policy = queue.default_queue_policy
    manifest_path = folder / FILE_NAME
    groups = tuple(_group(group) for group in config.instance_group) or (InstanceGroup(),)
    manifest = Manifest.read(manifest_path) if manifest_path.exists() else None
    entry = Entry(
        name=folder.name,
        version=version,
        model_path=model_path,
        inputs=tuple(_tensor(folder, spec) for spec in config.input),
        outputs=tuple(_tensor(folder, spec) for spec in config.output),
        max_batch_size=config.max_batch_size,
        batching=config.HasField("dynamic_batching"),
        max_queue_delay_s=queue.max_queue_delay_microseconds / 1e6,
        max_queue_size=policy.max_queue_size or None,
        queue_timeout_s=policy.default_timeout_microseconds / 1e6 or None,
        delays_overdue=policy.timeout_action == pb.ModelQueuePolicy.DELAY,
        instance_groups=groups,
        instances=sum(group.count for group in groups),
        intra_op_threads=_threads(folder, config, "intra_op_thread_count"),
        inter_op_threads=_threads(folder, config, "inter_op_thread_count"),
        warmups=tuple(_warmup(folder, sample) for sample in config.model_warmup),
        custom_ops=tuple(_library(folder, name) for name in config.model_operations.op_library_filename),
        manifest=manifest,
        reshapes={
            spec.name: tuple(spec.reshape.shape)
            for spec in (*config.input, *config.output)
            if spec.HasField("reshape")
        },
        config=config,
        stamp=stamp,
        graph_digest=graph_digest(model_path.parent) if manifest is not None and manifest.decision else None,
    )
    if entry.manifest is not None:
        _check_profile(manifest_path, entry.manifest)
        _check_manifest(manifest_path, entry, entry.manifest)
    return entry


def stamp_of(folder: Path) -> Stamp:
    """Return a stamp that changes with the configuration, the manifest or a file of the newest version."""
    files = [folder / "config.pbtxt", folder / FILE_NAME]
    stamp = []
    with contextlib.suppress(OSError):  # a folder may be removed meanwhile
        newest = max(_versions(folder), key=int, default=None)
        files += [] if newest is None else sorted((folder / newest).iterdir())
    for path in files:
        with contextlib.suppress(OSError):
            status = path.stat()
            stamp.append((str(path.relative_to(folder)), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamp)


def sides(entry: Entry) -> tuple[Entry, ...]:
    """Return a one-shot entry as the plain model and its explanation; any other entry unchanged."""
    manifest = entry.manifest
    if manifest is None or not manifest.one_shot:
        return (entry,)
    originals = {spec.name for spec in manifest.outputs}
    explaining = {spec.name for spec in entry.outputs} - {EXPLAINED}
    plain = _side(entry, entry.name, originals, gate=False)
    explain = _side(entry, entry.name + EXPLAIN_SUFFIX, explaining, gate=True)
    return replace(plain, manifest=None), explain


def _side(entry: Entry, name: str, outputs: Container[str], *, gate: bool) -> Entry:
    config = pb.ModelConfig()
    config.CopyFrom(entry.config)
    config.name = name
    for tensors, side_tensors in (
        (config.input, [t for t in entry.config.input if t.name != EXPLAIN]),
        (config.output, [t for t in entry.config.output if t.name in outputs]),
    ):
        del tensors[:]
        tensors.extend(side_tensors)
    for sample in config.model_warmup:
        sample.inputs.pop(EXPLAIN, None)
    warmups = {
        sample.rows: replace(sample, inputs=tuple(i for i in sample.inputs if i.spec.name != EXPLAIN))
        for sample in entry.warmups
    }
    return replace(
        entry,
        name=name,
        stored=entry,
        gate=gate,
        inputs=tuple(spec for spec in entry.inputs if spec.name != EXPLAIN),
        outputs=tuple(spec for spec in entry.outputs if spec.name in outputs),
        warmups=tuple(warmups.values()),
        config=config,
    )


def _read_config(folder: Path) -> pb.ModelConfig:
    path = folder / "config.pbtxt"
    try:
        config = text_format.Parse(path.read_text("utf-8"), pb.ModelConfig())
    except OSError as error:
        raise RepositoryError(f"{path}: cannot be read: {error.strerror}") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise RepositoryError(f"{path}: is not a model configuration: {error}") from error
    wrong = {
        f"it names the model '{config.name}'": config.name not in ("", folder.name),
        "its backend is not onnxruntime": "onnxruntime" not in (config.backend or config.platform),
        "max_batch_size must be 1 or more, since rows are batched": config.max_batch_size < 1,
        "it lists no input": not config.input,
        "it lists no output": not config.output,
    }
    for fault, is_wrong in wrong.items():
        if is_wrong:
            raise RepositoryError(f"{path}: {fault}")
    config.name = folder.name
    return config


def _newest_version(folder: Path, file_name: str) -> tuple[str, Path]:
    versions = _versions(folder)
    if not versions:
        raise RepositoryError(f"{folder}: has no version folder such as {folder.name}/1")
    version = max(versions, key=int)
    model_path = folder / version / file_name
    if not model_path.is_file():
        raise RepositoryError(f"{model_path}: is missing")
    return version, model_path


def _versions(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()]


def _tensor(folder: Path, spec: pb.ModelInput | pb.ModelOutput) -> TensorSpec:
    where = f"{folder / 'config.pbtxt'}: tensor '{spec.name}'"
    if spec.data_type not in _DATATYPES:
        raise RepositoryError(f"{where}: {pb.DataType.Name(spec.data_type)} is not supported")
    for descriptor, value in spec.ListFields():
        if descriptor.name in _UNSUPPORTED_FIELDS and value:
            raise RepositoryError(f"{where}: {descriptor.name} is not supported")
    if any(size < 1 and size != -1 for size in spec.dims):
        raise RepositoryError(f"{where}: dims must be -1, or 1 or more, not {list(spec.dims)}")
    if spec.HasField("reshape") and not _same_size(spec.dims, spec.reshape.shape):
        raise RepositoryError(
            f"{where}: reshape {list(spec.reshape.shape)} does not hold as many values as its "
            f"dims {list(spec.dims)}"
        )
    return TensorSpec(name=spec.name, datatype=_DATATYPES[spec.data_type], shape=tuple(spec.dims))


def _group(group: pb.ModelInstanceGroup) -> InstanceGroup:
    kind = pb.ModelInstanceGroup.Kind.Name(group.kind)
    return InstanceGroup(max(group.count, 1), kind, tuple(group.gpus))


def _threads(folder: Path, config: pb.ModelConfig, key: str) -> int | None:
    if key not in config.parameters:
        return None
    text = config.parameters[key].string_value
    if not text.isdecimal():
        raise RepositoryError(f"{folder / 'config.pbtxt'}: {key} must be a whole number, not '{text}'")
    return int(text) or None


def _warmup(folder: Path, sample: pb.ModelWarmup) -> Warmup:
    inputs = tuple(
        _warmup_input(folder, name, sample_input) for name, sample_input in sorted(sample.inputs.items())
    )
    return Warmup(rows=max(sample.batch_size, 1), count=max(sample.count, 1), inputs=inputs)


def _warmup_input(folder: Path, name: str, sample: pb.ModelWarmup.Input) -> WarmupInput:
    where = f"{folder / 'config.pbtxt'}: warmup input '{name}'"
    if sample.data_type not in _DATATYPES or any(size < 1 for size in sample.dims):
        raise RepositoryError(f"{where}: needs a data_type and dims of 1 or more")
    spec = TensorSpec(name=name, datatype=_DATATYPES[sample.data_type], shape=tuple(sample.dims))
    if not sample.input_data_file:
        return WarmupInput(spec, None)  # random bytes may be NaN, so zeros stand for random_data too
    path = folder / "warmup" / sample.input_data_file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RepositoryError(f"{path}: cannot be read: {error.strerror}") from error
    expected = math.prod(spec.shape) * DTYPES[spec.datatype].itemsize
    if spec.datatype != "BYTES" and len(data) != expected:
        raise RepositoryError(f"{path}: has {len(data)} bytes; one row of '{name}' takes {expected}")
    return WarmupInput(spec, data)


def _library(folder: Path, name: str) -> Path:
    """Return the library's path, which Triton resolves from the repository's folder.

    Raises RepositoryError if it is no file of the entry's own.
    """
    path = folder.parent / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise RepositoryError(
            f"{folder / 'config.pbtxt'}: op_library_filename '{name}' is outside the entry: a library of "
            f"kernels must be in the version folder, as {folder.name}/1/{path.name}"
        )
    if not path.is_file():
        raise RepositoryError(f"{path}: is missing")
    return path.absolute()


def demand_kernels_allowed(libraries: Sequence[Path], *, allowed: bool) -> None:
    """Raise RepositoryError if there are libraries that the settings do not allow."""
    if libraries and not allowed:
        raise RepositoryError(
            f"{libraries[0].name} is a library of kernels, and the gateway would run its code. If you "
            "trust everyone who can write to the repository, set RATIONALE_ALLOW_CUSTOM_OPS=true"
        )


def _check_profile(path: Path, manifest: Manifest) -> None:
    """Raise RepositoryError if the decision profile has changed since the compile."""
    decided = manifest.decision
    if decided is not None and decided.profile.digest != decided.digest:
        raise RepositoryError(
            f"{path}: the decision profile differs from the compiled one: compile the model again"
        )


def _check_manifest(path: Path, entry: Entry, manifest: Manifest) -> None:
    """Raise RepositoryError if `explanation.json` and `config.pbtxt` describe different graphs."""
    outputs = {spec.name: entry.reshapes.get(spec.name, spec.shape) for spec in entry.outputs}
    promised = manifest.explanation_outputs | {spec.name: spec.shape for spec in manifest.outputs}
    promised |= {EXPLAINED: (1,)} if manifest.one_shot else {}
    for name, shape in promised.items():
        if name not in outputs:
            raise RepositoryError(f"{path}: lists output '{name}', which config.pbtxt does not list")
        if not agree(outputs[name], shape):
            raise RepositoryError(
                f"{path}: '{name}' has shape {list(shape)}, but {list(outputs[name])} in config.pbtxt"
            )
    internal_inputs = (manifest.open_references.names if manifest.open_references else set()) | (
        {EXPLAIN} if manifest.one_shot else set()
    )
    if {spec.name for spec in manifest.inputs} | internal_inputs != {spec.name for spec in entry.inputs}:
        raise RepositoryError(f"{path}: its inputs differ from those of config.pbtxt")
    shapes = {spec.name: (-1, *spec.shape) for spec in entry.inputs}
    for name, axis in manifest.open_length.axes if manifest.open_length else ():
        if name not in shapes or not 0 < axis < len(shapes[name]) or shapes[name][axis] != -1:
            raise RepositoryError(f"{path}: says that '{name}' has an open length, and config.pbtxt does not")
    for item in manifest.explained:
        names, shape = item.feature_names, item.tensor.shape
        if names is not None and (len(names) != math.prod(shape) or len(set(names)) != len(names)):
            raise RepositoryError(
                f"{path}: the feature names of '{item.tensor.name}' are not one distinct name per feature"
            )
    if len({player.name for player in manifest.players}) < len(manifest.players):
        raise RepositoryError(f"{path}: the names of its players are not distinct")


def _same_size(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether one shape can be reshaped to the other; each may leave one size open."""
    open_sizes = (list(shape).count(-1), list(other).count(-1))
    return open_sizes in ((0, 0), (1, 1)) and abs(math.prod(shape)) == abs(math.prod(other))


def agree(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Tell whether shapes are equal; -1 agrees with every size."""
    return len(shape) == len(other) and all(-1 in (a, b) or a == b for a, b in zip(shape, other, strict=True))
