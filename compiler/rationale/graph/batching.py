"""The rules by which an operator written for one row runs on all rows at once.

A row is an ordinary tensor: none of its axes is special. In memory, M rows lie *flat*, [M·a, b, c], or
*stacked*, [M, a, b, c]; both are the same bytes. An operator that has a batch on axis 0, or leaves axis 0
alone, runs unchanged on flat rows. An operator that works along axis 0 runs on stacked rows, with its axes
shifted by one, as the functions below define. Elementwise operators are declared by their rules
(`elementwise`) and broadcast. Any other operator runs row by row in a Scan, which is right for all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.graph.tensor import Tensor


@dataclass(frozen=True)
class Lifted:
    """The node for many rows that is equivalent to a `Node` for one.

    Attributes:
        stacked: whether its data is [M, *row]; else flat.
        data: positions of the operands that hold rows, even rows that are all equal; None for all operands.
        operands: replacements of other operands, by position.
        attributes: all attributes of the node.
    """

    stacked: bool
    attributes: Mapping[str, Any]
    data: Collection[int] | None = None
    operands: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """An operator with the operands of a single row."""

    op_type: str
    tensors: Sequence[Tensor | None]
    attributes: Mapping[str, Any]

    @property
    def x(self) -> Tensor:
        first = self.tensors[0]
        assert first is not None
        return first

    def ints(self, position: int) -> list[int] | None:
        """Return a constant operand; None if it is absent."""
        tensor = self.tensors[position] if position < len(self.tensors) else None
        if tensor is None:
            return None
        if tensor.constant is None:
            raise UnsupportedModelError(f"{self.op_type} with sizes or axes that are computed")
        return [int(i) for i in tensor.constant.reshape(-1)]

    def axis(self, default: int) -> int:
        return int(self.attributes.get("axis", default)) % self.x.rank

    def flat(self, data: Collection[int] | None = None, operands: Mapping[int, Any] | None = None) -> Lifted:
        return Lifted(False, self.attributes, data, operands or {})

    def stacked(
        self, data: Collection[int] | None = None, operands: Mapping[int, Any] | None = None, **changed: Any
    ) -> Lifted:
        return Lifted(True, {**self.attributes, **changed}, data, operands or {})


Lifting = Callable[[Node], Lifted | None]
_LIFTINGS: dict[str, Lifting] = {}


def lifting(*op_types: str) -> Callable[[Lifting], Lifting]:
    """Declare how operators are lifted; the function returns None if only a Scan can do it."""

    def declare(function: Lifting) -> Lifting:
        _LIFTINGS.update(dict.fromkeys(op_types, function))
        return function

    return declare


_ELEMENTWISE: set[tuple[str, str]] = set()  # domain and operator


def elementwise(*op_types: str, domain: str = "") -> None:
    """Declare operators that broadcast, and whose results each depend on one element per operand.

    An operator with a lifting of its own, which parameters along an axis need, keeps it.
    """
    _ELEMENTWISE.update((domain, op_type) for op_type in op_types)


def is_elementwise(op_type: str, domain: str = "") -> bool:
    return (domain, op_type) in _ELEMENTWISE and (bool(domain) or op_type not in _LIFTINGS)


elementwise("Cast", "Identity", "IsInf", "IsNaN", "Min")  # these have no rule that declares them


def lifting_of(node: Node, domain: str) -> Lifted | None:
    """Return the lifting of a node; None if each row needs a node of its own."""
    if domain == "ai.onnx.ml":  # tables, with one row per row of the batch
        return node.flat({0})
    if domain:  # custom operators: the batch is on axis 0 of all operands that hold rows
        row_operands = [i for i, t in enumerate(node.tensors) if t is not None and (t.rows or t.batch_axes)]
        return node.flat(row_operands)
    function = _LIFTINGS.get(node.op_type)
    lifted = function(node) if function else None
    if lifted is None:
        return None
    data = range(len(node.tensors)) if lifted.data is None else lifted.data
    fixed = [t for i, t in enumerate(node.tensors) if t is not None and i not in data]
    return None if any(t.batch_axes for t in fixed) else lifted


def works_on_axis_0(node: Node) -> bool:
    """Tell whether a node works along axis 0 of operands that hold rows, and so may mix rows."""
    function = _LIFTINGS.get(node.op_type)
    if node.op_type in _SHAPE_CHECKED or function is None or node.tensors[0] is None:
        return False
    lifted = function(node)
    is_single_number = node.x.rank < 2 and node.op_type != "Concat"  # one number per row
    if lifted is None or not lifted.stacked or is_single_number:
        return False
    data = range(len(node.tensors)) if lifted.data is None else lifted.data
    return any(t.rows for i, t in enumerate(node.tensors) if t is not None and i in data)


_SHAPE_CHECKED = frozenset({"Transpose", "Expand", "Einsum", "Det", "Trilu", "GatherND"})


@lifting(
    *"AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool "
    "GlobalMaxPool GridSample GroupNormalization InstanceNormalization LRN LpPool MaxPool "
    "SpaceToDepth Col2Im MeanVarianceNormalization".split()
)
def _batch_first(node: Node) -> Lifted:
    return node.flat({0, 1} if node.op_type == "GridSample" else {0})


@lifting("MaxUnpool")
def _lift_unpooling(node: Node) -> Lifted | None:
    """Unpool by indices that count through all rows, like MaxPool's; indices shared by rows do not."""
    indices = node.tensors[1]
    return node.flat({0, 1}) if indices is not None and indices.batch_axes else None


