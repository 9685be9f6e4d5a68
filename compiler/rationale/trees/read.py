"""The reader of ai.onnx.ml's tree operators: TreeEnsembleRegressor, TreeEnsembleClassifier, TreeEnsemble.

If ONNX leaves something open, the reader follows ONNX Runtime: a tree begins with its first node in the
list, and weights at splits are ignored.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import onnx

from rationale.errors import InvalidModelError, UnsupportedModelError
from rationale.trees.covers import passing_share
from rationale.trees.ensemble import Ensemble

OPERATORS = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
MOST_DEPTH = 2000  # of a tree: ONNX Runtime descends by recursion, and its stack ends before 20,000
MOST_SCORES = 1 << 24  # leaves times columns

_LEAF = "LEAF"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")  # by their numbers in TreeEnsemble
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_BELOW = frozenset({"LEQ", "LT", "NEQ"})  # passed by numbers below every bound
_STEPS = ("LEQ", "LT", "GTE", "GT")  # of one bound
_STRICT = ("LEQ", "GT")  # an equal number is not past it
_BETWEEN = (False, True)  # an equal number is past the first bound, but not past the strict second one


def is_ensemble(op_type: str, domain: str) -> bool:
    return domain == "ai.onnx.ml" and op_type in OPERATORS


def read_ensemble(
    node: onnx.NodeProto, features: int | None = None, dtype: np.dtype | None = None
) -> Ensemble:
    """Read the trees of a node.

    Args:
        features: number of features of one row; None if unknown.
        dtype: type of the input, in which thresholds are compared.

    Raises:
        InvalidModelError: if the trees are invalid: attributes do not fit each other, nodes do not exist or
            follow themselves, or thresholds or weights are no numbers.
        UnsupportedModelError: if leaves are not added (MIN, MAX), or there are too many.
    """
    reader = _IndexedNodesReader if node.op_type == "TreeEnsemble" else _NumberedNodesReader
    return reader(node, features, np.dtype(np.float32) if dtype is None else dtype).read()


class _Reader:
    """The attributes of a node, checked as they are read."""

    def __init__(self, node: onnx.NodeProto, features: int | None, dtype: np.dtype) -> None:
        self.name = f"{node.op_type} node {node.name or ', '.join(node.output)!r}"
        self.op_type, self.features, self.dtype = node.op_type, features, dtype
        self.given: Mapping[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def fault(self, text: str) -> NoReturn:
        raise InvalidModelError(f"{self.name}: {text}. Export the model again.")

    def ints(self, name: str, count: int | None = None, *, default: int | None = None) -> np.ndarray:
        """Return [count] int64; all `default` if the attribute is absent."""
        return self._array(name, self.given.get(name, ()), np.dtype(np.int64), count, default)

    def floats(self, name: str, count: int | None = None) -> np.ndarray:
        """Return [count] float64, from a list or a tensor."""
        tensor = self.given.get(f"{name}_as_tensor", self.given.get(name, ()))
        values = onnx.numpy_helper.to_array(tensor) if isinstance(tensor, onnx.TensorProto) else tensor
        return self._array(name, values, np.dtype(np.float64), count, None)

    def _array(
        self, name: str, values: Any, dtype: np.dtype, count: int | None, default: int | None
    ) -> np.ndarray:
        array = np.asarray(values, dtype).reshape(-1)
        if not len(array) and default is not None and count is not None:
            return np.full(count, default, dtype)
        if count is not None and len(array) != count:
            self.fault(f"{name} has {len(array)} entries instead of {count}")
        return array

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        """Return an attribute that is one of these words, or its number among them."""
        value = self.given.get(name, default)
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(text, int) and 0 <= text < len(words):
            return words[text]
        if text not in words:
            self.fault(f"{name} is {text!r}")
        return str(text)

    def check_features(self, feature: np.ndarray) -> None:
        outside = feature[(feature < 0) | (feature >= (self.features or np.inf))]
        if len(outside):
            row_size = "" if self.features is None else f", and a row has {self.features}"
            self.fault(f"it splits by feature {outside[0]}{row_size}")

    def check_numbers(self, kind: str, values: np.ndarray, *, finite: bool) -> np.ndarray:
        wrong = values[~np.isfinite(values)] if finite else values[np.isnan(values)]
        if len(wrong):
            self.fault(f"a {kind} is {wrong[0]}")
        return values

    def leaf_factor(self, trees: int) -> float:
        """Return the factor of each leaf."""
        aggregate = self.word("aggregate_function", _AGGREGATES, "SUM")
        if aggregate in ("MIN", "MAX"):
            raise UnsupportedModelError(
                f"{self.name}: it takes the {aggregate} of its trees, and sums and averages alone are "
                "explained. Export the model with SUM or AVERAGE."
            )
        return 1 / trees if aggregate == "AVERAGE" else 1.0

    def scores(self, leaves: int, columns: int, rows: np.ndarray, to: np.ndarray, weights: np.ndarray) -> Any:
        """Return [leaves, columns] from entries, some of which may have the same place."""
        if leaves * columns > MOST_SCORES:
            raise UnsupportedModelError(
                f"{self.name}: {leaves} leaves for {columns} scores, and {MOST_SCORES} weights are the most "
                "that can be explained."
            )
        self.check_numbers("weight", weights, finite=True)
        if ((to < 0) | (to >= columns)).any():
            self.fault(f"a leaf adds to score {to[(to < 0) | (to >= columns)][0]} of {columns}")
        flat = np.bincount(rows * columns + to, weights, minlength=leaves * columns)
        return flat.reshape(leaves, columns)

    def bounds(
        self, modes: np.ndarray, values: np.ndarray, members: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return `below`, `first`, `bounds` and `strict` of nodes by their modes.

        Args:
            members: numbers of each node with the mode MEMBER, in order.
        """
        with np.errstate(over="ignore"):
            values = values.astype(self.dtype)
        is_step, sets = np.isin(modes, _STEPS), dict[int, np.ndarray]()
        given, sizes = iter(members), is_step.astype(np.int64)
        for node in np.flatnonzero(~is_step & (modes != _LEAF)).tolist():
            is_set = modes[node] == "MEMBER"
            sets[node] = np.unique(next(given).astype(self.dtype)) if is_set else values[node, None]
            sizes[node] = 2 * len(sets[node])
        first = np.concatenate([[0], np.cumsum(sizes)])
        numbers, strict = np.empty(first[-1], self.dtype), np.empty(first[-1], bool)
        numbers[first[:-1][is_step]] = values[is_step]
        strict[first[:-1][is_step]] = np.isin(modes[is_step], _STRICT)
        for node, equal in sets.items():
            numbers[first[node] : first[node + 1]] = np.repeat(equal, 2)
            strict[first[node] : first[node + 1]] = np.tile(_BETWEEN, len(equal))
        return np.isin(modes, list(_BELOW)), first, numbers, strict

    def with_checked_depth(self, ensemble: Ensemble) -> Ensemble:
        try:
            depth = ensemble.depth()
        except ValueError as error:
            self.fault(f"node {error.args[0]} (counted from 0) follows itself: that is no tree")
        if depth > MOST_DEPTH:
            self.fault(f"a tree has {depth} splits on one way, and ONNX Runtime takes {MOST_DEPTH} at most")
        return ensemble


