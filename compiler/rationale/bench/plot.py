"""The plots of a benchmark: they need matplotlib, of the extra `bench`."""

import io
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from rationale.bench.cases import CAPTUM, FORWARD, OURS, SHAP
from rationale.distribution import install
from rationale.errors import InvalidOptionError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Quartiles = tuple[float, float, float]
Curves = dict[str, dict[int, Quartiles]]  # of one network, by system and K, in seconds
WIDTH_IN, ROW_IN, PANEL_IN, LEGEND_IN, DPI = 8.0, 0.22, 3.2, 1.0, 150
NAMES = {
    OURS: "ours",
    FORWARD: "plain forward pass of N·(1+K) rows",
    SHAP: "SHAP",
    CAPTUM: "captum",
}


def bars(times: Mapping[str, Mapping[str, Quartiles]]) -> bytes:
    """Return a PNG: a bar for each system of each case, in milliseconds on a logarithmic axis.

    Args:
        times: by case and system, quartiles in seconds.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    figure = _figure(ROW_IN * sum(len(systems) + 1 for systems in times.values()) + LEGEND_IN)
    axes = figure.subplots()
    y, ticks = 0, []
    for label, systems in times.items():
        ticks.append((y + (len(systems) - 1) / 2, label))
        for name, (low, median, high) in systems.items():
            spread = [[1e3 * (median - low)], [1e3 * (high - median)]]
            axes.barh(y, 1e3 * median, xerr=spread, color=_colour(name), capsize=2)
            axes.text(1e3 * high * 1.1, y, _short(1e3 * median), va="center", fontsize="x-small")
            y += 1
        y += 1
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.set_ylim(y - 1, -1)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("time of one run over N rows with K references [ms]: median and quartiles")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", alpha=0.3)
    _legend(figure, [name for systems in times.values() for name in systems])
    return _png(figure)


def curves(networks: Mapping[str, Curves]) -> bytes:
    """Return a PNG: for each network the time of one run against K, a line for each system with quartiles.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    figure = _figure(PANEL_IN * len(networks) + LEGEND_IN)
    for axes, (label, lines) in zip(
        figure.subplots(len(networks), squeeze=False)[:, 0], networks.items(), strict=True
    ):
        for name, times in lines.items():
            low, median, high = ([1e3 * values[i] for values in times.values()] for i in range(3))
            axes.plot(list(times), median, "o-", markersize=3, color=_colour(name))
            axes.fill_between(list(times), low, high, color=_colour(name), alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="references K", ylabel="time of one run [ms]: quartiles")
        axes.set_title(label, loc="left")
        counts = sorted({count for times in lines.values() for count in times})
        axes.set_xticks(counts, [str(count) for count in counts])
        _plain_numbers(axes.yaxis)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    _legend(figure, [name for lines in networks.values() for name in lines])
    return _png(figure)


def _figure(height_in: float) -> "Figure":
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise InvalidOptionError(f"no plots: matplotlib is not installed: {install('bench')}") from error
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    save: Callable[..., None] = figure.savefig
    save(stream, format="png")
    return stream.getvalue()


def _colour(name: str) -> str:
    """Return that of a system, the same in every plot."""
    return f"C{list(NAMES).index(name)}"


def _plain_numbers(axis: "Axis") -> None:
    """1, 2, 5, 10 … instead of powers of ten."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")


def _legend(figure: "Figure", names: Sequence[str]) -> None:
    """Above all panels, once; in the order of the table, not of who came first."""
    from matplotlib.patches import Patch

    handles = [Patch(color=_colour(name), label=told) for name, told in NAMES.items() if name in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize="small")


def _short(value: float) -> str:
    """Three digits, and none lost."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