@lifting("Gemm")
def _gemm(node: Node) -> Lifted | None:
    bias = node.tensors[2] if len(node.tensors) > 2 else None
    wide = bias is not None and bias.rank == 2 and bias.shape[0] != 1
    return None if node.attributes.get("transA") or wide else node.flat({0})


def _along(default: int, data: Collection[int] | None) -> Callable[[Node], Lifted]:
    """Return the lifting of an operator with an attribute `axis`."""

    def function(node: Node) -> Lifted:
        axis = node.axis(default)
        if axis:
            return node.flat(data)
        return node.stacked(data, axis=1)

    return function


lifting("Softmax", "LogSoftmax", "Hardmax")(_along(-1, None))
lifting("Concat")(_along(0, None))
lifting("ArgMax", "ArgMin", "Split")(_along(0, {0}))
lifting("TopK", "LpNormalization")(_along(-1, {0}))


@lifting("GatherElements", "ScatterElements")
def _elements(node: Node) -> Lifted:
    """Lift to flat rows only if the indices cover all of axis 0; else the next row would begin too early."""
    axis, indices = node.axis(0), node.tensors[1]
    if axis and indices is not None and indices.shape[0] == node.x.shape[0]:
        return node.flat()
    return node.stacked(axis=axis + 1)


@lifting("ReverseSequence")
def _lift_reversal(node: Node) -> Lifted | None:
    """Lift to flat rows if each place of axis 0 holds a sequence."""
    return node.flat() if node.attributes.get("batch_axis", 1) == 0 else None


@lifting("Gather")
def _gather(node: Node) -> Lifted:
    """Lift a Gather; each row takes its own elements from data that all rows share."""
    indices = node.tensors[1]
    if (
        indices is not None
        and indices.batch_axes
        and not node.x.batch_axes
        and not node.axis(0)
        and indices.rank
    ):
        return node.flat({1})
    return _along(0, {0})(node)


@lifting("DFT")
def _dft(node: Node) -> Lifted | None:
    axis = (node.ints(2) or [-2])[0] % node.x.rank
    return node.flat({0}) if axis else node.stacked({0}, {2: np.asarray(1, np.int64)})


@lifting("LayerNormalization", "RMSNormalization")
def _normalised_axes(node: Node) -> Lifted:
    return node.flat({0}) if node.axis(-1) else node.stacked({0}, axis=1)


@lifting("CumSum", "CumProd")
def _cumulative(node: Node) -> Lifted:
    axis = (node.ints(1) or [0])[0] % node.x.rank
    return node.flat({0}) if axis else node.stacked({0}, {1: np.asarray(1, np.int64)})


