"""`rationale bench`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rationale.bench.cases import (
    MODELS,
    PEERS,
    Case,
    Settings,
    choose_cases,
    choose_peers,
    parse_references,
)
from rationale.terminal import Panel, console, reporting_errors

app = typer.Typer()


@app.command("bench", rich_help_panel=Panel.LOOK_UP)
def bench_command(
    models: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(MODELS)}. Default: all.", metavar="MODEL")
    ] = None,
    references: Annotated[
        str | None,
        typer.Option(
            help="References K, by commas. Default: 10 for images and tokens, 100 and 1000 for credit.",
            metavar="K,K",
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows N in one run. Default: 1, and 64 once for credit.", min=1)
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Rounds; in each of them every system has its turn.", min=1)
    ] = 9,
    threads: Annotated[int, typer.Option(help="Threads of every system.", min=1)] = 2,
    peers: Annotated[
        str | None,
        typer.Option(
            help=f"With whom to compare, by commas: {', '.join(PEERS)}. Default: all.", metavar="A,B"
        ),
    ] = None,
    as_installed: Annotated[
        bool,
        typer.Option(
            "--as-installed",
            help="Leave memory allocation as the system does it. Without this, every system gets the "
            "settings that suit PyTorch: freed memory is kept, large pages are used (Linux).",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write bench.json (every single time) and plots to this folder.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Time an explanation beside the plain model, SHAP and captum.

    Compiles networks with random weights (the paper's, a small transformer, a credit network) for DeepSHAP of
    the predicted output, and gives every system the same weights, rows, references and threads, in turn in
    one process. Times are ratios: numbers of different machines do not compare. Run it on a machine that does
    nothing else.

    ort-forward is a plain forward pass of the same model over N·(1+K) rows, the least there is to do. Errors
    are against a computation in float64. docs/performance.md says how it is measured.

    Runs on a GPU where ONNX Runtime finds one (onnxruntime-gpu), PyTorch beside it where that does too.
    Needs the extra `bench`, which says how it is installed if it is missing.

    Examples: rationale bench credit resnet50 --peers ort-forward,shap --out report;
    rationale bench credit --references 1,10,100,1000 --rows 1 --out report
    """
    with reporting_errors():
        cases = choose_cases(models or (), parse_references(references), rows)
        settings = Settings(repeats, threads, choose_peers(peers), as_installed)
        if out is not None:
            from rationale.artifact.folder import check_folder

            check_folder(out)
        _bench(cases, settings, out)


def _bench(cases: Sequence[Case], settings: Settings, out: Path | None) -> None:
    """Measures, prints and writes; a run takes long: what is measured is written before the next case."""
    from rationale.bench.measure import Outcome, bench, machine
    from rationale.bench.report import notes, show, write_report

    before = machine()
    written: list[str] = []

    def keep(measured: Sequence[Outcome]) -> None:
        if out is not None:
            files, said = write_report(measured, settings, before, out)
            written[:] = [*said, f"wrote {', '.join(files)} to {out}"]

    outcomes, failed = bench(cases, settings, keep)
    console().print(show(outcomes))
    for line in (*notes(outcomes), *failed, *written):
        print(line, file=sys.stderr)
