"""`rationale references`: a reference set that holds no one's row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compiler.terminal import console, told_plainly

if TYPE_CHECKING:
    from compiler.centroids import Centroids
    from compiler.tables import Table

app = typer.Typer()


@app.command("references")
def references_command(
    file: Annotated[
        Path,
        typer.Argument(help="Rows: .npz, .npy, .csv or .parquet.", metavar="FILE", show_default=False),
    ],
    centroids: Annotated[
        int, typer.Option(help="How many centroids, at most.", metavar="K", min=1, show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The .npz to write, with weights.", metavar="OUT.npz", show_default=False
        ),
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
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Compare its mean output over the centroids with that over all rows.",
            metavar="MODEL.onnx",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first centres.", min=0)] = 0,
) -> None:
    """Make a reference set that holds no one's row: centroids of groups of rows, weighted by their size.

    Baked references are rows of real people inside model.onnx. A centroid is the mean of several, and none
    that equals a row of fewer people than that is written. DeepSHAP takes the weights.

    Example: rationale references approved.csv --centroids 40 -o typical.npz --model credit.onnx
    """
    with told_plainly():
        from compiler.asked import parse_features
        from compiler.centroids import centroids as made_of
        from compiler.tables import read_rows

        table = read_rows(file, parse_features(features or []))
        made = made_of(table.arrays, centroids, least=least, seed=seed, whole=whole)
        lines = _told(table, made)
        if model is not None:
            lines += _outputs(model, table, made)
        _write(out, table, made)
        for line in lines:
            console().print(line)
        print(f"wrote {out}")


def _told(table: "Table", made: "Centroids") -> list[str]:
    given = len(next(iter(table.arrays.values())))
    lines = [
        f"{len(made.weights)} centroids of {given} rows; the smallest stands for {made.smallest}",
        f"column means within {made.moved:.2g} standard deviations of those of all rows",
    ]
    if made.rounded:
        lines.append(f"{made.rounded} columns of whole numbers stayed whole")
    if made.left:
        lines.append(f"{made.left} centroids keep fractions there: rounded, they were somebody's row")
    integers = [name for name, array in table.arrays.items() if array.dtype.kind in "iu"]
    if integers:
        named = ", ".join(str(name or "the file") for name in integers)
        lines.append(f"warning: {named}: integers; ids of tokens or categories have no mean: take rows")
    return lines


def _outputs(model: Path, table: "Table", made: "Centroids") -> list[str]:
    """Mean outputs over all rows and over the centroids, in standard deviations of the output."""
    import numpy as np

    from compiler.centroids import mean_outputs

    lines = []
    for name, (full, short, spread) in mean_outputs(model, table.arrays, made).items():
        off = float((np.abs(full - short) / np.where(spread > 0, spread, 1)).max())
        shown = ", ".join(
            f"{a:.6g} ({b:.6g} over all rows)" for a, b in zip(short[:3], full[:3], strict=True)
        )
        lines.append(f"mean of {name}: {shown}; at most {off:.2g} standard deviations off")
    return lines


def _write(out: Path, table: "Table", made: "Centroids") -> None:
    """Whole or not at all. Raises InvalidOptionError."""
    import tempfile

    import numpy as np

    from compiler.archives import write_npz
    from compiler.errors import InvalidOptionError
    from compiler.tables import FEATURE_NAMES, WEIGHTS

    if out.suffix != ".npz":
        raise InvalidOptionError(f"{out}: must be a .npz, which holds weights.")
    members = {name or "arr_0": array for name, array in made.arrays.items()}
    members[WEIGHTS] = made.weights
    if table.columns is not None:
        members[FEATURE_NAMES] = np.array(table.columns)
    try:
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=out.parent) as folder:
            part = Path(folder) / "references.npz"
            with part.open("wb") as file:
                write_npz(file, members)
            part.replace(out)
    except OSError as error:
        raise InvalidOptionError(f"{out}: cannot be written: {error.strerror or error}.") from error
