"""CatBoost models, read from the JSON that they save."""

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod
from pathlib import Path
from typing import Any

import catboost
import numpy as np

from rationale.conversion.boosters import tables
from rationale.conversion.boosters.tables import BoosterTable, Categories
from rationale.conversion.boosters.trees import BoostedTrees, Leaf, Lookup, Split, Tree, unknown_setting
from rationale.conversion.graphs import ConversionResult
from rationale.conversion.rows import Features, Rows, rows_of
from rationale.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError, quoted

_LINKS = {
    **dict.fromkeys("Logloss CrossEntropy MultiClassOneVsAll".split(), "LOGISTIC"),
    **dict.fromkeys(
        "RMSE MultiRMSE MAE Quantile LogLinQuantile MAPE Huber Expectile LogCosh Lq".split(), "NONE"
    ),
    **dict.fromkeys("QueryRMSE PairLogit PairLogitPairwise YetiRank YetiRankPairwise".split(), "NONE"),
    **dict.fromkeys("Poisson Tweedie".split(), "Exp"),
    "MultiClass": "SOFTMAX",
}
_OTHER = -1.0  # the code of a category that the references lack
_EMPTY = 2**64 - 1  # in place of a hash
_FACTOR = np.uint64(0x4906BA494954CB65)
MOST_COMBINATIONS = 1 << 20  # limit on combinations of categories in one table


def features(model: Any) -> Features:
    names, coded = tuple(model.feature_names_), model.get_cat_feature_indices()
    named = names != tuple(map(str, range(len(names))))
    return Features(len(names), names if named else None, frozenset(names[i] for i in coded))


def as_onnx(
    model: Any, example: Any, categories: Mapping[str, Collection[str]] | None = None
) -> ConversionResult:
    """Convert a CatBoost model.

    Args:
        categories: additional categories by column, used if the example lacks some that the model knows.

    Raises:
        InvalidOptionError: if the model has categories, and there is no example.
        UnsupportedModelError: if a part of the model cannot be read.
        InvalidReferencesError: if a category is missing.
    """
    schema, coded = features(model), model.get_cat_feature_indices()
    if example is None and coded:
        raise InvalidOptionError(
            "CatBoost's file stores hashes of categories, not their names. Give references (or rows to "
            "`convert(model, example)`) that contain every category of the model."
        )
    assert schema.count is not None
    table = read_table(model)
    if not coded:
        trees = _read(model, table)
    else:
        rows = rows_of(example, schema)
        try:
            trees, table = _read_coded(model, table, rows, coded)
        except InvalidReferencesError:
            extended = rows
            for i in coded:
                extended = _with_categories(extended, i, (categories or {}).get(rows.column_name(i), ()))
            if extended is rows:
                raise
            trees, table = _read_coded(model, table, extended, coded)
    return tables.as_onnx(trees, table, "predictions", example, partial(_answers, model, trees))


def _read_coded(
    model: Any, table: BoosterTable, rows: Rows, coded: Sequence[int]
) -> tuple[BoostedTrees, BoosterTable]:
    """Return a model with the categories of these rows, and its table."""
    categories = [set(map(_plain, c)) if i in coded else () for i, c in enumerate(rows.columns)]
    codes: list[Categories | None] = [
        {v: float(code) for code, v in enumerate(sorted(values))} or None for values in categories
    ]
    table = replace(table, names=rows.names, categories=codes)
    return _read(model, table, pool=catboost.Pool(table.frame(rows), cat_features=coded)), table


def _with_categories(rows: Rows, i: int, categories: Collection[str]) -> Rows:
    """Return the rows, and a copy of the first one for each of these categories in column i."""
    if not categories:
        return rows
    column = rows.columns[i]
    if isinstance(column[0], str):
        values: list[str | int] = [*categories]
    else:
        values = [int(name) for name in categories if name.removeprefix("-").isdecimal()]
    picks = np.concatenate([np.arange(len(column)), np.zeros(len(values), int)])
    return rows.mixed(np.repeat(picks[:, None], len(rows.columns), axis=1)).with_column(i, [*column, *values])


def read_trees(model: Any) -> BoostedTrees:
    """Return a model without categories, as a step of a pipeline."""
    return _read(model, read_table(model))


def read_table(model: Any) -> BoosterTable:
    """Return the columns of a model without categories."""
    schema = features(model)
    assert schema.count is not None
    return _CatBoostTable(schema.count, schema.names, [None] * schema.count, _OTHER)


