"""The check that every compile makes before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from compiler.checks.gate import check_gate
from compiler.checks.judge import demand
from compiler.checks.measure import Measurement, layer_gap, measure, storage_error
from compiler.checks.probes import probe_ids, sample_rows, sound_probes, with_open_probes, with_open_sample
from compiler.errors import InvalidModelError
from compiler.explain.engine import Selection
from compiler.explain.outputs import attributions_name, layers_of
from compiler.explain.references import Referenced
from compiler.lowering import narrow
from compiler.lowering.inference import Span
from compiler.manifest import Measured, Memory
from compiler.memory.budget import beyond_budget, rows_that_fit
from compiler.references.reference_set import Baseline
from compiler.runtime.session import Runner, SerializedGraph


@dataclass(frozen=True)
class FinishedGraph:
    """A finished graph that is written if it passes.

    Attributes:
        served: with its weights, as it is served.
        edges: inputs and outputs of the combined graph, without weights.
        longest: the same, where a length stays open at the longest.
        exact: the same graph without float16; None where nothing is stored so.
        one_shot: whether it stands behind a gate.
        span: the lengths that stay open.
    """

    served: SerializedGraph
    edges: onnx.ModelProto
    longest: onnx.ModelProto
    memory: Memory
    exact: ir.Model | None
    one_shot: bool
    span: Span | None = None


@dataclass(frozen=True)
class Checked:
    """What was measured.

    Attributes:
        answers: of the graph on the probe rows, by name of the output.
        sample: one row for each input that is nobody's, with which a server warms up.
        warnings: for the user.
        layers: the gap of each layer that is answered, in the graph's order; None where none is promised.
    """

    measured: Measured
    answers: Mapping[str, np.ndarray]
    memory: Memory
    sample: Mapping[str, np.ndarray]
    warnings: tuple[str, ...]
    layers: Mapping[str, float | None]


def check(selection: Selection, referenced: Referenced, graph: FinishedGraph) -> Checked:
    """Check the graph against the model, on rows near the references: the sixth stage of a compile.

    Raises:
        CheckFailedError: the graph does not reproduce the model, or its attributions do not add up.
        UnsupportedModelError: the model itself mixes the rows of a batch.
        InvalidModelError: ONNX Runtime does not run it.
    """
    lowered, method = selection.lowered, selection.method
    outputs = method.engine.outputs(selection)
    references, source, memory = referenced.set, lowered.source, graph.memory
    names = [*outputs.attributions.values()]
    layers, near = layers_of(graph.edges), _near(selection, referenced)
    names += map(attributions_name, layers)
    names += outputs.interactions.values()

    def measured(unit: bool) -> tuple[dict[str, np.ndarray], Measurement]:
        probes = with_open_probes(sound_probes(source, graph.longest, near, unit=unit), references)
        return probes, measure(source, graph.served, names, probes, rows_that_fit(memory))

    try:
        probes, found = measured(unit=True)
    except InvalidModelError:  # floats that are ids of a small table, say
        probes, found = measured(unit=False)
    carrying = [n for n in layers if method.gap is not None and method.engine.carries_all(selection, n)]
    gaps = {n: layer_gap(found.answers, attributions_name(n)) if n in carrying else None for n in layers}
    if graph.one_shot:
        check_gate(graph.served, probes, [v.name for v in source.graph.output])
    if graph.exact is not None:
        error = storage_error(Runner(narrow(graph.exact, lowered.narrow)), found, names, probes)
        memory = memory.model_copy(update={"storage_error": error})
    return Checked(
        found.measured,
        found.answers,
        memory,
        with_open_sample(sample_rows(graph.longest, references, probes), references),
        (*demand(found.measured, method.gap, bool(selection.target.stops)), *beyond_budget(memory)),
        gaps,
    )


def _near(selection: Selection, referenced: Referenced) -> dict[str, np.ndarray]:
    """Return the rows of the model's inputs near which it is checked."""
    if isinstance(selection.method.reference_set, Baseline):
        return {}
    known = {**referenced.fed, **(referenced.set.arrays if referenced.set else {})}
    leaves = [s for s in selection.target.leaves if s.places is not None]
    for name in dict.fromkeys(s.name for s in leaves):
        row = selection.lowered.specs[name][0][1:]
        known[name] = probe_ids([s for s in leaves if s.name == name], row, referenced.fed.get(name))
    return known
