"""Steps of scikit-learn's pipelines that skl2onnx does not convert, or converts to something else.

Each is computed in scikit-learn's own type: float64 for float64, float32 for float32; trees take float32
alone. Rounded elsewhere, a number may cross a threshold.
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
from skl2onnx.common._registration import (
    _converter_pool,
    _shape_calculator_pool,
    get_converter,
    get_shape_calculator,
)
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, Int64TensorType, StringTensorType
from skl2onnx.operator_converters.common import concatenate_variables
from skl2onnx.operator_converters.feature_selection import convert_sklearn_feature_selection
from skl2onnx.shape_calculators.scaler import calculate_sklearn_scaler_output_shapes
from sklearn.base import ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import Perceptron, RidgeClassifier
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVR, LinearSVC, NuSVC, NuSVR, OneClassSVM
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

from rationale.conversion.sklearn import encoders
from rationale.conversion.sklearn.classifiers import CLASSIFIERS, NEW
from rationale.conversion.sklearn.operators import Convert, Ops
from rationale.conversion.sklearn.ordinals import ordinal_shapes, ordinals
from rationale.conversion.sklearn.refusals import has_categories, refusal
from rationale.conversion.sklearn.vectorisers import counts, weights
from rationale.errors import UnsupportedModelError

_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
_MISSING = "nodes_missing_value_tracks_true"
_tables = (sklearn_operator_name_map, sklearn_parsers_map, _converter_pool, _shape_calculator_pool)
_conversion_lock = threading.RLock()


@contextmanager
def converters() -> Iterator[None]:
    """Register these converters with skl2onnx, and restore its tables afterwards.

    skl2onnx's tables belong to the whole process: an entry left there would change a user's own conversions.
    One conversion at a time reads them.
    """
    with _conversion_lock:
        copies = [dict(table) for table in _tables]
        try:
            _register()
            yield
        finally:
            for table, before in zip(_tables, copies, strict=True):
                table.clear()
                table.update(before)


def _register() -> None:
    for kind in _SCALERS:
        _register_as(kind, _scaler, calculate_sklearn_scaler_output_shapes)
    _register_as(KBinsDiscretizer, _in_single(_skl2onnx[KBinsDiscretizer], takes_double=True))
    _register_as(Normalizer, _norms, calculate_sklearn_scaler_output_shapes)
    _register_as(PolynomialFeatures, _polynomial, _polynomial_shapes)
    _register_as(PowerTransformer, _power, calculate_sklearn_scaler_output_shapes)
    _register_as(FunctionTransformer, _function, _function_shapes)
    _register_as(SimpleImputer, _imputer, _imputer_shapes)
    _register_as(TransformedTargetRegressor, _target, _target_shapes)
    _register_as(MissingIndicator, _indicator, _indicator_shapes)
    for kind in _TREES:
        _register_as(kind, _in_single(_keeping_missing(_skl2onnx[kind])))
    # Under an alias of its own, another estimator's converter stays as it is.
    for kind in _FLOATS_ALONE | CLASSIFIERS.keys():
        convert = CLASSIFIERS.get(kind, _skl2onnx[kind])
        convert = _in_single(convert) if kind in _FLOATS_ALONE else convert
        _register_as(kind, convert, alias=f"Sklearn{kind.__name__}")
    for kind, (convert, shapes) in NEW.items():
        _register_as(kind, convert, shapes, f"Sklearn{kind.__name__}")
    _register_as(CountVectorizer, counts)  # TfidfVectorizer is this and the next
    _register_as(TfidfTransformer, weights)
    shapes = get_shape_calculator("SklearnRFE")
    _register_as(SequentialFeatureSelector, convert_sklearn_feature_selection, shapes)
    of_numbers = _in_categories(_skl2onnx[TargetEncoder])
    _register_as(TargetEncoder, encoders.by_type(of_numbers, encoders.encode), _target_encoder_shapes)
    _register_as(OrdinalEncoder, encoders.by_type(ordinals, encoders.encode), ordinal_shapes)
    shapes = encoders.one_hot_shapes(get_shape_calculator(sklearn_operator_name_map[OneHotEncoder]))
    _register_as(OneHotEncoder, encoders.one_hot(_skl2onnx[OneHotEncoder]), shapes)
    classifiers = {a for kind, a in sklearn_operator_name_map.items() if issubclass(kind, ClassifierMixin)}
    for alias in classifiers & _shape_calculator_pool.keys():
        _shape_calculator_pool[alias] = _typed_by_input(_shape_calculator_pool[alias])


def _register_as(
    kind: type, convert: Convert, shapes: Callable[[Any], None] | None = None, alias: str | None = None
) -> None:
    """Register a converter, with skl2onnx's own shapes and alias if none are given."""
    converter = _skl2onnx.get(kind)
    options = None if converter is None else converter.get_allowed_options()
    if kind in CLASSIFIERS:
        options = {**(options or {}), "zipmap": [True, False, "columns"]}
    if kind in NEW and issubclass(kind, ClassifierMixin):
        options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    shapes = shapes or get_shape_calculator(sklearn_operator_name_map[kind])
    alias = alias or sklearn_operator_name_map.get(kind, f"Sklearn{kind.__name__}")
    update_registered_converter(kind, alias, shapes, convert, overwrite=True, options=options)


