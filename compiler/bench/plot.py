"""The plot of a benchmark: needs matplotlib, the extra `plots`."""

import io
from collections.abc import Callable, Mapping
from importlib import import_module

from compiler.errors import InvalidOptionError

Quartiles = tuple[float, float, float]
WIDTH_IN, ROW_IN, DPI = 8.0, 0.28, 150


def plot(times: Mapping[str, Mapping[str, Quartiles]]) -> bytes:
    """A PNG: a bar for each system of each case, in milliseconds on a logarithmic axis.

    Args:
        times: by case and system, quartiles in seconds.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            "no plot: matplotlib is not installed. pip install 'rationale[plots]'"
        ) from error
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for systems in times.values() for name in systems))
    height = ROW_IN * (sum(len(systems) + 1 for systems in times.values()) + 3)
    figure = Figure(figsize=(WIDTH_IN, height), dpi=DPI, layout="constrained")
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
    stream = io.BytesIO()
    save: Callable[..., None] = figure.savefig
    save(stream, format="png")
    return stream.getvalue()


def _short(value: float) -> str:
    """Three digits, and none lost."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
