"""Steps of scikit-learn's pipelines that skl2onnx converts otherwise than scikit-learn computes them, or not.

Scalers and functions are computed in double: rounded to float32 in between, a number may cross a threshold.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import onnx
from skl2onnx import update_registered_converter
from skl2onnx._parse import sklearn_parsers_map
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.algebra.onnx_ops import (
    OnnxAbs,
    OnnxAdd,
    OnnxCast,
    OnnxCeil,
    OnnxClip,
    OnnxConcat,
    OnnxCos,
    OnnxDiv,
    OnnxEqual,
    OnnxExp,
    OnnxFloor,
    OnnxGather,
    OnnxIsNaN,
    OnnxLog,
    OnnxMul,
    OnnxNeg,
    OnnxReciprocal,
    OnnxSign,
    OnnxSin,
    OnnxSqrt,
    OnnxSub,
    OnnxTanh,
    OnnxWhere,
)
from skl2onnx.common._registration import (
    _converter_pool,
    _shape_calculator_pool,
    get_converter,
    get_shape_calculator,
)
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType
from skl2onnx.operator_converters.common import concatenate_variables
from skl2onnx.operator_converters.feature_selection import convert_sklearn_feature_selection
from skl2onnx.shape_calculators.scaler import calculate_sklearn_scaler_output_shapes
from sklearn.base import ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

from rationale.conversion.classifiers import CLASSIFIERS, NEW, Convert
from rationale.conversion.refusals import has_categories, refusal
from rationale.errors import UnsupportedModelError

_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
_MISSING = "nodes_missing_value_tracks_true"
_tables = (sklearn_operator_name_map, sklearn_parsers_map, _converter_pool, _shape_calculator_pool)
_one_at_a_time = threading.RLock()


@contextmanager
def converters() -> Iterator[None]:
    """Register the converters here with skl2onnx, and leave its tables as they were found.

    skl2onnx knows converters by tables of the whole process: what stayed in them would change what a user's
    own calls of it make. One conversion at a time reads them.
    """
    with _one_at_a_time:
        found = [dict(table) for table in _tables]
        try:
            _register()
            yield
        finally:
            for table, before in zip(_tables, found, strict=True):
                table.clear()
                table.update(before)


def _register() -> None:
    for kind in _SCALERS:
        _register_as(kind, _scaler, calculate_sklearn_scaler_output_shapes)
    _register_as(FunctionTransformer, _function, _function_shapes)
    _register_as(SimpleImputer, _imputer, _imputer_shapes)
    _register_as(TransformedTargetRegressor, _target, _target_shapes)
    _register_as(MissingIndicator, _indicator, _indicator_shapes)
    for kind in _TREES:
        _register_as(
            kind, _keeping_missing(_known[kind]), get_shape_calculator(sklearn_operator_name_map[kind])
        )
    for kind, convert in CLASSIFIERS.items():
        shapes = get_shape_calculator(sklearn_operator_name_map[kind])
        _register_as(kind, convert, shapes, f"Sklearn{kind.__name__}")  # another's converter stays as it is
    for kind, (convert, shapes) in NEW.items():
        _register_as(kind, convert, shapes, f"Sklearn{kind.__name__}")
    _register_as(
        SequentialFeatureSelector, convert_sklearn_feature_selection, get_shape_calculator("SklearnRFE")
    )


def _register_as(
    kind: type, convert: Convert, shapes: Callable[[Any], None], alias: str | None = None
) -> None:
    alias = alias or sklearn_operator_name_map.get(kind, f"Sklearn{kind.__name__}")
    known = _known.get(kind)
    options = None if known is None else known.get_allowed_options()
    if kind in CLASSIFIERS:
        options = {**(options or {}), "zipmap": [True, False, "columns"]}
    if kind in NEW and issubclass(kind, ClassifierMixin):
        options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    update_registered_converter(kind, alias, shapes, convert, overwrite=True, options=options)


def check(part: Any) -> None:
    """Raise UnsupportedModelError for a fitted part that skl2onnx would make something else of."""
    name = type(part).__name__
    if has_categories(part):
        raise UnsupportedModelError(
            f"catboost.{name} with cat_features, inside of another estimator: give the model of CatBoost, "
            "with rows as they come to it, or encode its categories as numbers before it is fitted."
        )
    if not any(attribute.endswith("_") for attribute in vars(part)):
        return  # what a fitted part was cloned from
    if isinstance(part, CalibratedClassifierCV) and part.method == "isotonic" and len(part.classes_) > 2:
        raise UnsupportedModelError(
            f"sklearn.{name}(method='isotonic') of more than two classes: skl2onnx makes steps of what is "
            "interpolated between them. Calibrate by method='sigmoid', or explain the estimator alone."
        )
    if isinstance(part, TargetEncoder) and len({_has_words(own) for own in part.categories_}) > 1:
        raise UnsupportedModelError(
            f"sklearn.{name} of words and numbers together: skl2onnx makes words of the numbers. Fit one for "
            "each kind."
        )
    if isinstance(part, KNNImputer):
        raise UnsupportedModelError(
            f"sklearn.{name}: of rows that are equally near, scikit-learn takes whichever its sort leaves in "
            "front, which no graph repeats. Use SimpleImputer(add_indicator=True), or impute in front."
        )
    if isinstance(part, StackingClassifier) and "predict" in part.stack_method_:
        raise UnsupportedModelError(
            f"sklearn.{name} of labels: skl2onnx stacks scores. Fit it with stack_method='auto', and on "
            "estimators that have probabilities or a decision_function."
        )
    if isinstance(part, StackingClassifier) and not hasattr(part, "predict_proba"):
        raise UnsupportedModelError(
            f"sklearn.{name} with a final_estimator without probabilities: skl2onnx takes its margins for "
            "those. End in one with predict_proba, such as LogisticRegression."
        )
    if isinstance(part, TransformedTargetRegressor):
        _inverse(part.transformer_)
    if (reason := refusal(part)) is not None:
        raise UnsupportedModelError(f"sklearn.{name}{reason}")


def _has_words(categories: np.ndarray) -> bool:
    return any(isinstance(category, str) for category in categories)


def unknown(error: Exception, parts: Iterable[Any]) -> UnsupportedModelError | None:
    """Return our error for skl2onnx's "no converter" error; None for any other error."""
    found = re.search(r"<class '([\w.]+)'>", str(error))
    if found is None:
        return None
    package, *_, name = found[1].split(".")
    predicts = any(hasattr(part, "predict") for part in parts if type(part).__name__ == name)
    what, advice = ("model", _OTHER) if predicts else ("step", _BEFORE)
    advice = _INSTEAD.get(name) or _INSTEAD.get(package, advice)
    return UnsupportedModelError(f"{package}.{name}: skl2onnx knows no such {what}. {advice}")