def check_estimator(estimator: Any) -> None:
    """Raise UnsupportedModelError for a fitted part that skl2onnx would convert to something else."""
    name = type(estimator).__name__
    if has_categories(estimator):
        raise UnsupportedModelError(
            f"catboost.{name} with cat_features inside another estimator: compile the CatBoost model "
            "alone, with the rows that it receives, or encode its categories as numbers before you fit it."
        )
    if not any(attribute.endswith("_") for attribute in vars(estimator)):
        return  # the unfitted original of a part
    if (
        isinstance(estimator, CalibratedClassifierCV)
        and estimator.method == "isotonic"
        and len(estimator.classes_) > 2
    ):
        raise UnsupportedModelError(
            f"sklearn.{name}(method='isotonic') with more than two classes: skl2onnx converts the "
            "interpolation to steps. Calibrate with method='sigmoid', or explain the estimator alone."
        )
    if (
        isinstance(estimator, TargetEncoder)
        and len({_has_words(categories) for categories in estimator.categories_}) > 1
    ):
        raise UnsupportedModelError(
            f"sklearn.{name} of words and numbers together: skl2onnx converts the numbers to words. Fit one "
            "for each kind."
        )
    if isinstance(estimator, KNNImputer):
        raise UnsupportedModelError(
            f"sklearn.{name}: scikit-learn chooses between equally near rows by its sort order, which a "
            "graph cannot reproduce. Use SimpleImputer(add_indicator=True), or impute before the pipeline."
        )
    if isinstance(estimator, StackingClassifier) and "predict" in estimator.stack_method_:
        raise UnsupportedModelError(
            f"sklearn.{name} that stacks labels: skl2onnx stacks scores. Fit it with stack_method='auto' "
            "and with estimators that have predict_proba or decision_function."
        )
    if isinstance(estimator, StackingClassifier) and not hasattr(estimator, "predict_proba"):
        raise UnsupportedModelError(
            f"sklearn.{name} with a final_estimator without probabilities: skl2onnx mistakes its margins "
            "for probabilities. Use a final estimator with predict_proba, such as LogisticRegression."
        )
    if isinstance(estimator, TransformedTargetRegressor):
        _inverse(estimator.transformer_)
    if (reason := refusal(estimator)) is not None:
        raise UnsupportedModelError(f"sklearn.{name}{reason}")


def _has_words(categories: np.ndarray) -> bool:
    return any(isinstance(category, str) for category in categories)


