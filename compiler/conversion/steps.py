"""Steps of scikit-learn's pipelines that skl2onnx converts otherwise than scikit-learn computes them, or not.

Scalers and functions are computed in double: rounded to float32 in between, a number may cross a threshold.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from skl2onnx import update_registered_converter
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
from skl2onnx.common._registration import get_converter, get_shape_calculator
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType
from skl2onnx.operator_converters.common import concatenate_variables
from skl2onnx.shape_calculators.scaler import calculate_sklearn_scaler_output_shapes
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

from compiler.errors import UnsupportedModelError

Convert = Callable[[Any, Any, Any], None]
_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
_MISSING = "nodes_missing_value_tracks_true"


def register() -> None:
    """Register the converters here with skl2onnx; as documented there, for the whole process."""
    for kind in _SCALERS:
        _tell(kind, _scaler, calculate_sklearn_scaler_output_shapes)
    _tell(FunctionTransformer, _function, _function_shapes)
    _tell(SimpleImputer, _imputer, _imputer_shapes)
    _tell(MissingIndicator, _indicator, _indicator_shapes)
    for kind in _TREES:
        _tell(kind, _keeping_missing(_known[kind]), get_shape_calculator(sklearn_operator_name_map[kind]))


def _tell(kind: type, convert: Convert, shapes: Callable[[Any], None]) -> None:
    alias = sklearn_operator_name_map.get(kind, f"Sklearn{kind.__name__}")
    known = _known.get(kind)
    options = None if known is None else known.get_allowed_options()
    update_registered_converter(kind, alias, shapes, convert, overwrite=True, options=options)


def check(part: Any) -> None:
    """Raise UnsupportedModelError for a fitted part that skl2onnx would make something else of."""
    name = type(part).__name__
    if isinstance(part, CalibratedClassifierCV) and part.method == "isotonic":
        raise UnsupportedModelError(
            f"sklearn.{name}(method='isotonic'): skl2onnx makes steps of what is interpolated between them. "
            "Calibrate by method='sigmoid', or explain the estimator alone."
        )


def unknown(error: Exception) -> UnsupportedModelError:
    """Return what stands for skl2onnx's word that it has no converter."""
    found = re.search(r"<class '([\w.]+)'>", str(error))
    name = "a step" if found is None else found[1].rpartition(".")[2]
    return UnsupportedModelError(
        f"sklearn.{name}: skl2onnx knows no such step. {_INSTEAD.get(name, _BEFORE)}"
    )


_BEFORE = "Compute its columns before the pipeline, and give the steps behind it as the model."
_INSTEAD = {
    "IterativeImputer": "Impute by SimpleImputer(add_indicator=True), or before the pipeline.",
    "SplineTransformer": "Use KBinsDiscretizer or PolynomialFeatures.",
    "TransformedTargetRegressor": "Give its regressor_, whose answers are those before inverse_func.",
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


def _in_double(steps: Any, scope: Any, operator: Any, container: Any) -> None:
    """Add a cast to double, steps (operator, numbers …) in their order, and a cast to what is due."""
    version = container.target_opset
    x: Any = OnnxCast(_joined(scope, operator, container), to=_DOUBLE, op_version=version)
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
        known = ", ".join(f"np.{function.__name__}" for function in _FUNCTIONS)
        name = getattr(given.func, "__name__", type(given.func).__name__)
        raise UnsupportedModelError(
            f"sklearn.FunctionTransformer of {name}: what a Python function computes is not known. Write it "
            f"with {known}, one each, or compute its columns before the pipeline."
        )
    calculate_sklearn_scaler_output_shapes(operator)


# -- missing values ----------------------------------------------------------------------------------------


def _gaps(x: Any, places: np.ndarray, version: int) -> Any:
    """Return 1 where a number is missing, of some columns."""
    taken = OnnxGather(x, np.asarray(places, np.int64), axis=1, op_version=version)
    return OnnxCast(OnnxIsNaN(taken, op_version=version), to=_DOUBLE, op_version=version)


def _imputer(scope: Any, operator: Any, container: Any) -> None:
    """Convert an imputer: numbers in double, with what is missing in them apart; words as skl2onnx has it."""
    imputer = operator.raw_operator
    if not _is_ours(operator):
        _known[SimpleImputer](scope, operator, container)
        return
    version = container.target_opset
    x = OnnxCast(_joined(scope, operator, container), to=_DOUBLE, op_version=version)
    held = np.asarray(imputer.statistics_, np.float64)
    whole = OnnxWhere(OnnxIsNaN(x, op_version=version), held, x, op_version=version)
    gaps = _gaps(x, imputer.indicator_.features_, version)
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
    gaps = _gaps(_joined(scope, operator, container), operator.raw_operator.features_, container.target_opset)
    _answer(gaps, scope, operator, container)


def _indicator_shapes(operator: Any) -> None:
    _check_missing(operator.raw_operator)
    operator.outputs[0].type = FloatTensorType([None, len(operator.raw_operator.features_)])


def _check_missing(step: Any) -> None:
    if not (isinstance(step.missing_values, float) and np.isnan(step.missing_values)):
        raise UnsupportedModelError(
            f"sklearn.{type(step).__name__}(missing_values={step.missing_values!r}): only NaN is told as "
            "missing. Write NaN for it before the pipeline."
        )


def _keeping_missing(convert: Convert) -> Convert:
    """Convert trees as skl2onnx does, and with the side that a missing value takes, which it leaves out."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        first = len(container.nodes)
        convert(scope, operator, container)
        model = operator.raw_operator
        trees = [one.tree_ for one in getattr(model, "estimators_", [model])]
        for node in container.nodes[first:]:
            told = {attribute.name: attribute for attribute in node.attribute}
            if _MISSING in told:
                places = zip(told["nodes_treeids"].ints, told["nodes_nodeids"].ints, strict=True)
                sides = [int(trees[tree].missing_go_to_left[place]) for tree, place in places]
                told[_MISSING].ints[:] = sides

    return converted


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
    for kind in (*_SCALERS, FunctionTransformer, SimpleImputer, *_TREES)
}
_shapes_of_functions = get_shape_calculator(sklearn_operator_name_map[FunctionTransformer])
_shapes_of_imputers = get_shape_calculator(sklearn_operator_name_map[SimpleImputer])
