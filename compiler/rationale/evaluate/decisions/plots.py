"""Plots of a report on decisions: needs matplotlib, the extra `plots`."""

from typing import TYPE_CHECKING

import numpy as np

from rationale.decisions.stability import DRAWS
from rationale.evaluate.decisions.measures import Report, cell_text
from rationale.evaluate.decisions.moved import Moved
from rationale.pictures.drawings import matplotlib_or_advice, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, BAR_IN, MARGIN_IN, DPI = 8.0, 0.32, 1.3, 150
SHOWN = 20  # reasons
GREY = "0.75"
_TEXT = 45  # characters of a label


def plots(report: Report) -> dict[str, bytes]:
    """Return PNG files by name: reasons.png, stability.png, moved.png and groups.png.

    Each is left out where there is nothing to draw.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    matplotlib_or_advice()
    drawn = {}
    if report.reasons:
        drawn["reasons.png"] = _reasons(report)
    if report.agreements:
        drawn["stability.png"] = _stability(report)
    if isinstance(report.moved, Moved):
        drawn["moved.png"] = _moved(report.moved)
    if report.groups:
        drawn["groups.png"] = _groups(report)
    return drawn


def _reasons(report: Report) -> bytes:
    shown, declines = report.reasons[:SHOWN], report.outcomes["decline"]
    figure, axes = _bars([f"{one.code}: {one.text}" if one.text != one.code else one.code for one in shown])
    positions = np.arange(len(shown))
    axes.barh(positions, [100 * one.declines / declines for one in shown], color=GREY, label="principal")
    axes.barh(positions, [100 * one.first / declines for one in shown], height=0.4, label="the largest")
    figure.suptitle(f"Principal reasons of {declines} declines")
    axes.set_xlabel("declines [%]")
    return _finished(figure, axes)


def _stability(report: Report) -> bytes:
    names = ["draws of the references" if one.name == DRAWS else one.name for one in report.agreements]
    figure, axes = _bars(names)
    positions = np.arange(len(names))
    for shift, label, shares in (
        (-0.2, "same set", [one.same_set for one in report.agreements]),
        (0.2, "same order", [one.same_order for one in report.agreements]),
    ):
        bars = axes.barh(positions + shift, [100 * share for share in shares], height=0.38, label=label)
        axes.bar_label(bars, fmt="%.0f%%", padding=2, fontsize="small")
    axes.set_xlim(0, 108)
    figure.suptitle(f"The same principal reasons by other references: {report.by_score} declines")
    axes.set_xlabel("declines [%]")
    return _finished(figure, axes)


def _moved(moved: Moved) -> bytes:
    figure, axes = _figure(4.0)
    gains = np.array(moved.of_each)
    bins = np.linspace(gains.min(), gains.max(), 41).tolist()
    others = f"as many others, at random: mean {moved.others:.3g}"
    named = f"the named reasons: mean {moved.named:.3g}"
    axes.hist(gains[:, 1], bins, color=GREY, label=others)
    axes.hist(gains[:, 0], bins, histtype="step", linewidth=1.8, label=named)
    axes.axvline(0, color="0.3", linewidth=0.8)
    figure.suptitle(f"How far scores move when features take {moved.references} references' values")
    axes.set_xlabel("change of the score towards approval [the score's own units]")
    axes.set_ylabel("declines")
    return _finished(figure, axes)


def _groups(report: Report) -> bytes:
    names = [f"{one.column} = {cell_text(one.value)} ({one.rows} rows)" for one in report.groups]
    figure, axes = _bars(names)
    positions, left = np.arange(len(names)), np.zeros(len(names))
    for label, colour, shares in (
        ("approved", "tab:blue", [one.approved for one in report.groups]),
        ("referred", "tab:orange", [one.referred for one in report.groups]),
        ("declined", GREY, [one.declined for one in report.groups]),
    ):
        width = 100 * np.array(shares)
        if width.any():
            axes.barh(positions, width, left=left, color=colour, label=label)
        left += width
    for position, one in zip(positions, report.groups, strict=True):
        ratio = "–" if one.ratio is None else f"ratio {one.ratio:.2f}"
        axes.text(101, float(position), ratio + " (small)" * one.small, va="center", fontsize="small")
    axes.set_xlim(0, 125)
    figure.suptitle("Decisions by protected group; ratio of approvals to the highest rate")
    axes.set_xlabel("rows [%]")
    return _finished(figure, axes)


def _bars(names: list[str]) -> "tuple[Figure, Axes]":
    """Make axes for horizontal bars from the top down."""
    figure, axes = _figure(MARGIN_IN + BAR_IN * max(len(names), 3))
    short = [name if len(name) <= _TEXT else f"{name[: _TEXT - 1]}…" for name in names]
    axes.set_yticks(np.arange(len(names)), short)
    axes.invert_yaxis()
    return figure, axes


def _figure(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots()


def _finished(figure: "Figure", axes: "Axes") -> bytes:
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return png(figure)