def _read(model: Any, table: BoosterTable, **options: Any) -> BoostedTrees:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.json"
        model.save_model(str(file), format="json", **options)
        return _CatBoostReader(json.loads(file.read_text()), table).read(getattr(model, "classes_", ()))


def _answers(model: Any, trees: BoostedTrees, rows: Any) -> Sequence[np.ndarray]:
    """Return a classifier's labels and probabilities, as its ONNX model answers them; else numbers."""
    if trees.classes is None:
        kind = "Exponent" if trees.link == "Exp" else "RawFormulaVal"
        # A ranker's own predict() knows no types.
        return (np.asarray(catboost.CatBoost.predict(model, rows, prediction_type=kind)),)
    labels = model.predict(rows, prediction_type="Class")
    return np.asarray(labels).reshape(-1), np.asarray(model.predict(rows, prediction_type="Probability"))


class _CatBoostTable(BoosterTable):
    """A table whose categories keep their type: texts, or whole numbers."""

    def frame(self, rows: Rows) -> Any:
        table = rows.frame()
        for i, categories in enumerate(self.categories):
            if categories is not None:
                table[self.column_name(i)] = table[self.column_name(i)].map(_plain)
        return table


def _plain(category: Any) -> str | int:
    """Return a category in CatBoost's form: it hashes a whole number like its digits."""
    return category if isinstance(category, str) else int(category)


class _CatBoostReader:
    """A reader of CatBoost's JSON, with the categories of the references."""

    def __init__(self, dump: Any, table: BoosterTable) -> None:
        self.dump, self.table, self.info = dump, table, dump["features_info"]
        hashes = {entry["value"]: entry["hash"] for entry in self.info.get("cat_features_hash", ())}
        self.floats = [feature["flat_feature_index"] for feature in self.info.get("float_features", ())]
        self.coded = [feature["flat_feature_index"] for feature in self.info.get("categorical_features", ())]
        # [categories] of each, as signed 32-bit numbers; the codes are positions
        self.hashes = [
            np.array([hashes[str(v)] for v in table.categories[i] or ()], np.uint32).astype(np.int32)
            for i in self.coded
        ]

    def read(self, classes: Sequence[Any]) -> BoostedTrees:
        loss = self.dump["model_info"]["params"]["loss_function"]["type"]
        if loss not in _LINKS:
            raise unknown_setting("CatBoost", "loss_function", loss, _LINKS)
        scale, base = self.dump["scale_and_bias"]
        splits, lookups = list(self._splits()), list(map(self._lookup, self.info.get("ctrs", ())))
        link = _LINKS[loss]
        labels = np.asarray(classes if len(classes) else range(max(len(base), 2)))
        return BoostedTrees(
            trees=[
                *(_symmetric_tree(t, splits, len(base), scale) for t in self.dump.get("oblivious_trees", ())),
                *(_free_tree(t, splits, scale) for t in self.dump.get("trees", ())),
            ],
            base=np.asarray(base, np.float64),
            link=link,
            classes=labels if link in ("LOGISTIC", "SOFTMAX") else None,
            lookups=lookups,
        )

    def _splits(self) -> Iterator[Split]:
        """Yield the splits by their numbers; `yes`: the leaf index's bit is 0, but 1 for a category."""
        for feature in self.info.get("float_features", ()):
            for border in feature["borders"]:
                missing = feature["nan_value_treatment"] != "AsTrue"
                yield Split(feature["flat_feature_index"], 0, 1, missing, bound=border)
        for feature, hashes in zip(self.info.get("categorical_features", ()), self.hashes, strict=True):
            for value in feature.get("values", ()):
                (codes,) = np.nonzero(hashes == np.int32(value))
                self._check(feature["flat_feature_index"], len(codes) == 1)
                yield Split(feature["flat_feature_index"], 1, 0, missing=False, among=(int(codes[0]),))
        for i, feature in enumerate(self.info.get("ctrs", ())):
            for border in feature["borders"]:
                yield Split(self.table.count + i, 0, 1, missing=True, bound=border)

    def _check(self, feature: int, is_known: bool) -> None:
        if not is_known:
            raise InvalidReferencesError(
                f"the references lack a category of {self.table.column_name(feature)!r} that the model "
                "knows. CatBoost stores hashes of categories, not their names. Give rows with every "
                "category, such as the training data, by --categories FILE (in Python "
                "`compile_model(convert(model, all_rows), method)`); name them as categories in the "
                "decision profile; or add such rows to the references at weight 0 (the method's weights=)."
            )

    def _lookup(self, ctr: Any) -> Lookup:
        """Return the lookup of a target statistic, by the hash of categories.

        One or several categories count, and splits together with them.
        """
        digits, axes = list[tuple[int, str, float]](), list[np.ndarray]()
        for element in ctr["elements"]:
            if element["combination_element"] == "cat_feature_value":
                index = element["cat_feature_index"]
                digits.append((self.coded[index], "Add", 1))
                axes.append(self.hashes[index].astype(np.int64).astype(np.uint64))
            elif element["combination_element"] == "float_feature":
                index = element["float_feature_index"]
                over = self.info["float_features"][index]["nan_value_treatment"] == "AsTrue"  # NaN is
                digits.append((self.floats[index], "LessOrEqual" if over else "Greater", element["border"]))
                axes.append(np.array([1, 0] if over else [0, 1], np.uint64))
            else:
                index = element["cat_feature_index"]
                (codes,) = np.nonzero(self.hashes[index] == np.int32(element["value"]))
                self._check(self.coded[index], len(codes) == 1)
                digits.append((self.coded[index], "Equal", float(codes[0])))
                axes.append(np.arange(2, dtype=np.uint64))
        if prod(len(axis) + 1 for axis in axes) > MOST_COMBINATIONS:
            names = [self.table.column_name(feature) for feature, *_ in digits]
            raise UnsupportedModelError(
                f"CatBoost combines {quoted(names)}, with more than {MOST_COMBINATIONS} combinations of "
                "their categories: train with max_ctr_complexity=1."
            )
        hashes = reduce(_hashed, np.ix_(*axes), np.zeros((), np.uint64))
        stored = self.dump["ctr_data"][ctr["identifier"]]
        entries = np.array(stored["hash_map"], object).reshape(-1, stored["hash_stride"])
        keys = entries[:, 0].astype(np.uint64)
        self._check(digits[0][0], bool(np.isin(keys[keys != _EMPTY], hashes).all()))
        values = {
            k: _statistic(ctr, stored, row) for k, row in zip(keys.tolist(), entries[:, 1:], strict=True)
        }
        other = _statistic(ctr, stored, entries[0, 1:] * 0)
        statistics = np.array([values.get(h, other) for h in hashes.reshape(-1).tolist()])
        padding = [(int(operator == "Add"), 0) for _, operator, _ in digits]
        return Lookup(digits, np.pad(statistics.reshape(hashes.shape), padding, constant_values=other))


