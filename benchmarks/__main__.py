"""The speed of an explanation beside the plain model, SHAP, captum and other explainers.

    python -m benchmarks [MODEL …] [--references 100,1000] [--rows 1,64] [--peers ort-forward,shap] [--out F]

It compiles networks with random weights for DeepSHAP of the predicted output, and boosted trees for TreeSHAP.
Every system gets the same weights, rows, references and threads, in turn, in one process for each case. Times
of different machines do not compare, ratios do. Run it on a machine that does nothing else. It runs on a GPU
if ONNX Runtime finds one (onnxruntime-gpu), PyTorch beside it if that finds it too.

    ort-forward   a plain forward pass of the same model over N·(1+K) rows: the least there is to do
    prediction    of trees: a plain forward pass over N rows
    walk          the same rules in PyTorch: eager autograd functions
    contributions the booster's own, path-dependent, as shapiq's are
    kernel        shap.KernelExplainer, of tables alone; only if it is named, as the next two
    openvino      the graph compiled for OpenVINO, in OpenVINO; portable: the same graph in ONNX Runtime
    × forward, × ours   a system's time over that of `ort-forward` and of ours; in brackets the quartiles
    error         the largest difference of attributions from a computation in float64 (of trees, and with
                  --seconds, from ours), over the largest attribution
    gap           how far attributions are from adding up, over the largest sum

docs/performance.md says how it is measured. The other commands are benchmarks.memory, profile, one_shot,
decisions, recourse, portfolio, trees.forests, trees.pairs, console.sliders and console.portfolio:
`python -m benchmarks.memory --help`.
"""

import os
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyperf

from benchmarks.cases import (
    FORWARD,
    MODELS,
    OURS,
    PEERS,
    choose_cases,
    names,
    numbers,
    parser_of,
    positive,
    reporting_errors,
)
from benchmarks.timing import (
    ProcessDiedError,
    Ratio,
    as_benchmark,
    in_a_process,
    machine,
    memory_kept,
    ratio,
    round_quartiles,
    versions,
)
from rationale.artifact.repository.folder import check_folder
from rationale.distribution import install
from rationale.errors import InvalidOptionError, RationaleError
from rationale.schema.machine import format_bytes

if TYPE_CHECKING:
    from benchmarks.cases import BenchmarkCase
    from benchmarks.explanations import CaseResult, CaseSettings, MeasuredSystem

JSON_FILE = "bench.json"
AGREEMENT = 1e-3  # of the largest attribution: what differs by more is told
WIDTHS = {"median ms": 11, "quartiles": 19, "least": 11, "rows/s": 11, "× forward": 22, "× ours": 22}
WIDTHS |= {"error": 9, "gap": 9, "set-up s": 10}


def measured(
    cases: "Sequence[BenchmarkCase]", settings: "CaseSettings", seconds: float | None = None
) -> "Iterator[CaseResult]":
    """Yield an outcome for each case; cases share the seconds, and a case that gets none says so."""
    from dataclasses import replace

    from benchmarks.explanations import CaseResult, measure

    ends = time.monotonic() + (seconds or 0)
    for case_number, case in enumerate(cases):
        share = None if seconds is None else (ends - time.monotonic()) / (len(cases) - case_number)
        if share is not None and share <= 0:
            yield CaseResult(case, left_out={OURS: f"left out: the {seconds:.0f} s of --seconds were up"})
            continue
        try:
            yield in_a_process(measure, case, replace(settings, seconds=share))
        except ProcessDiedError as error:
            yield CaseResult(case, left_out={OURS: f"failed: {error}"})


# -- a table -------------------------------------------------------------------------------------------


def lines(outcome: "CaseResult") -> Iterator[str]:
    """Yield a case's lines of the table, one for each system, and then notes for the reader."""
    if outcome.systems:
        sizes = f"{format_bytes(outcome.model_bytes)} (the model: {format_bytes(outcome.plain_bytes)})"
        probes = f"probe rows differ by {outcome.probe_difference:.1e}"
        yield f"\n{outcome.case.label}: compiled in {outcome.compile_s:.1f} s, {sizes}; {probes}"
        yield f"{'':14}" + "".join(f"{head:>{width}}" for head, width in WIDTHS.items())
    else:
        yield f"\n{outcome.case.label}: nothing measured"
    for name, system in outcome.systems.items():
        cells = _cells(name, system, outcome)
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS.values(), strict=True))
        yield f"{name:14}" + "".join(padded)
    for name, why in outcome.left_out.items():
        yield f"{name:14}{why}"
    for name, system in outcome.systems.items():
        if name != OURS and system.error is not None and system.error > AGREEMENT:
            is_noted = name in ("shap", "captum") and outcome.notes
            reason = f" ({'; '.join(outcome.notes)})" if is_noted else ""
            yield f"{name}: its values are off by {system.error:.2g} times the largest attribution{reason}"


