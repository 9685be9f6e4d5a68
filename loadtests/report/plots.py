"""The plot of a load test, as SVG that stands in the page itself."""

import io
from collections.abc import Callable, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from loadtests.load.measure import Result
from loadtests.report.figures import Figures

PERCENTILES: dict[str, Callable[[Figures], float | None]] = {
    "p50": lambda figures: figures.p50_s,
    "p90": lambda figures: figures.p90_s,
    "p99": lambda figures: figures.p99_s,
}
Style = Literal["-", "--", ":", ""]
STYLES: dict[str, Style] = {"p50": "-", "p90": "--", "p99": ":"}


def latency_plot(results: Sequence[Result], limit_s: float) -> str:
    """Percentiles against the offered rate, of every run by rate that was answered at all."""
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        _latencies(axes, result, f"C{number}")
    axes.axhline(1e3 * limit_s, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="offered load [requests per second]", ylabel="latency [ms]")
    for axis in (axes.xaxis, axes.yaxis):  # 1, 2, 5, 10 … instead of powers of ten
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.grid(alpha=0.3)
    axes.legend(
        handles=_legend(results, limit_s),
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize="small",
    )
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _latencies(axes: Axes, result: Result, colour: str) -> None:
    """A line for each percentile; a cross where requests failed, which its latencies know nothing of."""
    runs = sorted((run.figures for run in result.curve + result.probes), key=lambda one: one.offered_rate)
    for name, of in PERCENTILES.items():
        points = [
            (one.offered_rate, 1e3 * value, not one.errors) for one in runs if (value := of(one)) is not None
        ]
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], STYLES[name], color=colour)
        for marker, wanted in ((".", True), ("x", False)):
            here = [(x, y) for x, y, whole in points if whole is wanted]
            axes.plot([x for x, _ in here], [y for _, y in here], marker, color=colour, markersize=5)


def _legend(results: Sequence[Result], limit_s: float) -> list[Line2D]:
    """Colours, then kinds of lines, then markers: each is told once."""

    def line(label: str, style: Style, colour: str, marker: str = "") -> Line2D:
        return Line2D([], [], linestyle=style, color=colour, marker=marker, markersize=5, label=label)

    return [
        *(line(result.system, "-", f"C{number}") for number, result in enumerate(results)),
        *(line(name, style, "black") for name, style in STYLES.items()),
        line(f"limit of p99: {1e3 * limit_s:g} ms", "-", "grey"),
        line("some requests failed", "", "black", "x"),
    ]
