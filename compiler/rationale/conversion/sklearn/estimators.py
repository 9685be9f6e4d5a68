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
from rationale.conversion.convert import LIBRARIES
from rationale.conversion.graphs import INPUT, ConversionResult, ModelPair, tidy_graph
from rationale.conversion.rows import Features, Rows, rows_of
from rationale.conversion.sklearn.plain import holds_estimators, without_wrappers
from rationale.conversion.sklearn.steps import check_estimator, conversion_error, converters
from rationale.conversion.sklearn.vectorisers import as_column, reads_text
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.lowering.loading.load import without_zip_maps
from rationale.tables.frames import is_missing

OPSETS = {"": 18, "ai.onnx.ml": 3}  # trees as TreeEnsembleRegressor and -Classifier


def as_onnx(model: Any, example: Any) -> ConversionResult:
    """Convert a model; raise skl2onnx's errors, and UnsupportedModelError for a model without predictions."""
    if not hasattr(model, "predict"):
        raise UnsupportedModelError(
            f"sklearn.{type(model).__name__} predicts nothing: give an estimator, or a pipeline that ends "
            "in one."
        )
    check_is_fitted(model)
    for estimator in _estimators(model):
        check_estimator(estimator)
    schema = features(model)
    is_text = reads_text(model, _estimators(model))
    rows = _rows(example, schema, is_text=is_text)
    by_column = _splits_columns(model, rows)
    if rows is None and (by_column or schema.count is None):
        raise InvalidOptionError(
            f"sklearn.{type(model).__name__} selects columns by name or type. Give references, or give "
            "`convert(model, example)` a DataFrame of typical rows."
        )
    rewritten = without_wrappers(model)
    types = _types(schema, rows, by_column=by_column, is_text=is_text)
    names = [name for name, _ in types]
    options = {id(rewritten): {"zipmap": False}} if hasattr(model, "predict_proba") else None
    with converters():
        for estimator in _estimators(rewritten):
            if _reader(estimator):
                _register(estimator)
        try:
            converted = convert_sklearn(rewritten, initial_types=types, target_opset=OPSETS, options=options)
        except (MissingConverter, MissingShapeCalculator, InvalidInputTypeException, KeyError) as error:
            raise conversion_error(error, _estimators(rewritten)) or error from error
    proto, _ = without_zip_maps(converted)
    tidy_graph(proto, names)
    read = [value.name for value in proto.graph.input]
    columns = tuple(read) if by_column else (rows.names if rows else schema.names)
    if rows is None:
        return ConversionResult(proto, columns=columns)

    places = [names.index(name) for name in read] if by_column else None
    pair = _model_pair(model, rows, places, read, is_text=is_text)
    return ConversionResult.from_table(proto, pair, columns, by_column=by_column)


def _rows(example: Any, schema: Features, *, is_text: bool) -> Rows | None:
    """Return the rows; a column without a value holds texts if the model has seen words there."""
    if example is None:
        return None
    rows = rows_of(as_column(example) if is_text else example, schema)
    unseen = [
        rows.column_name(i) in schema.texts and all(map(is_missing, c)) for i, c in enumerate(rows.columns)
    ]
    words = tuple(map(any, zip(rows.has_words, unseen, strict=True)))
    columns = [c.astype(object) if text else c for text, c in zip(words, rows.columns, strict=True)]
    return replace(rows, columns=tuple(columns), words=words)


def _model_pair(
    model: Any, rows: Rows, places: Sequence[int] | None, read: Sequence[str], *, is_text: bool
) -> ModelPair:
    """Return rows, and functions that ask both models: by column (those at `places`), or with one array."""

    def feed(examples: Rows) -> dict[str, np.ndarray]:
        if places is None:
            return {INPUT: _whole(examples)}
        return {name: examples.onnx_column(place) for name, place in zip(read, places, strict=True)}

    def answer(examples: Rows) -> tuple[np.ndarray | None, ...]:
        return tuple(_answers(model, _fitted_rows(model, examples, is_text=is_text)))

    return ModelPair(rows, feed, answer, _feature_groups(model))