_OTHER = "Fit one of the kinds that docs/trees.md lists, or convert it yourself and compile that file."
_BEFORE = "Compute its columns before the pipeline, and give the steps behind it as the model."
_CARD = "fit optbinning's Scorecard(BinningProcess(names), LogisticRegression()), which is converted."
_INSTEAD = {  # by step, or by package
    **dict.fromkeys(("category_encoders", "feature_engine"), f"Use sklearn's TargetEncoder, or {_CARD}"),
    "optbinning": f"Instead of the pipeline, {_CARD}",
    "IterativeImputer": "Impute by SimpleImputer(add_indicator=True), or before the pipeline.",
    "sksurv": "Fit XGBoost with objective='survival:cox' or 'survival:aft', which is converted.",
    "skorch": "Give the net itself, with rows as they come to it: pipeline[:-1].transform(rows).",
    "SplineTransformer": "Use KBinsDiscretizer or PolynomialFeatures.",
}


def _joined(scope: Any, operator: Any, container: Any) -> Any:
    """Return what an operator reads, as one tensor."""
    names = [value.full_name for value in operator.inputs]
    return concatenate_variables(scope, operator.inputs, container) if len(names) > 1 else names[0]


def _answer(x: Any, scope: Any, operator: Any, container: Any) -> None:
    """End an operator in `x`, in the type that is due."""
    (result,) = operator.outputs
    kind = _DOUBLE if isinstance(result.type, DoubleTensorType) else _FLOAT
    version = container.target_opset
    OnnxCast(x, to=kind, op_version=version, output_names=[result.full_name]).add_to(scope, container)


def _columns(operator: Any) -> int:
    return sum(value.type.shape[1] for value in operator.inputs)


# -- scalers and functions ---------------------------------------------------------------------------------


def _in_double(steps: Any, scope: Any, operator: Any, container: Any, x: str | None = None) -> None:
    """Add a cast to double, steps (operator, numbers …) in their order, and a cast to what is due."""
    version = container.target_opset
    x = OnnxCast(x or _joined(scope, operator, container), to=_DOUBLE, op_version=version)
    for step, *numbers in steps:
        given = [x if n is _X else np.asarray(n, np.float64) for n in numbers]
        x = step(x, *given, op_version=version)
    _answer(x, scope, operator, container)


