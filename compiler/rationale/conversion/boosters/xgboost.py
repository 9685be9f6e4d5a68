"""XGBoost: a Booster, or a model of its scikit-learn classes, read from the JSON that it saves."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import xgboost as xgb

from rationale.conversion.boosters import tables
from rationale.conversion.boosters.tables import BoosterTable, Categories
from rationale.conversion.boosters.trees import STEP, BoostedTrees, Leaf, Split, Tree, unknown_setting
from rationale.conversion.graphs import ConversionResult
from rationale.conversion.rows import Features
from rationale.errors import UnsupportedModelError

_LINKS = {
    "binary:logistic": "LOGISTIC",
    "reg:logistic": "LOGISTIC",
    "multi:softprob": "SOFTMAX",
    "multi:softmax": "SOFTMAX",
    **dict.fromkeys("count:poisson reg:gamma reg:tweedie survival:cox survival:aft".split(), "Exp"),
    **dict.fromkeys("binary:logitraw rank:pairwise rank:ndcg rank:map".split(), "NONE"),
    "binary:hinge": STEP,
    **dict.fromkeys("reg:squarederror reg:squaredlogerror reg:absoluteerror".split(), "NONE"),
    **dict.fromkeys("reg:pseudohubererror reg:quantileerror reg:expectileerror".split(), "NONE"),
}
_CLASSIFIERS = ("binary:logistic", "multi:softprob", "multi:softmax")
_SCORES = (
    "binary:logitraw",
    "binary:hinge",
)  # a classifier too: its booster's answers are no probabilities
_SPLIT_BY_CATEGORIES = 1


def features(model: Any) -> Features:
    return read_table(model).features


def as_onnx(model: Any, example: Any) -> ConversionResult:
    """Convert a model; raise UnsupportedModelError for unknown objectives."""
    table, missing = read_table(model), _missing(model)
    if _learner(_booster(model))["objective"]["name"] in _SCORES:
        model = _booster(model)
    trees = replace(read_trees(model), missing=missing)
    return tables.as_onnx(trees, table, "variable", example, lambda rows: _answers(model, trees, rows))


def read_trees(model: Any) -> BoostedTrees:
    """Return the rounds up to the best one if training stopped early, as `predict` does."""
    booster = _booster(model)
    learner = _learner(booster)
    kind, trained = learner["gradient_booster"]["name"], learner["gradient_booster"]
    objective, parameters = learner["objective"]["name"], learner["learner_model_param"]
    objectives = _CLASSIFIERS if hasattr(model, "predict_proba") else tuple(_LINKS)
    if objective not in objectives:
        raise unknown_setting("XGBoost", "objective", objective, objectives)
    link = _LINKS[objective]
    targets, number = int(parameters["num_target"]), int(parameters["num_class"])
    base = np.broadcast_to(np.atleast_1d(json.loads(parameters["base_score"])), max(number, targets))
    ensemble = BoostedTrees(
        trees=[],
        base=_margin(base.astype(np.float64), link),
        link=link,
        classes=np.arange(max(number, 2)) if link in ("LOGISTIC", "SOFTMAX") and targets == 1 else None,
        coded=tuple(i for i, feature_type in enumerate(booster.feature_types or ()) if feature_type == "c"),
        missing=_missing(model),
    )
    if kind == "gblinear":
        weights = np.reshape(trained["model"]["weights"], (-1, len(base)))
        return replace(
            ensemble, weights=weights[:-1], base=ensemble.base[0] + weights[-1]
        )  # the first for all
    gbtree = trained["gbtree"]["model"] if kind == "dart" else trained["model"]
    end = int(gbtree["iteration_indptr"][_rounds(booster)])
    # The weights of dart's trees: XGBoost 3.4 writes them beside the trees, and calls the booster gbtree.
    dropped = trained.get("weight_drop") or gbtree.get("weight_drop") or [1.0] * end
    trees = zip(gbtree["trees"][:end], gbtree["tree_info"], dropped, strict=False)
    return replace(ensemble, trees=[_tree(tree, column, np.float32(f)) for tree, column, f in trees])


def _tree(tree: Any, column: int, factor: np.float32) -> Tree:
    """Return a tree's nodes that a row can reach, with new numbers."""
    nodes, numbers = dict[int, Split | Leaf](), {0: 0}
    width = int(tree["tree_param"]["size_leaf_vector"])
    sets = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
    among = {node: tuple(tree["categories"][start : start + size]) for node, start, size in sets}
    for node in (pending := [0]):
        left_child, right_child = tree["left_children"][node], tree["right_children"][node]
        number, value = numbers[node], tree["split_conditions"][node]
        if left_child == -1 and width > 1:
            weights = np.asarray(
                tree["leaf_weights"][width * right_child : width * (right_child + 1)], np.float32
            )
            nodes[number] = dict(enumerate((weights * factor).tolist()))
        elif left_child == -1:
            nodes[number] = {column: float(np.float32(value) * factor)}
        else:
            pending += [left_child, right_child]
            for child in (left_child, right_child):
                numbers[child] = len(numbers)
            feature, missing_left = tree["split_indices"][node], bool(tree["default_left"][node])
            if tree["split_type"][node] == _SPLIT_BY_CATEGORIES:  # categories of the set go right
                yes, no, missing = numbers[right_child], numbers[left_child], not missing_left
                nodes[number] = Split(feature, yes, no, missing, among=among[node])
            else:
                yes, no = numbers[left_child], numbers[right_child]
                nodes[number] = Split(feature, yes, no, missing_left, float(np.float32(value)), strict=True)
    return nodes


