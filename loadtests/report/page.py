"""The HTML report: one file without scripts, all figures from the run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtests.load.measure import Result, Run
from loadtests.load.workloads import CROWD, SCENARIOS, WORKLOADS, Workload
from loadtests.report.comparison import compare, told, verdicts
from loadtests.report.figures import plain
from loadtests.report.plots import latency_plot

MEBIBYTE = 1 << 20
MANY = f"{CROWD.users} callers"
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
PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)


def page(results: Sequence[Result], content: dict[str, Any]) -> str:
    """Of `results`, and of what `loadtests.report.write.contents` adds to them."""
    runs = [run.figures for result in results for _, run in result.runs()]
    shown = {
        "compared": sum(one.compared for one in runs),
        "requests": sum(one.requests for one in runs),
        "wrong": sum(one.wrong for one in runs),
        "claims": told(verdicts(results)),
        "comparisons": [
            (f"{one.workload}, {one.peer}", *map(_ratio, (one.rate, one.median, one.memory)))
            for one in compare(results)
        ],
        "many": MANY,
        "precision": content["profile"]["precision"],
        "workloads": [
            _workload(one, mine)
            for one in WORKLOADS
            if (mine := [result for result in results if result.workload == one.name])
        ],
        "facts": list(_facts(content)),
    }
    return PAGES.get_template("page.html").render(content | shown) + "\n"


def _workload(workload: Workload, results: Sequence[Result]) -> dict[str, Any]:
    """The systems beside each other."""
    ran = {run.label for result in results for run in result.scenarios}
    batch = f" (of {workload.batch} rows each)"
    return {
        "workload": workload,
        "summary": [_summary(result) for result in results],
        "plot": latency_plot(results, workload.p99_s),
        "runs": [
            _run(run)
            for each in SCENARIOS
            for one in results
            for run in one.scenarios
            if run.label == each.name
        ],
        "scenarios": [(one.name, one.title + batch * one.batched) for one in SCENARIOS if one.name in ran],
    }


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


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, object]]:
    machine: dict[str, Any] = content["machine"]
    for name, title in MACHINE.items():
        if machine.get(name) is not None:
            yield title, f"{machine[name]:.2f}" if name == "load" else machine[name]
    yield from content["versions"].items()


def _ms(value_s: float | None) -> str:
    return "none" if value_s is None else plain(1e3 * value_s)


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