def _scaler(scope: Any, operator: Any, container: Any) -> None:
    scaler = operator.raw_operator
    _in_double(_SCALERS[type(scaler)](scaler), scope, operator, container)


def _centred(centre: np.ndarray | None, scale: np.ndarray | None) -> Iterator[tuple[Any, ...]]:
    if centre is not None:
        yield OnnxSub, centre
    if scale is not None:
        yield OnnxDiv, scale


def _into_range(scaler: MinMaxScaler) -> Iterator[tuple[Any, ...]]:
    yield OnnxMul, scaler.scale_
    yield OnnxAdd, scaler.min_
    if scaler.clip:
        yield OnnxClip, *scaler.feature_range


_SCALERS: dict[type, Callable[[Any], Iterator[tuple[Any, ...]]]] = {
    StandardScaler: lambda s: _centred(s.mean_ if s.with_mean else None, s.scale_),
    RobustScaler: lambda s: _centred(s.center_, s.scale_),
    MaxAbsScaler: lambda s: _centred(None, s.scale_),
    MinMaxScaler: _into_range,
}

_BACK = {OnnxSub: OnnxAdd, OnnxAdd: OnnxSub, OnnxDiv: OnnxMul, OnnxMul: OnnxDiv}
_X = object()  # what comes in, as the second operand too
_FUNCTIONS: dict[Any, tuple[tuple[Any, ...], ...]] = {
    np.abs: ((OnnxAbs,),),
    np.ceil: ((OnnxCeil,),),
    np.cos: ((OnnxCos,),),
    np.exp: ((OnnxExp,),),
    np.expm1: ((OnnxExp,), (OnnxSub, 1)),
    np.floor: ((OnnxFloor,),),
    np.log: ((OnnxLog,),),
    np.log10: ((OnnxLog,), (OnnxDiv, np.log(10))),
    np.log1p: ((OnnxAdd, 1), (OnnxLog,)),
    np.log2: ((OnnxLog,), (OnnxDiv, np.log(2))),
    np.negative: ((OnnxNeg,),),
    np.reciprocal: ((OnnxReciprocal,),),
    np.sign: ((OnnxSign,),),
    np.sin: ((OnnxSin,),),
    np.sqrt: ((OnnxSqrt,),),
    np.square: ((OnnxMul, _X),),
    np.tanh: ((OnnxTanh,),),
}


def _function(scope: Any, operator: Any, container: Any) -> None:
    function = operator.raw_operator.func
    if function is None:
        _known[FunctionTransformer](scope, operator, container)
    else:
        _in_double(_FUNCTIONS[function], scope, operator, container)


def _function_shapes(operator: Any) -> None:
    given = operator.raw_operator
    if given.func is None:
        _shapes_of_functions(operator)
        return
    if given.func not in _FUNCTIONS or given.kw_args:
        raise UnsupportedModelError(
            f"sklearn.FunctionTransformer of {_called(given.func)}: what a Python function computes is "
            f"not known. Write it with {_known_functions()}, one each, or compute its columns before the "
            "pipeline."
        )
    calculate_sklearn_scaler_output_shapes(operator)