def features(model: Any) -> Features:
    names = getattr(model, "feature_names_in_", None)
    count = getattr(model, "n_features_in_", None)
    if names is None:
        count = 1 if reads_text(model, _estimators(model)) else count
        return Features(None if count is None else int(count), None)
    columns = tuple(map(str, names))
    underscored = any(
        columns == tuple(getattr(estimator, "feature_name_", ())) for estimator in _estimators(model)
    )
    return Features(len(columns), columns, _texts(model) & frozenset(columns), underscored)


def _texts(model: Any) -> frozenset[str]:
    """Return columns in which an encoder or an imputer has seen words, and those that are dropped."""
    columns = set[str]()
    for estimator in _estimators(model):
        names = list(getattr(estimator, "feature_names_in_", ()))
        seen = getattr(estimator, "categories_", getattr(estimator, "statistics_", ()))
        for name, values in zip(names, seen, strict=False):
            if any(isinstance(value, str) for value in np.atleast_1d(values)):
                columns.add(str(name))
        for _, transformer, dropped in getattr(estimator, "transformers_", ()):
            if isinstance(transformer, str) and transformer == "drop":
                columns.update(str(c if isinstance(c, str) else names[c]) for c in dropped)
    return frozenset(columns)


def _types(schema: Features, rows: Rows | None, *, by_column: bool, is_text: bool) -> list[tuple[str, Any]]:
    """Return the inputs: one of numbers (or of texts), or one for each column.

    Whole numbers are floats too: they may be missing.
    """
    if rows is None or is_text:
        return [(INPUT, (StringTensorType if is_text else DoubleTensorType)([None, schema.count]))]
    number = FloatTensorType if rows.dtype == SINGLE else DoubleTensorType
    kinds = [StringTensorType if words else number for words in rows.has_words]
    if by_column:
        return [(rows.column_name(i), kind([None, 1])) for i, kind in enumerate(kinds)]
    return [(INPUT, kinds[0]([None, len(kinds)]))]


def _splits_columns(model: Any, rows: Rows | None) -> bool:
    """Tell whether the model reads columns by name, or they have different types."""
    by_name = any(
        not callable(columns) and any(isinstance(c, str) for c in np.atleast_1d(columns))
        for estimator in _estimators(model)
        for _, _, columns in getattr(estimator, "transformers_", ())
    )
    return by_name or (rows is not None and 0 < sum(rows.has_words) < len(rows.columns))


def _feature_groups(model: Any) -> list[list[int]]:
    """Return the columns that each transformer of the first ColumnTransformer reads."""
    count = getattr(model, "n_features_in_", None)
    for estimator in _estimators(model):
        if hasattr(estimator, "_transformer_to_input_indices") and estimator.n_features_in_ == count:
            return [list(map(int, columns)) for columns in estimator._transformer_to_input_indices.values()]
    return []


def _estimators(model: Any) -> Iterator[Any]:
    """Yield the estimators inside a model, also fitted ones that no parameter names."""
    seen, waiting = set[int](), [model]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, np.ndarray) and value.dtype == object:
            waiting += list(value.reshape(-1))
        elif (holds_estimators(value) or _reader(value)) and id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting += () if _reader(value) else vars(value).values()


def _reader(estimator: Any) -> str | None:
    """Return the module that reads a booster; None for any other part."""
    full = f"{type(estimator).__module__}.{type(estimator).__name__}."
    libraries = (library for name, library in LIBRARIES.items() if full.startswith(f"{name}."))
    return next((library.module for library in libraries if library.is_part), None)


def _library(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]


def _register(estimator: Any) -> None:
    """Register a part's class with skl2onnx if this package reads it."""
    shapes, options = _shapes, None
    if is_classifier(estimator):
        shapes = calculate_linear_classifier_output_shapes
        options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
        if hasattr(estimator, "decision_function"):
            options["raw_scores"] = [True, False]
    kind = type(estimator)
    alias = f"{_library(estimator)}{kind.__name__}"
    update_registered_converter(
        kind, alias, shapes, _convert_booster, parser=_declare_outputs, options=options
    )


