"""What the combined graph answers beside the model's own outputs, and under which names."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidReferencesError
from compiler.graph import Ops
from compiler.methods.base import Averaged, Gap, Method
from compiler.references import ReferenceSet
from compiler.tensor import Tensor

BASE_VALUE, EXPLAINED_VALUE, GAP = "base_value", "explained_value", "completeness_gap"
GAP_ERROR = "completeness_gap_standard_error"


def attributions_name(name: str) -> str:
    return f"{name}_attributions"


def standard_error_name(name: str) -> str:
    return f"{name}_standard_error"


def names_of_outputs(method: Method, inputs: Sequence[str]) -> set[str]:
    """Every name that the combined graph needs for itself."""
    names = {BASE_VALUE, EXPLAINED_VALUE, GAP, *map(attributions_name, inputs)}
    if has_standard_error(method):
        names.update(map(standard_error_name, inputs))
    return names | ({GAP_ERROR} if has_gap_error(method) else set())


def has_standard_error(method: Method) -> bool:
    return isinstance(method, Averaged) and method.standard_error


def has_gap_error(method: Method) -> bool:
    """Always where the gap is a sampling error: without it, nobody could tell it from a fault."""
    return isinstance(method, Averaged) and method.gap is Gap.SAMPLING


@dataclass(frozen=True)
class Seed:
    """Where the walk starts: multiplier 1 at each target, and the targets' values at x and at r."""

    multiplier: Tensor
    explained: Tensor
    base: Tensor | None


@dataclass(frozen=True)
class Explained:
    """An explained input at the walk's end: its multiplier, and where its path to x started."""

    name: str
    x: Tensor
    multiplier: Tensor
    start: Tensor | None


@dataclass(frozen=True)
class Draws:
    """What attributions are a mean over: the axis, its weights, and how many equal ones they are worth."""

    axis: str
    weights: np.ndarray | None
    effective: float

    def standard_error(self, op: Ops, x: Tensor) -> Tensor:
        if self.axis not in x.lead:  # a linear model's gradient is the same at every draw
            return op.row_constant(np.zeros(x.shape, x.dtype.numpy()))
        return op.standard_error(x, self.axis, self.weights, self.effective)


def emit_outputs(
    op: Ops, method: Method, explained: Sequence[Explained], seed: Seed, references: ReferenceSet | None
) -> None:
    """Adds the attributions, base value, explained value, gap and standard errors to the graph's outputs.

    Raises:
        InvalidReferencesError: a standard error is asked for, and there is one reference alone.
    """
    op.scope = "attributions"
    weights = references.weights if references else None
    outputs, totals = [], []
    for e in explained:
        attributions = method.attribute(op, e.multiplier, e.x, e.start, weights)
        outputs.append(op.attributions_output(attributions, attributions_name(e.name)))
        totals.append(_total(op, outputs[-1], e.x))
    outputs += _standard_errors(op, method, explained, references)
    if seed.base is not None:
        outputs.append(op.rows_output(seed.base, BASE_VALUE))
    outputs.append(op.rows_output(seed.explained, EXPLAINED_VALUE))
    if method.gap is not None:
        gap = seed.explained if seed.base is None else op.Sub(seed.explained, seed.base)
        for total in totals:
            gap = op.Sub(gap, total)
        outputs.append(op.rows_output(gap, GAP))
    outputs += _gap_error(op, method, explained, references)
    op.graph.outputs.extend(outputs)


def _total(op: Ops, value: ir.Value, x: Tensor) -> Tensor:
    """Σ over the features of an attributions output: row shape [1, T]."""
    whole = Tensor(value, (1, op.sizes["T"], *x.shape[1:]), x.dtype, frozenset("N"), rows=True)
    axes = list(range(2, whole.rank))
    return op.ReduceSum(whole, axes, keepdims=0) if axes else whole


def _standard_errors(
    op: Ops, method: Method, explained: Sequence[Explained], references: ReferenceSet | None
) -> list[ir.Value]:
    if not (isinstance(method, Averaged) and method.standard_error):
        return []
    draws = _draws(op, method, references)
    outputs = []
    for e in explained:
        error = draws.standard_error(op, method.spread(op, e.multiplier, e.x, e.start))
        outputs.append(op.attributions_output(op.expand(error, e.x.shape), standard_error_name(e.name)))
    return outputs


def _gap_error(
    op: Ops, method: Method, explained: Sequence[Explained], references: ReferenceSet | None
) -> list[ir.Value]:
    """Explained and base value are exact: the gap varies as the sum of the attributions does."""
    if not (isinstance(method, Averaged) and method.gap is Gap.SAMPLING):
        return []
    draws = _draws(op, method, references)
    total, *others = [op.total(method.spread(op, e.multiplier, e.x, e.start)) for e in explained]
    for other in others:
        total = op.Add(total, other)
    return [op.attributions_output(draws.standard_error(op, total), GAP_ERROR)]


def _draws(op: Ops, method: Averaged, references: ReferenceSet | None) -> Draws:
    if method.averages != "K":
        return Draws(method.averages, None, op.sizes[method.averages])
    assert references is not None
    if references.count < 2 or references.effective <= 1:
        raise InvalidReferencesError(
            "a standard error needs at least two different references of some weight: give more of them, or "
            "leave the standard error out."
        )
    return Draws("K", references.weights, references.effective)
