"""Written entries, used without a server: `rationale explain` and `rationale check`."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from compiler.check import measure, probe_rows
from compiler.compiled import Compiled, Explanation
from compiler.errors import InvalidOptionError, RepositoryError
from compiler.manifest import EXPLAIN_SUFFIX, FILE_NAME, Manifest
from compiler.references import read_rows
from compiler.repository import check_name


def open_entry(repository: Path, name: str) -> Compiled:
    """Reads `NAME` and `NAME_explain` back.

    Raises:
        RepositoryError: no such entry, or one that cannot be read.
    """
    plain, explain = repository / check_name(name), repository / f"{name}{EXPLAIN_SUFFIX}"
    if not (explain / FILE_NAME).is_file():
        known = sorted(p.parent.name.removesuffix(EXPLAIN_SUFFIX) for p in repository.glob(f"*/{FILE_NAME}"))
        raise RepositoryError(
            f"{explain}: no such entry; {repository} has {known or 'none'}. Make one with `rationale compile`."
        )
    manifest = Manifest.read(explain / FILE_NAME)
    try:
        models = [onnx.load(folder / "1" / "model.onnx") for folder in (explain, plain)]
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise RepositoryError(f"{repository}: entry {name!r} cannot be read: {error}. Compile it again.") from error
    return Compiled(models[0], manifest, models[1], _sample(models[0], explain / "warmup"))


def _sample(model: onnx.ModelProto, warmup: Path) -> dict[str, np.ndarray]:
    """The rows the compiler left for the server's warmup, as far as they are there."""
    rows = {}
    for i, value in enumerate(model.graph.input):
        tensor = value.type.tensor_type
        shape = (1, *(d.dim_value for d in tensor.shape.dim[1:]))
        file = warmup / f"input_{i}"
        if file.is_file():
            array = np.frombuffer(file.read_bytes(), onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            rows[value.name] = array.reshape(shape)
    return rows


def explain_file(repository: Path, name: str, file: Path, save: Path | None, top: int) -> None:
    """Prints, and optionally saves, the explanation of each row of a file.

    Raises:
        InvalidOptionError, InvalidReferencesError, RepositoryError: with what to do.
    """
    compiled = open_entry(repository, name)
    names = compiled.manifest.explained[0].feature_names
    table = read_rows(file)
    if table.columns is not None and names is not None and set(names) <= set(table.columns):
        table = read_rows(file, names)
    rows: Mapping[str, np.ndarray] | np.ndarray
    rows = table.arrays[None] if None in table.arrays else {str(k): v for k, v in table.arrays.items()}
    answer = compiled.explain(rows)
    if save is not None:
        try:
            with save.open("wb") as target:
                np.savez(target, **dict(answer))
        except OSError as error:
            raise InvalidOptionError(f"{save}: cannot be written: {error.strerror}") from error
        print(f"wrote {save}: {', '.join(f'{k} {list(v.shape)}' for k, v in answer.items())}")
    _print_rows(answer, top)


def _print_rows(answer: Explanation, top: int) -> None:
    manifest = answer.manifest
    explained = answer[manifest.explained_value]
    for i, j in np.ndindex(*explained.shape):
        base = f", base {answer[manifest.base_value][i, j]:.6g}" if manifest.base_value else ""
        gap = f", gap {answer[manifest.completeness_gap][i, j]:.1e}" if manifest.completeness_gap else ""
        target = manifest.targets[j] if not isinstance(manifest.targets, str) else manifest.targets
        print(f"row {i}, target {target}: {explained[i, j]:.6g}{base}{gap}")
        for entry in manifest.explained:
            values = answer[entry.attributions][i, j].reshape(-1)
            for k in np.argsort(-np.abs(values))[:top]:
                feature = entry.feature_names[k] if entry.feature_names else f"{entry.tensor.name}[{k}]"
                print(f"  {values[k]:+12.6g}  {feature}")


def check_entry(repository: Path, name: str) -> Manifest:
    """The entry's manifest with measurements made now."""
    compiled = open_entry(repository, name)
    names = [entry.attributions for entry in compiled.manifest.explained]
    probes = probe_rows(compiled.model, compiled.sample)
    measured = measure(compiled.source, compiled.model, names, probes)
    return compiled.manifest.model_copy(update={"measured": measured})