class _NumberedNodesReader(_Reader):
    """The reader of TreeEnsembleRegressor and TreeEnsembleClassifier: one list of numbered nodes."""

    def read(self) -> Ensemble:
        tree = self.ints("nodes_treeids")
        count = len(tree)
        if not count:
            self.fault("it has no nodes")
        number, feature = self.ints("nodes_nodeids", count), self.ints("nodes_featureids", count)
        modes = self._modes(count)
        split = modes != _LEAF
        values = np.where(split, self.floats("nodes_values", count), 0)
        self.check_numbers("threshold", values, finite=False)
        self.check_features(feature[split])
        find = _NodeIndex(self, tree, number)
        following = [
            np.where(split, find(tree, self.ints(name, count), name, split), 0)
            for name in ("nodes_truenodeids", "nodes_falsenodeids")
        ]
        missing = self.ints("nodes_missing_value_tracks_true", count, default=0) != 0
        roots = self._roots(tree)
        leaf = np.where(split, -1, np.cumsum(~split) - 1)
        weights = self._weights(find, leaf) * self.leaf_factor(len(roots))
        modes, members = self._sets(modes, values, feature, following[0], following[1], missing)
        below, first, bounds, strict = self.bounds(modes, values, members)
        return self.with_checked_depth(
            Ensemble(
                roots=roots,
                feature=np.where(split, feature, -1),
                yes=following[0],
                no=following[1],
                below=below,
                missing=missing | (modes == "NEQ"),
                first=first,
                bounds=bounds,
                strict=strict,
                leaf=leaf,
                weights=weights,
                post_transform=self.word("post_transform", _TRANSFORMS, "NONE"),
                share=self._share(following[0], following[1], split),
            )
        )

    def _sets(
        self,
        modes: np.ndarray,
        values: np.ndarray,
        feature: np.ndarray,
        yes: np.ndarray,
        no: np.ndarray,
        missing: np.ndarray,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Join chains of EQ splits with one common exit into single splits; return modes and their members.

        The first split's next node, also for NaN, is corrected in place. If nodes have covers, chains are
        kept.
        """
        continues = (modes == "EQ") & (modes[no] == "EQ") & (feature[no] == feature) & (yes[no] == yes)
        if self.given.get("nodes_hitrates"):
            continues[:] = False
        heads = continues & ~np.isin(np.arange(len(modes)), no[continues])
        members = list[np.ndarray]()
        for node in np.flatnonzero(heads):
            chain = [int(node)]
            while continues[chain[-1]] and no[chain[-1]] not in chain:
                chain.append(int(no[chain[-1]]))
            members.append(values[chain])
            no[node], missing[node] = no[chain[-1]], missing[chain].any()
        return np.where(heads, "MEMBER", modes), members

    def _share(self, yes: np.ndarray, no: np.ndarray, split: np.ndarray) -> np.ndarray | None:
        rates = self.floats("nodes_hitrates")
        if not len(rates):
            return None
        return passing_share(self.floats("nodes_hitrates", len(split)), yes, no, split)

    def _modes(self, count: int) -> np.ndarray:
        modes = [
            m.decode(errors="replace").removeprefix("BRANCH_") for m in self.given.get("nodes_modes", ())
        ]
        if len(modes) != count:
            self.fault(f"nodes_modes has {len(modes)} entries instead of {count}")
        unknown = sorted(set(modes) - {_LEAF, *_MODES[:-1]})
        if unknown:
            self.fault(f"nodes_modes holds {unknown}")
        return np.asarray(modes)

    def _roots(self, tree: np.ndarray) -> np.ndarray:
        roots = np.flatnonzero(np.concatenate([[True], tree[1:] != tree[:-1]]))
        if len(np.unique(tree)) < len(roots):
            self.fault("the nodes of a tree do not stand together in nodes_treeids")
        return roots

    def _weights(self, find: "_NodeIndex", leaf: np.ndarray) -> np.ndarray:
        """Return [leaves, columns] as the operator returns scores."""
        prefix = "class" if self.op_type == "TreeEnsembleClassifier" else "target"
        tree = self.ints(f"{prefix}_treeids")
        count = len(tree)
        number, to = self.ints(f"{prefix}_nodeids", count), self.ints(f"{prefix}_ids", count)
        weights = self.floats(f"{prefix}_weights", count)
        rows = leaf[find(tree, number, f"{prefix}_nodeids", np.ones(count, bool))]
        used, leaves = rows >= 0, int(leaf.max()) + 1
        columns = self._labels() if prefix == "class" else int(self.given.get("n_targets", 0))
        if not columns:
            self.fault("nothing says how many scores it has")
        alone = columns == 2 and prefix == "class" and count > 0 and not to.any()  # one score for two classes
        scores = self.scores(leaves, 1 if alone else columns, rows[used], to[used], weights[used])
        return np.concatenate([-scores, scores], axis=1) if alone else np.asarray(scores)

    def _labels(self) -> int:
        return max(len(self.given.get(f"classlabels_{kind}", ())) for kind in ("int64s", "strings"))


class _NodeIndex:
    """The index of a node in the lists, by its tree and number."""

    def __init__(self, reader: _Reader, tree: np.ndarray, number: np.ndarray) -> None:
        self.reader = reader
        self.trees, self.numbers = np.unique(tree), np.unique(number)
        keys = self._keys(tree, number)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        same = np.flatnonzero(self.keys[1:] == self.keys[:-1])
        if len(same):
            duplicate = self.order[same[0]]
            reader.fault(f"node {number[duplicate]} of tree {tree[duplicate]} occurs twice")

    def _keys(self, tree: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return sortable keys; −1 for pairs that are not among the nodes."""
        pairs = (self.trees, tree), (self.numbers, number)
        positions = [np.searchsorted(listed, ids) for listed, ids in pairs]
        within = [
            listed[np.minimum(position, len(listed) - 1)] == ids
            for listed, position, ids in (
                (self.trees, positions[0], tree),
                (self.numbers, positions[1], number),
            )
        ]
        return np.where(within[0] & within[1], positions[0] * len(self.numbers) + positions[1], -1)

    def __call__(self, tree: np.ndarray, number: np.ndarray, name: str, needed: np.ndarray) -> np.ndarray:
        keys = self._keys(tree, number)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        dangling = np.flatnonzero(needed & (self.keys[index] != keys))
        if len(dangling):
            i = dangling[0]
            self.reader.fault(f"{name} names node {number[i]} of tree {tree[i]}, which does not exist")
        return np.asarray(self.order[index])


class _IndexedNodesReader(_Reader):
    """The reader of TreeEnsemble: splits and leaves in separate lists, by index."""

    def read(self) -> Ensemble:
        feature = self.ints("nodes_featureids")
        splits = len(feature)
        target = self.ints("leaf_targetids")
        leaves, columns = len(target), int(self.given.get("n_targets", 0))
        if not splits or not leaves or columns < 1:
            self.fault(f"it has {splits} splits, {leaves} leaves and {columns} scores")
        modes = self._modes(splits)
        values = self.check_numbers("threshold", self._tensor("nodes_splits", splits), finite=False)
        self.check_features(feature)
        following = [self._following(way, splits, leaves) for way in ("true", "false")]
        roots = self.ints("tree_roots")
        if not len(roots) or ((roots < 0) | (roots >= splits)).any():
            self.fault(f"tree_roots {roots[:4].tolist()} are no places among {splits} splits")
        weights = self._tensor("leaf_weights", leaves)
        scores = self.scores(leaves, columns, np.arange(leaves), target, weights) * self.leaf_factor(
            len(roots)
        )
        modes = np.concatenate([modes, np.full(leaves, _LEAF)])
        values = np.concatenate([values, np.zeros(leaves)])
        below, first, bounds, strict = self.bounds(
            modes, values, self._members(int((modes == "MEMBER").sum()))
        )
        missing = self.ints("nodes_missing_value_tracks_true", splits, default=0) != 0
        ends = np.full(leaves, -1)
        return self.with_checked_depth(
            Ensemble(
                roots=roots,
                feature=np.concatenate([feature, ends]),
                yes=np.concatenate([following[0], ends * 0]),
                no=np.concatenate([following[1], ends * 0]),
                below=below,
                missing=np.concatenate([missing, ends > 0]) | (modes == "NEQ"),
                first=first,
                bounds=bounds,
                strict=strict,
                leaf=np.concatenate([np.full(splits, -1), np.arange(leaves)]),
                weights=scores,
                post_transform=self.word("post_transform", _TRANSFORMS, "NONE"),
            )
        )

    def _tensor(self, name: str, count: int) -> np.ndarray:
        tensor = self.given.get(name)
        if not isinstance(tensor, onnx.TensorProto):
            self.fault(f"it has no {name}")
        array = np.asarray(onnx.numpy_helper.to_array(tensor), np.float64).reshape(-1)
        return self._array(name, array, np.dtype(np.float64), count, None)

    def _modes(self, splits: int) -> np.ndarray:
        numbers = self._tensor("nodes_modes", splits)
        if not np.isin(numbers, range(len(_MODES))).all():
            self.fault(f"nodes_modes holds {sorted(set(numbers) - set(range(len(_MODES))))}")
        return np.asarray(np.asarray(_MODES)[numbers.astype(int)])

    def _following(self, way: str, splits: int, leaves: int) -> np.ndarray:
        """Return indices in the joint list, in which the leaves follow the splits."""
        to = self.ints(f"nodes_{way}nodeids", splits)
        is_leaf = self.ints(f"nodes_{way}leafs", splits) != 0
        wrong = to[(to < 0) | (to >= np.where(is_leaf, leaves, splits))]
        if len(wrong):
            self.fault(
                f"nodes_{way}nodeids names {wrong[0]}, and there are {splits} splits and {leaves} leaves"
            )
        return np.asarray(np.where(is_leaf, to + splits, to))

    def _members(self, count: int) -> list[np.ndarray]:
        """Return the numbers of each set; a NaN ends a set."""
        members = self.given.get("membership_values")
        array = np.zeros(0) if members is None else np.asarray(onnx.numpy_helper.to_array(members))
        values = array.reshape(-1)
        ends = np.flatnonzero(np.isnan(values))
        if len(ends) != count or (len(values) and not np.isnan(values[-1])):
            self.fault(f"membership_values hold {len(ends)} sets instead of {count}")
        return [group[~np.isnan(group)] for group in np.split(values, ends)[:count]]
