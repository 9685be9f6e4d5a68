"""How far a graph may be off, and what its user is told."""

from collections.abc import Callable

import numpy as np

from compiler.errors import CheckFailedError
from compiler.explain.engine import Gap
from compiler.manifest import Measured

OUTPUTS_LIMIT = 1e-4  # relative to the largest value: far above float32's noise, far below a wrong graph
GAP_LIMIT, GAP_WARNING = 1e-2, 1e-4  # relative to the largest explained − base
AVERAGE_WARNING = 1e-2  # of quadrature and sampling errors, which a user chooses by steps and samples
ABSORBED_WARNING = 1.0  # what a method keeps by definition, relative to the largest explained value
GAP_ERRORS = 5  # standard errors: beyond 4 by chance once in 16,000 rows and targets, of many draws
OUTPUT_ROUNDINGS = 8  # of the model itself: of its half-precision inputs and outputs, or of another order
ROWS_LIMIT = 1e-3  # a batch against its rows alone; float32 sums in another order differ by about 1e-6


def demand(measured: Measured, gap: Gap | None, ended: bool = False) -> tuple[str, ...]:
    """Return warnings for the user.

    Args:
        gap: why the method's attributions may miss the output's difference.
        ended: whether attributions end somewhere on the way, so that they may miss what goes on from there.

    Raises:
        CheckFailedError: outputs differ, rows mix, or attributions do not add up.
    """
    told = _judge_outputs(measured)
    limit = max(ROWS_LIMIT, OUTPUT_ROUNDINGS * measured.own_rounding)
    if measured.runtime_error is not None and not measured.runtime_error <= limit:
        raise CheckFailedError(
            f"answers differ from ONNX Runtime's by {measured.runtime_error:.1e} (relative), though the "
            "graph is the same: see docs/runtimes.md, and compile it with --runtime for where it will run."
        )
    if measured.rows_error is not None and not measured.rows_error <= ROWS_LIMIT:
        raise CheckFailedError(
            f"explaining a batch differs from explaining its rows one by one by {measured.rows_error:.1e} "
            "(relative): the model mixes the rows of a batch, or overflows on the probe rows."
        )
    if gap is None:
        return told
    if measured.completeness_gap is None:
        return (
            *told,
            "whether attributions add up was not measured: the explained output does not move on the rows of "
            "the check. Give references near which it does.",
        )
    if np.isnan(measured.completeness_gap):
        raise CheckFailedError(
            "the completeness gap is not finite: the model overflows near the rows it was checked on. Give "
            "references within the range it was made for."
        )
    if ended and gap is Gap.ROUNDING:
        missed = measured.completeness_gap
        more = (f"attributions miss the output's difference by {missed:.1e} of it",)
        return (*told, *more) if missed > GAP_WARNING else told
    return (*told, *_JUDGES[gap](measured, measured.completeness_gap))


def _judge_outputs(measured: Measured) -> tuple[str, ...]:
    error = measured.outputs_error
    if error <= max(OUTPUTS_LIMIT, OUTPUT_ROUNDINGS * measured.rounding):
        return ()
    fused, steps = measured.fused_integers, max(OUTPUTS_LIMIT, OUTPUT_ROUNDINGS * measured.rounding)
    if fused > steps and error <= fused + max(steps, OUTPUT_ROUNDINGS * measured.own_rounding):
        return (
            "ONNX Runtime runs quantised layers of this model on whole numbers, and answers otherwise than "
            f"the model's own nodes by {fused:.1e} of the largest: by steps, or by far more where it adds in "
            "16 bits (x86 without VNNI). The explanation follows the nodes, and its outputs differ by "
            f"{error:.1e} from the plain entry's as they are here. The session option "
            "session.disable_quant_qdq=1 runs the nodes as they stand.",
        )
    if not error <= OUTPUT_ROUNDINGS * measured.own_rounding:
        raise CheckFailedError(
            f"the combined graph's outputs differ from the model's by {error:.1e} (relative). Please report "
            "the model."
        )
    return (
        "float32 does not hold this model's outputs: where its weights are rounded otherwise or its sums "
        f"taken in another order they change by {measured.own_rounding:.1e} of the largest, as sums of large "
        f"terms that almost cancel do; the combined graph's differ by {error:.1e}. Export it in float64 "
        "(skl2onnx: to_onnx with a float64 row).",
    )


def _judge_rounding(measured: Measured, gap: float) -> tuple[str, ...]:
    if gap > max(GAP_LIMIT, OUTPUT_ROUNDINGS * measured.gap_rounding):
        raise CheckFailedError(
            f"attributions miss the output's difference by {gap:.1e} of it. The model overflows near its "
            "references or divides by values near 0 there, so that terms of opposite signs do not cancel in "
            "its type: give other references, or take exactshap (up to 12 features) or permutationshap: they "
            "ask no rules. Where it does neither, a rule is not complete: please report it."
        )
    if gap > GAP_LIMIT and measured.fused_integers:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only: on the rows of "
            "the check the output moves by a few steps of its whole numbers. Give references farther apart.",
        )
    if gap > GAP_LIMIT:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only, and the model's "
            f"own answers change by {measured.gap_rounding:.1e} of it where weights are rounded otherwise or "
            "sums are taken in another order: float32 does not hold this model's outputs. Look for weights "
            "that are random, or rows that are not scaled as in training; else export it in float64.",
        )
    if gap > GAP_WARNING:
        return (f"attributions add up to the output's difference within {gap:.1e} of it only",)
    return ()


def _judge_quadrature(_: Measured, gap: float) -> tuple[str, ...]:
    if gap > AVERAGE_WARNING:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only: raise the steps. "
            "Where that does not help, the model has steps (Round, Sign, comparisons), whose gradient is 0.",
        )
    return ()


def _judge_sampling(measured: Measured, gap: float) -> tuple[str, ...]:
    """Warn of a large sampling gap.

    A large gap says that the draws are few; one of many standard errors, that it is no accident.
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


def _judge_absorbed(_: Measured, gap: float) -> tuple[str, ...]:
    """Warn where more is absorbed than there is to explain; some is by definition."""
    if gap > ABSORBED_WARNING:
        return (
            f"biases, stabilisers and Softmax keep up to {gap:.3g} times what is explained, by the "
            "method's definition: attributions do not add up to the output, and tell more of what was kept "
            "than of it. Hold them against another method's (input-x-gradient, deepshap).",
        )
    return ()


_JUDGES: dict[Gap, Callable[[Measured, float], tuple[str, ...]]] = {
    Gap.ROUNDING: _judge_rounding,
    Gap.QUADRATURE: _judge_quadrature,
    Gap.SAMPLING: _judge_sampling,
    Gap.ABSORBED: _judge_absorbed,
}
