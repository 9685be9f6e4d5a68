"""The lowering of an ONNX file to a graph of operators that have rules.

`lower(model)` is the overview: load and check, convert to one opset, make the batch symbolic, fold
constants, widen half precision to float32, rewrite operators that others define, and record the shape of
every value for one row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from rationale.graph.shapes import Spec
from rationale.lowering.batch import (
    ONE_SCALE,
    first_to_mix,
    free_batch,
    how_rows_mix,
    name_batch,
    outputs_grow,
    rows_on_axis_0,
)
from rationale.lowering.bodies import inline_bodies
from rationale.lowering.control_flow.branches import OPERATORS as CONTROL_FLOW
from rationale.lowering.control_flow.branches import inline_control_flow, rows_decide
from rationale.lowering.inference import Shapes, Size, fix_lengths, infer, infer_each, note_shapes
from rationale.lowering.loading.load import demand_no_draws, load, standardise
from rationale.lowering.precision import Narrow, narrow, on_cpu, widen
from rationale.lowering.rewrites.engine import is_rewritten, rewrite, rewrite_domain, share_prefixes
from rationale.lowering.rewrites.microsoft import DOMAIN as MICROSOFT
from rationale.lowering.rewrites.microsoft import needs_gpu
from rationale.lowering.sizes import check_sizes, fold_sizes, fold_weights, specs_at_batch
from rationale.rules.rule import find_rule

__all__ = ["Lowered", "lower", "narrow", "plain_model_for", "with_model"]


@dataclass(frozen=True)
class Lowered:
    """A model ready for the walk.

    Attributes:
        source: the given model with a symbolic batch; the combined graph is checked against it.
        model: the lowered graph, in float32 or float64; the source's values keep their names.
        narrow: the source's values in half precision.
        specs: row shape and dtype of each value, by name.
        constants: values that depend only on the sizes of one row, by name.
        batched: names of the values whose axis 0 grows with the batch.
        single_row_only: whether the model's nodes are right only for one row: its batch was fixed at 1, and
            moves.
        lengths: lengths that the source leaves open, by name.
    """

    source: onnx.ModelProto
    digest: str
    model: ir.Model
    narrow: Narrow
    specs: dict[str, Spec]
    constants: dict[str, np.ndarray]
    batched: frozenset[str]
    warnings: tuple[str, ...]
    single_row_only: bool = False
    lengths: Mapping[str, Size] = field(default_factory=dict)


def lower(
    model: str | Path | onnx.ModelProto,
    sizes: Mapping[str, int] | None = None,
    references: Shapes | None = None,
) -> Lowered:
    """Lower a model to operators that have rules.

    Args:
        sizes: lengths for the model's open axes, by name.
        references: shapes of the references, by input; they give the lengths that `sizes` lacks.

    Raises:
        InvalidModelError, UnsupportedModelError, InvalidOptionError: if the model cannot be lowered; the
            message says what to do.
    """
    loaded = load(model)
    lowered = standardise(loaded.model)
    demand_no_draws(lowered)
    lengths = fix_lengths(lowered, sizes or {}, references or {})
    on_gpu = sorted({node.op_type for node in lowered.graph if node.domain == MICROSOFT and needs_gpu(node)})
    shared = any(node.op_type in ONE_SCALE for node in lowered.graph)
    rewrite_domain(lowered, MICROSOFT)
    plain = ir.serde.serialize_model(lowered) if on_gpu else loaded.proto
    fold_weights(lowered)
    freed = lowered.clone()
    fixed = name_batch(freed)
    _free_batch(freed, fixed)
    check_sizes(freed, infer(freed, 1))
    single_row_only = fixed and (shared or _is_single_row_only(lowered, freed))
    source = ir.serde.serialize_model(freed) if fixed and not single_row_only else plain
    halves = widen(lowered)
    settle = _fold_all_sizes if single_row_only else partial(_free_batch, fixed=fixed)
    _unroll(lowered, settle)
    if inline_bodies(lowered, _has_rule):
        fold_weights(lowered)
        _unroll(lowered, settle)
    rewrite(lowered, only=("CastLike",))  # a CastLike of a constant is constant, which Pow's rewrite needs
    fold_weights(lowered)
    rewrite(lowered)
    share_prefixes(lowered)
    fold_weights(lowered)
    if single_row_only:
        name_batch(lowered)
    else:
        _free_batch(lowered, fixed)
    warnings = (*loaded.warnings, *_notes(fixed, halves, on_gpu))
    values = _describe_values(lowered, single_row_only)
    return Lowered(source, loaded.digest, lowered, halves, *values, warnings, single_row_only, lengths)


def with_model(lowered: Lowered, model: ir.Model) -> Lowered:
    """Return `lowered` with another graph for the model."""
    note_shapes(model)
    specs, constants, batched = _describe_values(model, lowered.single_row_only)
    return replace(lowered, model=model, specs=specs, constants=constants, batched=batched)


def _describe_values(
    model: ir.Model, single_row_only: bool
) -> tuple[dict[str, Spec], dict[str, np.ndarray], frozenset[str]]:
    """Return `specs`, `constants` and `batched` of a lowered model."""
    specs, constants = specs_at_batch(model, 1)
    check_sizes(model, specs)
    batched = rows_on_axis_0(specs, infer(model, 2) if single_row_only else specs_at_batch(model, 2)[0])
    if single_row_only:
        batched &= {str(v.name) for v in model.graph.inputs}
    return specs, constants, batched


def _is_single_row_only(model: ir.Model, freed: ir.Model) -> bool:
    """Tell whether nodes are right only for one row, including nodes inside ONNX's function bodies."""
    inlined = model.clone()
    if inline_bodies(inlined, _has_rule):
        fold_weights(inlined)
        _free_batch(inlined, fixed=True)
        freed = inlined
    return (
        rows_decide(freed)
        or not outputs_grow(freed)
        or first_to_mix(freed, *infer_each(freed, (1, 2))) is not None
        or how_rows_mix(freed, batch_leading=True) is not None
    )


