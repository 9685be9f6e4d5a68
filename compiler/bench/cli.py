"""`rationale bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from compiler.bench.cases import MODELS, PEERS, Settings, choose_cases, choose_peers, parse_references
from compiler.deployment import parse_bytes
from compiler.terminal import console, progress_bar, told_plainly

app = typer.Typer()


@app.command("bench")
def bench_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(MODELS)}. Default: all.", metavar="MODEL", show_default=False),
    ] = None,
    references: Annotated[
        str | None,
        typer.Option(
            help="References K, by commas. Default: 10 for images and tokens, 100 and 1000 for credit.",
            metavar="K,K",
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="One row, and K from 1 to 30 for images, 100 for tokens, 1000 for credit."
        ),
    ] = False,
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
            help=f"With whom to compare, by commas: {', '.join(PEERS)}. Default: all.",
            metavar="A,B",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Also the peak memory of each system, in a process of its own."),
    ] = False,
    cold_start: Annotated[
        bool,
        typer.Option(
            "--cold-start",
            help="Also the time from starting a process to the first answer, three times each.",
        ),
    ] = False,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            help="Also the most references that fit this, up to 1000: 2GB, 512MB. Takes many processes.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write bench.json (every single time) and plots to this folder.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, rows and references.", min=0)] = 0,
) -> None:
    """Time an explanation beside the plain model, SHAP, captum, and the same idea in PyTorch.

    Compiles networks with random weights (the paper's, a small transformer, a credit network) for DeepSHAP of
    the predicted output, and gives every system the same weights, rows, references and threads, in turn in
    one process. Times are ratios: numbers of different
    machines do not compare. Run it on a machine that does nothing else.

    ort-forward is a plain forward pass of the same model over N·(1+K) rows, the least there is to do; torch
    is DeepSHAP with baked references in PyTorch, written by hand, and torch-compile the same through
    torch.compile (needs a C++ compiler). docs/performance.md says how it is measured.

    Runs on a GPU where ONNX Runtime finds one (onnxruntime-gpu), PyTorch beside it where that does too.
    Needs the extra: pip install 'rationale[bench]'.

    Examples: rationale bench credit resnet50 --peers ort-forward,shap --out report;
    rationale bench credit --sweep --cold-start --memory-budget 512MB --out report
    """
    with told_plainly():
        cases = choose_cases(models or (), parse_references(references), rows, sweep=sweep)
        budget = None if memory_budget is None else parse_bytes(memory_budget)
        settings = Settings(repeats, threads, seed, choose_peers(peers), memory, cold_start, budget)
        from compiler.report import check_folder

        if out is not None:
            check_folder(out)
        from compiler.bench.budget import limits
        from compiler.bench.measure import bench
        from compiler.bench.report import notes, show, show_alone, show_limits, write_report

        with progress_bar() as progress:
            outcomes, said = bench(cases, settings, progress)
        console().print(show(outcomes))
        if memory or cold_start:
            console().print(show_alone(outcomes))
        said = [*notes(outcomes), *said]
        if out is not None:
            written, more = write_report(outcomes, [], settings, out)
            said += [*more, f"wrote {', '.join(written)} to {out}"]
        for line in said:
            print(line, file=sys.stderr)
        if budget:
            with progress_bar() as progress:
                found, failed = limits(cases, settings, progress)
            console().print(show_limits(found, budget))
            for line in failed:
                print(line, file=sys.stderr)
            if out is not None:  # again, with what fits
                write_report(outcomes, found, settings, out)
