"""The plots of a load test, as SVG that stands in the page itself."""

import io
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.figures import Figures
from loadtests.measure import Result

PERCENTILES: dict[str, Callable[[Figures], float | None]] = {
    "p50": lambda figures: figures.p50_s,
    "p90": lambda figures: figures.p90_s,
    "p99": lambda figures: figures.p99_s,
}
STYLES = {"p50": "-", "p90": "--", "p99": ":"}
SIZE_IN = (7.5, 3.6)


def latency_plot(results: Sequence[Result], limit_s: float) -> str:
    """Percentiles against the offered rate, of every run by rate that was answered at all."""

    def draw(axes: Axes) -> None:
        for number, result in enumerate(results):
            runs = sorted(
                (run.figures for run in result.curve + result.probes), key=lambda one: one.offered_rate
            )
            for name, of in PERCENTILES.items():
                points = [(one.offered_rate, 1e3 * value) for one in runs if (value := of(one)) is not None]
                rates, times_ms = [rate for rate, _ in points], [time_ms for _, time_ms in points]
                line = f".{STYLES[name]}"
                axes.plot(rates, times_ms, line, color=f"C{number}", label=f"{result.system}, {name}")
        axes.axhline(1e3 * limit_s, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="offered requests per second", ylabel="latency [ms]")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize="small")

    return _svg(draw)


def bar_plot(values: dict[str, float], label: str) -> str:
    """A bar for each system."""

    def draw(axes: Axes) -> None:
        colours = [f"C{number}" for number in range(len(values))]
        bars = axes.barh(list(values), list(values.values()), color=colours)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.margins(x=0.15)

    return _svg(draw, height_in=0.6 + 0.4 * len(values))


def _svg(draw: Callable[[Axes], None], height_in: float = SIZE_IN[1]) -> str:
    figure = Figure(figsize=(SIZE_IN[0], height_in), layout="constrained")
    draw(figure.subplots())
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
