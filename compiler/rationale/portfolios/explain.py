"""`rationale explain`: the rows of a file, explained in batches, printed in lines and saved."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rationale.artifact.compiled import Compiled, Explanation
from rationale.artifact.entry import open_comparing, open_entry
from rationale.artifact.rows import read_inputs
from rationale.errors import CheckFailedError, InvalidOptionError
from rationale.pictures.panels import largest_targets, targets_of
from rationale.portfolios.files import check_explanations, write_explanations
from rationale.schema.manifest import Manifest
from rationale.schema.request import Progress, silent
from rationale.tables.files import read_columns

TARGETS = 10  # of a row, that are printed
_WARNED = 10  # rows that are warned of by themselves


def explain_file(
    repository: Path,
    name: str,
    file: Path,
    save: Path | None,
    top: int,
    rows: int | None,
    progress: Progress,
    keep: Sequence[str] = (),
    compare_with: Path | None = None,
) -> list[str]:
    """Explain the rows of a file, in batches that the entry's memory budget holds.

    Args:
        save: file for the explanations of all rows; see `write_explanations`.
        top: number of features to print for each row, those with the largest attributions.
        rows: number of rows to print; None for all. Without `save` no others are explained.
        keep: columns of the file, a table, to save unchanged.
        compare_with: a file with the only reference of each row, or one for all.

    Returns:
        The lines to print.

    Raises:
        InvalidOptionError, InvalidReferencesError, RepositoryError: if it fails; the message names a remedy.
    """
    if save is not None:
        check_explanations(save, keep)
        if save.exists() and file.exists() and save.samefile(file):
            raise InvalidOptionError(f"{save}: this file contains the input rows: save to another file.")
    compiled = open_entry(repository, name) if compare_with is None else open_comparing(repository, name)
    inputs = read_inputs(compiled, file, compare_with=compare_with)
    count = len(next(iter(inputs.values())))
    kept_columns = read_columns(file, keep, count)
    shown = count if rows is None else min(rows, count)
    lines: list[str] = []
    answers = _collecting(
        explained_batches(compiled, inputs, shown if save is None else count, progress), shown, top, lines
    )
    saved = [] if save is None else [f"wrote {save}: {write_explanations(save, answers, kept_columns)}"]
    for _ in answers:  # the rest, unsaved
        pass
    left = count - shown
    more = f"{left} more row{'s' * (left != 1)}" + (f" in {save}" if save else ": see --rows and --save")
    texts = compiled.manifest.unknown_texts(inputs)
    warned = [f"row {row}: {'; '.join(own)}" for row, own in enumerate(texts, 1) if own]
    warnings = [f"warning: {sentence}" for sentence in warned[:_WARNED]]
    if len(warned) > _WARNED:
        warnings.append(f"warning: {len(warned) - _WARNED} more rows with such texts")
    return [*saved, *lines, *([more] if left else []), *warnings]


def parse_rows(text: str) -> int | None:
    """Parse "10", or "all", which is None; raise InvalidOptionError for anything else."""
    if text != "all" and not text.isdecimal():
        raise InvalidOptionError(f"--rows {text!r}: give a whole number, or all.")
    return None if text == "all" else int(text)


def explained_batches(
    compiled: Compiled, inputs: Mapping[str, np.ndarray], count: int, progress: Progress = silent
) -> Iterator[Explanation]:
    """Explain the first `count` rows of inputs.

    Raises:
        InvalidOptionError: if the model cannot take the rows.
    """
    run, size = compiled.run, compiled.manifest.measured.max_batch
    for start in range(0, count, size):
        progress("explaining", start, count)
        stop = min(start + size, count)
        rows = {name: a[start:stop] for name, a in inputs.items()}
        try:
            answer = run(rows)
        except CheckFailedError as error:
            raise InvalidOptionError(
                f"rows {start} to {stop - 1}: the model cannot take one of them (an id outside of its "
                f"table?): {error}"
            ) from error
        yield Explanation(answer, compiled.manifest, rows)


def _collecting(
    answers: Iterable[Explanation], rows: int, top: int, lines: list[str]
) -> Iterator[Explanation]:
    """Yield the same answers; append the lines of the first `rows` rows to `lines` on the way."""
    first = 0
    for answer in answers:
        count = len(answer[answer.manifest.explained_value])
        for i in range(min(count, rows - first)):
            lines += _row(answer, i, first + i + 1, top)
        first += count
        yield answer


def _row(answer: Explanation, i: int, row: int, top: int) -> Iterator[str]:
    """Return the lines of row i of an answer, which is `row` of the file, from 1 as people count."""
    manifest = answer.manifest
    explained, targets = answer[manifest.explained_value][i], targets_of(answer)[i]
    for j in largest_targets(answer, i, TARGETS):
        base = f", base {answer[manifest.base_value][i, j]:.6g}" if manifest.base_value else ""
        gap = f", gap {answer[manifest.completeness_gap][i, j]:.1e}" if manifest.completeness_gap else ""
        yield f"Row {row}, target {_target(manifest, targets[j])}: {explained[j]:.6g}{base}{gap}"
        yield from _features(answer, i, j, top)
    if len(explained) > TARGETS:
        yield f"Row {row}: {len(explained) - TARGETS} more targets, of smaller value"


def _target(manifest: Manifest, target: object) -> str:
    named = manifest.class_name(target)
    is_predicted = bool(manifest.targets == "predicted" and target != "predicted")
    return str(target) + f" ({named})" * bool(named) + " (predicted)" * is_predicted


def _features(answer: Explanation, i: int, j: int, top: int) -> Iterator[str]:
    """Return lines of the largest attributions, those of all inputs together."""
    lines = []
    for entry in answer.manifest.attributed:
        values = answer[entry.attributions][i, j].reshape(-1)
        names = entry.names(len(values))
        errors = answer[entry.standard_error][i, j].reshape(-1) if entry.standard_error else None
        for k in np.argsort(-np.abs(values), kind="stable")[:top]:
            error = "" if errors is None else f" ± {errors[k]:<8.2g}"
            lines.append((abs(values[k]), f"  {values[k]:+12.6g}{error}  {names[k]}"))
    return (line for _, line in sorted(lines, key=lambda pair: -pair[0])[:top])