def _has_rule(op_type: str, domain: str) -> bool:
    return find_rule(op_type, domain) is not None or is_rewritten(op_type, domain)


def _free_batch(model: ir.Model, fixed: bool) -> None:
    """Free the batch and fold sizes in turn: a size is constant if the batch is known to stay on axis 0."""
    free_batch(model, fixed)
    while fold_sizes(model):
        free_batch(model, fixed)


def _unroll(model: ir.Model, settle: Callable[[ir.Model], object]) -> None:
    if not CONTROL_FLOW.isdisjoint(node.op_type for node in model.graph):
        inline_control_flow(model, settle)


def _fold_all_sizes(model: ir.Model) -> None:
    """Fold sizes of a model that is right only for one row: the batch's size is 1 wherever it is read."""
    while fold_sizes(model):
        continue


def _notes(fixed: bool, halves: Narrow, on_gpu: Sequence[str]) -> list[str]:
    notes = ["the batch was fixed at 1; it is symbolic in the entries"] if fixed else []
    if on_gpu:
        names = ", ".join(on_gpu)
        notes.append(f"ONNX Runtime has no CPU kernel for this {names}; the entries hold ONNX's operators")
    if halves.dtypes:
        names = " and ".join(sorted(dtype.name.lower() for dtype in halves.dtypes))
        notes.append(f"the model computes in {names}; its explanation in float32")
    if ir.DataType.BFLOAT16 in halves.edges.values():
        notes.append(
            "the gateway does not carry bfloat16: export the model with float32 inputs and outputs to serve "
            "it there"
        )
    return notes


def plain_model_for(provider: str, lowered: Lowered) -> tuple[onnx.ModelProto, list[str]]:
    """Return the plain model that the provider can run, and notes about it for the user."""
    if provider != "cpu" or ir.DataType.BFLOAT16 not in lowered.narrow.dtypes:
        return lowered.source, []
    model, _ = on_cpu(ir.from_proto(lowered.source))
    note = "ONNX Runtime has no CPU kernels for bfloat16: the plain entry computes in float32, too"
    return ir.serde.serialize_model(model), [note]
