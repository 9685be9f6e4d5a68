"""`rationale explain`, `export`, `check` and `evaluate`: commands on written entries; and `operators`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rationale.cli.repositories import Repository
from rationale.errors import InvalidOptionError
from rationale.terminal import Panel, console, print_report, progress_bar, reporting_errors

app = typer.Typer()


@app.command("explain", rich_help_panel=Panel.EXPLAIN)
def explain_command(
    name: Annotated[str, typer.Argument(help="The entry's name.", metavar="NAME")],
    rows_in: Annotated[
        str,
        typer.Option(
            "--input",
            help="Rows to explain: .npz, .npy, .csv, .parquet or .xlsx. Or many .parquet files: a folder, a "
            "pattern ('2026/*.parquet') or a URL of either (s3://…, gs://…).",
            metavar="FILE|FOLDER",
        ),
    ],
    repository: Repository = Path("model_repository"),
    save: Annotated[
        str | None,
        typer.Option(
            help="Write the explanation of every row: .csv, .parquet or .xlsx (a row for each row and "
            "target: its value, base value, each feature's attribution, gap), .json, or .npz (every "
            "tensor). Or draw the --rows as a picture, .svg: bars of tables, heatmaps of images, "
            "shaded words of token ids. For many files: a folder, or its URL, which gets one .parquet "
            "each; run the command again to continue an interrupted run.",
            metavar="FILE|FOLDER",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table that --save copies, and that name the rows of --html; by commas.",
            metavar="NAME,…",
        ),
    ] = None,
    compare_with: Annotated[
        Path | None,
        typer.Option(
            help="Compare each row with the row of this file in the same place, or all with its only row: "
            "why this answer and not that one. It needs an entry compiled with --open-references.",
            metavar="FILE",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Cores that explain many files. Default: all.", min=1)
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Print this many rows of the file, or all.", metavar="N|all")
    ] = "10",
    top: Annotated[int, typer.Option(help="Print this many features of each row.", min=1)] = 10,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page: pictures of the --rows, and an overview of all rows. It is one file to send, "
            "which loads and runs nothing.",
            metavar="FILE",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="The tokens of token ids, for --html and --save FILE.svg: a tokenizer.json, or a text file "
            "with one token per line.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Explain the rows of a file with a compiled entry, without a server.

    It prints the model's answer to each row, the mean over the references (base), the features with the
    largest attributions, and the gap that they leave unexplained. --html and --save FILE.svg draw them.

    Example: rationale explain credit --input applicants.csv --save reasons.csv --html reasons.html

    Example: rationale explain credit --input declined.csv --compare-with approved.csv

    Example: rationale explain credit --input 's3://loans/*.parquet' --save s3://reasons --keep id
    """
    with reporting_errors():
        from rationale.portfolios.answered_files import is_portfolio
        from rationale.portfolios.explain import explain_file, parse_rows
        from rationale.portfolios.portfolio import explain_portfolio

        picture = Path(save) if save is not None and save.lower().endswith(".svg") else None
        if tokenizer is not None and picture is None and html is None:
            raise InvalidOptionError("--tokenizer needs --html FILE or --save FILE.svg.")
        columns = [] if keep is None else [name.strip() for name in keep.split(",")]
        if compare_with is not None and (picture or html is not None or is_portfolio(rows_in)):
            raise InvalidOptionError(
                "--compare-with works for the rows of one file, printed or saved as .csv, .parquet, .json "
                "or .npz."
            )
        if is_portfolio(rows_in):
            if save is None or html is not None:
                raise InvalidOptionError(
                    f"--input {rows_in}: these are many files: give --save FOLDER, and leave --html out."
                )
            with progress_bar() as progress:
                answered = explain_portfolio(repository / name, rows_in, save, columns, threads, progress)
            print(answered)
            return
        if keep is not None and html is None and (save is None or picture is not None):
            raise InvalidOptionError("--keep needs --save FILE, a table such as .csv, or --html FILE.")
        if threads is not None:
            raise InvalidOptionError(
                "--threads works only for many files: give --input a folder, or a pattern such as "
                "'loans-*.parquet'."
            )
        row_count, input_file = parse_rows(rows), Path(rows_in)
        if picture is not None:
            from rationale.portfolios.report import draw_file

            print(draw_file(repository, name, input_file, picture, row_count, top, tokenizer))
        if html is not None:
            from rationale.portfolios.report import report_file

            with progress_bar() as progress:
                message = report_file(
                    repository, name, input_file, html, row_count, top, tokenizer, progress, columns
                )
            print(message)
        with progress_bar() as progress:
            saved = None if save is None or picture is not None else Path(save)
            kept = columns if saved else ()
            lines = explain_file(
                repository, name, input_file, saved, top, row_count, progress, kept, compare_with
            )
        for line in lines:
            print(line)


