"""`rationale bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from compiler.bench.cases import MODELS, PEERS, Settings, choose_cases, choose_peers
from compiler.terminal import console, progress_bar, told_plainly

app = typer.Typer()


@app.command("bench")
def bench_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(MODELS)}. Default: all.", metavar="MODEL", show_default=False),
    ] = None,
    references: Annotated[
        int | None,
        typer.Option(help="References K. Default: 10 for images and tokens, 100 and 1000 for credit.", min=1),
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
            help=f"With whom to compare, by commas: {', '.join(PEERS)}. Default: all.",
            metavar="A,B",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Also the peak memory of ours and shap, each in a process of its own."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write bench.json (every single time) and bench.png to this folder.",
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

    Needs the extra: pip install 'rationale[bench]'.

    Example: rationale bench credit resnet50 --peers ort-forward,shap --out report
    """
    with told_plainly():
        cases = choose_cases(models or (), references, rows)
        settings = Settings(repeats, threads, seed, choose_peers(peers), memory)
        from compiler.report import check_folder

        if out is not None:
            check_folder(out)
        from compiler.bench.measure import bench
        from compiler.bench.report import notes, show, write_report

        with progress_bar() as progress:
            outcomes, failed = bench(cases, settings, progress)
        console().print(show(outcomes))
        said = [*notes(outcomes), *failed]
        if out is not None:
            written, more = write_report(outcomes, settings, out)
            said += [*more, f"wrote {', '.join(written)} to {out}"]
        for line in said:
            print(line, file=sys.stderr)
