"""Written entries, read back as `compile_model` returned them."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from rationale.artifact.checks.proof import read_proven
from rationale.artifact.compiled import Compiled
from rationale.artifact.names import check_name
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.graph.runtime.kernels import digest
from rationale.schema.manifest import EXPLAIN_SUFFIX, EXPLAINED, FILE_NAME, OPEN_SUFFIX, Manifest
from rationale.schema.probes import Probes


def load(repository: str | Path, name: str) -> Compiled:
    """Return a written entry as `compile_model` returned it: to explain, decide and draw here.

    The graph answers its probe rows before the first run.

    Args:
        repository: the folder that it was written to.
        name: the model's, as in `rationale compile --name`; or that of one of its explainers.

    Raises:
        RepositoryError: if there is no such entry, or it cannot be read.
    """
    return open_entry(Path(repository), name)


def open_entry(repository: Path, name: str) -> Compiled:
    """Read `NAME` and `NAME_explain` back, or a one-shot `NAME`.

    Raises:
        RepositoryError: if there is no such entry, or it cannot be read.
    """
    plain, explain = entry_folders(repository, check_name(name))
    manifest = Manifest.read(explain / FILE_NAME)
    if manifest.open_references:
        plain = repository / manifest.model
    probes = _probes_of(explain, manifest, plain)
    try:
        combined = onnx.load(explain / "1" / "model.onnx")
        outputs = [v.name for v in manifest.outputs]
        source = _plain_model(combined, manifest, plain)
        sample = _sample(combined, explain / "warmup")
    except (OSError, ValueError, DecodeError, onnx.checker.ValidationError) as error:
        raise RepositoryError(
            f"{repository}: entry {name!r} cannot be read: {error}. Compile it again."
        ) from error
    for folder, model, names in (
        (explain, combined, {*outputs, *_expected_outputs(manifest)}),
        (plain, source, set(outputs)),
    ):
        missing = names - {v.name for v in model.graph.output}
        if missing:
            raise RepositoryError(
                f"{folder}: the graph lacks {sorted(missing)}, which its manifest lists. Compile it again."
            )
    libraries = tuple(explain / "1" / library.file for library in manifest.custom_ops)
    for library, promised in zip(libraries, manifest.custom_ops, strict=True):
        if library.parent != explain / "1" or not library.is_file() or digest(library) != promised.sha256:
            raise RepositoryError(
                f"{library}: this library differs from the one that the entry was compiled with. Compile "
                "it again."
            )
    return Compiled(combined, manifest, source, sample, libraries, probes=probes, is_proven=probes is None)


def _plain_model(combined: onnx.ModelProto, manifest: Manifest, plain: Path) -> onnx.ModelProto:
    if not manifest.one_shot:
        return onnx.load(plain / "1" / "model.onnx")
    from rationale.artifact.finishing.one_shot import plain_model  # late: it imports the compiler

    return plain_model(combined, [v.name for v in manifest.outputs])


def _probes_of(explain: Path, manifest: Manifest, plain: Path) -> Probes | None:
    """Return the probe rows of an entry; check that its files and the plain model's are the compiled ones."""
    if plain != explain:
        read_proven(plain / "1", promised=False)
    return read_proven(explain / "1", promised=manifest.measured.probe_rows > 0)


def entry_folders(repository: Path, name: str) -> tuple[Path, Path]:
    """Return the folders of the plain model and of its explanation, which are one for a one-shot entry."""
    plain, explain = repository / name, repository / f"{name}{EXPLAIN_SUFFIX}"
    for folder in (plain, explain):
        if (folder / FILE_NAME).is_file():
            return plain, folder
    if repository.is_file():
        raise RepositoryError(f"{repository} is a file: give the folder that `rationale compile` wrote to.")
    entries = sorted(p.parent.name.removesuffix(EXPLAIN_SUFFIX) for p in repository.glob(f"*/{FILE_NAME}"))
    raise RepositoryError(
        f"{explain}: there is no such entry; {repository} has {entries or 'none'}. Write one with "
        "`rationale compile`."
    )


def _expected_outputs(manifest: Manifest) -> set[str]:
    return {*manifest.explanation_outputs, *([EXPLAINED] if manifest.one_shot else [])}


def _sample(model: onnx.ModelProto, warmup: Path) -> dict[str, np.ndarray]:
    """Return the rows that the compiler wrote for the server's warmup, if they are there."""
    rows = {}
    for i, value in enumerate(model.graph.input):
        tensor = value.type.tensor_type
        file = warmup / f"input_{i}"
        if file.is_file():
            if tensor.elem_type == onnx.TensorProto.STRING:
                array = _texts(file.read_bytes())
            else:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
                array = np.frombuffer(file.read_bytes(), dtype)
            dims = [d.dim_value for d in tensor.shape.dim[1:]]
            rows[value.name] = array.reshape(1, *_fill_open_lengths(dims, array.size))
    return rows


def _texts(raw: bytes) -> np.ndarray:
    """Return the texts of a warmup file, each behind its length (uint32, little endian)."""
    texts, start = list[str](), 0
    while start < len(raw):
        end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        texts.append(raw[start + 4 : end].decode())
        start = end
    return np.array(texts, object)


def _fill_open_lengths(dims: Sequence[int], size: int) -> list[int]:
    """Return the lengths of a row of `size` elements; open lengths, given as 0, are all the same."""
    length = round((size / math.prod(d for d in dims if d)) ** (1 / max(dims.count(0), 1)))
    return [d or length for d in dims]


def open_comparing(repository: Path, name: str) -> Compiled:
    """Read an entry whose references come with each row: `NAME` itself, or `NAME_explain_open`.

    Raises:
        InvalidOptionError: if there is none; the message says how to make it.
        RepositoryError: if it cannot be read.
    """
    open_name = name if name.endswith(OPEN_SUFFIX) else f"{name}{OPEN_SUFFIX}"
    if not (repository / check_name(open_name) / FILE_NAME).is_file():
        raise InvalidOptionError(
            f"{repository / open_name}: {name!r} has no entry that takes references with each request. "
            "Compile one with `rationale compile … --open-references 1` and the same method and options."
        )
    return open_entry(repository, open_name)
