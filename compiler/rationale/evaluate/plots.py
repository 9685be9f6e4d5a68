"""Plots of an evaluation: needs matplotlib, the extra `plots`."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from rationale.evaluate.evaluate import Evaluation
from rationale.evaluate.faithfulness import Curve
from rationale.pictures.drawings import fitting, matplotlib_or_advice, picture, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, PANEL_IN, DPI = 8.0, 3.6, 150
CONTROL = "0.55"  # grey
_AXES = {
    "deletion": "features replaced, most relevant first [%]",
    "insertion": "features put back, most relevant first [%]",
}


def plots(evaluations: Sequence[Evaluation]) -> dict[str, bytes]:
    """Return PNG files by name.

    They are deletion.png, insertion.png, randomised.png where that check ran, and explanations.png, the first
    rows as each entry explains them.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    matplotlib_or_advice()
    drawn = {f"{kind}.png": _curves(evaluations, kind) for kind in _AXES}
    if any(e.randomised.stages for e in evaluations):
        drawn["randomised.png"] = _randomised(evaluations)
    side_by_side = zip_longest(*(e.panels for e in evaluations))
    shown = [panel for row in side_by_side for panel in row if panel]
    drawn["explanations.png"] = picture(fitting(shown, len(shown)))
    return drawn


def _curves(evaluations: Sequence[Evaluation], kind: str) -> bytes:
    """Draw one panel for each model and output: others have other units."""
    groups: dict[tuple[str, str, str], list[Evaluation]] = {}
    for e in evaluations:
        key = (e.manifest.digests.model, e.manifest.explained_output, _control_key(e))
        groups.setdefault(key, []).append(e)
    figure, panels = _figure(len(groups))
    for axes, group in zip(panels, groups.values(), strict=True):
        _draw_control(axes, getattr(group[0], kind))
        for e in group:
            curve: Curve = getattr(e, kind)
            axes.plot(
                100 * curve.fractions,
                curve.values,
                marker="." if len(curve.values) <= 30 else None,
                label=f"{e.name} ({e.method})\narea {curve.area:.4g}",
            )
        axes.set_title(f"{kind.capitalize()}: {len(group[0].deletion.control)} random orders as the control")
        axes.set_xlabel(_AXES[kind])
        axes.set_ylabel(f"mean {group[0].manifest.explained_output}\n[the output's own units]")
        _finish(axes)
    return png(figure)


def _control_key(e: Evaluation) -> str:
    """Return a key: entries with another baseline or other targets start and end elsewhere."""
    return f"{e.baseline.split(' of ')[0]} {e.manifest.targets}"


def _draw_control(axes: "Axes", curve: Curve) -> None:
    x, areas = 100 * curve.fractions, curve.control_areas
    axes.fill_between(
        x, curve.control.min(axis=0), curve.control.max(axis=0), color=CONTROL, alpha=0.3, linewidth=0
    )
    axes.plot(
        x,
        curve.control.mean(axis=0),
        color=CONTROL,
        linestyle="--",
        label=f"random order (mean, range)\narea {areas.mean():.4g} ± {areas.std():.1g}",
    )


def _randomised(evaluations: Sequence[Evaluation]) -> bytes:
    figure, (axes,) = _figure(1)
    for e in evaluations:
        stages = [s for s in e.randomised.stages if s.correlation is not None]
        if stages:
            share = [0.0, *(100 * s.layers / s.of for s in stages)]
            axes.errorbar(
                share,
                [1.0, *(s.correlation or 0.0 for s in stages)],
                yerr=[0.0, *(s.spread or 0.0 for s in stages)],
                capsize=3,
                marker="o",
                label=f"{e.name} ({e.method})",
            )
    axes.axhline(0, color=CONTROL, linestyle="--", label="unrelated")
    axes.set_title("Weights redrawn from the last layer to the first")
    axes.set_xlabel("layers redrawn, from the output on [%]")
    axes.set_ylabel("Spearman's correlation with the\nattributions before, mean ± spread")
    axes.set_ylim(-1.05, 1.05)
    _finish(axes)
    return png(figure)


def _figure(panels: int) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, PANEL_IN * panels), dpi=DPI, layout="constrained")
    axes: np.ndarray = figure.subplots(panels, squeeze=False)
    return figure, list(axes[:, 0])


def _finish(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize="small")