@lifting(
    *"ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare".split()
)
def _reduction(node: Node) -> Lifted:
    axes, rank = node.ints(1), node.x.rank
    if not axes and node.attributes.get("noop_with_empty_axes"):
        return node.flat({0}) if rank else node.stacked({0})
    chosen = sorted(a % rank for a in axes) if axes else list(range(rank))
    if chosen and 0 not in chosen:
        return node.flat({0})
    noop = {"noop_with_empty_axes": 1} if not chosen else {}  # a number has no axes to sum over
    return node.stacked({0}, {1: [a + 1 for a in chosen]}, **noop)


@lifting("Transpose")
def _transpose(node: Node) -> Lifted:
    perm = list(node.attributes.get("perm") or reversed(range(node.x.rank)))
    if perm and perm[0] == 0:
        return node.flat()
    return node.stacked(perm=[0, *(p + 1 for p in perm)])


@lifting("Slice")
def _slice(node: Node) -> Lifted:
    starts, axes = node.ints(1) or [], node.ints(3)
    chosen = [a % node.x.rank for a in axes] if axes is not None else list(range(len(starts)))
    if 0 not in chosen:
        return node.flat({0})
    return node.stacked({0}, {3: [a + 1 for a in chosen]})


@lifting("Pad")
def _pad(node: Node) -> Lifted | None:
    """Lift with pads for every axis: ONNX Runtime moves a Transpose past a Pad as if it had no `axes`."""
    axes = node.ints(3)
    pads = np.zeros((2, node.x.rank), np.int64)
    pads[:, slice(None) if axes is None else axes] = np.reshape(node.ints(1) or [], (2, -1))
    if not pads[:, 0].any():
        return node.flat({0}, {1: pads.reshape(-1), 3: None})
    return node.stacked({0}, {1: np.insert(pads, 0, 0, axis=1).reshape(-1), 3: None})


@lifting("Resize")
def _resize(node: Node) -> Lifted | None:
    """Lift to flat rows if `axes`, or a scale of 1, leaves axis 0 alone."""
    axes = node.attributes.get("axes")
    if axes is not None:
        return node.flat({0}) if 0 not in [a % node.x.rank for a in axes] else None
    scales = node.tensors[2] if len(node.tensors) > 2 else None
    factors = scales.constant if scales is not None else None
    return node.flat({0}) if factors is not None and list(factors[:1]) == [1] else None


@lifting("Expand")
def _expand(node: Node) -> Lifted:
    """Lift an Expand to a shape of x's rank; `Ops.expand` adds missing axes first."""
    target = node.ints(1) or []
    return node.flat({0}) if target[:1] == [1] else node.stacked({0}, {1: [1, *target]})


@lifting("Tile")
def _tile(node: Node) -> Lifted:
    repeats = node.ints(1) or []
    return node.flat({0}) if repeats[:1] == [1] else node.stacked({0}, {1: [1, *repeats]})


@lifting("GatherND")
def _gather_nd(node: Node) -> Lifted:
    return node.stacked(batch_dims=int(node.attributes.get("batch_dims", 0)) + 1)


@lifting("Trilu", "Det")
def _matrices(node: Node) -> Lifted:
    return node.flat({0}) if node.x.rank > 2 else node.stacked({0})


@lifting("Einsum")
def _einsum(node: Node) -> Lifted | None:
    """Add a letter for the rows to each operand that has them."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    letter = next((c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in equation), None)
    if "->" not in equation or letter is None:
        return None
    operand_terms, result_term = equation.split("->")
    terms = operand_terms.split(",")
    data = [i for i, t in enumerate(node.tensors) if t is not None and t.rows]
    terms = [letter + term if i in data else term for i, term in enumerate(terms)]
    return node.stacked(data, equation=f"{','.join(terms)}->{letter}{result_term}")


@lifting("QuantizeLinear", "DequantizeLinear")
def _lift_quantisation(node: Node) -> Lifted:
    """Lift a quantisation per axis or per tensor."""
    scale = node.tensors[1]
    if scale is None or scale.rank == 0 or node.axis(1):
        return node.flat({0})
    return node.stacked({0}, axis=1)
