"""`rationale references`: a reference set from rows, either centroids or the population of a policy."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rationale.conversion.files import ALLOW_PICKLE
from rationale.terminal import Panel, console, reporting_errors

if TYPE_CHECKING:
    from rationale.references.centroids import Centroids
    from rationale.tables.files import Columns, Table
    from rationale.tables.represented import StandsFor

app = typer.Typer()
_of_centroids = partial(typer.Option, rich_help_panel="Centroids")
_of_policies = partial(typer.Option, rich_help_panel="References of a decision profile")
LEAST = 5  # rows of a centroid
SHOWN = 3  # elements of an output
NO_MODEL = "mean outputs may move: with --model the weights keep them"


_File = Annotated[Path, typer.Argument(help="Rows: .npz, .npy, .csv or .parquet.", metavar="FILE")]
_Out = Annotated[
    Path, typer.Option("--out", "-o", help="The .npz to write, with weights.", metavar="OUT.npz")
]
_Centroids = Annotated[int | None, _of_centroids(help="How many centroids, at most.", metavar="K", min=1)]
_Least = Annotated[
    int | None, _of_centroids(help="Rows that each centroid is the mean of, at least. Default: 5.", min=2)
]
_Whole = Annotated[
    bool | None,
    _of_centroids(
        "--round/--no-round",
        help="Columns of whole numbers stay so (default): one-hot columns become their most frequent "
        "category.",
    ),
]
_Decision = Annotated[
    Path | None,
    _of_policies(
        help="A decision profile: its output is the score, its threshold says who passes, and its policy "
        "whom the references are.",
        metavar="FILE",
    ),
]
_Policy = Annotated[
    str | None,
    _of_policies(
        help="Instead of the profile's: near_threshold (those who pass by little), all_applicants or "
        "approved (all who pass).",
    ),
]
_By = Annotated[
    str | None,
    _of_policies(
        help="stratified (default): at even steps along the score. medoids: real rows that stand for the "
        "nearest ones, weighted (pip install kmedoids). whole: every row."
    ),
]
_Count = Annotated[
    int | None, _of_policies(help="How many references. Default: 100, or all.", metavar="K", min=1)
]
_Band = Annotated[
    str | None,
    _of_policies(
        help="near_threshold: how near. A difference of scores such as 0.05, or the part of those who "
        "pass that is nearest. Default: 10%."
    ),
]
_Stratify = Annotated[
    str | None,
    _of_policies(
        help="stratified: a column, of the model or not, of which each value keeps its share.",
        metavar="COLUMN",
    ),
]
_Measure = Annotated[
    str | None,
    _of_policies(
        help="How much attributions and reasons move, by this method: over three draws of K/2, K and 2 K "
        "references, 100 declines explained by each, and beside 10 K. That costs ten compiles and their "
        "explanations: a minute for trees, many minutes for permutationshap.",
        metavar="METHOD",
    ),
]
_Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns of a table to take, by commas; of several inputs INPUT=A,B,C, repeated for each.",
        metavar="[INPUT=]A,B,C",
    ),
]
_Model = Annotated[
    Path | None,
    typer.Option(
        help="--centroids (ONNX): choose weights that keep its mean output over all rows, the base value "
        "of explanations. --decision: what scores the rows; a fitted model's file too, as for `rationale "
        "compile`.",
        metavar="MODEL",
    ),
]
_AllowPickle = Annotated[
    bool,
    _of_policies(
        "--allow-pickle",
        envvar=ALLOW_PICKLE,
        help="Read a model from a pickle (.joblib, .pkl), a program: only if you trust it.",
    ),
]
_Seed = Annotated[int, typer.Option(help="Seed of draws.", min=0)]


@app.command("references", rich_help_panel=Panel.EXPLAIN)
def references_command(
    file: _File,
    out: _Out,
    centroids: _Centroids = None,
    least: _Least = None,
    whole: _Whole = None,
    decision: _Decision = None,
    policy: _Policy = None,
    by: _By = None,
    count: _Count = None,
    band: _Band = None,
    stratify: _Stratify = None,
    measure: _Measure = None,
    features: _Features = None,
    model: _Model = None,
    allow_pickle: _AllowPickle = False,
    seed: _Seed = 0,
) -> None:
    """Make a reference set from rows: of a decision profile's policy, or centroids that are no one's row.

    With --decision the model scores the rows of FILE, and the set is drawn from those that the policy names;
    its rows are real people's. The base value of explanations is their mean score.

    With --centroids the rows are grouped, and the set holds the groups' means, weighted by their sizes: none
    that equals a row of fewer people than --least is written. The mean output over centroids is not that over
    the rows: with --model the weights are chosen so that it is.

    Weights are taken by deepshap, treeshap, exactshap, permutationshap and auto.

    Example: rationale references applied.csv --decision decision.yaml --model credit.onnx -o near.npz

    Example: rationale references approved.csv --centroids 40 -o typical.npz --model credit.onnx
    """
    with reporting_errors():
        from rationale.cli.policies import DrawRequest, draw_by_policy
        from rationale.errors import InvalidOptionError
        from rationale.schema.request import parse_features

        _check_out(out)
        chosen = parse_features(features or [])
        of_policies = {"policy": policy, "by": by, "count": count, "band": band}
        of_policies |= {"stratify": stratify, "measure": measure}
        of_policies = {name: value for name, value in of_policies.items() if value is not None}
        if (centroids is None) == (decision is None):
            raise InvalidOptionError(
                "give --centroids K for a set that holds no one's row, or --decision FILE for a policy's."
            )
        if decision is None:
            _check_none(of_policies, "--decision")
            assert centroids is not None
            lines, warnings = _of_groups(file, out, model, chosen, centroids, least or LEAST, whole, seed)
        else:
            of_centroids = {"least": least, "round": whole}
            _check_none({n: value for n, value in of_centroids.items() if value is not None}, "--centroids")
            if model is None:
                raise InvalidOptionError("--decision needs --model MODEL, which scores the rows.")
            made = draw_by_policy(
                DrawRequest(
                    file,
                    model,
                    decision,
                    features=chosen,
                    seed=seed,
                    allow_pickle=allow_pickle,
                    **cast("dict[str, Any]", of_policies),
                )
            )
            _write(out, made.table)
            lines, warnings = made.lines, made.warnings
        for line in lines:
            console().print(line)
        print(f"wrote {out}")
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)


def _of_groups(
    file: Path,
    out: Path,
    model: Path | None,
    features: "Columns",
    count: int,
    least: int,
    whole: bool | None,
    seed: int,
) -> tuple[list[str], list[str]]:
    """Write centroids; return the lines to print about them, and the warnings."""
    from rationale.references.centroids import centroids as made_of
    from rationale.tables.files import Table, read_rows
    from rationale.tables.represented import StandsFor

    table = read_rows(file, features)
    made = made_of(table.arrays, count, least=least, seed=seed, whole=whole is not False)
    stands_for = StandsFor(rows=table.count)
    lines, warnings = [NO_MODEL], list[str]()
    if model is not None:
        made, stands_for, lines, warnings = _balanced(model, table, made)
    _write(out, Table(made.arrays, table.columns, made.weights, stands_for))
    return [*_summary(stands_for.rows, made), *lines], [*_of_integers(table), *warnings]


def _check_none(given: Mapping[str, object], flag: str) -> None:
    """Raise InvalidOptionError for options that need the other way to make a set."""
    from rationale.errors import InvalidOptionError

    for name in given:
        raise InvalidOptionError(f"--{name.replace('_', '-')} belongs to {flag}: leave it out.")


def _check_out(out: Path) -> None:
    """Raise InvalidOptionError if the file cannot be written."""
    from rationale.artifact.folder import check_folder
    from rationale.errors import InvalidOptionError

    if out.suffix != ".npz":
        raise InvalidOptionError(f"{out}: must be a .npz, which holds weights.")
    if not out.parent.is_dir():
        raise InvalidOptionError(f"{out}: cannot be written: there is no folder {out.parent}.")
    check_folder(out.parent)


def _summary(given: int, made: "Centroids") -> list[str]:
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
    """Return a warning if the rows hold integers."""
    names = [str(name or "the file") for name, array in table.arrays.items() if array.dtype.kind in "iu"]
    return [
        f"{', '.join(names)}: integers; ids of tokens or categories have no mean: take rows instead"
    ] * bool(names)


def _balanced(
    model: Path, table: "Table", made: "Centroids"
) -> "tuple[Centroids, StandsFor, list[str], list[str]]":
    """Return weights that keep the model's mean outputs, those means, and lines and warnings about them."""
    from rationale.references.centroids import balanced, outputs_of
    from rationale.tables.represented import MeanOutput, StandsFor, shifts

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


def _write(out: Path, table: "Table") -> None:
    """Write a file whole or not at all; raise InvalidOptionError if that fails."""
    import numpy as np

    from rationale.artifact.folder import atomic_file
    from rationale.tables.archives import write_npz
    from rationale.tables.files import FEATURE_NAMES, STANDS_FOR, WEIGHTS

    assert table.stands_for is not None
    members = {name or "arr_0": array for name, array in table.arrays.items()}
    members[STANDS_FOR] = np.array(table.stands_for.model_dump_json())
    if table.weights is not None:
        members[WEIGHTS] = table.weights
    if table.columns is not None:
        members[FEATURE_NAMES] = np.array(table.columns)
    with atomic_file(out) as part, part.open("wb") as file:
        write_npz(file, members)
