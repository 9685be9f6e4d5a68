"""LightGBM: a Booster, or a model of its scikit-learn classes, read from its dump."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightgbm as lgb
import numpy as np

from rationale.conversion.boosters import tables
from rationale.conversion.boosters.tables import BoosterTable, Categories
from rationale.conversion.boosters.trees import (
    DOUBLE,
    SQUARE,
    BoostedTrees,
    Leaf,
    Split,
    Tree,
    labels_of,
    unknown_setting,
)
from rationale.conversion.graphs import ConversionResult
from rationale.conversion.rows import Features
from rationale.errors import UnsupportedModelError, quoted

_PLAIN = "regression regression_l1 huber fair quantile mape lambdarank rank_xendcg custom"
_LINKS = {
    **dict.fromkeys("binary multiclassova cross_entropy".split(), "LOGISTIC"),
    **dict.fromkeys("poisson gamma tweedie".split(), "Exp"),
    **dict.fromkeys(_PLAIN.split(), "NONE"),
    "multiclass": "SOFTMAX",
    "cross_entropy_lambda": "Softplus",
}
_CLASSIFIERS = ("binary", "multiclass", "multiclassova", "cross_entropy")
_MADE_UP = re.compile(r"Column_\d+")  # LightGBM's default names
_CATEGORICAL = re.compile(r"\[categorical_feature: ([\d,]+)\]")  # columns, in the parameters
_ZERO = float(np.float32(1e-35))  # smaller numbers count as 0


def features(model: Any) -> Features:
    return read_table(model).features


def as_onnx(model: Any, example: Any) -> ConversionResult:
    """Convert a model; raise UnsupportedModelError for linear leaves, and for unknown objectives."""
    trees, table = read_trees(model), read_table(model)
    return tables.as_onnx(trees, table, "variable", example, lambda rows: _answers(model, trees, rows))


def read_trees(model: Any) -> BoostedTrees:
    dump = _booster(model).dump_model()
    name, *options = dump.get("objective", "custom").split()
    objectives = _CLASSIFIERS if hasattr(model, "predict_proba") else tuple(_LINKS)
    if name not in objectives:
        raise unknown_setting("LightGBM", "objective", name, objectives)
    parameters = dict(option.split(":") for option in options if ":" in option)
    link = SQUARE if "sqrt" in options else _LINKS[name]
    steep = float(parameters.get("sigmoid", 1)) if link == "LOGISTIC" else 1.0
    columns, trees = dump["num_tree_per_iteration"], dump["tree_info"]
    if dump["average_output"]:
        steep /= len(trees) // columns
    nodes = [_tree(tree["tree_structure"], i % columns, steep) for i, tree in enumerate(trees)]
    classes = getattr(model, "classes_", np.arange(max(columns, 2)))
    coded = {
        node.feature
        for tree in nodes
        for node in tree.values()
        if isinstance(node, Split) and node.among is not None
    }
    return BoostedTrees(
        trees=nodes,
        base=np.zeros(columns),
        link=link,
        classes=labels_of(classes) if link in ("LOGISTIC", "SOFTMAX") else None,
        coded=tuple(sorted(coded)),
        to_zero=True,
        dtype=DOUBLE,
    )


def _tree(root: Any, column: int, factor: float) -> Tree:
    nodes, pending = dict[int, Split | Leaf](), [root]
    for number, node in enumerate(pending):
        if node.get("leaf_features"):
            raise UnsupportedModelError(
                "LightGBM's linear_tree has linear models instead of numbers in its leaves: train with "
                "linear_tree=False."
            )
        if "split_feature" not in node:
            nodes[number] = {column: node["leaf_value"] * factor}
        elif node["decision_type"] == "==":
            codes = tuple(map(int, node["threshold"].split("||")))
            child = len(pending)
            pending += [node["left_child"], node["right_child"]]
            nodes[number] = Split(node["split_feature"], child, child + 1, missing=False, among=codes)
        else:
            child = len(pending)
            pending += [node["left_child"], node["right_child"]]
            nodes[number] = Split(
                node["split_feature"], child, child + 1, _missing_left(node), bound=node["threshold"]
            )
    for number, node in enumerate(pending):
        if node.get("missing_type") == "Zero":
            _zero_as_missing(nodes, number)
    return nodes


def _missing_left(node: Any) -> bool:
    """Tell whether NaN goes left; it counts as 0 if the training had no missing values."""
    return bool(node["threshold"] >= 0 if node["missing_type"] == "None" else node["default_left"])


def _zero_as_missing(nodes: dict[int, Split | Leaf], number: int) -> None:
    """Send zeros where NaN goes, with two more splits if the bound sends them elsewhere."""
    split, more = nodes[number], len(nodes)
    assert isinstance(split, Split)
    feature, left, right = split.feature, split.yes, split.no
    if split.missing and split.bound < _ZERO:
        nodes[number] = replace(split, no=more)
        nodes[more] = Split(feature, more + 1, right, missing=False, bound=_ZERO)
        nodes[more + 1] = Split(feature, right, left, missing=False, bound=-_ZERO, strict=True)
    elif not split.missing and split.bound >= -_ZERO:
        nodes[number] = replace(split, yes=more)
        nodes[more] = Split(feature, left, more + 1, missing=False, bound=-_ZERO, strict=True)
        nodes[more + 1] = Split(feature, right, left, missing=False, bound=_ZERO)


def read_table(model: Any) -> BoosterTable:
    booster = _booster(model)
    names, pandas_categories = tuple(booster.feature_name()), booster.pandas_categorical or []
    categories: list[Categories | None] = [None] * len(names)
    if pandas_categories:
        parameter = _CATEGORICAL.search(booster.model_to_string())
        coded = [int(i) for i in parameter.group(1).split(",")] if parameter else []
        if len(coded) != len(pandas_categories):
            raise UnsupportedModelError(
                f"LightGBM keeps {len(pandas_categories)} categorical pandas types, but not which of "
                f"{quoted(names)} have them. Fit it with categorical_feature='auto' and without ordered "
                "categories."
            )
        for i, values in zip(coded, pandas_categories, strict=True):
            categories[i] = {value: float(code) for code, value in enumerate(values)}
    own_names = None if all(map(_MADE_UP.fullmatch, names)) else names
    return BoosterTable(len(names), own_names, categories, underscored=True)


def _booster(model: Any) -> lgb.Booster:
    return model if isinstance(model, lgb.Booster) else model.booster_


def _answers(model: Any, read: BoostedTrees, rows: Any) -> Sequence[np.ndarray | None]:
    """Return a classifier's labels (a booster has none) and probabilities, as in ONNX; else a number."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict(rows)), np.asarray(model.predict_proba(rows))
    answer = np.asarray(model.predict(rows))
    return (answer,) if read.classes is None else (None, answer)
