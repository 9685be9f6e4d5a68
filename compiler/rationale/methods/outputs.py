"""The outputs that the combined graph adds to the model's own, and their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.target import Target
from rationale.schema.manifest import DATATYPES, GROUPS, ExplainedConcepts, TensorSpec
from rationale.schema.outputs import OUTPUT_KINDS, WHOLE

BASE_VALUE, EXPLAINED_VALUE, GAP = "base_value", "explained_value", "completeness_gap"
GAP_ERROR = "completeness_gap_standard_error"
ATTRIBUTIONS, STANDARD_ERROR, INTERACTIONS = "attributions", "standard_error", "interactions"
ERRORS = (STANDARD_ERROR, GAP_ERROR)


def output_name(kind: str, tensor: str) -> str:
    """Return the name of the output of that kind that explains a tensor, all players (`group`), or a row."""
    return kind if tensor == WHOLE else f"{tensor}_{kind}"


def attributions_name(name: str) -> str:
    """Return the name of the output with the attributions of a tensor, or of all players."""
    return output_name(ATTRIBUTIONS, name)


def layers_of(combined: onnx.ModelProto) -> list[str]:
    """Return the names of the layers with attributions in a graph; their outputs follow all others."""
    names, suffix = [v.name for v in combined.graph.output], f"_{ATTRIBUTIONS}"
    behind = names[names.index(EXPLAINED_VALUE) :]
    return [name.removesuffix(suffix) for name in behind if name.endswith(suffix)]


@dataclass(frozen=True)
class Outputs:
    """Names of the outputs.

    Attributes:
        by_kind: names by kind, and then by explained tensor without groups. `GROUPS` stands for all players,
            and `WHOLE` for the row, if the output has one number for each target.
        concepts: the channels of a layer.
    """

    by_kind: Mapping[str, Mapping[str, str]]
    concepts: ExplainedConcepts | None = None

    @staticmethod
    def of(target: Target, further: Sequence[str]) -> "Outputs":
        """Return the names of the outputs for a target.

        Args:
            further: kinds of outputs besides the attributions (rows of `OUTPUT_KINDS`).

        Raises:
            InvalidOptionError: if an input's attributions would have the name of the players' output.
        """
        check_group_names(target, target.ungrouped)
        summed = (*target.ungrouped, *((GROUPS,) if target.players else ()))
        tensors = {"NT": (WHOLE,), "NTF": summed, "NTFF": target.ungrouped}
        return Outputs(
            {
                kind: {name: output_name(kind, name) for name in tensors[OUTPUT_KINDS[kind].axes]}
                for kind in (ATTRIBUTIONS, *further)
            }
        )

    @property
    def attributions(self) -> Mapping[str, str]:
        """Names of the outputs that add up."""
        return self.by_kind[ATTRIBUTIONS]

    def of_kind(self, kind: str) -> Mapping[str, str]:
        """Return the names of a kind's outputs, none if the graph does not answer it."""
        return self.by_kind.get(kind, {})

    @property
    def names(self) -> set[str]:
        """All names that the explanation needs in the graph."""
        every = {BASE_VALUE, EXPLAINED_VALUE, GAP}
        every |= {name for names in self.by_kind.values() for name in names.values()}
        if self.concepts is not None:
            every |= {self.concepts.attributions, self.concepts.channels, *self.concepts.heatmaps.values()}
        return every


def check_group_names(target: Target, tensors: Sequence[str]) -> None:
    """Raise InvalidOptionError if a tensor's attributions would have the name of the players' output."""
    if target.players is not None and GROUPS in tensors:
        raise InvalidOptionError(
            f"{GROUPS!r} would have its attributions in {attributions_name(GROUPS)!r}, the name of the "
            "groups' output: rename the tensor, or leave it or the groups out."
        )


def inner_spec(
    specs: Mapping[str, tuple[tuple[int, ...], ir.DataType]], name: str, shape: tuple[int, ...]
) -> TensorSpec:
    """Return the manifest's entry for a tensor whose attributions have that shape."""
    return TensorSpec(name=name, datatype=DATATYPES[specs[name][1].name], shape=shape)