def _called(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _known_functions() -> str:
    return ", ".join(f"np.{function.__name__}" for function in _FUNCTIONS)


def _inverse(transformer: Any) -> list[tuple[Any, ...]]:
    """Return the steps back from a transformed target."""
    if type(transformer) in _SCALERS:
        steps = [*_SCALERS[type(transformer)](transformer)][::-1]
        return [(_BACK[step], *numbers) for step, *numbers in steps if step in _BACK]
    function = getattr(transformer, "inverse_func", transformer)
    if function is None:
        return []
    if getattr(transformer, "inv_kw_args", None) or function not in _FUNCTIONS:
        raise UnsupportedModelError(
            f"sklearn.TransformedTargetRegressor back by {_called(function)}: only {_known_functions()} are "
            "known as inverse_func, and scalers as transformer. Use one of them, or give its regressor_, "
            "whose answers are those before the way back."
        )
    return list(_FUNCTIONS[function])


def _target(scope: Any, operator: Any, container: Any) -> None:
    """Return the regressor, and the way back from its target."""
    model = operator.raw_operator
    inner = scope.declare_local_operator(sklearn_operator_name_map[type(model.regressor_)], model.regressor_)
    inner.inputs = operator.inputs
    inner.outputs.append(scope.declare_local_variable("target", FloatTensorType()))
    _in_double(_inverse(model.transformer_), scope, operator, container, inner.outputs[0].full_name)


def _target_shapes(operator: Any) -> None:
    columns = 1 if operator.raw_operator._training_dim == 1 else None
    operator.outputs[0].type = FloatTensorType([None, columns])


# -- missing values ----------------------------------------------------------------------------------------


def _missing(step: Any, x: Any, version: int) -> Any:
    """Tell whether a number is missing."""
    if np.isnan(step.missing_values):
        return OnnxIsNaN(x, op_version=version)
    return OnnxEqual(x, np.asarray([step.missing_values], np.float64), op_version=version)


def _gaps(step: Any, x: Any, columns: np.ndarray, version: int) -> Any:
    """Return 1 where a number is missing, of some columns."""
    taken = OnnxGather(x, np.asarray(columns, np.int64), axis=1, op_version=version)
    return OnnxCast(_missing(step, taken, version), to=_DOUBLE, op_version=version)


def _imputer(scope: Any, operator: Any, container: Any) -> None:
    """Convert an imputer: numbers in double, with what is missing in them apart; words as skl2onnx has it."""
    imputer = operator.raw_operator
    if not _is_ours(operator):
        _known[SimpleImputer](scope, operator, container)
        return
    version = container.target_opset
    x = OnnxCast(_joined(scope, operator, container), to=_DOUBLE, op_version=version)
    fill = np.asarray(imputer.statistics_, np.float64)
    whole = OnnxWhere(_missing(imputer, x, version), fill, x, op_version=version)
    gaps = _gaps(imputer, x, imputer.indicator_.features_, version)
    _answer(OnnxConcat(whole, gaps, axis=1, op_version=version), scope, operator, container)


def _imputer_shapes(operator: Any) -> None:
    if not _is_ours(operator):
        _shapes_of_imputers(operator)
        return
    imputer = operator.raw_operator
    _check_missing(imputer)
    if isinstance(operator.inputs[0].type, StringTensorType) or np.isnan(imputer.statistics_).any():
        raise UnsupportedModelError(
            "sklearn.SimpleImputer(add_indicator=True) of words, or of a column without any value: give "
            "numbers, and drop the column."
        )
    columns = _columns(operator) + len(imputer.indicator_.features_)
    operator.outputs[0].type = type(operator.inputs[0].type)([None, columns])


def _is_ours(operator: Any) -> bool:
    return operator.raw_operator.indicator_ is not None


def _indicator(scope: Any, operator: Any, container: Any) -> None:
    indicator, version = operator.raw_operator, container.target_opset
    x = OnnxCast(_joined(scope, operator, container), to=_DOUBLE, op_version=version)
    gaps = _gaps(indicator, x, indicator.features_, version)
    _answer(gaps, scope, operator, container)


def _indicator_shapes(operator: Any) -> None:
    _check_missing(operator.raw_operator)
    operator.outputs[0].type = FloatTensorType([None, len(operator.raw_operator.features_)])


def _check_missing(step: Any) -> None:
    if not isinstance(step.missing_values, Real):
        raise UnsupportedModelError(
            f"sklearn.{type(step).__name__}(missing_values={step.missing_values!r}): only a number is known "
            "as the mark of what is missing. Write NaN for it before the pipeline."
        )


def _keeping_missing(convert: Convert) -> Convert:
    """Convert trees as skl2onnx does, and with the side that a missing value takes, which it leaves out."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        first = len(container.nodes)
        convert(scope, operator, container)
        model = operator.raw_operator
        trees = [one.tree_ for one in getattr(model, "estimators_", [model])]
        for node in container.nodes[first:]:
            attributes = {attribute.name: attribute for attribute in node.attribute}
            if _MISSING in attributes:
                ids = (attributes[name].ints for name in ("nodes_treeids", "nodes_nodeids"))
                sides = [int(trees[tree].missing_go_to_left[node]) for tree, node in zip(*ids, strict=True)]
                attributes[_MISSING].ints[:] = sides

    return converted


# -- classifiers -------------------------------------------------------------------------------------------


_TREES = (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
_known = {
    kind: get_converter(sklearn_operator_name_map[kind])
    for kind in (*_SCALERS, FunctionTransformer, SimpleImputer, *CLASSIFIERS, *_TREES)
}
_shapes_of_functions = get_shape_calculator(sklearn_operator_name_map[FunctionTransformer])
_shapes_of_imputers = get_shape_calculator(sklearn_operator_name_map[SimpleImputer])
