"""`rationale decisions`: measurements of decisions and their reasons."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rationale.cli.repositories import Repository
from rationale.terminal import console, progress_bar, reporting_errors

app = typer.Typer(
    help="Report on the decisions on a file's rows, and on their reasons: report.", no_args_is_help=True
)


@app.callback()
def decisions() -> None:
    """Measure decisions and their reasons."""


@app.command("report")
def report_command(
    data: Annotated[
        Path,
        typer.Argument(
            help="Rows to decide: .csv, .parquet, .xlsx, .npz or .npy, with the columns of the model, of "
            "knock-outs, and those that --label and --group name.",
            metavar="DATA",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The entry, compiled with --decision. Default: the only one that decides.",
            metavar="[NAME]",
            show_default=False,
        ),
    ] = None,
    repository: Repository = Path("model_repository"),
    label: Annotated[
        str | None,
        typer.Option(
            help="A column of two values, the outcome of the loans: the report gives the share of the larger "
            "value for each decision.",
            metavar="COLUMN",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of a protected attribute, not necessarily an input of the model: the report gives "
            "rates of decisions for each value, and their ratio. Repeat for several.",
            metavar="COLUMN",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Further columns to copy to decisions.csv, such as an application's id; by commas.",
            metavar="NAME,…",
        ),
    ] = None,
    references: Annotated[
        Path | None,
        typer.Option(
            help="The references that the entry was compiled with. The report then moves the features of the "
            "named reasons, and others at random, to their values.",
            metavar="FILE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random features.", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write report.json, report.html, decisions.csv, reasons.csv and groups.csv to this folder.",
            metavar="FOLDER",
        ),
    ] = None,
) -> None:
    """Decide every row of a file, and report how sure the reasons are: for the validation of a model.

    The report counts each decision and each reason. It tells which reasons stay with other references, if
    the entry was compiled with --compare or --draws, and whether the named reasons carry the score
    (--references). It computes rates by protected group and does not judge them. docs/evaluation.md explains
    each number. The audit trail records none of it: use `rationale decide --audit` for decisions.

    Example: rationale decisions report applicants.csv credit --group sex --references near.npz --out report
    """
    with reporting_errors():
        from rationale.artifact.repository.folder import check_folder
        from rationale.evaluate.decisions.decided import find_deciding_model
        from rationale.evaluate.decisions.measures import report
        from rationale.evaluate.decisions.report import tables, write_report

        if out is not None:
            check_folder(out)
        with progress_bar() as progress:
            measures = report(
                repository,
                name or find_deciding_model(repository),
                data,
                label=label,
                groups=group or (),
                keep=[] if keep is None else [column.strip() for column in keep.split(",")],
                references=references,
                seed=seed,
                progress=progress,
            )
        for table in tables(measures):
            print(table.title)
            table.title = None
            console().print(table)
            console().print()
        for note in measures.notes:
            print(note, file=sys.stderr)
        if out is not None:
            written = write_report(measures, data, seed, out)
            print(f"wrote {', '.join(written)} to {out}")