def conversion_error(error: Exception, parts: Iterable[Any]) -> UnsupportedModelError | None:
    """Return our error for skl2onnx's "no converter", or for a step that takes no texts; else None."""
    if takes := re.match(r"Operator Sklearn(\w+) .* wrong type <class '.*\.StringTensorType'>", str(error)):
        return UnsupportedModelError(
            f"sklearn.{takes[1]}: skl2onnx converts it only for numbers, but this one reads texts. Put a "
            f"vectoriser before it: make_pipeline(TfidfVectorizer(), {takes[1]}(…))."
        )
    kind = re.search(r"<class '([\w.]+)'>", str(error))
    if kind is None:
        return None
    package, *_, name = kind[1].split(".")
    predicts = any(hasattr(estimator, "predict") for estimator in parts if type(estimator).__name__ == name)
    role, advice = ("model", _OTHER) if predicts else ("step", _BEFORE)
    advice = _INSTEAD.get(name) or _INSTEAD.get(package, advice)
    return UnsupportedModelError(f"{package}.{name}: skl2onnx does not support this {role}. {advice}")


_OTHER = "Fit one of the kinds that docs/trees.md lists, or convert it yourself and compile that file."
_BEFORE = "Compute its columns before the pipeline, and give the steps behind it as the model."
_CARD = "fit optbinning's Scorecard(BinningProcess(names), LogisticRegression()), which is converted."
_INSTEAD = {  # by step, or by package
    **dict.fromkeys(("category_encoders", "feature_engine"), f"Use sklearn's TargetEncoder, or {_CARD}"),
    "optbinning": f"Instead of the pipeline, {_CARD}",
    "HashingVectorizer": "Use TfidfVectorizer or CountVectorizer.",
    "IterativeImputer": "Impute by SimpleImputer(add_indicator=True), or before the pipeline.",
    "sksurv": "Fit XGBoost with objective='survival:cox' or 'survival:aft', which is converted.",
    "skorch": "Give the net itself, with rows as they come to it: pipeline[:-1].transform(rows).",
    "SplineTransformer": "Use KBinsDiscretizer or PolynomialFeatures.",
}


def _join_inputs(scope: Any, operator: Any, container: Any) -> Any:
    """Return an operator's inputs, as one tensor."""
    names = [value.full_name for value in operator.inputs]
    return concatenate_variables(scope, operator.inputs, container) if len(names) > 1 else names[0]


def _answer(x: Any, scope: Any, operator: Any, container: Any) -> None:
    """Write `x` to an operator's output, in its type."""
    (result,) = operator.outputs
    _cast(x, _DOUBLE if isinstance(result.type, DoubleTensorType) else _FLOAT, result, scope, container)


def _columns(operator: Any) -> int:
    return sum(value.type.shape[1] for value in operator.inputs)


# -- scalers and functions ---------------------------------------------------------------------------------


def _in_double(steps: Any, scope: Any, operator: Any, container: Any, x: str | None = None) -> None:
    """Add a cast to double, steps (operator, numbers …) in their order, and a cast to the output's type."""
    ops = Ops(container)
    x = ops.Cast(x or _join_inputs(scope, operator, container), to=_DOUBLE)
    for step, *numbers in steps:
        operands = [x if n is _X else np.asarray(n, np.float64) for n in numbers]
        x = getattr(ops, step)(x, *operands)
    _answer(x, scope, operator, container)


def _in_place(steps: Any, scope: Any, operator: Any, container: Any) -> None:
    """Add steps as NumPy computes them in an array of float32: each in double, and rounded."""
    ops, x = Ops(container), _join_inputs(scope, operator, container)
    for step, *numbers in steps:
        x = ops.Cast(x, to=_DOUBLE)
        x = getattr(ops, step)(x, *(np.asarray(n, np.float64) for n in numbers))
        x = ops.Cast(x, to=_FLOAT)
    _answer(x, scope, operator, container)


def _in_floats(steps: Any, scope: Any, operator: Any, container: Any) -> None:
    """Add steps in float32, with numbers rounded to it."""
    ops, x = Ops(container), _join_inputs(scope, operator, container)
    for step, *numbers in steps:
        x = getattr(ops, step)(x, *(np.asarray(n, np.float32) for n in numbers))
    _answer(x, scope, operator, container)


