"""The check that every compile makes before anything is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rationale.artifact.checks.expected import FittedAnswers, expected_probes, probe_count
from rationale.artifact.checks.gate import check_gate
from rationale.artifact.checks.measure import (
    GAP_LIMIT,
    OUTPUT_ROUNDINGS,
    OUTPUTS_LIMIT,
    ROWS_LIMIT,
    Measurement,
    layer_gap,
    measure,
    storage_error,
)
from rationale.artifact.checks.probes import (
    probe_ids,
    sample_rows,
    sound_probes,
    synthetic_probes,
    with_open_probes,
    with_open_sample,
)
from rationale.errors import CheckFailedError, InvalidModelError
from rationale.graph.memory.budget import budget_warnings, rows_that_fit
from rationale.graph.runtime.session import Runner, SerializedGraph
from rationale.lowering import narrow
from rationale.lowering.inference import Span
from rationale.methods.engine import Gap, Selection
from rationale.methods.outputs import ERRORS, attributions_name, layers_of
from rationale.methods.references import PreparedReferences
from rationale.references.reference_set import Baseline
from rationale.schema.manifest import Measurements, Memory
from rationale.schema.probes import Probes

GAP_WARNING = 1e-4  # relative to the largest explained − base
AVERAGE_WARNING = 1e-2  # for quadrature and sampling errors, which a user chooses by steps and samples
ABSORBED_WARNING = 1.0  # the part that a method keeps by definition, relative to the largest explained value
GAP_ERRORS = 5  # standard errors: with many draws, chance exceeds 4 in one of 16,000 rows and targets


@dataclass(frozen=True)
class FinishedGraph:
    """A finished graph that is written if it passes.

    Attributes:
        served: the graph that is served, with its weights.
        edges: inputs and outputs of the combined graph, without weights.
        longest: the same, at the longest length if one stays open.
        exact: the same graph without float16; None if it stores nothing as float16.
        one_shot: True if the explanation runs only behind a gate.
        span: the open lengths.
    """

    served: SerializedGraph
    edges: onnx.ModelProto
    longest: onnx.ModelProto
    memory: Memory
    exact: ir.Model | None
    one_shot: bool
    span: Span | None = None


@dataclass(frozen=True)
class CheckResult:
    """The measurements of a finished graph.

    Attributes:
        answers: the graph's answers to the probe rows, by name of the output.
        sample: an artificial row of each input, for a server's warmup.
        warnings: warnings for the user.
        probes: rows with the answers that are due; None if no row has a finite answer.
        layers: the gap of each explained layer, in the graph's order; None if the method guarantees none.
    """

    measured: Measurements
    answers: Mapping[str, np.ndarray]
    memory: Memory
    sample: Mapping[str, np.ndarray]
    warnings: tuple[str, ...]
    layers: Mapping[str, float | None]
    probes: Probes | None = None


def check(
    selection: Selection[Any, Any],
    referenced: PreparedReferences,
    graph: FinishedGraph,
    fitted: FittedAnswers | None = None,
) -> CheckResult:
    """Check the graph against the model, on rows near the references: the sixth stage of a compile.

    Args:
        fitted: the fitted model's answers to rows, if there is one.

    Raises:
        CheckFailedError: if the graph does not reproduce the model, or its attributions do not add up.
        UnsupportedModelError: if the model itself mixes the rows of a batch.
        InvalidModelError: if ONNX Runtime does not run it.
    """
    lowered, method = selection.lowered, selection.method
    outputs = method.engine.outputs(selection)
    references, source, memory = referenced.set, lowered.source, graph.memory
    names = [n for kind, named in outputs.by_kind.items() if kind not in ERRORS for n in named.values()]
    layers, near = layers_of(graph.edges), _near(selection, referenced)
    names += map(attributions_name, layers)

    def measured(unit: bool) -> tuple[dict[str, np.ndarray], Measurement]:
        probes = with_open_probes(sound_probes(source, graph.longest, near, unit=unit), references)
        return probes, measure(source, graph.served, names, probes, rows_that_fit(memory))

    try:
        probes, measurement = measured(unit=True)
    except InvalidModelError:  # such as floats that are ids of a small table
        probes, measurement = measured(unit=False)
    carrying = [
        n for n in layers if method.gap is not None and selection.choice.carries_all(selection.target, n)
    ]
    gaps = {
        n: layer_gap(measurement.answers, attributions_name(n)) if n in carrying else None for n in layers
    }
    if graph.one_shot:
        check_gate(graph.served, probes, [v.name for v in source.graph.output])
    if graph.exact is not None:
        error = storage_error(Runner(narrow(graph.exact, lowered.narrow)), measurement, names, probes)
        memory = memory.model_copy(update={"storage_error": error})
    sample = with_open_sample(sample_rows(graph.longest, references, probes), references)
    warnings = demand(measurement.measured, method.gap, bool(selection.target.stops))
    count = probe_count(measurement.measured, rows_that_fit(memory))
    rows = (synthetic_probes(probes, _near(selection, referenced, at_random=True), references, count), sample)
    expected, probe_warnings = expected_probes(source, graph.served, measurement, rows, fitted)
    return CheckResult(
        measurement.measured.model_copy(update={"probe_rows": expected.rows if expected else 0}),
        measurement.answers,
        memory,
        sample,
        (*warnings, *probe_warnings, *budget_warnings(memory)),
        gaps,
        expected,
    )


def _near(
    selection: Selection[Any, Any], referenced: PreparedReferences, *, at_random: bool = False
) -> dict[str, np.ndarray]:
    """Return rows of the model's inputs to check near; `at_random` ids are drawn at random."""
    if isinstance(selection.method.reference_set, Baseline):
        return {}
    rows = {**referenced.input_rows, **(referenced.set.arrays if referenced.set else {})}
    leaves = [s for s in selection.target.leaves if s.is_looked_up]
    for name in dict.fromkeys(s.name for s in leaves):
        row = selection.lowered.specs[name][0][1:]
        ids = None if at_random else referenced.input_rows.get(name)
        rows[name] = probe_ids([s for s in leaves if s.name == name], row, ids)
    return rows