def _hashed(before: np.ndarray, value: np.ndarray) -> np.ndarray:
    return np.asarray(_FACTOR * (before + _FACTOR * value))


def _statistic(ctr: Any, stored: Any, counts: np.ndarray) -> float:
    kind, border = ctr["ctr_type"], ctr["target_border_idx"]
    if kind in ("BinarizedTargetMeanValue", "FloatTargetMeanValue"):
        good, total = counts
    elif kind in ("Counter", "FeatureFreq"):
        good, total = counts[0], stored["counter_denominator"]
    else:
        good = counts[border] if kind == "Buckets" else counts[border + 1 :].sum()
        total = counts.sum()
    share = np.float32(good + ctr["prior_numerator"]) / np.float32(total + ctr["prior_denomerator"])
    return float((share + np.float32(ctr["shift"])) * np.float32(ctr["scale"]))


def _symmetric_tree(tree: Any, splits: Sequence[Split], columns: int, scale: float) -> Tree:
    """Return a symmetric tree.

    A node's index within its level consists of the bits of the splits above it.
    """
    levels = [splits[entry["split_index"]] for entry in tree["splits"] or ()]
    nodes = dict[int, Split | Leaf]()
    for level, split in enumerate(levels):
        first, following = 2**level - 1, 2 ** (level + 1) - 1
        for position in range(2**level):
            yes, no = (following + position + (bit << level) for bit in (split.yes, split.no))
            nodes[first + position] = replace(split, yes=yes, no=no)
    leaves = scale * np.array(tree["leaf_values"]).reshape(-1, columns)
    return nodes | {len(nodes) + i: dict(enumerate(leaf)) for i, leaf in enumerate(leaves.tolist())}


def _free_tree(root: Any, splits: Sequence[Split], scale: float) -> Tree:
    """Return a tree of any shape, whose splits lead to the right if the bit is 1."""
    nodes, pending = dict[int, Split | Leaf](), [root]
    for number, node in enumerate(pending):
        if "split" in node:
            split, child = splits[node["split"]["split_index"]], len(pending)
            pending += [node["left"], node["right"]]
            nodes[number] = replace(split, yes=child + split.yes, no=child + split.no)
        else:
            nodes[number] = dict(enumerate((scale * np.atleast_1d(node["value"])).tolist()))
    return nodes