def _scaler(scope: Any, operator: Any, container: Any) -> None:
    scaler = operator.raw_operator
    add = _in_floats if isinstance(scaler, StandardScaler) else _in_place
    if not isinstance(operator.outputs[0].type, FloatTensorType):
        add = _in_double
    add(_SCALERS[type(scaler)](scaler), scope, operator, container)


def _in_single(convert: Convert, *, takes_double: bool = False) -> Convert:
    """Convert a step that answers in float32 alone, and takes that alone unless it `takes_double`."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        inputs, doubles = list(operator.inputs), list[tuple[Any, str, Any]]()
        if not takes_double:
            operator.inputs = [_single(scope, container, value) for value in inputs]
        for value in operator.outputs:
            if isinstance(value.type, DoubleTensorType):
                doubles.append((value, value.onnx_name, value.type))
                value.set_onnx_name(scope.get_unique_variable_name(value.onnx_name))
                value.set_type(FloatTensorType(value.type.shape))
        convert(scope, operator, container)
        operator.inputs = inputs
        for value, name, kind in doubles:
            single = value.full_name
            value.set_onnx_name(name)
            value.set_type(kind)
            _cast(single, _DOUBLE, value, scope, container)

    return converted


def _typed_by_input(shapes: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let a classifier score in the type that it reads; skl2onnx uses that of the pipeline's input."""

    def calculate(operator: Any) -> None:
        shapes(operator)
        is_double = isinstance(operator.inputs[0].type, DoubleTensorType)
        for value in operator.outputs[1:]:
            if isinstance(value.type, FloatTensorType | DoubleTensorType):
                value.set_type((DoubleTensorType if is_double else FloatTensorType)(value.type.shape))

    return calculate


def _cast(x: str, kind: int, to: Any, scope: Any, container: Any) -> None:
    ops = Ops(container)
    ops.Cast(x, to=kind, output_names=[to.full_name]).add_to(scope, container)


def _single(scope: Any, container: Any, value: Any, kind: type = FloatTensorType) -> Any:
    """Return a variable with its numbers as float32, or whole."""
    if not isinstance(value.type, DoubleTensorType):
        return value
    single = scope.declare_local_variable(f"{value.raw_name}_single", kind(value.type.shape))
    _cast(value.full_name, single.type._get_element_onnx_type(), single, scope, container)
    return single