def _cells(name: str, system: "MeasuredSystem", outcome: "CaseResult") -> tuple[str, ...]:
    low, median, high = round_quartiles(system.times_s)
    times = {base: outcome.systems[base].times_s for base in (FORWARD, OURS) if base in outcome.systems}
    return (
        _milliseconds(median),
        f"({_milliseconds(low)}–{_milliseconds(high)})",
        _milliseconds(min(map(min, system.times_s))),
        f"{outcome.case.rows / median:.4g}",
        *(
            _ratio(ratio(system.times_s, times[base])) if base in times and base != name else "–"
            for base in (FORWARD, OURS)
        ),
        *("–" if value is None else f"{value:.1e}" for value in (system.error, system.gap)),
        f"{system.setup_s:.2f}",
    )


def _milliseconds(seconds: float) -> str:
    return _short(1e3 * seconds)


def _ratio(measured_ratio: Ratio) -> str:
    return f"{_short(measured_ratio.median)} ({_short(measured_ratio.low)}–{_short(measured_ratio.high)})"


def _short(value: float) -> str:
    """Return three digits, or all of a whole number's."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# -- files ---------------------------------------------------------------------------------------------


def write_report(outcomes: "Sequence[CaseResult]", about: dict[str, object], folder: Path) -> None:
    """Write every time as pyperf keeps it.

    Raises:
        InvalidOptionError: if the folder cannot be made or written.
    """
    suite = pyperf.BenchmarkSuite(
        [
            as_benchmark(
                f"{outcome.case.label}: {name}",
                system.times_s,
                {
                    **about,
                    "references": outcome.case.references,
                    "rows": outcome.case.rows,
                    "setup_s": system.setup_s,
                    "error": system.error,
                    "gap": system.gap,
                    "compile_s": outcome.compile_s,
                    "model_bytes": outcome.model_bytes,
                },
            )
            for outcome in outcomes
            for name, system in outcome.systems.items()
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    suite.dump(str(folder / JSON_FILE), replace=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each case."""
    parser = parser_of(__doc__, MODELS, many=True)
    add = parser.add_argument
    add(
        "--references",
        type=numbers,
        default=[],
        help="numbers of references K, by commas (10; credit and trees: 100 and 1000)",
    )
    add("--rows", type=numbers, default=[], help="numbers of rows N, by commas (1; credit and trees also 64)")
    add("--size", type=positive, help="edge of an image in pixels")
    add("--repeats", type=positive, default=9, help="rounds; each round times every system once (9)")
    add("--seconds", type=positive, help="time limit for all cases: fewer rounds, and no float64 values")
    add("--threads", type=positive, default=2, help="threads of every system (2)")
    add(
        "--peers",
        type=names(PEERS),
        help=f"by commas: {', '.join(PEERS)} (default: all that explain the model)",
    )
    add("--as-installed", action="store_true", help="memory as the system allocates it; else all get the "
        "settings that suit PyTorch: freed memory is kept, large pages are used (Linux)")  # fmt: skip
    add("--out", type=Path, metavar="FOLDER", help=f"write {JSON_FILE} (every time, for pyperf)")
    options = parser.parse_args(argv)
    with reporting_errors():
        if missing := [name for name in ("torch", "torchvision") if find_spec(name) is None]:
            raise InvalidOptionError(f"benchmarks need {', '.join(missing)}: {install('bench')}")
        from benchmarks.explanations import CaseSettings
        from benchmarks.runtime import provider

        if options.out is not None:
            check_folder(options.out)
        if not options.as_installed:
            os.environ.update(memory_kept(os.environ))  # for the processes; this one has its memory already
        peers = None if options.peers is None else tuple(options.peers)
        settings = CaseSettings(options.repeats, options.threads, peers)
        about = {**machine(), "provider": provider(), "threads": options.threads, **versions()}
        about["as_installed"] = str(options.as_installed)
        outcomes: list[CaseResult] = []
        cases = choose_cases(options.models, options.references, options.rows, options.size)
        for outcome in measured(cases, settings, options.seconds):
            print(*lines(outcome), sep="\n", flush=True)
            outcomes.append(outcome)
            if options.out is not None and any(each.systems for each in outcomes):
                write_report(outcomes, about, options.out)  # the next case may end the run
        if not any(outcome.systems for outcome in outcomes):
            raise RationaleError("nothing was measured")


if __name__ == "__main__":
    main()