def players_by_output(target: Target, player_of: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the players of each output, by the tensor that it explains; `GROUPS` stands for all.

    Args:
        player_of: player of each element of a row, by explained tensor; `target.players` come first.
    """
    players = {name: player_of[name] for name in target.ungrouped}
    return {**players, GROUPS: np.arange(len(target.players.names))} if target.players else players


# -- values of the explained output -----------------------------------------------------------------------


@dataclass(frozen=True)
class Seed:
    """The start of an explanation: multiplier 1 at each target, and the targets' values at x and at r.

    Attributes:
        base: the base value; None for a method without one.
        base_rounding: the rounding error of the base value; None if it is not rounded.
    """

    multiplier: Tensor
    explained: Tensor
    base: Tensor | None = None
    base_rounding: Tensor | None = None


def make_seed(op: Ops, target: Target, y: Tensor, base: Tensor | None, narrow: ir.DataType | None) -> Seed:
    """Return the seed at x, even if the method walks at other points: it explains the class of x.

    Args:
        y: the explained output.
        base: its base value, row shape [1, elements]; None for a method without one.
        narrow: the model's own type of this output, if the graph computes in a wider one.
    """
    op.scope = "seed"
    size = int(np.prod(y.shape))
    row = op.reshape(y, (1, size))
    if target.elements == "predicted":
        winner = op.ArgMax(_round_like_model(op, row, narrow), axis=1, keepdims=1)
        explained = op.GatherElements(row, winner, axis=1)
        seed = op.reshape(op.one_hot(winner, size, y.dtype), y.shape)
        return Seed(seed, explained, *(_at_winner(op, b, winner) for b in split_rounding(op, base, y.dtype)))
    matrix = target.matrix(size)
    ones = matrix.T.astype(y.dtype.numpy()).reshape(-1, *y.shape[1:])
    batch_axes = frozenset("T" if target.count > 1 else "")
    seed = replace(op.constant(ones), shape=y.shape, batch_axes=batch_axes, rows=True)
    base = None if base is None else _at_targets(op, base, matrix)
    return Seed(seed, _at_targets(op, row, matrix), *split_rounding(op, base, y.dtype))


def _at_targets(op: Ops, row: Tensor, matrix: np.ndarray) -> Tensor:
    """Return the elements [1, T] of a row [1, elements], minus the elements they are contrasted with."""
    values = op.Gather(row, matrix.argmax(axis=0).tolist(), axis=1)
    if matrix.min() >= 0:
        return values
    is_contrast = matrix.min(axis=0) < 0
    against = op.Gather(row, np.where(is_contrast, matrix.argmin(axis=0), 0).tolist(), axis=1)
    return op.Sub(values, op.Mul(against, op.row_constant(is_contrast[None].astype(row.dtype.numpy()))))


def _at_winner(op: Ops, base: Tensor, winner: Tensor) -> Tensor:
    """Return the base value of each row's winner; it varies by row if some inputs are not explained."""
    if base.batch_axes:
        return op.GatherElements(base, winner, axis=1)
    return op.Gather(replace(op.reshape(base, base.shape[1:]), rows=False), winner)


def _round_like_model(op: Ops, row: Tensor, narrow: ir.DataType | None) -> Tensor:
    """Round the output's row as the model does; the first of equal values is the predicted class."""
    return row if narrow is None else op.Cast(op.Cast(row, to=int(narrow)), to=int(row.dtype))


def emit_values(op: Ops, seed: Seed, totals: Sequence[Tensor], *, gap: bool) -> list[ir.Value]:
    """Return the base value, the explained value and, on request, the gap that `totals` leave."""
    outputs = [] if seed.base is None else [op.rows_output(seed.base, BASE_VALUE)]
    outputs.append(op.rows_output(seed.explained, EXPLAINED_VALUE))
    if gap:
        value = seed.explained if seed.base is None else op.Sub(seed.explained, seed.base)
        value = value if seed.base_rounding is None else op.Sub(value, seed.base_rounding)
        for total in totals:
            value = op.Sub(
                value, op.Cast(total, to=int(value.dtype)) if total.dtype != value.dtype else total
            )
        outputs.append(op.rows_output(value, GAP))
    return outputs


def split_rounding(op: Ops, base: Tensor | None, dtype: ir.DataType) -> list[Tensor]:
    """Return a value in the graph's type and its rounding error; an empty list for None.

    Two numbers in the graph's type are more precise than one. If the references are constants, both are
    constants too, and a server computes nothing in float64.
    """
    if base is None or base.dtype == dtype:
        return [] if base is None else [base]
    rounded = op.Cast(base, to=int(dtype))
    rounding = op.Sub(base, op.Cast(rounded, to=int(base.dtype)))
    return [rounded, op.Cast(rounding, to=int(dtype))]


def total_over_features(op: Ops, value: ir.Value, x: Tensor) -> Tensor:
    """Return Σ over the features of an attributions output: row shape [1, T]."""
    whole = Tensor(value, (1, op.sizes["T"], *x.shape[1:]), x.dtype, frozenset("N"), rows=True)
    axes = list(range(2, whole.rank))
    return op.ReduceSum(whole, axes, keepdims=0) if axes else whole