def demand(measured: Measurements, gap: Gap | None, ended: bool = False) -> tuple[str, ...]:
    """Return warnings for the user.

    Args:
        gap: the reason why the method's attributions may miss the output's difference.
        ended: whether attributions end at a tensor on the way, so that they may miss paths that go on from
            it.

    Raises:
        CheckFailedError: if outputs differ, rows mix, or attributions do not add up.
    """
    messages = _judge_outputs(measured)
    limit = max(ROWS_LIMIT, OUTPUT_ROUNDINGS * measured.own_rounding)
    if measured.runtime_error is not None and not measured.runtime_error <= limit:
        raise CheckFailedError(
            f"the answers differ from ONNX Runtime's by {measured.runtime_error:.1e} (relative), although "
            "the graph is the same. Compile the model with --runtime for the runtime that will serve it "
            "(docs/runtimes.md)."
        )
    if measured.rows_error is not None and not measured.rows_error <= ROWS_LIMIT:
        raise CheckFailedError(
            f"explaining a batch differs from explaining its rows one by one by {measured.rows_error:.1e} "
            "(relative): the model mixes the rows of a batch, or overflows on the probe rows."
        )
    if gap is None:
        return messages
    if measured.completeness_gap is None:
        return (
            *messages,
            "completeness was not measured: the explained output is the same on all probe rows. Give "
            "references near which it changes.",
        )
    if np.isnan(measured.completeness_gap):
        raise CheckFailedError(
            "the completeness gap is not finite: the model overflows near the rows of the check. Give "
            "references within the range of the training data."
        )
    if ended and gap is Gap.ROUNDING:
        missed = measured.completeness_gap
        warning = (f"attributions miss the output's difference by {missed:.1e} of it",)
        return (*messages, *warning) if missed > GAP_WARNING else messages
    return (*messages, *_JUDGES[gap](measured, measured.completeness_gap))


def adds_up(measured: Measurements, gap: Gap | None) -> bool:
    """Tell whether attributions that must add up do so on the rows of the check."""
    size = measured.completeness_gap
    return gap is Gap.ROUNDING and size is not None and size <= GAP_WARNING


