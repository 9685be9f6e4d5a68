"""The HTML report: one file without scripts, all figures from the run."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from loadtests.claims import Verdict, told, verdicts
from loadtests.comparison import Comparison, compare
from loadtests.measure import Result, Run
from loadtests.plots import bar_plot, latency_plot

MEBIBYTE = 1 << 20
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } svg { max-width: 100%; height: auto }
th, td { text-align: right; padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
"""


def page(results: Sequence[Result], content: dict[str, Any]) -> str:
    body = [
        "<h1>Load test</h1>",
        _p(f"Made {content['made']} by {content['command']}, of commit {content['commit'] or 'unknown'}."),
        _p(
            "Every system was asked with the same bodies about the same rows, weights and references, on the "
            "same cores, which the load generator shared. Times count from when a request was due. A sample "
            "of the answers was compared with reference values under load; none was wrong. Rows of tables "
            f"came from {content['data'] or 'a seed'}."
        ),
        *_claims(verdicts(results)),
        "<h2>Ratios</h2>",
        _comparisons(compare(results)),
        *(
            part
            for name, limit_s in content["limits_s"].items()
            for part in _workload(name, limit_s, results)
        ),
        "<h2>Machine and versions</h2>",
        _table(("", ""), [*content["machine"].items(), *content["versions"].items()]),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Load test</title><style>{STYLE}</style>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _claims(found: Sequence[Verdict]) -> Iterable[str]:
    if found:
        yield "<h2>Asked, and got</h2>"
        yield _table(("workload", "what", "asked, at least", "got", ""), told(found))


def _comparisons(found: Sequence[Comparison]) -> str:
    if not found:
        return _p("There is nothing to compare: one side was not measured.")
    head = ("ours against", "sustainable rate", "median, one caller", "memory")
    rows = [
        (
            f"{one.peer}, {one.workload}",
            *(_ratio(value) for value in (one.rate, one.median, one.memory)),
        )
        for one in found
    ]
    return _table(head, rows) + _p("Above 1 is in our favour.")


def _workload(name: str, limit_s: float, results: Sequence[Result]) -> Iterable[str]:
    mine = [result for result in results if result.workload == name]
    if not mine:
        return
    yield f"<h2>{escape(name)}</h2>"
    yield _p(f"Sustained is the highest rate with a p99 within {1e3 * limit_s:g} ms and without any error.")
    head = (
        "system, at its best",
        "sustained per s",
        "median alone, ms",
        "many callers, answers per s",
        "memory, MiB",
    )
    yield _table(head, [_summary(result) for result in mine])
    yield latency_plot(mine, limit_s)
    yield bar_plot(
        {one.system: one.crowd.figures.answered_rate for one in mine}, "answers per second, many callers"
    )
    memory = {one.system: one.crowd.figures.memory_bytes / MEBIBYTE for one in mine}
    yield bar_plot(memory, "memory after many callers [MiB]")
    if any(one.scenarios for one in mine):
        yield from _scenarios(mine)


def _scenarios(mine: Sequence[Result]) -> Iterable[str]:
    yield "<h3>Scenarios</h3>"
    columns = (
        "scenario, system",
        "offered/s",
        "answers/s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "errors",
        "compared",
        "client",
    )
    yield _table(columns, [_run(run) for one in mine for run in one.scenarios])
    yield _p("client: the share of one core that the load generator took.")


def _summary(result: Result) -> tuple[str, ...]:
    return (
        result.best.label,
        f"{result.sustainable:.4g}",
        _ms(result.alone.figures.p50_s),
        f"{result.crowd.figures.answered_rate:.4g}",
        f"{result.crowd.figures.memory_bytes / MEBIBYTE:.0f}",
    )


def _run(run: Run) -> tuple[str, ...]:
    found = run.figures
    return (
        f"{run.label}, {run.variant.system}",
        f"{found.offered_rate:.4g}",
        f"{found.answered_rate:.4g}",
        *(_ms(value) for value in (found.p50_s, found.p90_s, found.p99_s)),
        ", ".join(f"{count} × {error}" for error, count in found.errors.items()) or "none",
        str(found.compared),
        f"{found.generator_share:.0%}",
    )


def _ms(value_s: float | None) -> str:
    return "none" if value_s is None else f"{1e3 * value_s:.3g}"


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _p(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