@app.command("export", rich_help_panel=Panel.EXPLAIN)
def export_command(
    name: Annotated[str, typer.Argument(help="The entry's name.", metavar="NAME")],
    html: Annotated[Path, typer.Option(help="The .html file to write.", metavar="FILE")],
    repository: Repository = Path("model_repository"),
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(
            help="The npm package onnxruntime-web, unpacked, or a folder whose node_modules has it. Default: "
            "node_modules here, else fetched once by npm.",
            metavar="FOLDER",
        ),
    ] = None,
    ranges: Annotated[
        Path | None,
        typer.Option(
            help="Rows that set the ends of the sliders: .csv, .parquet, .xlsx, .npz or .npy. The page "
            "contains no row. Default: the decision profile's limits, else the references.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Write a small entry as one page that opens from disk: sliders, score and reasons, without a server.

    The graph runs in the reader's browser, and no value leaves it. A page takes a table of up to 200
    features. Its graph holds what it needs of the references, which may be people's rows.

    Example: rationale export credit --html credit.html
    """
    with reporting_errors():
        from rationale.export.page import export_page

        print("\n".join(export_page(repository, name, html, onnxruntime_web, ranges)))


@app.command("diff", rich_help_panel=Panel.DECIDE)
def diff_command(
    old: Annotated[str, typer.Argument(help="The entry that decides now.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="The entry that is to decide.", metavar="NEW")],
    rows_in: Annotated[
        Path,
        typer.Option("--input", help="Rows to decide: .csv, .parquet, .xlsx, .npz or .npy.", metavar="FILE"),
    ],
    repository: Repository = Path("model_repository"),
    max_flips: Annotated[
        str | None,
        typer.Option(help="End with status 1 if the decisions on more rows change.", metavar="SHARE%"),
    ] = None,
    max_reasons: Annotated[
        str | None,
        typer.Option(
            help="End with status 1 if the first reason changes for more of the rows that both decline.",
            metavar="SHARE%",
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers, and the rows that flip.", metavar="FILE")
    ] = None,
) -> None:
    """Compare two models with decision profiles on a portfolio, before one replaces the other.

    It prints the rows whose decision or first reason changes, and the features whose attributions change. If
    both entries have the same references, these attributions explain the difference of the models.

    Example: rationale diff credit credit-v2 --input portfolio.parquet --max-flips 1% --json diff.json
    """
    with reporting_errors():
        from rationale.evaluate.decisions.difference import difference, lines, write_difference

        limits = {
            "flips": parse_share("--max-flips", max_flips),
            "first reasons": parse_share("--max-reasons", max_reasons),
        }
        with progress_bar() as progress:
            changes = difference(repository, old, new, rows_in, progress)
        print("\n".join(lines(changes)))
        for note in changes.notes:
            print(note, file=sys.stderr)
        if save is not None:
            write_difference(changes, save)
        beyond = [
            f"{kind} {share:.2%} > {limits[kind]:.2%}"
            for kind, share in {"flips": changes.flip_share, "first reasons": changes.reason_share}.items()
            if share > limits[kind]
        ]
        if beyond:
            print(f"too much changes: {', '.join(beyond)}", file=sys.stderr)
            raise typer.Exit(1)


def parse_share(option: str, text: str | None) -> float:
    """Parse "1%" or "0.01"; None means all. Raise InvalidOptionError for others."""
    if text is None:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidOptionError(f"{option} {text!r}: give a share such as 1% or 0.01.")
    return share


@app.command("check", rich_help_panel=Panel.EXPLAIN)
def check_command(
    name: Annotated[str, typer.Argument(help="The entry's name.", metavar="NAME")],
    repository: Repository = Path("model_repository"),
    runtime: Annotated[
        str,
        typer.Option(
            help="The runtime that runs the entry: onnxruntime, or openvino (pip install openvino), whose "
            "answers are compared with those of ONNX Runtime."
        ),
    ] = "onnxruntime",
) -> None:
    """Measure a written entry again: unchanged outputs, complete attributions, independent rows.

    It repeats the measurements of `rationale compile`. Use it after an update of ONNX Runtime, or on another
    machine.

    Examples: rationale check credit; rationale check credit --runtime openvino
    """
    with reporting_errors():
        from rationale.artifact.recheck import check_entry

        print_report(check_entry(repository, name, runtime))


@app.command("evaluate", rich_help_panel=Panel.EXPLAIN)
def evaluate_command(
    names: Annotated[list[str], typer.Argument(help="One entry, or several to compare.", metavar="NAME")],
    input_file: Annotated[
        Path,
        typer.Option(
            "--input", help="Rows to measure on: .npz, .npy, .csv, .parquet or .xlsx.", metavar="FILE"
        ),
    ],
    repository: Repository = Path("model_repository"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write evaluation.csv, .json and .html (the curves) to this folder.", metavar="FOLDER"
        ),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(
            help="The references that an entry was compiled with, for the randomised-weights check and "
            "--shapley; repeat for several. An entry whose references are missing skips both.",
            metavar="FILE",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="Number of rows to draw from the file.", min=1)] = 100,
    seed: Annotated[
        int, typer.Option(help="Seed of all draws: the same seed gives the same numbers.", min=0)
    ] = 0,
    shapley: Annotated[
        bool,
        typer.Option(
            "--shapley",
            help="Also compare attributions with Shapley values of the model itself: exact ones up to 12 "
            "features, else sampled until their standard error is 1%.",
        ),
    ] = False,
    evaluations: Annotated[
        int, typer.Option(help="Most answers of the model that --shapley takes per entry.", min=1)
    ] = 50_000_000,
) -> None:
    """Measure how faithful explanations are to their model: one entry, or several to compare.

    It draws deletion and insertion curves beside random orders, and correlates the explanations with those of
    the same model with redrawn weights. The numbers (docs/evaluation.md) judge faithfulness to the model, not
    to the world.

    Example: rationale evaluate credit --input applicants.csv --references approved.csv --out report
    """
    with reporting_errors():
        from rationale.artifact.repository.folder import check_folder
        from rationale.evaluate.evaluate import EvaluationSettings, evaluate
        from rationale.evaluate.report import notes, shapley_table, summary_table, write_report

        if out is not None:
            check_folder(out)
        settings = EvaluationSettings(rows, seed, shapley=shapley, evaluations=evaluations)
        with progress_bar() as progress:
            evaluation = evaluate(repository, names, input_file, references or (), settings, progress)
        console().print(summary_table(evaluation))
        if (comparison := shapley_table(evaluation)) is not None:
            console().print()
            console().print(comparison)
        for note in notes(evaluation):
            print(note, file=sys.stderr)
        if out is not None:
            written = write_report(evaluation, settings, input_file, out)
            print(f"wrote {', '.join(written)} to {out}")


@app.command("operators", rich_help_panel=Panel.LOOK_UP)
def operators_command() -> None:
    """List the operators that can be explained, with their opsets, methods and tests."""
    from rich.table import Table

    with reporting_errors():
        from rationale.cli.operator_table import operator_table  # imports the rules of packages

        rows = operator_table()
    table = Table(box=None, pad_edge=False)
    for title in ("operator", "opsets", "kind", "methods", "tested by", "how", "package"):
        table.add_column(title, no_wrap=True)
    table.columns[-1].header = "package" * any(row.package for row in rows)
    for row in rows:
        table.add_row(row.name, row.opsets, row.kind, row.methods, row.tested, row.how, row.package)
    console().print(table)
