"""The plots of a benchmark: they need matplotlib, the extra `plots`."""

import io
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from compiler.errors import InvalidOptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Quartiles = tuple[float, float, float]
Curves = dict[str, dict[int, Quartiles]]  # of one network, by system and K, in seconds
WIDTH_IN, ROW_IN, PANEL_IN, DPI = 8.0, 0.28, 3.4, 150


def plot(times: Mapping[str, Mapping[str, Quartiles]]) -> bytes:
    """A PNG: a bar for each system of each case, in milliseconds on a logarithmic axis.

    Args:
        times: by case and system, quartiles in seconds.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(name for systems in times.values() for name in systems))
    height = ROW_IN * (sum(len(systems) + 1 for systems in times.values()) + 3)
    figure = _figure(height)
    axes = figure.subplots()
    y, labelled, ticks = 0, set[str](), []
    for label, systems in times.items():
        ticks.append((y + (len(systems) - 1) / 2, label))
        for name, (low, median, high) in systems.items():
            spread = [[1e3 * (median - low)], [1e3 * (high - median)]]
            colour = f"C{names.index(name)}"
            legend = name if name not in labelled else None
            axes.barh(y, 1e3 * median, xerr=spread, color=colour, capsize=2, label=legend)
            axes.text(1e3 * high * 1.1, y, _short(1e3 * median), va="center", fontsize="x-small")
            labelled.add(name)
            y += 1
        y += 1
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("time of one run [ms], median and quartiles")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize="small")
    return _png(figure)


def plot_curves(curves: Mapping[str, Curves]) -> bytes:
    """A PNG: for each network the time of one run against K, a line for each system with its quartiles.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(name for lines in curves.values() for name in lines))
    figure = _figure(PANEL_IN * len(curves))
    for axes, (label, lines) in zip(
        figure.subplots(len(curves), squeeze=False)[:, 0], curves.items(), strict=True
    ):
        for name, times in lines.items():
            low, median, high = ([1e3 * values[i] for values in times.values()] for i in range(3))
            colour = f"C{names.index(name)}"
            axes.plot(list(times), median, "o-", markersize=3, color=colour, label=name)
            axes.fill_between(list(times), low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", title=label, xlabel="references K", ylabel="one run [ms]")
        counts = sorted({count for times in lines.values() for count in times})
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize="small")
    return _png(figure)


def _figure(height_in: float) -> "Figure":
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            "no plot: matplotlib is not installed. pip install 'rationale[plots]'"
        ) from error
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    save: Callable[..., None] = figure.savefig
    save(stream, format="png")
    return stream.getvalue()


def _short(value: float) -> str:
    """Three digits, and none lost."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
