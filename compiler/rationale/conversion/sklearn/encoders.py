"""Encoders and imputers of texts in scikit-learn's pipelines, with the settings that skl2onnx leaves out.

In a graph a missing text is an empty one. The graph answers any text; texts that scikit-learn refuses are
refused before they reach it.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from skl2onnx.common.data_types import Int64TensorType, StringTensorType

from rationale.conversion.sklearn.operators import Convert, add_node
from rationale.errors import UnsupportedModelError
from rationale.tables.frames import as_text

_INFREQUENT = "infrequent_sklearn"  # scikit-learn's name for their column
_NONE = "\0"  # no category
_ML: dict[str, Any] = {"op_domain": "ai.onnx.ml", "op_version": 2}


def reads_texts(operator: Any) -> bool:
    """Tell whether a step reads texts alone."""
    return all(isinstance(value.type, StringTensorType) for value in operator.inputs)


def one_hot(convert: Convert) -> Convert:
    """Wrap skl2onnx's converter: rare categories share a column, and an unknown one sets none."""

    def convert_one_hot(scope: Any, operator: Any, container: Any) -> None:
        encoder, inputs = operator.raw_operator, list(operator.inputs)
        operator.raw_operator = plain = _without_rare(encoder)
        if reads_texts(operator):
            operator.inputs = [_grouped_texts(encoder, plain, scope, operator, container)]
        convert(scope, operator, container)
        operator.raw_operator, operator.inputs = encoder, inputs

    return convert_one_hot


def one_hot_shapes(original_shapes: Callable[[Any], None]) -> Callable[[Any], None]:
    """Set the columns that scikit-learn makes, in the type that skl2onnx gives them."""

    def shapes(operator: Any) -> None:
        original_shapes(operator)
        rows = operator.outputs[0].type.shape[0]
        operator.outputs[0].type.shape = [rows, sum(operator.raw_operator._n_features_outs)]

    return shapes


def by_type(convert_numbers: Convert, convert_texts: Convert) -> Convert:
    """Convert a step by `of_words` if it reads texts, else by `known`."""

    def convert(scope: Any, operator: Any, container: Any) -> None:
        (convert_texts if reads_texts(operator) else convert_numbers)(scope, operator, container)

    return convert


def encode(scope: Any, operator: Any, container: Any) -> None:
    """Convert an OrdinalEncoder or a TargetEncoder of texts, with the encoder's answer to each category."""
    encoder, numbers = operator.raw_operator, list[str]()
    if getattr(encoder, "target_type_", "binary") == "multiclass":
        raise UnsupportedModelError("sklearn.TargetEncoder of more than two classes: use OneHotEncoder.")
    for i, column in enumerate(_columns(scope, operator, container)):
        keys, values = list[str](), list[float]()
        for category in encoder.categories_[i]:
            if (text := as_text(category)) not in keys:
                keys.append(text)
                values.append(_code(encoder, i, category))
        code, default = scope.get_unique_variable_name("coded"), _unknown_code(encoder, i)
        settings = {"keys_strings": keys, "values_floats": values, "default_float": default}
        numbers.append(add_node(scope, container, "LabelEncoder", [column], code, **_ML, **settings))
    joined, (result,) = scope.get_unique_variable_name("codes"), operator.outputs
    add_node(scope, container, "Concat", numbers, joined, axis=1)
    kind = result.type._get_element_onnx_type()
    add_node(scope, container, "Cast", [joined], result.full_name, to=kind)


def impute_texts(convert: Convert) -> Convert:
    """Convert an imputer of texts as skl2onnx does, with the empty text as the missing value."""

    def convert_texts(scope: Any, operator: Any, container: Any) -> None:
        imputer, inputs = operator.raw_operator, list(operator.inputs)
        operator.raw_operator = copy.copy(imputer)
        operator.inputs = [_join_columns(list(_columns(scope, operator, container)), scope, container)]
        if not isinstance(imputer.missing_values, str):
            operator.raw_operator.missing_values = ""
        convert(scope, operator, container)
        operator.raw_operator, operator.inputs = imputer, inputs

    return convert_texts


def _without_rare(encoder: Any) -> Any:
    """Return an encoder with rare categories as one, and a missing one as an empty text."""
    plain = copy.copy(encoder)
    plain.handle_unknown = "ignore"
    if any(isinstance(category, str) for categories in encoder.categories_ for category in categories):
        groups = [
            encoder._compute_transformed_categories(i, remove_dropped=False)
            for i in range(len(encoder.categories_))
        ]
        plain.categories_ = [np.array(list(map(as_text, categories)), object) for categories in groups]
        plain.drop_idx_, plain._infrequent_enabled = encoder._drop_idx_after_grouping, False
    return plain


def _grouped_texts(encoder: Any, plain: Any, scope: Any, operator: Any, container: Any) -> Any:
    """Return a variable of the texts, with one name for all rare ones."""
    columns = list(_columns(scope, operator, container))
    rare = getattr(encoder, "infrequent_categories_", [None] * len(columns))
    takes = encoder.handle_unknown in ("infrequent_if_exist", "warn")
    for i, (names, rare_categories) in enumerate(zip(plain.categories_, rare, strict=True)):
        if rare_categories is None:
            continue
        named = {name: name for name in names if name != _INFREQUENT}
        named |= dict.fromkeys(map(as_text, rare_categories), _INFREQUENT)
        grouped, default = scope.get_unique_variable_name("grouped"), _INFREQUENT if takes else _NONE
        groups = {"keys_strings": list(named), "values_strings": list(named.values())}
        settings = {**_ML, **groups, "default_string": default}
        columns[i] = add_node(scope, container, "LabelEncoder", [columns[i]], grouped, **settings)
    return _join_columns(columns, scope, container)


def _columns(scope: Any, operator: Any, container: Any) -> Iterator[str]:
    """Yield the columns [N, 1] that a step reads."""
    for value in operator.inputs:
        count = value.type.shape[1]
        for i in range(count):
            if count == 1:
                yield value.full_name
                continue
            index, column = (scope.get_unique_variable_name(name) for name in ("index", "column"))
            container.add_initializer(index, Int64TensorType()._get_element_onnx_type(), [1], [i])
            yield add_node(scope, container, "Gather", [value.full_name, index], column, axis=1)


def _join_columns(columns: Sequence[str], scope: Any, container: Any) -> Any:
    """Return a variable that joins columns of texts."""
    joined = scope.declare_local_variable("texts", StringTensorType([None, len(columns)]))
    add_node(scope, container, "Concat", columns, joined.full_name, axis=1)
    return joined


def _code(encoder: Any, i: int, category: Any) -> float:
    """Return the encoder's number for a category of its column i."""
    row = np.array([[categories[0] for categories in encoder.categories_]], object)
    row[0, i] = category
    plain = copy.copy(encoder)
    vars(plain).pop("feature_names_in_", None)
    vars(plain).pop("_sklearn_output_config", None)
    return float(np.asarray(plain.transform(row))[0, i])


def _unknown_code(encoder: Any, i: int) -> float:
    try:
        return _code(encoder, i, _NONE)
    except ValueError:  # it refuses unknown categories
        return float("nan")