def _in_categories(convert: Convert) -> Convert:
    """Convert an encoder of numbers, which may be double: they are whole numbers, or else float32."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        inputs, number_type = list(operator.inputs), _category_type(operator.raw_operator)
        operator.inputs = [_single(scope, container, value, number_type) for value in inputs]
        convert(scope, operator, container)
        operator.inputs = inputs

    return converted


def _category_type(encoder: Any) -> type:
    numbers = [
        value for categories in encoder.categories_ for value in categories if not isinstance(value, str)
    ]
    kind: type = Int64TensorType if all(float(value).is_integer() for value in numbers) else FloatTensorType
    return kind


def _target_encoder_shapes(operator: Any) -> None:
    doubles = [value for value in operator.inputs if isinstance(value.type, DoubleTensorType)]
    kinds = [value.type for value in doubles]
    for value in doubles:
        value.set_type(_category_type(operator.raw_operator)(value.type.shape))
    _shapes_of_target_encoders(operator)
    for value, kind in zip(doubles, kinds, strict=True):
        value.set_type(kind)


def _centred(centre: np.ndarray | None, scale: np.ndarray | None) -> Iterator[tuple[Any, ...]]:
    if centre is not None:
        yield "Sub", centre
    if scale is not None:
        yield "Div", scale


def _into_range(scaler: MinMaxScaler) -> Iterator[tuple[Any, ...]]:
    yield "Mul", scaler.scale_
    yield "Add", scaler.min_
    if scaler.clip:
        yield "Clip", *scaler.feature_range


def _to_largest(scaler: MaxAbsScaler) -> Iterator[tuple[Any, ...]]:
    yield "Div", scaler.scale_
    if getattr(scaler, "clip", False):  # since scikit-learn 1.8
        yield "Clip", -1.0, 1.0


_SCALERS: dict[type, Callable[[Any], Iterator[tuple[Any, ...]]]] = {
    StandardScaler: lambda s: _centred(s.mean_ if s.with_mean else None, s.scale_),
    RobustScaler: lambda s: _centred(s.center_, s.scale_),
    MaxAbsScaler: _to_largest,
    MinMaxScaler: _into_range,
}


def _power(scope: Any, operator: Any, container: Any) -> None:
    """Convert Box-Cox or Yeo-Johnson, and the scaler behind it."""
    model, ops = operator.raw_operator, Ops(container)
    x = ops.Cast(_join_inputs(scope, operator, container), to=_DOUBLE)
    power = np.asarray(model.lambdas_, np.float64)
    if model.method == "box-cox":
        y = _raise_powers(x, power, ops)
    else:
        ones, zeros = np.ones(1), np.zeros(1)
        above = ops.GreaterOrEqual(x, zeros)
        over = ops.Add(ops.Where(above, x, zeros), ones)
        under = ops.Sub(ones, ops.Where(above, zeros, x))
        below = ops.Neg(_raise_powers(under, 2 - power, ops))
        y = ops.Where(above, _raise_powers(over, power, ops), below)
    scaler = model._scaler if model.standardize else None
    for step, *numbers in () if scaler is None else _SCALERS[StandardScaler](scaler):
        y = getattr(ops, step)(y, *numbers)
    _answer(y, scope, operator, container)


def _raise_powers(x: Any, power: np.ndarray, ops: Ops) -> Any:
    """Return (x^p − 1) / p by column; ln x if p is 0."""
    flat = np.abs(power) < np.spacing(1.0)
    exponent = np.where(flat, 1.0, power)
    raised = ops.Sub(ops.Pow(x, exponent), np.ones(1))
    raised = ops.Div(raised, exponent)
    return ops.Where(flat[None], ops.Log(x), raised)


def _polynomial(scope: Any, operator: Any, container: Any) -> None:
    """Add products of columns, the last two first, as scikit-learn multiplies them."""
    model, ops = operator.raw_operator, Ops(container)
    kind = np.float64 if isinstance(operator.outputs[0].type, DoubleTensorType) else np.float32
    x = _join_inputs(scope, operator, container)
    factors = [np.repeat(np.arange(len(powers)), powers) for powers in model.powers_]
    y: Any = None
    for place in range(max(1, *map(len, factors))):
        column = np.array([of[-1 - place] if place < len(of) else -1 for of in factors])
        picked = ops.Gather(x, np.maximum(column, 0), axis=1)
        if (column < 0).any():
            picked = ops.Where(column[None] < 0, np.ones(1, kind), picked)
        y = picked if y is None else ops.Mul(picked, y)
    _answer(y, scope, operator, container)


def _polynomial_shapes(operator: Any) -> None:
    operator.outputs[0].type = _number(operator)([None, operator.raw_operator.n_output_features_])


def _norms(scope: Any, operator: Any, container: Any) -> None:
    """Divide each row by its norm."""
    ops, norm = Ops(container), operator.raw_operator.norm
    x = ops.Cast(_join_inputs(scope, operator, container), to=_DOUBLE)
    size = ops.Abs(x)
    if norm == "max":
        size = ops.ReduceMax(size, np.array([1]))
    else:
        size = ops.Mul(x, x) if norm == "l2" else size
        size = ops.ReduceSum(size, np.array([1]))
        size = ops.Sqrt(size) if norm == "l2" else size
    is_zero = ops.Equal(size, np.zeros(1))
    size = ops.Where(is_zero, np.ones(1), size)
    _answer(ops.Div(x, size), scope, operator, container)


def _number(operator: Any) -> type:
    """Return the type of an operator's numbers: double if any of its inputs is."""
    is_double = any(isinstance(value.type, DoubleTensorType) for value in operator.inputs)
    kind: type = DoubleTensorType if is_double else FloatTensorType
    return kind


