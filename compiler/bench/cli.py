"""`rationale bench`."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from compiler.bench.cases import (
    MODELS,
    PEERS,
    Case,
    Settings,
    choose_cases,
    choose_peers,
    parse_references,
)
from compiler.deployment import parse_bytes
from compiler.terminal import console, progress_bar, told_plainly

app = typer.Typer()


# What each option's help says of its default takes the place of typer's.
_optional = partial(typer.Option, show_default=False)

Models = Annotated[
    list[str] | None,
    typer.Argument(help=f"{', '.join(MODELS)}. Default: all.", metavar="MODEL", show_default=False),
]
References = Annotated[
    str | None,
    _optional(
        help="References K, by commas. Default: 10 for images and tokens, 100 and 1000 for credit.",
        metavar="K,K",
    ),
]
Sweep = Annotated[
    bool,
    typer.Option("--sweep", help="One row, and K from 1 to 30 for images, 100 for tokens, 1000 for credit."),
]
Rows = Annotated[
    int | None, typer.Option(help="Rows N in one run. Default: 1, and 64 once for credit.", min=1)
]
Repeats = Annotated[int, typer.Option(help="Rounds; in each of them every system has its turn.", min=1)]
Threads = Annotated[int, typer.Option(help="Threads of every system.", min=1)]
Peers = Annotated[
    str | None,
    _optional(help=f"With whom to compare, by commas: {', '.join(PEERS)}. Default: all.", metavar="A,B"),
]
Memory = Annotated[
    bool, typer.Option("--memory", help="Also the peak memory of each system, in a process of its own.")
]
ColdStart = Annotated[
    bool,
    typer.Option(
        "--cold-start", help="Also the time from starting a process to the first answer, three times each."
    ),
]
MemoryBudget = Annotated[
    str | None,
    _optional(
        help="Also the most references that fit this, up to 1000: 2GB, 512MB. Takes many processes.",
        metavar="SIZE",
    ),
]
AsInstalled = Annotated[
    bool,
    typer.Option(
        "--as-installed",
        help="Leave memory allocation as the system does it. Without this, every system gets the settings "
        "that suit PyTorch: freed memory is kept, large pages are used (Linux).",
    ),
]
Out = Annotated[
    Path | None,
    _optional(help="Write bench.json (every single time) and plots to this folder.", metavar="FOLDER"),
]
Seed = Annotated[int, typer.Option(help="Of weights, rows and references.", min=0)]


@app.command("bench")
def bench_command(
    models: Models = None,
    references: References = None,
    sweep: Sweep = False,
    rows: Rows = None,
    repeats: Repeats = 9,
    threads: Threads = 2,
    peers: Peers = None,
    memory: Memory = False,
    cold_start: ColdStart = False,
    memory_budget: MemoryBudget = None,
    as_installed: AsInstalled = False,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Time an explanation beside the plain model, SHAP, captum, and the same idea in PyTorch.

    Compiles networks with random weights (the paper's, a small transformer, a credit network) for DeepSHAP of
    the predicted output, and gives every system the same weights, rows, references and threads, in turn in
    one process. Times are ratios: numbers of different machines do not compare. Run it on a machine that does
    nothing else.

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
        settings = Settings(
            repeats, threads, seed, choose_peers(peers), memory, cold_start, budget, as_installed
        )
        if out is not None:
            from compiler.artefact.folder import check_folder

            check_folder(out)
        _bench(cases, settings, out)


def _bench(cases: Sequence[Case], settings: Settings, out: Path | None) -> None:
    """Measures, prints and writes; what is measured is told before the budget's many processes."""
    from compiler.bench.budget import limits
    from compiler.bench.measure import Outcome, bench, machine
    from compiler.bench.report import notes, show, show_alone, show_limits, write_report

    before = machine()

    def keep(measured: Sequence[Outcome]) -> None:
        """A run takes long: what is measured is on disk when the next case begins."""
        if out is not None:
            write_report(measured, [], settings, before, out)

    with progress_bar() as progress:
        outcomes, failed = bench(cases, settings, progress, keep)
    console().print(show(outcomes))
    if settings.memory or settings.cold_start:
        console().print(show_alone(outcomes))
    said = [*notes(outcomes), *failed]
    if out is not None:
        written, more = write_report(outcomes, [], settings, before, out)
        said += [*more, f"wrote {', '.join(written)} to {out}"]
    _say(said)
    if settings.memory_budget:
        with progress_bar() as progress:
            found, failed = limits(cases, settings, progress)
        console().print(show_limits(found, settings.memory_budget))
        _say(failed)
        if out is not None:  # again, with what fits
            write_report(outcomes, found, settings, before, out)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
