"""scikit-learn's histogram boosting, read from the nodes of its predictors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rationale.conversion.boosters import tables
from rationale.conversion.boosters.tables import BoosterTable, Categories, is_text
from rationale.conversion.boosters.trees import DOUBLE, BoostedTrees, Leaf, Split, Tree, labels_of
from rationale.conversion.graphs import ConversionResult
from rationale.conversion.rows import Features


def features(model: Any) -> Features:
    return read_table(model).features


def as_onnx(model: Any, example: Any) -> ConversionResult:
    trees, table = read_trees(model), read_table(model)
    numbers = {i: categories for i, categories in _categories(model).items() if not is_text(categories)}
    return tables.as_onnx(trees, table, "variable", example, lambda rows: _answers(model, rows), numbers)


def read_trees(model: Any) -> BoostedTrees:
    base = np.reshape(model._baseline_prediction, -1).astype(np.float64)
    link = "Exp" if type(model._loss.link).__name__ == "LogLink" else "NONE"
    classes = getattr(model, "classes_", None)
    if classes is not None:
        link, classes = "LOGISTIC" if len(base) == 1 else "SOFTMAX", labels_of(classes)
    columns = _columns(model)
    categories = _categories(model)
    codes = [_codes(categories[i]) if i in categories else () for i in columns]
    return BoostedTrees(
        trees=[
            _tree(predictor, column, columns, codes)
            for group in model._predictors
            for column, predictor in enumerate(group)
        ],
        base=base,
        link=link,
        classes=classes,
        dtype=DOUBLE,
    )


def read_table(model: Any) -> BoosterTable:
    names, categories = getattr(model, "feature_names_in_", None), _categories(model)
    return BoosterTable(
        model.n_features_in_,
        None if names is None else tuple(map(str, names)),
        [categories[i] if is_text(categories.get(i)) else None for i in range(model.n_features_in_)],
    )


def _tree(predictor: Any, column: int, columns: Sequence[int], codes: Sequence[Any]) -> Tree:
    """Return a tree's nodes; a category that it does not know goes where a missing value does.

    Args:
        columns: the table's column for each feature of the tree, whose own order puts categories first.
        codes: the categories of each feature, as rows hold them.
    """
    nodes = dict[int, Split | Leaf]()
    for number, node in enumerate(predictor.nodes):
        feature, left, right = (int(node[name]) for name in ("feature_idx", "left", "right"))
        missing_left = bool(node["missing_go_to_left"])
        if node["is_leaf"]:
            nodes[number] = {column: float(node["value"])}
        elif node["is_categorical"]:
            words = predictor.raw_left_cat_bitsets[node["bitset_idx"]]
            among = tuple(
                code
                for i, code in enumerate(codes[feature])
                if bool(int(words[i // 32]) >> i % 32 & 1) != missing_left
            )
            yes, no = (right, left) if missing_left else (left, right)
            nodes[number] = Split(columns[feature], yes, no, missing=False, among=among)
        else:
            bound = float(node["num_threshold"])
            nodes[number] = Split(columns[feature], left, right, missing_left, bound=bound)
    return nodes


def _codes(categories: Categories) -> Sequence[float]:
    """Return the codes of a column's categories: texts are numbered, and numbers stay as they are."""
    return list(categories.values()) if is_text(categories) else list(map(float, categories))


def _columns(model: Any) -> list[int]:
    coded = np.zeros(model.n_features_in_, bool) if model.is_categorical_ is None else model.is_categorical_
    return [*map(int, np.flatnonzero(coded)), *map(int, np.flatnonzero(~coded))]


def _categories(model: Any) -> dict[int, Categories]:
    """Return the codes of each column's categories."""
    if model.is_categorical_ is None:
        return {}
    categories = model._preprocessor.named_transformers_["encoder"].categories_
    return {
        i: {value: float(code) for code, value in enumerate(values) if value == value and value is not None}
        for i, values in zip(_columns(model), categories, strict=False)
    }


def _answers(model: Any, rows: Any) -> Sequence[np.ndarray | None]:
    answer = np.asarray(model.predict(rows))
    return (answer, model.predict_proba(rows)) if hasattr(model, "classes_") else (answer,)
