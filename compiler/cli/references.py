"""`rationale references`: a reference set that holds no one's row."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compiler.terminal import console, told_plainly

if TYPE_CHECKING:
    from compiler.references.centroids import Centroids
    from compiler.references.represented import StandsFor
    from compiler.references.tables import Table

app = typer.Typer()
SHOWN = 3  # elements of an output
NO_MODEL = "mean outputs may move: with --model the weights keep them"


@app.command("references")
def references_command(
    file: Annotated[Path, typer.Argument(help="Rows: .npz, .npy, .csv or .parquet.", metavar="FILE")],
    centroids: Annotated[int, typer.Option(help="How many centroids, at most.", metavar="K", min=1)],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The .npz to write, with weights.", metavar="OUT.npz")
    ],
    least: Annotated[int, typer.Option(help="Rows that each centroid is the mean of, at least.", min=2)] = 5,
    whole: Annotated[
        bool,
        typer.Option(
            "--round/--no-round",
            help="Columns of whole numbers stay so: one-hot columns become their most frequent category.",
        ),
    ] = True,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="Columns of a table to take, by commas; of several inputs INPUT=A,B,C, repeated for each.",
            metavar="[INPUT=]A,B,C",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Choose weights that keep its mean output over all rows: the base value of explanations.",
            metavar="MODEL.onnx",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw of the first centres.", min=0)] = 0,
) -> None:
    """Make a reference set that holds no one's row: centroids of groups of rows, weighted by their size.

    Baked references are rows of real people inside model.onnx. A centroid is the mean of several, and none
    that equals a row of fewer people than that is written. DeepSHAP takes the weights. The mean output over
    centroids is not that over the rows: with --model the weights are chosen so that it is.

    Example: rationale references approved.csv --centroids 40 -o typical.npz --model credit.onnx
    """
    with told_plainly():
        from compiler.references.centroids import centroids as made_of
        from compiler.references.represented import StandsFor
        from compiler.references.tables import read_rows
        from compiler.request import parse_features

        table = read_rows(file, parse_features(features or []))
        made = made_of(table.arrays, centroids, least=least, seed=seed, whole=whole)
        stands_for = StandsFor(rows=len(next(iter(table.arrays.values()))))
        lines, warnings = [NO_MODEL], list[str]()
        if model is not None:
            made, stands_for, lines, warnings = _balanced(model, table, made)
        _write(out, table, made, stands_for)
        for line in [*_told(stands_for.rows, made), *lines]:
            console().print(line)
        print(f"wrote {out}")
        for warning in [*_of_integers(table), *warnings]:
            print(f"warning: {warning}", file=sys.stderr)


def _told(given: int, made: "Centroids") -> list[str]:
    lines = [
        f"{len(made.weights)} centroids of {given} rows; the smallest stands for {made.smallest}",
        f"column means within {made.moved:.2g} standard deviations of those of all rows",
    ]
    if made.rounded:
        lines.append(f"{made.rounded} columns of whole numbers stayed whole")
    if made.left:
        lines.append(f"{made.left} centroids keep fractions there: rounded, they were somebody's row")
    return lines


def _of_integers(table: "Table") -> list[str]:
    """A warning where the rows hold integers."""
    names = [str(name or "the file") for name, array in table.arrays.items() if array.dtype.kind in "iu"]
    return [
        f"{', '.join(names)}: integers; ids of tokens or categories have no mean: take rows instead"
    ] * bool(names)


def _balanced(
    model: Path, table: "Table", made: "Centroids"
) -> "tuple[Centroids, StandsFor, list[str], list[str]]":
    """Weights that keep the model's mean outputs, what they keep, and what is said and warned of it."""
    from compiler.references.centroids import balanced, outputs_of
    from compiler.references.represented import MeanOutput, StandsFor, shifts

    digest, outputs = outputs_of(model, table.arrays, made)
    kept = balanced(made, table.arrays, outputs)
    means = {o.name: MeanOutput(mean=tuple(o.mean), spread=tuple(o.spread)) for o in outputs}
    stands_for = StandsFor(rows=len(next(iter(table.arrays.values()))), model=digest, outputs=means)
    lines, warnings = [], list[str]()
    for o in outputs:
        before, after = made.weights @ o.centroids, kept.weights @ o.centroids
        numbers = [
            f"{a:.6g} ({full:.6g} over all rows; {b:.6g} by the groups' sizes)"
            for a, b, full in zip(after[:SHOWN], before[:SHOWN], o.mean[:SHOWN], strict=True)
        ]
        lines.append(f"mean of {o.name}: {', '.join(numbers)}")
        warnings += shifts(o.name, range(len(after)), after, means[o.name], stands_for.rows)
    return kept, stands_for, lines, warnings


def _write(out: Path, table: "Table", made: "Centroids", stands_for: "StandsFor") -> None:
    """Whole or not at all. Raises InvalidOptionError."""
    import numpy as np

    from compiler.artefact.folder import whole
    from compiler.errors import InvalidOptionError
    from compiler.references.archives import write_npz
    from compiler.references.tables import FEATURE_NAMES, STANDS_FOR, WEIGHTS

    if out.suffix != ".npz":
        raise InvalidOptionError(f"{out}: must be a .npz, which holds weights.")
    members = {name or "arr_0": array for name, array in made.arrays.items()}
    members |= {WEIGHTS: made.weights, STANDS_FOR: np.array(stands_for.model_dump_json())}
    if table.columns is not None:
        members[FEATURE_NAMES] = np.array(table.columns)
    with whole(out) as part, part.open("wb") as file:
        write_npz(file, members)
