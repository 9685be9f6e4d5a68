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
_centroid_option = partial(typer.Option, rich_help_panel="Centroids")
_policy_option = partial(typer.Option, rich_help_panel="References of a decision profile")
LEAST = 5  # rows of a centroid
SHOWN = 3  # elements of an output
NO_MODEL = "mean outputs may move: with --model the weights keep them"


_File = Annotated[Path, typer.Argument(help="Rows: .npz, .npy, .csv, .parquet or .xlsx.", metavar="FILE")]
_Out = Annotated[
    Path, typer.Option("--out", "-o", help="The .npz to write, with weights.", metavar="OUT.npz")
]
_Centroids = Annotated[int | None, _centroid_option(help="Most centroids to make.", metavar="K", min=1)]
_Least = Annotated[int | None, _centroid_option(help="Least rows per centroid. Default: 5.", min=2)]
_Whole = Annotated[
    bool | None,
    _centroid_option(
        "--round/--no-round",
        help="Keep columns of whole numbers whole (default): one-hot columns become their most frequent "
        "category.",
    ),
]
_Decision = Annotated[
    Path | None,
    _policy_option(
        help="A decision profile: its output is the score, its threshold decides who passes, and its "
        "policy names the population to draw from.",
        metavar="FILE",
    ),
]
_Policy = Annotated[
    str | None,
    _policy_option(
        help="The population, instead of the profile's: near_threshold (those who pass by little), "
        "all_applicants or approved (all who pass).",
    ),
]
_By = Annotated[
    str | None,
    _policy_option(
        help="How to draw. stratified (default): at even steps along the score. medoids: real rows, weighted "
        "by the rows nearest to them (pip install kmedoids). whole: every row."
    ),
]
_Count = Annotated[
    int | None, _policy_option(help="Number of references. Default: 100, or all.", metavar="K", min=1)
]
_Band = Annotated[
    str | None,
    _policy_option(
        help="The width of near_threshold: a difference of scores such as 0.05, or the nearest share of "
        "those who pass. Default: 10%."
    ),
]
_Stratify = Annotated[
    str | None,
    _policy_option(
        help="A column whose values keep their shares in a stratified draw. The model need not take it.",
        metavar="COLUMN",
    ),
]
_Measure = Annotated[
    str | None,
    _policy_option(
        help="Measure how much this method's attributions and reasons move over three draws of K/2, K and "
        "2 K references, for 100 declines, and against 10 K. That costs ten compiles and their "
        "explanations: a minute for trees, many minutes for permutationshap.",
        metavar="METHOD",
    ),
]
_Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns of a table to take, by commas; for several inputs INPUT=A,B,C, repeated for each.",
        metavar="[INPUT=]A,B,C",
    ),
]
_Model = Annotated[
    Path | None,
    typer.Option(
        help="With --decision: the model that scores the rows, as `rationale compile` takes it. With "
        "--centroids: an ONNX model, whose mean output over all rows (the base value of explanations) the "
        "weights keep.",
        metavar="MODEL",
    ),
]
_AllowPickle = Annotated[
    bool,
    _policy_option(
        "--allow-pickle",
        envvar=ALLOW_PICKLE,
        help="Read a model from a pickle (.joblib, .pkl), which is a program: only if you trust it.",
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
    """Make a reference set from rows: a draw by a decision profile's policy, or centroids.

    With --decision the model scores the rows of FILE, and the command draws the set from the population that
    the policy names. These are real people's rows. The base value of explanations is their mean score.

    With --centroids the command groups the rows and writes the groups' means, weighted by the groups' sizes.
    It leaves out a centroid that equals a row of fewer people than --least. The mean output over centroids
    differs from that over the rows, unless --model chooses weights that keep it.

    The methods deepshap, treeshap, exactshap, permutationshap and auto take weights.

    Example: rationale references applied.csv --decision decision.yaml --model credit.onnx -o near.npz

    Example: rationale references approved.csv --centroids 40 -o typical.npz --model credit.onnx
    """
    with reporting_errors():
        from rationale.cli.policies import DrawRequest, draw_by_policy
        from rationale.errors import InvalidOptionError
        from rationale.schema.request import parse_features

        _check_out(out)
        columns = parse_features(features or [])
        policy_options = {"policy": policy, "by": by, "count": count, "band": band}
        policy_options |= {"stratify": stratify, "measure": measure}
        policy_options = {name: value for name, value in policy_options.items() if value is not None}
        if (centroids is None) == (decision is None):
            raise InvalidOptionError(
                "give --centroids K for means of groups (no person's row), or --decision FILE for rows "
                "drawn by a policy."
            )
        if decision is None:
            _check_none(policy_options, "--decision")
            assert centroids is not None
            lines, warnings = _write_centroids(
                file, out, model, columns, centroids, least or LEAST, whole, seed
            )
        else:
            centroid_options = {"least": least, "round": whole}
            _check_none(
                {n: value for n, value in centroid_options.items() if value is not None}, "--centroids"
            )
            if model is None:
                raise InvalidOptionError("--decision needs --model MODEL, which scores the rows.")
            drawn_set = draw_by_policy(
                DrawRequest(
                    file,
                    model,
                    decision,
                    features=columns,
                    seed=seed,
                    allow_pickle=allow_pickle,
                    **cast("dict[str, Any]", policy_options),
                )
            )
            _write(out, drawn_set.table)
            lines, warnings = drawn_set.lines, drawn_set.warnings
        for line in lines:
            console().print(line)
        print(f"wrote {out}")
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)


def _write_centroids(
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
    from rationale.references.centroids import make_centroids
    from rationale.tables.files import Table, read_rows
    from rationale.tables.represented import StandsFor

    table = read_rows(file, features)
    groups = make_centroids(table.arrays, count, least=least, seed=seed, whole=whole is not False)
    stands_for = StandsFor(rows=table.count)
    lines, warnings = [NO_MODEL], list[str]()
    if model is not None:
        groups, stands_for, lines, warnings = _keep_mean_outputs(model, table, groups)
    _write(out, Table(groups.arrays, table.columns, groups.weights, stands_for))
    return [*_summary(stands_for.rows, groups), *lines], [*_integer_warning(table), *warnings]


def _check_none(options: Mapping[str, object], flag: str) -> None:
    """Raise InvalidOptionError for options that need the other way to make a set."""
    from rationale.errors import InvalidOptionError

    for name in options:
        raise InvalidOptionError(f"--{name.replace('_', '-')} belongs to {flag}: leave it out.")


def _check_out(out: Path) -> None:
    """Raise InvalidOptionError if the file cannot be written."""
    from rationale.artifact.repository.folder import check_folder
    from rationale.errors import InvalidOptionError

    if out.suffix != ".npz":
        raise InvalidOptionError(f"{out}: the name must end in .npz, the format that stores weights.")
    if not out.parent.is_dir():
        raise InvalidOptionError(f"{out}: cannot be written: there is no folder {out.parent}.")
    check_folder(out.parent)


def _summary(rows: int, groups: "Centroids") -> list[str]:
    lines = [
        f"{len(groups.weights)} centroids of {rows} rows; the smallest group has {groups.smallest} rows",
        f"column means within {groups.moved:.2g} standard deviations of those of all rows",
    ]
    if groups.rounded:
        lines.append(f"{groups.rounded} columns of whole numbers stayed whole")
    if groups.fractional:
        lines.append(
            f"{groups.fractional} centroids keep fractions in these columns, because rounded they would "
            "equal a real row"
        )
    return lines


def _integer_warning(table: "Table") -> list[str]:
    """Return a warning if the rows hold integers."""
    names = [str(name or "the file") for name, array in table.arrays.items() if array.dtype.kind in "iu"]
    return [
        f"{', '.join(names)}: integers; ids of tokens or categories have no mean: take rows instead"
    ] * bool(names)


def _keep_mean_outputs(
    model: Path, table: "Table", groups: "Centroids"
) -> "tuple[Centroids, StandsFor, list[str], list[str]]":
    """Return weights that keep the model's mean outputs, those means, and lines and warnings about them."""
    from rationale.references.centroids import balance_weights, outputs_of
    from rationale.tables.represented import MeanOutput, StandsFor, shift_warnings

    digest, outputs = outputs_of(model, table.arrays, groups)
    weighted = balance_weights(groups, table.arrays, outputs)
    means = {o.name: MeanOutput(mean=tuple(o.mean), spread=tuple(o.spread)) for o in outputs}
    stands_for = StandsFor(rows=len(next(iter(table.arrays.values()))), model=digest, outputs=means)
    lines, warnings = [], list[str]()
    for o in outputs:
        before, after = groups.weights @ o.centroids, weighted.weights @ o.centroids
        numbers = [
            f"{a:.6g} ({full:.6g} over all rows; {b:.6g} by the groups' sizes)"
            for a, b, full in zip(after[:SHOWN], before[:SHOWN], o.mean[:SHOWN], strict=True)
        ]
        lines.append(f"mean of {o.name}: {', '.join(numbers)}")
        warnings += shift_warnings(o.name, range(len(after)), after, means[o.name], stands_for.rows)
    return weighted, stands_for, lines, warnings


def _write(out: Path, table: "Table") -> None:
    """Write a file whole or not at all; raise InvalidOptionError if that fails."""
    import numpy as np

    from rationale.artifact.repository.folder import atomic_file
    from rationale.tables.archives import write_npz
    from rationale.tables.files import FEATURE_NAMES, STANDS_FOR, WEIGHTS

    assert table.stands_for is not None
    members = {name or "arr_0": array for name, array in table.arrays.items()}
    members[STANDS_FOR] = np.array(table.stands_for.model_dump_json())
    if table.weights is not None:
        members[WEIGHTS] = table.weights
    if table.columns is not None:
        members[FEATURE_NAMES] = np.array(table.columns)
    with atomic_file(out) as partial_file, partial_file.open("wb") as file:
        write_npz(file, members)