_BACK = {"Sub": "Add", "Add": "Sub", "Div": "Mul", "Mul": "Div"}
_X = object()  # the input, also as the second operand
_FUNCTIONS: dict[Any, tuple[tuple[Any, ...], ...]] = {
    np.abs: (("Abs",),),
    np.ceil: (("Ceil",),),
    np.cos: (("Cos",),),
    np.exp: (("Exp",),),
    np.expm1: (("Exp",), ("Sub", 1)),
    np.floor: (("Floor",),),
    np.log: (("Log",),),
    np.log10: (("Log",), ("Div", np.log(10))),
    np.log1p: (("Add", 1), ("Log",)),
    np.log2: (("Log",), ("Div", np.log(2))),
    np.negative: (("Neg",),),
    np.reciprocal: (("Reciprocal",),),
    np.sign: (("Sign",),),
    np.sin: (("Sin",),),
    np.sqrt: (("Sqrt",),),
    np.square: (("Mul", _X),),
    np.tanh: (("Tanh",),),
}


def _function(scope: Any, operator: Any, container: Any) -> None:
    function = operator.raw_operator.func
    if function is None:
        _skl2onnx[FunctionTransformer](scope, operator, container)
    else:
        _in_double(_FUNCTIONS[function], scope, operator, container)


def _function_shapes(operator: Any) -> None:
    transformer = operator.raw_operator
    if transformer.func is None:
        _shapes_of_functions(operator)
        return
    if transformer.func not in _FUNCTIONS or transformer.kw_args:
        raise UnsupportedModelError(
            f"sklearn.FunctionTransformer of {_called(transformer.func)}: a graph cannot contain a Python "
            f"function. Write it with {_known_functions()}, one function per step, or compute its columns "
            "before the pipeline."
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
            f"sklearn.TransformedTargetRegressor with {_called(function)}: inverse_func can be "
            f"{_known_functions()}, and transformer can be a scaler. Use one of them, or compile its "
            "regressor_, which returns the transformed target."
        )
    return list(_FUNCTIONS[function])


def _target(scope: Any, operator: Any, container: Any) -> None:
    """Convert a TransformedTargetRegressor: its regressor, and the inverse of its transformer."""
    model = operator.raw_operator
    inner = scope.declare_local_operator(sklearn_operator_name_map[type(model.regressor_)], model.regressor_)
    inner.inputs = operator.inputs
    inner.outputs.append(scope.declare_local_variable("target", FloatTensorType()))
    _in_double(_inverse(model.transformer_), scope, operator, container, inner.outputs[0].full_name)


def _target_shapes(operator: Any) -> None:
    columns = 1 if operator.raw_operator._training_dim == 1 else None
    operator.outputs[0].type = FloatTensorType([None, columns])


# -- missing values ----------------------------------------------------------------------------------------


def _missing(step: Any, x: Any, ops: Ops) -> Any:
    """Return a tensor that tells whether each number is missing."""
    if np.isnan(step.missing_values):
        return ops.IsNaN(x)
    return ops.Equal(x, np.asarray([step.missing_values], np.float64))


def _gaps(step: Any, x: Any, columns: np.ndarray, ops: Ops) -> Any:
    """Return 1 for each missing number, in these columns."""
    chosen = ops.Gather(x, np.asarray(columns, np.int64), axis=1)
    return ops.Cast(_missing(step, chosen, ops), to=_DOUBLE)


