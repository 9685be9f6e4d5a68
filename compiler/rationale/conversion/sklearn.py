"""scikit-learn: estimators and pipelines, which may contain boosters of XGBoost and LightGBM."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from skl2onnx import convert_sklearn, update_registered_converter
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.common.data_types import (
    DoubleTensorType,
    FloatTensorType,
    Int64TensorType,
    StringTensorType,
    guess_tensor_type,
)
from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator
from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
from skl2onnx.common.utils import InvalidInputTypeException
from sklearn.base import is_classifier, is_outlier_detector
from sklearn.utils.validation import check_is_fitted

from rationale.conversion.boosters.trees import DOUBLE, SINGLE, Nodes, with_margins
from rationale.conversion.graphs import INPUT, AsOnnx, Both, tidied
from rationale.conversion.plain import holds_estimators, plain
from rationale.conversion.rows import Features, Rows, rows_of
from rationale.conversion.steps import check, converters, unknown
from rationale.conversion.vectorisers import as_column, reads_text
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.lowering.loading.load import without_zip_maps
from rationale.tables.frames import is_missing

OPSETS = {"": 18, "ai.onnx.ml": 3}  # trees as TreeEnsembleRegressor and -Classifier


def as_onnx(model: Any, example: Any) -> AsOnnx:
    """Convert a model; raise skl2onnx's errors, and UnsupportedModelError for a model without predictions."""
    if not hasattr(model, "predict"):
        raise UnsupportedModelError(
            f"sklearn.{type(model).__name__} predicts nothing: give an estimator, or a pipeline that ends "
            "in one."
        )
    check_is_fitted(model)
    for part in _parts(model):
        check(part)
    known = features(model)
    is_text = reads_text(model, _parts(model))
    rows = _rows(example, known, is_text=is_text)
    by_column = _splits_columns(model, rows)
    if rows is None and (by_column or known.count is None):
        raise InvalidOptionError(
            f"sklearn.{type(model).__name__} takes columns by name or type: give references, or "
            "`convert(model, example)` a DataFrame of rows such as it takes."
        )
    given, types = plain(model), _types(known, rows, by_column=by_column, is_text=is_text)
    names = [name for name, _ in types]
    options = {id(given): {"zipmap": False}} if hasattr(model, "predict_proba") else None
    with converters():
        for part in _parts(given):
            if _reader(part):
                _register(part)
        try:
            converted = convert_sklearn(given, initial_types=types, target_opset=OPSETS, options=options)
        except (MissingConverter, MissingShapeCalculator, InvalidInputTypeException, KeyError) as error:
            raise unknown(error, _parts(given)) or error from error
    proto, _ = without_zip_maps(converted)
    tidied(proto, names)
    read = [value.name for value in proto.graph.input]
    columns = tuple(read) if by_column else (rows.names if rows else known.names)
    if rows is None:
        return AsOnnx(proto, columns=columns)

    places = [names.index(name) for name in read] if by_column else None
    both = _both(model, rows, places, read, is_text=is_text)
    return AsOnnx.of_table(proto, both, columns, by_column=by_column)


def _rows(example: Any, known: Features, *, is_text: bool) -> Rows | None:
    """Return the rows; a column without a value holds texts if the model has seen words there."""
    if example is None:
        return None
    rows = rows_of(as_column(example) if is_text else example, known)
    unseen = [rows.called(i) in known.texts and all(map(is_missing, c)) for i, c in enumerate(rows.columns)]
    words = tuple(map(any, zip(rows.has_words, unseen, strict=True)))
    columns = [c.astype(object) if text else c for text, c in zip(words, rows.columns, strict=True)]
    return replace(rows, columns=tuple(columns), words=words)


def _both(
    model: Any, rows: Rows, places: Sequence[int] | None, read: Sequence[str], *, is_text: bool
) -> Both:
    """Return rows, and functions that ask both models: by column (those at `places`), or with one array."""

    def feed(examples: Rows) -> dict[str, np.ndarray]:
        if places is None:
            return {INPUT: _whole(examples)}
        return {name: examples.fed(place) for name, place in zip(read, places, strict=True)}

    def answer(examples: Rows) -> tuple[np.ndarray | None, ...]:
        return tuple(_answers(model, _given(model, examples, is_text=is_text)))

    return Both(rows, feed, answer, _alike(model))


