"""The pictures of a report: times of each case, and times against K."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.cases import OURS, PEERS
from benchmarks.timing import round_quartiles

if TYPE_CHECKING:
    from benchmarks.explanations import CaseResult

NAMES = (OURS, *PEERS)


def pictures(outcomes: "Sequence[CaseResult]") -> dict[str, bytes]:
    """Return bench.png, and references.png if a network was measured with several K."""
    measured = [outcome for outcome in outcomes if outcome.systems]
    files = {"bench.png": bars(measured)}
    networks: dict[str, list[CaseResult]] = {}
    for outcome in sorted(measured, key=lambda result: result.case.references):
        networks.setdefault(outcome.case.label_without_references, []).append(outcome)
    if swept := {label: each for label, each in networks.items() if len(each) > 1}:
        files["references.png"] = curves(swept)
    return files


def bars(outcomes: "Sequence[CaseResult]") -> bytes:
    """Return a PNG: a bar for each system of each case, in milliseconds on a logarithmic axis."""
    figure = Figure(figsize=(8, 1 + 0.22 * sum(len(o.systems) + 1 for o in outcomes)), layout="constrained")
    axes, y, ticks = figure.subplots(), 0, []
    for outcome in outcomes:
        ticks.append((y + (len(outcome.systems) - 1) / 2, outcome.case.label))
        for name, system in outcome.systems.items():
            low, median, high = (1e3 * seconds for seconds in round_quartiles(system.times_s))
            axes.barh(y, median, xerr=[[median - low], [high - median]], color=_colour(name), capsize=2)
            axes.text(high * 1.1, y, f"{median:.3g}", va="center", fontsize="x-small")
            y += 1
        y += 1
    axes.set_yticks([height for height, _ in ticks], [label for _, label in ticks])
    axes.set(ylim=(y - 1, -1), xscale="log", xlabel="time of one run [ms]: median and quartiles")
    return _png(figure, outcomes)


def curves(networks: "dict[str, list[CaseResult]]") -> bytes:
    """Return a PNG: for each network the time of one run against K, a line for each system."""
    figure = Figure(figsize=(8, 1 + 3.2 * len(networks)), layout="constrained")
    panels = figure.subplots(len(networks), squeeze=False)[:, 0]
    for axes, (label, outcomes) in zip(panels, networks.items(), strict=True):
        for name in NAMES:
            points = [
                (o.case.references, round_quartiles(o.systems[name].times_s))
                for o in outcomes
                if name in o.systems
            ]
            counts, times = [count for count, _ in points], [each for _, each in points]
            low, median, high = ([1e3 * each[i] for each in times] for i in range(3))
            axes.plot(counts, median, "o-", markersize=3, color=_colour(name))
            axes.fill_between(counts, low, high, color=_colour(name), alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="references K", ylabel="time of one run [ms]")
        axes.set_title(label, loc="left")
    return _png(figure, [outcome for each in networks.values() for outcome in each])


def _png(figure: Figure, outcomes: "Sequence[CaseResult]") -> bytes:
    shown = [name for name in NAMES if any(name in outcome.systems for outcome in outcomes)]
    handles = [Patch(color=_colour(name), label=name) for name in shown]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    return stream.getvalue()


def _colour(name: str) -> str:
    """Return a system's colour, the same in every picture."""
    return f"C{NAMES.index(name)}"
