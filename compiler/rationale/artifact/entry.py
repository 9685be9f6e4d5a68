"""Written entries, used without a server."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from rationale.artifact.checks.check import demand
from rationale.artifact.checks.gate import check_gate
from rationale.artifact.checks.measure import measure, relative_error
from rationale.artifact.checks.probes import probe_rows
from rationale.artifact.checks.proof import demand_proof, read_proven
from rationale.artifact.compiled import Compiled, demand_texts
from rationale.artifact.finishing.one_shot import plain_model
from rationale.artifact.repository import check_name
from rationale.errors import InvalidModelError, InvalidOptionError, RepositoryError
from rationale.graph.memory.budget import rows_that_fit
from rationale.graph.runtime.kernels import digest
from rationale.graph.runtime.openvino import OpenVinoRunner
from rationale.graph.runtime.session import kernels_of
from rationale.methods.engine import Gap
from rationale.methods.outputs import GAP, GAP_ERROR
from rationale.references.of_model import text_columns
from rationale.schema.manifest import (
    DATATYPES,
    EXPLAIN,
    EXPLAIN_SUFFIX,
    EXPLAINED,
    FILE_NAME,
    OPEN_SUFFIX,
    Manifest,
)
from rationale.schema.probes import Probes
from rationale.tables.files import Columns, Table, read_rows

RUNTIMES = ("onnxruntime", "openvino")  # runtimes that can run an entry here


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
    plain, explain = _folders(repository, check_name(name))
    manifest = Manifest.read(explain / FILE_NAME)
    if manifest.open_references:
        plain = repository / manifest.model
    probes = _probes_of(explain, manifest, plain)
    try:
        combined = onnx.load(explain / "1" / "model.onnx")
        outputs = [v.name for v in manifest.outputs]
        source = (
            plain_model(combined, outputs) if manifest.one_shot else onnx.load(plain / "1" / "model.onnx")
        )
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


def _probes_of(explain: Path, manifest: Manifest, plain: Path) -> Probes | None:
    """Return the probe rows of an entry; check that its files and the plain model's are the compiled ones."""
    if plain != explain:
        read_proven(plain / "1", promised=False)
    return read_proven(explain / "1", promised=manifest.measured.probe_rows > 0)


def _folders(repository: Path, name: str) -> tuple[Path, Path]:
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


def read_inputs(
    compiled: Compiled, file: Path, *, any_text: bool = False, compare_with: Path | None = None
) -> dict[str, np.ndarray]:
    """Return the rows of a file in the model's dtypes, by input name; a table's columns are found by name.

    Args:
        compare_with: a file with the only reference of each row, or one for all.
        any_text: True to allow texts that the fitted model refuses; decisions name these row by row.

    Raises:
        InvalidOptionError, InvalidReferencesError: an error with advice, if the rows do not fit.
    """
    table = read_table(file, compiled.manifest)
    check_table(str(file), table, compiled.manifest)
    if compare_with is None:
        return _fit_rows(compiled, table.rows, any_text=any_text)
    partners = read_table(compare_with, compiled.manifest)
    check_table(str(compare_with), partners, compiled.manifest)
    return _fit_rows(compiled, table.rows, any_text=any_text, compare_with=partners.rows)


def inputs_of_arrow(compiled: Compiled, batch: Any, *, any_text: bool = False) -> dict[str, np.ndarray]:
    """Return the rows of an Arrow record batch as `read_inputs` does those of a file."""
    return _fit_rows(compiled, batch, any_text=any_text)


def _fit_rows(
    compiled: Compiled, rows: Any, *, any_text: bool, compare_with: Any = None
) -> dict[str, np.ndarray]:
    inputs = compiled.fit(rows, compare_with)
    if not any_text:
        demand_texts(compiled.manifest, inputs)
    return inputs


def read_table(file: Path, manifest: Manifest) -> Table:
    """Read rows of an entry's inputs from a file; raise InvalidReferencesError."""
    return read_rows(file, *_columns(manifest))


def _columns(manifest: Manifest) -> tuple[Columns, Collection[str]]:
    """Return the columns in which a table holds the inputs, and those of them that hold text."""
    names = own_names(manifest)
    texts = [spec.name for spec in manifest.inputs if spec.datatype == DATATYPES["STRING"]]
    return names, text_columns(names, texts)