def _margin(base: np.ndarray, link: str) -> np.ndarray:
    """Return the margin of the base score, which XGBoost saves as a prediction."""
    if link == "LOGISTIC":
        return np.asarray(np.log(base) - np.log1p(-base))
    return np.asarray(np.log(base)) if link == "Exp" else base


def _rounds(booster: xgb.Booster) -> int:
    best, rounds = booster.attr("best_iteration"), int(booster.num_boosted_rounds())
    return rounds if best is None else min(int(best) + 1, rounds)


def _missing(model: Any) -> float:
    """Return the number for a missing value, from the class or, for a file, from `read_fitted`."""
    missing = model.attr("missing") if isinstance(model, xgb.Booster) else model.missing
    return np.nan if missing is None else float(missing)


def read_table(model: Any) -> BoosterTable:
    booster = _booster(model)
    names, trained = booster.feature_names, _learner(booster)["gradient_booster"]
    model = trained.get("gbtree", trained).get("model", {})
    encodings = model.get("cats", {}).get("enc", [])
    categories = tuple(map(_categories, encodings)) or (None,) * booster.num_features()
    return BoosterTable(booster.num_features(), None if names is None else tuple(names), categories)


def _categories(encoding: Any) -> Categories | None:
    """Return the codes of a column's categories, which are texts or numbers."""
    values = encoding["values"]
    if "offsets" in encoding:
        if any(letter < 0 for letter in values):  # truncated: XGBoost counts letters as bytes
            raise UnsupportedModelError(
                "XGBoost loses names of categories with letters outside ASCII: rename the categories, and "
                "fit the model again."
            )
        ends, letters = encoding["offsets"], bytes(values).decode()
        values = [letters[a:b] for a, b in pairwise(ends)]
    return {value: float(code) for code, value in enumerate(values)} or None


def _booster(model: Any) -> xgb.Booster:
    return model if isinstance(model, xgb.Booster) else model.get_booster()


def _learner(booster: xgb.Booster) -> Any:
    return json.loads(booster.save_raw("json"))["learner"]


def _answers(model: Any, trees: BoostedTrees, rows: Any) -> Sequence[np.ndarray | None]:
    """Return a classifier's labels (a booster has none) and probabilities, as in ONNX; else numbers."""
    names = _booster(model).feature_names
    if trees.weights is not None and names is not None and not isinstance(model, xgb.Booster):
        import pandas as pd

        rows = pd.DataFrame(rows, columns=names)  # a linear booster finds its columns by name
    if trees.classes is not None and hasattr(model, "predict_proba"):
        return np.asarray(model.predict(rows)), np.asarray(model.predict_proba(rows))
    if hasattr(model, "predict_proba"):  # a classifier with several labels
        return (np.asarray(model.predict_proba(rows)),)
    if isinstance(model, xgb.Booster):
        matrix = xgb.DMatrix(
            rows,
            missing=trees.missing,
            feature_names=model.feature_names,
            feature_types=model.feature_types if isinstance(rows, np.ndarray) else None,
            enable_categorical=True,
        )
        answer = np.asarray(model.predict(matrix, iteration_range=(0, _rounds(model))))
        if trees.link == "SOFTMAX" and answer.ndim == 1:
            return answer, None
    else:
        answer = np.asarray(model.predict(rows))
    return (answer,) if trees.classes is None else (None, answer)