def features(model: Any) -> Features:
    names = getattr(model, "feature_names_in_", None)
    count = getattr(model, "n_features_in_", None)
    if names is None:
        count = 1 if reads_text(model, _parts(model)) else count
        return Features(None if count is None else int(count), None)
    found = tuple(map(str, names))
    underscored = any(found == tuple(getattr(part, "feature_name_", ())) for part in _parts(model))
    return Features(len(found), found, _texts(model) & frozenset(found), underscored)


def _texts(model: Any) -> frozenset[str]:
    """Return columns in which an encoder or an imputer has seen words, and those that are dropped."""
    found = set[str]()
    for part in _parts(model):
        names = list(getattr(part, "feature_names_in_", ()))
        known = getattr(part, "categories_", getattr(part, "statistics_", ()))
        for name, values in zip(names, known, strict=False):
            if any(isinstance(value, str) for value in np.atleast_1d(values)):
                found.add(str(name))
        for _, transformer, columns in getattr(part, "transformers_", ()):
            if isinstance(transformer, str) and transformer == "drop":
                found.update(str(c if isinstance(c, str) else names[c]) for c in columns)
    return frozenset(found)


def _types(known: Features, rows: Rows | None, *, by_column: bool, is_text: bool) -> list[tuple[str, Any]]:
    """Return the inputs: one of numbers (or of texts), or one for each column.

    Whole numbers are floats too: they may be missing.
    """
    if rows is None or is_text:
        return [(INPUT, (StringTensorType if is_text else DoubleTensorType)([None, known.count]))]
    number = FloatTensorType if rows.dtype == SINGLE else DoubleTensorType
    kinds = [StringTensorType if words else number for words in rows.has_words]
    if by_column:
        return [(rows.called(i), kind([None, 1])) for i, kind in enumerate(kinds)]
    return [(INPUT, kinds[0]([None, len(kinds)]))]


def _splits_columns(model: Any, rows: Rows | None) -> bool:
    """Tell whether the model reads columns by name, or they have different types."""
    by_name = any(
        not callable(columns) and any(isinstance(c, str) for c in np.atleast_1d(columns))
        for part in _parts(model)
        for _, _, columns in getattr(part, "transformers_", ())
    )
    return by_name or (rows is not None and 0 < sum(rows.has_words) < len(rows.columns))


def _alike(model: Any) -> list[list[int]]:
    """Return the columns that each transformer of the first ColumnTransformer reads."""
    parts = [part for part in _parts(model) if hasattr(part, "_transformer_to_input_indices")]
    whole = [part for part in parts if part.n_features_in_ == getattr(model, "n_features_in_", None)]
    return [list(map(int, own)) for part in whole[:1] for own in part._transformer_to_input_indices.values()]


def _parts(model: Any) -> Iterator[Any]:
    """Yield the estimators inside a model, also fitted ones that no parameter names."""
    seen, waiting = set[int](), [model]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list | tuple):
            waiting += part
        elif isinstance(part, np.ndarray) and part.dtype == object:
            waiting += list(part.reshape(-1))
        elif (holds_estimators(part) or _reader(part)) and id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += () if _reader(part) else vars(part).values()


_BOOSTERS = {  # by what a class's full name begins with
    "xgboost.": "rationale.conversion.boosters.xgboost",
    "lightgbm.": "rationale.conversion.boosters.lightgbm",
    "catboost.": "rationale.conversion.boosters.catboost",
    "sklearn.ensemble._forest.RandomTreesEmbedding": "rationale.conversion.boosters.embedding",
    "sklearn.ensemble._hist_gradient_boosting.": "rationale.conversion.boosters.histograms",
}


def _reader(part: Any) -> str | None:
    """Return the module that reads a booster; None for any other part."""
    full = f"{type(part).__module__}.{type(part).__name__}"
    return next((reader for name, reader in _BOOSTERS.items() if full.startswith(name)), None)


def _library(part: Any) -> str:
    return type(part).__module__.partition(".")[0]


def _register(part: Any) -> None:
    """Register a part's class with skl2onnx if this package reads it."""
    shapes, options = _shapes, None
    if is_classifier(part):
        shapes = calculate_linear_classifier_output_shapes
        options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
        if hasattr(part, "decision_function"):
            options["raw_scores"] = [True, False]
    kind = type(part)
    alias = f"{_library(part)}{kind.__name__}"
    update_registered_converter(kind, alias, shapes, _booster, parser=_declared, options=options)