def own_names(manifest: Manifest) -> Columns:
    """Return the feature names that someone gave, which find a table's columns, or None.

    None stands for x[0], x[1] …. Several inputs of one feature each are its columns by their own names.
    """
    if len(manifest.inputs) > 1 and all(spec.is_column for spec in manifest.inputs):
        feature_names = {e.tensor.name: e.given_names for e in manifest.explained}
        return {spec.name: feature_names.get(spec.name) or (spec.name,) for spec in manifest.inputs}
    named = {e.tensor.name: e.given_names for e in manifest.explained if e.tensor in manifest.inputs}
    names = {name: columns for name, columns in named.items() if columns}
    if len(names) < len(manifest.explained):
        return None
    return names if len(names) > 1 else next(iter(names.values()))


def check_table(file: str, table: Table, manifest: Manifest) -> None:
    """Raise InvalidOptionError if an array without a name cannot be the model's rows."""
    if None not in table.arrays:
        return
    names = [spec.name for spec in manifest.inputs]
    if len(names) > 1:
        raise InvalidOptionError(
            f"{file}: one array, but the model has the inputs {names}. Give a .npz file with an array for "
            "each, or compile the entry with --features INPUT=A,B,C for each and give a table with these "
            "columns."
        )
    width = math.prod(manifest.inputs[0].shape)
    if table.columns is not None and len(table.columns) != width:
        raise InvalidOptionError(
            f"{file}: has {len(table.columns)} columns, but the model takes {width} features. Remove the "
            "other columns, or compile the entry with --features, which finds columns by name."
        )


def check_entry(repository: Path, name: str, runtime: str = "onnxruntime") -> Manifest:
    """Measure an entry again, and return its manifest with the new measurements.

    Args:
        runtime: the runtime of the entry, onnxruntime or openvino; another one's answers are compared with
            ONNX Runtime's, and judged as at compile time.

    Raises:
        InvalidOptionError: if the runtime is unknown or not installed.
        CheckFailedError: if the runtime does not run the entry, or its answers differ.
        RepositoryError: if there is no such entry, or it cannot be read.
    """
    if runtime not in RUNTIMES:
        raise InvalidOptionError(f"--runtime {runtime!r}: choose {' or '.join(RUNTIMES)}.")
    compiled = open_entry(repository, name)
    file = _folders(repository, name)[1] / "1" / "model.onnx"
    with kernels_of(compiled.custom_ops):
        return _measure_again(compiled, OpenVinoRunner(file) if runtime != "onnxruntime" else None)


def _measure_again(compiled: Compiled, run: OpenVinoRunner | None) -> Manifest:
    manifest, names = compiled.manifest, [entry.attributions for entry in compiled.manifest.attributed]
    run_here = compiled.run  # it proves itself first
    most = rows_that_fit(manifest.memory)
    try:
        probes = _probes(compiled, unit=True)
        measurement = measure(compiled.source, compiled.model, names, probes, most, run or run_here)
    except InvalidModelError:  # floats that are ids of a small table, say
        probes = _probes(compiled, unit=False)
        measurement = measure(compiled.source, compiled.model, names, probes, most, run or run_here)
    if manifest.one_shot:
        check_gate(compiled.model, probes, [v.name for v in manifest.outputs], run)
    measured = measurement.measured.model_copy(update={"probe_rows": manifest.measured.probe_rows})
    if run is not None:
        error = _difference(run_here(probes), measurement.answers)
        measured = measured.model_copy(update={"runtime_error": error})
        warnings = demand(measured, _gap_of(manifest), bool(manifest.stopped))
        manifest = manifest.model_copy(update={"warnings": warnings})
    if compiled.probes is not None:
        if run is None:
            drift = compiled.probes.compare(run_here(compiled.probes.feeds))
        else:
            drift = demand_proof(compiled.probes, measurement.run, run.name)
        measured = measured.model_copy(update={"drift": drift.value})
    return manifest.model_copy(update={"measured": measured})


def _probes(compiled: Compiled, *, unit: bool) -> dict[str, np.ndarray]:
    """Return rows near the sample that the compiler left, and one a unit away from it."""
    probes = probe_rows(compiled.model, compiled.sample, unit=unit)
    probes.pop(EXPLAIN if compiled.manifest.one_shot else "", None)
    if (references := compiled.manifest.open_references) is not None:
        probes[references.weights.name] = np.abs(probes[references.weights.name])
    return probes


def _difference(expected: Mapping[str, np.ndarray], answers: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative difference from ONNX Runtime's answers; that of a gap is rounding."""
    names = [name for name in expected if name not in (GAP, GAP_ERROR)]
    return max(relative_error(answers[name], expected[name]) for name in names)


def _gap_of(manifest: Manifest) -> Gap | None:
    """Return the reason why a written entry's attributions may miss the output's difference, if known."""
    return next((gap for gap in Gap if gap == manifest.method.gap), None)
