"""The HTML report: one file without scripts, all figures from the run."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from loadtests.claims import Verdict, told, verdicts
from loadtests.comparison import Comparison, compare
from loadtests.figures import plain
from loadtests.measure import Result, Run
from loadtests.plots import bar_plot, latency_plot
from loadtests.workloads import CROWD, SCENARIOS, WORKLOADS, Workload

MEBIBYTE = 1 << 20
MANY = f"{CROWD.users} callers"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem } svg { display: block; max-width: 100%; height: auto; margin: 1rem 0 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { text-align: right; padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; vertical-align: bottom }
th:first-child, td:first-child, .words th, .words td { text-align: left }
td { font-variant-numeric: tabular-nums } td:first-child { white-space: nowrap }
code { font-size: 0.9em; overflow-wrap: anywhere }
"""
MACHINE = {
    "processor": "processor",
    "cores": "cores of the machine",
    "cores_used": "cores for the server and the load generator together",
    "load": "load average before the run",
    "gpu": "GPU",
    "provider": "ONNX Runtime's provider",
    "system": "system",
    "python": "Python",
}


def page(results: Sequence[Result], content: dict[str, Any]) -> str:
    """Of `results`, and of what `loadtests.report.contents` adds to them."""
    workloads = [one for one in WORKLOADS if one.name in {result.workload for result in results}]
    body = [
        "<h1>Load test</h1>",
        *_how(results, content),
        *_claims(verdicts(results)),
        "<h2>Ours beside each peer</h2>",
        _comparisons(compare(results)),
        *(part for one in workloads for part in _workload(one, results, content["profile"])),
        "<h2>Machine and versions</h2>",
        _table(("", ""), _machine(content), words=True),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Load test</title><style>{STYLE}</style>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _how(results: Sequence[Result], content: dict[str, Any]) -> Iterable[str]:
    commit = content["commit"] or "unknown"
    yield (
        f"<p>Made at {escape(content['made'])} by <code>{escape(content['command'])}</code>, "
        f"of commit <code>{escape(commit)}</code>.</p>"
    )
    if not content["finished"]:
        yield _p("This run did not finish: here is what was measured before it ended.")
    runs = [run.figures for result in results for _, run in result.runs()]
    compared, wrong = sum(one.compared for one in runs), sum(one.wrong for one in runs)
    yield _p(
        "Every system was asked with the same bodies about the same rows, weights and references, on the "
        "same cores, which the load generator shared. Times count from when a request was due. Under load "
        f"{compared} answers of {sum(one.requests for one in runs)} requests were compared with reference "
        f"values: {wrong or 'none'} differed. Rows of tables came from {content['data'] or 'a seed'}. "
        "runs.csv, beside this page, has a line for each run."
    )


def _claims(found: Sequence[Verdict]) -> Iterable[str]:
    if found:
        yield "<h2>Asked, and got</h2>"
        yield _table(("workload", "what", "asked, at least", "got", ""), told(found), words=True)


def _comparisons(found: Sequence[Comparison]) -> str:
    if not found:
        return _p("There is nothing to compare: one side was not measured.")
    head = (
        "workload, peer",
        "sustainable rate, ours over theirs",
        "median of one caller, theirs over ours",
        f"memory with {MANY}, theirs over ours",
    )
    rows = [
        (
            f"{one.workload}, {one.peer}",
            *("unknown" if value is None else f"{value:.3g}" for value in (one.rate, one.median, one.memory)),
        )
        for one in found
    ]
    return _table(head, rows) + _p("Above 1 is in our favour.")


def _workload(workload: Workload, results: Sequence[Result], profile: dict[str, Any]) -> Iterable[str]:
    mine = [result for result in results if result.workload == workload.name]
    case = workload.case
    yield f"<h2>{escape(workload.name)}</h2>"
    yield _p(
        f"Model {case.model}: rows of {' × '.join(map(str, case.shape))} values, {case.references} "
        "references. The sustainable rate is the highest that was run with 99 of 100 answers within "
        f"{1e3 * workload.p99_s:g} ms and without any error; one at most {profile['precision']:g} times as "
        "high did not hold. In brackets is the setting that was fastest: how many computations at a time, "
        "on how many threads each."
    )
    head = (
        "system",
        "sustainable rate, explanations per s",
        "one caller, median ms",
        f"{MANY}, answers per s",
        f"memory after {MANY}, MiB",
    )
    yield _table(head, [_summary(result) for result in mine])
    yield latency_plot(mine, workload.p99_s)
    answered = {one.system: one.crowd.figures.answered_rate for one in mine}
    yield bar_plot(answered, f"explanations per second, {MANY}")
    memory = {one.system: one.crowd.figures.memory_bytes / MEBIBYTE for one in mine}
    yield bar_plot(memory, f"memory after {MANY} [MiB]")
    if any(one.scenarios for one in mine):
        yield from _scenarios(mine, workload)


def _scenarios(mine: Sequence[Result], workload: Workload) -> Iterable[str]:
    """The systems beside each other in each scenario."""
    head = (
        "scenario, system",
        "requests due per s",
        "answered per s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "errors",
        "answers compared",
        "generator's share of a core",
    )
    runs = [
        run for scenario in SCENARIOS for one in mine for run in one.scenarios if run.label == scenario.name
    ]
    yield "<h3>Scenarios</h3>"
    yield _table(head, [_run(run) for run in runs])
    ran = {run.label for run in runs}
    batch = f" (of {workload.batch} rows each)"
    words = [(one.name, one.title + (batch if one.batched else "")) for one in SCENARIOS if one.name in ran]
    yield _table(("scenario", "what it is"), words, words=True)


def _summary(result: Result) -> tuple[str, ...]:
    return (
        result.system,
        f"{plain(result.sustainable)} ({result.best.shape})",
        f"{_ms(result.alone.figures.p50_s)} ({result.alone.variant.shape})",
        f"{plain(result.crowd.figures.answered_rate)} ({result.crowd.variant.shape})",
        f"{result.crowd.figures.memory_bytes / MEBIBYTE:.0f}",
    )


def _run(run: Run) -> tuple[str, ...]:
    found = run.figures
    return (
        f"{run.label}, {run.variant.system}",
        plain(found.offered_rate),
        plain(found.answered_rate),
        *(_ms(value) for value in (found.p50_s, found.p90_s, found.p99_s)),
        ", ".join(f"{count} × {error}" for error, count in found.errors.items()) or "none",
        str(found.compared),
        f"{found.generator_share:.0%}",
    )


def _machine(content: dict[str, Any]) -> Iterable[tuple[str, object]]:
    machine: dict[str, Any] = content["machine"]
    for name, title in MACHINE.items():
        if machine.get(name) is not None:
            yield title, f"{machine[name]:.2f}" if name == "load" else machine[name]
    yield from content["versions"].items()


def _ms(value_s: float | None) -> str:
    return "none" if value_s is None else plain(1e3 * value_s)


def _p(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]], *, words: bool = False) -> str:
    """`words`: all columns start at the left."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    kind = ' class="words"' if words else ""
    return f"<table{kind}>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