def _declare_outputs(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:  # noqa: ARG001 (skl2onnx calls parsers so)
    """Declare the outputs, whichever class the model derives from."""
    operator = scope.declare_local_operator(sklearn_operator_name_map[type(model)], model)
    operator.inputs, numbers = inputs, guess_tensor_type(inputs[0].type)
    ends = [("label", Int64TensorType()), ("probabilities", numbers)]
    for name, kind in ends if is_classifier(model) else [("variable", numbers)]:
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _shapes(operator: Any) -> None:
    """Set the number of columns of a model that answers numbers."""
    columns = len(import_module(str(_reader(operator.raw_operator))).read_trees(operator.raw_operator).base)
    operator.outputs[0].type = operator.outputs[0].type.__class__([None, columns])


def _convert_booster(scope: Any, operator: Any, container: Any) -> None:
    """Add a booster's nodes to those of a pipeline."""
    estimator = operator.raw_operator
    library = import_module(str(_reader(estimator)))
    nodes, boosted, table = Nodes(), library.read_trees(estimator), library.read_table(estimator)
    if table.by_column:
        raise UnsupportedModelError(
            f"{_library(estimator)}.{type(estimator).__name__} reads columns with a categorical pandas "
            "type from the step before it, which ONNX does not have. Encode them as numbers in that step, "
            "or compile the booster alone."
        )
    if _is_set(container, estimator, "nocl"):
        boosted = replace(boosted, classes=np.arange(len(boosted.classes)))
    if _is_set(container, estimator, "raw_scores"):
        boosted = replace(boosted, link="NONE")
    read, ends = operator.inputs[0].full_name, [value.full_name for value in operator.outputs]
    is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
    x = read if is_double else nodes.cast(read, SINGLE)
    if is_double and boosted.dtype == DOUBLE and not operator.inputs[0].is_root:
        boosted = with_margins(boosted)
    results = [
        f"/{name}" if isinstance(v.type, DoubleTensorType) else name
        for name, v in zip(ends, operator.outputs, strict=True)
    ]
    nodes.add_trees(boosted, x, table.count, results, DOUBLE if is_double else SINGLE)
    for result, name in zip(results, ends, strict=True):
        if result != name:
            nodes.cast(result, DOUBLE, name)
    names = {read: read} | {name: name for name in ends}
    for constant in nodes.constants:
        names[constant.name] = scope.get_unique_variable_name(constant.name.strip("/"))
        array = onnx.numpy_helper.to_array(constant)
        container.add_initializer(
            names[constant.name], constant.data_type, constant.dims, array.reshape(-1).tolist()
        )
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


def _is_set(container: Any, estimator: Any, option: str) -> bool:
    """Tell whether an option is set; false if the part has no such option."""
    options = container.get_options(estimator, {option: False}, fail=False)
    return bool(options and options[option])


def _whole(rows: Rows) -> np.ndarray:
    """Return [K, F] in the ONNX model's form."""
    return np.concatenate([rows.onnx_column(i) for i in range(len(rows.columns))], axis=1)


def _answers(model: Any, rows: Any) -> Iterator[np.ndarray | None]:
    """Yield a classifier's labels, then probabilities or scores, as its ONNX model; else numbers."""
    answer = np.asarray(model.predict(rows))
    yield answer
    if is_classifier(model) or is_outlier_detector(model):
        predict = getattr(model, "predict_proba", None) or getattr(model, "decision_function", None)
        yield None if predict is None else np.asarray(predict(rows))


def _fitted_rows(model: Any, rows: Rows, *, is_text: bool) -> Any:
    """Return rows in the fitted model's form: texts, a frame, or an array."""
    if is_text:
        return rows.columns[0]
    return rows.frame() if hasattr(model, "feature_names_in_") else _array(rows)


def _array(rows: Rows) -> np.ndarray:
    if not any(rows.has_words):
        return rows.numbers()
    return np.stack([column.astype(object) for column in rows.columns], axis=1)