def _imputer(scope: Any, operator: Any, container: Any) -> None:
    """Convert an imputer: numbers in double, with missing ones apart; words as skl2onnx does."""
    imputer = operator.raw_operator
    if not _is_ours(operator):
        encoders.impute_texts(_skl2onnx[SimpleImputer])(scope, operator, container)
        return
    ops = Ops(container)
    x = ops.Cast(_join_inputs(scope, operator, container), to=_DOUBLE)
    fill = np.asarray(imputer.statistics_, np.float64)
    whole = ops.Where(_missing(imputer, x, ops), fill, x)
    if len(filled := _filled_columns(imputer)) < len(fill):
        whole = ops.Gather(whole, filled, axis=1)
    if imputer.indicator_ is not None:
        gaps = _gaps(imputer, x, imputer.indicator_.features_, ops)
        whole = ops.Concat(whole, gaps, axis=1)
    _answer(whole, scope, operator, container)


def _filled_columns(imputer: SimpleImputer) -> np.ndarray:
    """Return the columns that had a value when the imputer was fitted: it drops the others."""
    return np.flatnonzero(~np.isnan(np.asarray(imputer.statistics_, np.float64)))


def _imputer_shapes(operator: Any) -> None:
    if not _is_ours(operator):
        _shapes_of_imputers(operator)
        return
    imputer = operator.raw_operator
    _check_missing(imputer)
    columns = len(_filled_columns(imputer))
    if imputer.indicator_ is not None:
        columns += len(imputer.indicator_.features_)
    operator.outputs[0].type = _number(operator)([None, columns])


def _is_ours(operator: Any) -> bool:
    """Tell whether an imputer fills numbers."""
    of_words = any(isinstance(value.type, StringTensorType) for value in operator.inputs)
    if of_words and operator.raw_operator.indicator_ is not None:
        raise UnsupportedModelError("sklearn.SimpleImputer(add_indicator=True) of words: give numbers.")
    return not of_words


def _indicator(scope: Any, operator: Any, container: Any) -> None:
    indicator, ops = operator.raw_operator, Ops(container)
    x = ops.Cast(_join_inputs(scope, operator, container), to=_DOUBLE)
    gaps = _gaps(indicator, x, indicator.features_, ops)
    _answer(gaps, scope, operator, container)


def _indicator_shapes(operator: Any) -> None:
    _check_missing(operator.raw_operator)
    operator.outputs[0].type = FloatTensorType([None, len(operator.raw_operator.features_)])


def _check_missing(step: Any) -> None:
    if not isinstance(step.missing_values, Real):
        raise UnsupportedModelError(
            f"sklearn.{type(step).__name__}(missing_values={step.missing_values!r}): only a number can "
            "mark a missing value. Replace it with NaN before the pipeline."
        )


def _keeping_missing(convert: Convert) -> Convert:
    """Convert trees as skl2onnx does, but keep the side that a missing value takes, which it leaves out."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        first = len(container.nodes)
        convert(scope, operator, container)
        model = operator.raw_operator
        trees = [estimator.tree_ for estimator in np.ravel(getattr(model, "estimators_", [model]))]
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
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
_FLOATS_ALONE = frozenset(  # skl2onnx or ONNX Runtime computes them in float32 alone
    {
        AdaBoostClassifier,
        IsolationForest,
        LinearDiscriminantAnalysis,
        LinearSVC,
        NuSVC,
        NuSVR,
        OneClassSVM,
        Perceptron,
        RidgeClassifier,
        SVR,
    }
)
_skl2onnx = {
    kind: get_converter(sklearn_operator_name_map[kind])
    for kind in (
        *_SCALERS,
        FunctionTransformer,
        KBinsDiscretizer,
        Normalizer,
        OneHotEncoder,
        OrdinalEncoder,
        PolynomialFeatures,
        PowerTransformer,
        SimpleImputer,
        TargetEncoder,
        *_FLOATS_ALONE,
        *CLASSIFIERS,
        *_TREES,
    )
}
_shapes_of_functions = get_shape_calculator(sklearn_operator_name_map[FunctionTransformer])
_shapes_of_target_encoders = get_shape_calculator(sklearn_operator_name_map[TargetEncoder])
_shapes_of_imputers = get_shape_calculator(sklearn_operator_name_map[SimpleImputer])
