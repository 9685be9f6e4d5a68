"""BoostedTrees trees in one form for all libraries, and the ONNX nodes that compute them.

A linear booster has weights instead of trees.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from rationale.errors import UnsupportedModelError

ML = "ai.onnx.ml"
SQUARE = "Square"  # with the sign of the score
STEP = "Step"  # 1 above 0
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_NOWHERE = 0.5  # the code of no category
_ZERO = 1e-30  # no step makes a number between it and 0
_MARGIN = 2.0**-45  # relative to a feature's largest bound: a hundred roundings


@dataclass(frozen=True)
class Split:
    """A split that sends numbers of at most `bound` (below it if `strict`) to `yes`.

    Attributes:
        missing: whether NaN goes to `yes`.
        among: codes that go to `yes`, for a split by category.
    """

    feature: int
    yes: int
    no: int
    missing: bool
    bound: float = 0.0
    strict: bool = False
    among: tuple[int, ...] | None = None


Leaf = Mapping[int, float]  # summands by column of the scores
Tree = Mapping[int, Split | Leaf]  # nodes by number; the root is 0


@dataclass(frozen=True)
class Lookup:
    """A table of numbers that trees read as a further column; digits of other columns index it.

    Attributes:
        digits: for each axis of the table the feature, and the operator and the number that make its digit.
    """

    digits: Sequence[tuple[int, str, float]]
    table: np.ndarray


@dataclass(frozen=True)
class BoostedTrees:
    """Trees whose leaves are added up.

    Attributes:
        trees: the trees that predict.
        base: the starting score of each column.
        link: the function of the scores: NONE, LOGISTIC or SOFTMAX, or an operator of ONNX, SQUARE or STEP.
        classes: labels of a classifier; None for any other model.
        coded: features that are codes of categories. Numbers between two count as the lower one.
        to_zero: whether they count as the one nearer to zero instead.
        missing: a number that means a missing value.
        lookups: further columns that the trees read.
        weights: [features, columns] of a linear booster, for which a missing value is 0; it has no trees.
        dtype: the type in which the library compares numbers; float32 needs no rounding of bounds.
    """

    trees: Sequence[Tree]
    base: np.ndarray
    link: str = "NONE"
    classes: np.ndarray | None = None
    coded: tuple[int, ...] = ()
    to_zero: bool = False
    missing: float = np.nan
    lookups: Sequence[Lookup] = ()
    weights: np.ndarray | None = None
    dtype: np.dtype = SINGLE


def unknown_setting(library: str, setting: str, value: str, choices: Iterable[str]) -> UnsupportedModelError:
    """Return an error for an unknown setting, with the settings that can be converted."""
    return UnsupportedModelError(
        f"{library}'s {setting} {value!r} is not converted: train with one of {', '.join(choices)}."
    )


def labels_of(classes: Any) -> np.ndarray:
    """Return a classifier's labels in ONNX's types: texts, or whole numbers."""
    labels = np.asarray(classes)
    return labels.astype(np.int64) if labels.dtype.kind in "bf" else labels


@dataclass
class Nodes:
    """A growing list of ONNX nodes, with their constants."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node and return its first output; name the output if the caller gives no name."""
        outputs = outputs or (f"/{op}_{len(self.nodes)}",)
        self.nodes.append(onnx.helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def cast(self, x: str, dtype: np.dtype, *outputs: str) -> str:
        return self.add("Cast", [x], *outputs, to=onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def constant(self, value: np.ndarray | np.generic) -> str:
        self.constants.append(
            onnx.numpy_helper.from_array(np.asarray(value), f"/constant_{len(self.constants)}")
        )
        return str(self.constants[-1].name)

    def add_trees(
        self, boosted: BoostedTrees, x: str, features: int, outputs: Sequence[str], dtype: np.dtype
    ) -> None:
        """Add the trees, which read `x` [N, F]. They answer scores, or labels and probabilities, in float32.

        Args:
            dtype: the type of `x`, float32 or float64.
        """
        if dtype != boosted.dtype == SINGLE:
            x, dtype = self.cast(x, SINGLE), SINGLE
        if boosted.weights is not None:
            self._linear(boosted, self._gaps(boosted, x), boosted.weights, outputs)
            return
        x = self._codes(boosted, self._gaps(boosted, x), features, dtype)
        if boosted.lookups:
            x = self.add("Concat", [x, *(self._looked_up(lookup, x) for lookup in boosted.lookups)], axis=1)
        if boosted.classes is not None and len(boosted.base) < 3:
            boosted = _with_score_per_class(boosted)
        kind, prefix = "Regressor", "target"
        attributes: dict[str, Any] = {"n_targets": len(boosted.base)}
        if boosted.classes is not None:
            labels = "strings" if boosted.classes.dtype.kind in "UTO" else "int64s"
            kind, prefix = "Classifier", "class"
            attributes = {f"classlabels_{labels}": boosted.classes.tolist()}
        if len(boosted.base):
            attributes["base_values"] = boosted.base.astype(dtype).tolist()
        attributes |= dict(_node_attributes(boosted.trees, dtype)) | dict(
            _leaf_attributes(boosted.trees, prefix)
        )
        if dtype == DOUBLE:
            for name in {"base_values", "nodes_values", f"{prefix}_weights"} & attributes.keys():
                numbers = np.asarray(attributes.pop(name), DOUBLE)
                attributes[f"{name}_as_tensor"] = onnx.numpy_helper.from_array(numbers, name)
        self._ended(f"TreeEnsemble{kind}", x, boosted.link, outputs, attributes)

    def _linear(self, boosted: BoostedTrees, x: str, weights: np.ndarray, outputs: Sequence[str]) -> None:
        kind, base = "Regressor", boosted.base
        attributes: dict[str, Any] = {"targets": len(base)}
        if boosted.classes is not None:
            kind, attributes = "Classifier", {"classlabels_ints": boosted.classes.tolist()}
            if len(base) == 1:
                weights, base = np.concatenate([-weights, weights], axis=1), np.concatenate([-base, base])
        attributes |= {"coefficients": weights.T.reshape(-1).tolist(), "intercepts": base.tolist()}
        x = self.add("Where", [self.add("IsNaN", [x]), self.constant(np.float32(0)), x])
        self._ended(f"Linear{kind}", x, boosted.link, outputs, attributes)

    def _ended(
        self, op: str, x: str, link: str, outputs: Sequence[str], attributes: Mapping[str, Any]
    ) -> None:
        """Add an operator of `ai.onnx.ml` and the link, which is its attribute or operators behind it."""
        if link in ("NONE", "LOGISTIC", "SOFTMAX"):
            self.add(op, [x], *outputs, domain=ML, post_transform=link, **attributes)
        else:
            self._linked(link, self.add(op, [x], "/scores", domain=ML, **attributes), outputs[0])

    def _linked(self, link: str, scores: str, output: str) -> None:
        if link == SQUARE:
            self.add("Mul", [scores, self.add("Abs", [scores])], output)
        elif link == STEP:
            above = self.add("Greater", [scores, self.constant(np.float32(0))])
            self.add("Cast", [above], output, to=onnx.TensorProto.FLOAT)
        else:
            self.add(link, [scores], output)

    def _looked_up(self, lookup: Lookup, x: str) -> str:
        index, size = "", lookup.table.size
        for (feature, operator, number), length in zip(lookup.digits, lookup.table.shape, strict=True):
            size //= length
            column = self.add("Gather", [x, self.constant(np.array([feature]))], axis=1)
            digit = self.add(operator, [column, self.constant(np.float32(number))])
            digit = self.add("Cast", [digit], to=onnx.TensorProto.INT64)
            digit = self.add("Mul", [digit, self.constant(np.int64(size))])
            index = self.add("Add", [index, digit]) if index else digit
        return self.add("Gather", [self.constant(lookup.table.reshape(-1).astype(np.float32)), index])

    def _gaps(self, boosted: BoostedTrees, x: str) -> str:
        if np.isnan(boosted.missing):
            return x
        gap = self.add("Equal", [x, self.constant(np.float32(boosted.missing))])
        return self.add("Where", [gap, self.constant(np.float32(np.nan)), x])

    def _codes(self, boosted: BoostedTrees, x: str, features: int, dtype: np.dtype) -> str:
        if not boosted.coded:
            return x
        coded = np.isin(np.arange(features), boosted.coded)[None]
        whole = self.add("Floor", [x])
        if boosted.to_zero:
            below = self.add("Less", [x, self.constant(dtype.type(0))])
            whole = self.add("Where", [below, self.add("Ceil", [x]), whole])
        return self.add("Where", [self.constant(coded), whole, x])


def with_margins(boosted: BoostedTrees) -> BoostedTrees:
    """Return trees that take a number for the bound that it is next to in float64.

    They stand behind steps, whose last digits are ONNX Runtime's. A bound is often a number of the training:
    that number stays on the bound's own side. Numbers that LightGBM takes for 0 stay as they are.
    """
    sizes = dict[int, float]()
    for split in _splits(boosted.trees):
        if np.isfinite(split.bound):
            sizes[split.feature] = max(sizes.get(split.feature, 0.0), abs(split.bound))

    def moved(node: Split | Leaf) -> Split | Leaf:
        if not isinstance(node, Split) or node.among is not None or not _ZERO < abs(node.bound) < np.inf:
            return node
        margin = _MARGIN * sizes[node.feature]
        return replace(node, bound=node.bound + (-margin if node.strict else margin))

    return replace(boosted, trees=[{n: moved(node) for n, node in tree.items()} for tree in boosted.trees])


def _splits(trees: Sequence[Tree]) -> Iterator[Split]:
    return (
        node for tree in trees for node in tree.values() if isinstance(node, Split) and node.among is None
    )


def _with_score_per_class(boosted: BoostedTrees) -> BoostedTrees:
    """Return a classifier of two classes in a form that ONNX Runtime computes correctly.

    ONNX Runtime takes one score without a negative leaf for a sum of probabilities; of two scores with base
    values it answers the first alone. So each class has a score here, and the base is a tree of one leaf.
    """
    trees, base = boosted.trees, boosted.base
    if len(base) == 1:
        if any(weight < 0 for tree in trees for leaf in _leaves(tree) for weight in leaf.values()):
            return boosted
        trees = [
            {n: node if isinstance(node, Split) else {0: -node[0], 1: node[0]} for n, node in tree.items()}
            for tree in trees
        ]
        base = np.concatenate([-base, base])
    return replace(boosted, trees=[*trees, {0: dict(enumerate(base.tolist()))}], base=base[:0])


def _leaves(tree: Tree) -> Iterator[Leaf]:
    return (node for node in tree.values() if not isinstance(node, Split))


def _leaf_attributes(trees: Sequence[Tree], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    rows = [
        (t, n, column, weight)
        for t, tree in enumerate(trees)
        for n, node in tree.items()
        if not isinstance(node, Split)
        for column, weight in node.items()
    ]
    return _attributes_by_name(prefix, "treeids nodeids ids weights", rows)


def _node_attributes(trees: Sequence[Tree], dtype: np.dtype) -> Iterator[tuple[str, list[Any]]]:
    names = "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true"
    return _attributes_by_name(
        "nodes", names, [(t, *row) for t, tree in enumerate(trees) for row in _node_rows(tree, dtype)]
    )


def _attributes_by_name(
    prefix: str, names: str, rows: Sequence[Sequence[Any]]
) -> Iterator[tuple[str, list[Any]]]:
    for name, values in zip(names.split(), zip(*rows, strict=True), strict=True):
        yield f"{prefix}_{name}", list(values)


def _node_rows(tree: Tree, dtype: np.dtype) -> Iterator[tuple[int, int, str, float, int, int, int]]:
    """Yield the nodes; a set is a chain of equals with one way out, which ONNX Runtime joins to one node."""
    number = len(tree)
    for n, node in tree.items():
        if not isinstance(node, Split):
            yield n, 0, "LEAF", 0.0, 0, 0, 0
        elif node.among is None:
            mode = "BRANCH_LT" if node.strict else "BRANCH_LEQ"
            yield n, node.feature, mode, _bound(node, dtype), node.yes, node.no, int(node.missing)
        else:
            codes = [float(code) for code in node.among] or [_NOWHERE]
            numbers = [n, *range(number, number + len(codes) - 1)]
            number += len(codes) - 1
            for code, here, following in zip(codes, numbers, [*numbers[1:], node.no], strict=True):
                yield here, node.feature, "BRANCH_EQ", code, node.yes, following, int(node.missing)


def _bound(split: Split, dtype: np.dtype) -> float:
    """Return a bound of this type that leaves each of its numbers on the side of the split's bound."""
    with np.errstate(over="ignore"):
        rounded = dtype.type(split.bound)
    if float(rounded) == split.bound:
        return float(rounded)
    if split.strict and float(rounded) < split.bound:
        rounded = np.nextafter(rounded, dtype.type(np.inf))
    elif not split.strict and float(rounded) > split.bound:
        rounded = np.nextafter(rounded, dtype.type(-np.inf))
    return float(rounded)