def _judge_outputs(measured: Measurements) -> tuple[str, ...]:
    error = measured.outputs_error
    if error <= max(OUTPUTS_LIMIT, OUTPUT_ROUNDINGS * measured.rounding):
        return ()
    fused, steps = measured.fused_integers, max(OUTPUTS_LIMIT, OUTPUT_ROUNDINGS * measured.rounding)
    if fused > steps and error <= fused + max(steps, OUTPUT_ROUNDINGS * measured.own_rounding):
        return (
            "ONNX Runtime computes this model's quantised layers in whole numbers, and its answers differ "
            f"from those of the model's nodes by {fused:.1e} of the largest: by quantisation steps, or by "
            "far more if it adds in 16 bits (x86 without VNNI). The explanation follows the nodes, so its "
            f"outputs differ from the plain entry's by {error:.1e} here. The session option "
            "session.disable_quant_qdq=1 runs the nodes unchanged.",
        )
    if not error <= OUTPUT_ROUNDINGS * measured.own_rounding:
        raise CheckFailedError(
            f"the combined graph's outputs differ from the model's by {error:.1e} (relative). Please report "
            "the model."
        )
    return (
        "float32 is too coarse for this model: different rounding of its weights, or another order of its "
        f"sums, changes its outputs by {measured.own_rounding:.1e} of the largest; the combined graph's "
        f"differ by {error:.1e}. Export the model in float64 (skl2onnx: to_onnx with a float64 row).",
    )


def _judge_rounding(measured: Measurements, gap: float) -> tuple[str, ...]:
    if gap > max(GAP_LIMIT, OUTPUT_ROUNDINGS * measured.gap_rounding):
        raise CheckFailedError(
            f"the attributions miss the difference between output and base value by {gap:.1e} of it. "
            "Probably the model overflows or divides by values near 0 close to its references, so that "
            "terms of opposite signs do not cancel. Give other references, or use exactshap (up to 12 "
            "features) or permutationshap, which need no rules. If the model does neither, a rule is "
            "incomplete: please report it."
        )
    if gap > GAP_LIMIT and measured.fused_integers:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only: on the rows of "
            "the check the output moves by a few steps of its whole numbers. Give references farther apart.",
        )
    if gap > GAP_LIMIT:
        return (
            f"attributions add up to the output's difference only within {gap:.1e} of it, and different "
            f"rounding or another order of sums changes the model's answers by {measured.gap_rounding:.1e} "
            "of it: float32 is too coarse for this model. Check that its weights are trained and that "
            "rows are scaled as in training; otherwise export it in float64.",
        )
    if gap > GAP_WARNING:
        return (f"attributions add up to the output's difference within {gap:.1e} of it only",)
    return ()


def _judge_quadrature(_: Measurements, gap: float) -> tuple[str, ...]:
    if gap > AVERAGE_WARNING:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only: raise the steps. "
            "Where that does not help, the model has steps (Round, Sign, comparisons), whose gradient is 0.",
        )
    return ()


def _judge_sampling(measured: Measurements, gap: float) -> tuple[str, ...]:
    """Warn of a large sampling gap.

    A large gap means too few draws; a gap of many standard errors is no accident.
    """
    errors = measured.gap_in_standard_errors
    if errors is not None and errors > GAP_ERRORS:
        return (
            f"attributions miss the output's difference by {errors:.1f} standard errors ({gap:.1e} of it): "
            "the samples are too few for their spread to be known, or the model has steps (Round, Sign, "
            "comparisons), whose gradient is 0.",
        )
    if gap > AVERAGE_WARNING:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only, a sampling error: "
            "four times the samples halve it",
        )
    return ()


def _judge_absorbed(measured: Measurements, gap: float) -> tuple[str, ...]:
    """Warn if more is absorbed than there is to explain, by a row's own output; some is by definition."""
    absorbed = max(gap, measured.gap_of_a_row or 0.0)
    if absorbed > ABSORBED_WARNING:
        return (
            f"biases, stabilisers and Softmax absorb up to {absorbed:.3g} times the explained value, by the "
            "method's definition, so attributions do not add up to the output. Compare them with another "
            "method's (input-x-gradient, deepshap).",
        )
    return ()


_JUDGES: dict[Gap, Callable[[Measurements, float], tuple[str, ...]]] = {
    Gap.ROUNDING: _judge_rounding,
    Gap.QUADRATURE: _judge_quadrature,
    Gap.SAMPLING: _judge_sampling,
    Gap.ABSORBED: _judge_absorbed,
}