def _declared(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:  # noqa: ARG001 (skl2onnx calls parsers so)
    """Declare the outputs, whichever class the model derives from."""
    operator = scope.declare_local_operator(sklearn_operator_name_map[type(model)], model)
    operator.inputs, numbers = inputs, guess_tensor_type(inputs[0].type)
    ends = [("label", Int64TensorType()), ("probabilities", numbers)]
    for name, kind in ends if is_classifier(model) else [("variable", numbers)]:
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _shapes(operator: Any) -> None:
    """Set the number of columns of a model that answers numbers."""
    columns = len(import_module(str(_reader(operator.raw_operator))).boosted(operator.raw_operator).base)
    operator.outputs[0].type = operator.outputs[0].type.__class__([None, columns])


def _booster(scope: Any, operator: Any, container: Any) -> None:
    """Add a booster's nodes to those of a pipeline."""
    part = operator.raw_operator
    library = import_module(str(_reader(part)))
    nodes, boosted, table = Nodes(), library.boosted(part), library.table_of(part)
    if table.by_column:
        raise UnsupportedModelError(
            f"{_library(part)}.{type(part).__name__} reads columns of a pandas type of categories from the "
            "step before it, which no ONNX step makes: encode them as numbers there, or give the booster "
            "itself."
        )
    if _is_set(container, part, "nocl"):
        boosted = replace(boosted, classes=np.arange(len(boosted.classes)))
    if _is_set(container, part, "raw_scores"):
        boosted = replace(boosted, link="NONE")
    given, ends = operator.inputs[0].full_name, [value.full_name for value in operator.outputs]
    is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
    x = given if is_double else nodes.cast(given, SINGLE)
    if is_double and boosted.dtype == DOUBLE and not operator.inputs[0].is_root:
        boosted = with_margins(boosted)
    made = [
        f"/{name}" if isinstance(v.type, DoubleTensorType) else name
        for name, v in zip(ends, operator.outputs, strict=True)
    ]
    nodes.boosted(boosted, x, table.count, made, DOUBLE if is_double else SINGLE)
    for own, name in zip(made, ends, strict=True):
        if own != name:
            nodes.cast(own, DOUBLE, name)
    names = {given: given} | {name: name for name in ends}
    for one in nodes.constants:
        names[one.name] = scope.get_unique_variable_name(one.name.strip("/"))
        array = onnx.numpy_helper.to_array(one)
        container.add_initializer(names[one.name], one.data_type, one.dims, array.reshape(-1).tolist())
    for node in nodes.nodes:
        for name in node.output:
            names.setdefault(name, scope.get_unique_variable_name(name.strip("/")))
        container.add_node(
            node.op_type,
            [names[name] for name in node.input],
            [names[name] for name in node.output],
            op_domain=node.domain,
            name=scope.get_unique_operator_name(node.op_type),
            **{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        )


def _is_set(container: Any, part: Any, option: str) -> bool:
    """Tell whether an option is set; false if the part has no such option."""
    given = container.get_options(part, {option: False}, fail=False)
    return bool(given and given[option])


def _whole(rows: Rows) -> np.ndarray:
    """Return [K, F] in the ONNX model's form."""
    return np.concatenate([rows.fed(i) for i in range(len(rows.columns))], axis=1)


def _answers(model: Any, given: Any) -> Iterator[np.ndarray | None]:
    """Yield a classifier's labels, then probabilities or scores, as its ONNX model; else numbers."""
    answer = np.asarray(model.predict(given))
    yield answer
    if is_classifier(model) or is_outlier_detector(model):
        predict = getattr(model, "predict_proba", None) or getattr(model, "decision_function", None)
        yield None if predict is None else np.asarray(predict(given))


def _given(model: Any, rows: Rows, *, is_text: bool) -> Any:
    """Return rows in the fitted model's form: texts, a frame, or an array."""
    if is_text:
        return rows.columns[0]
    return rows.frame() if hasattr(model, "feature_names_in_") else _array(rows)


def _array(rows: Rows) -> np.ndarray:
    if not any(rows.has_words):
        return rows.numbers()
    return np.stack([column.astype(object) for column in rows.columns], axis=1)
