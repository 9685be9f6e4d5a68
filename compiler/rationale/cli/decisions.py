"""`rationale decisions`: measurements of decisions and their reasons."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rationale.cli.repositories import Repository
from rationale.terminal import console, progress_bar, reporting_errors

app = typer.Typer(
    help="Report on decisions over the rows of a file, and on their reasons: report.", no_args_is_help=True
)


@app.callback()
def decisions() -> None:
    """Measure decisions and their reasons."""


@app.command("report")
def report_command(
    data: Annotated[
        Path,
        typer.Argument(
            help="Rows to decide: .csv, .parquet, .npz or .npy, with the columns of the model, of "
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
            help="A column of two values, what became of the loans: the share of the larger is told for each "
            "decision.",
            metavar="COLUMN",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of a protected attribute, which need be no input of the model: rates of decisions "
            "for each value, and their ratio. Repeat for several.",
            metavar="COLUMN",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns that decisions.csv has too, beside those of --group and --label, such as an "
            "application's id; by commas.",
            metavar="NAME,…",
        ),
    ] = None,
    references: Annotated[
        Path | None,
        typer.Option(
            help="The references that the entry was compiled with: then the features of the named reasons, "
            "and others at random, are moved to their values.",
            metavar="FILE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn there.", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write report.json, report.html, decisions.csv, reasons.csv and groups.csv to this folder.",
            metavar="FOLDER",
        ),
    ] = None,
) -> None:
    """Decide every row of a file, and report how sure the reasons are: for the validation of a model.

    How often each decision and each reason comes; which reasons stay by other references, where the entry was
    compiled with --compare or --draws; whether the named reasons carry the score (--references); rates by
    protected group, computed and not judged. docs/evaluation.md says what each number means. Nothing of it is
    in the audit trail: `rationale decide --audit` makes decisions and records them.

    Example: rationale decisions report applicants.csv credit --group sex --references near.npz --out report
    """
    with reporting_errors():
        from rationale.artifact.folder import check_folder
        from rationale.evaluate.decisions.decided import find_deciding_model
        from rationale.evaluate.decisions.measures import report
        from rationale.evaluate.decisions.report import tables, write_report

        if out is not None:
            check_folder(out)
        with progress_bar() as progress:
            done = report(
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
        for table in tables(done):
            print(table.title)
            table.title = None
            console().print(table)
            console().print()
        for note in done.notes:
            print(note, file=sys.stderr)
        if out is not None:
            written = write_report(done, data, seed, out)
            print(f"wrote {', '.join(written)} to {out}")
