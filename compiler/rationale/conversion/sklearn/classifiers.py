"""scikit-learn estimators that skl2onnx does not convert, or converts to something else."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.common._registration import get_converter
from skl2onnx.common.data_types import DoubleTensorType, Int64TensorType, StringTensorType
from skl2onnx.operator_converters.common import concatenate_variables
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import StackingClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multioutput import ClassifierChain, RegressorChain
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC

from rationale.conversion.boosters.trees import labels_of
from rationale.conversion.sklearn.operators import Convert, Ops

_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT


def _discriminant(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but halve each score of two classes, of which it takes the softmax.

    The scores are s and −s: σ(s) is due, and softmax(−s, s) is σ(2s).
    """
    first, model = len(container.nodes), operator.raw_operator
    _skl2onnx[LinearDiscriminantAnalysis](scope, operator, container)
    if len(model.classes_) > 2 or container.get_options(model, {"raw_scores": False})["raw_scores"]:
        return
    for node in container.nodes[first:]:
        for attribute in node.attribute:
            if attribute.name in ("coefficients", "intercepts"):
                attribute.floats[:] = [number / 2 for number in attribute.floats]


def _quadratic(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but answer labels [N], which it writes as [1, N]."""
    first = len(container.nodes)
    _skl2onnx[QuadraticDiscriminantAnalysis](scope, operator, container)
    for node in container.nodes[first:]:
        if node.op_type == "ArgMax":
            attributes = [attribute for attribute in node.attribute if attribute.name != "keepdims"]
            del node.attribute[:]
            node.attribute.extend([*attributes, onnx.helper.make_attribute("keepdims", 0)])
        elif node.output[0] == operator.outputs[0].full_name:
            node.op_type, node.domain = "Gather", ""


def _stack(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but with one column of each estimator if there are two classes.

    skl2onnx takes one column only if all estimators answer probabilities.
    """
    first, model = len(container.nodes), operator.raw_operator
    _skl2onnx[StackingClassifier](scope, operator, container)
    if len(model.classes_) > 2 or set(model.stack_method_) == {"predict_proba"}:
        return
    (joined,) = (n for n in container.nodes[first:] if n.output[0].startswith("stack_tra_merged_prob_tensor"))
    last = scope.get_unique_variable_name("last")
    container.add_initializer(last, onnx.TensorProto.INT64, [1], [-1])
    for i in range(len(model.estimators_)):
        column = scope.get_unique_variable_name("column")
        name = scope.get_unique_operator_name("column")
        container.add_node("Gather", [joined.input[i], last], [column], axis=1, name=name)
        joined.input[i] = column


def _convert_calibrated(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but isotonic calibration of two classes by scikit-learn's interpolation."""
    model, ops = operator.raw_operator, Ops(container)
    for fold in model.calibrated_classifiers_:
        _request_scores(scope, container, fold.estimator)
    if model.method not in _CALIBRATIONS:
        _skl2onnx[CalibratedClassifierCV](scope, operator, container)
        return
    probabilities = _CALIBRATIONS[model.method]
    parts = [probabilities(scope, operator, container, fold) for fold in model.calibrated_classifiers_]
    share = functools.reduce(ops.Add, parts)
    share = ops.Div(share, np.asarray([len(parts)], np.float64))
    if model.method == "isotonic":
        share = ops.Concat(ops.Sub(np.ones(1), share), share, axis=1)
    best = ops.ArgMax(share, axis=1, keepdims=0)
    _write_labels(scope, operator, container, best, model.classes_)
    _write_scores(scope, operator, container, share)


def _write_labels(scope: Any, operator: Any, container: Any, index: Any, classes: Any) -> None:
    """Write the classes of these indices [N] to an operator's first output."""
    name = operator.outputs[0].full_name
    labels = Ops(container).Gather(labels_of(classes), index, output_names=[name])
    labels.add_to(scope, container)


def _write_scores(scope: Any, operator: Any, container: Any, scores: Any) -> None:
    """Write these scores to an operator's second output, in its type."""
    result, ops = operator.outputs[1], Ops(container)
    kind = _DOUBLE if isinstance(result.type, DoubleTensorType) else _FLOAT
    cast = ops.Cast(scores, to=kind, output_names=[result.full_name])
    cast.add_to(scope, container)


def _request_scores(scope: Any, container: Any, estimator: Any) -> None:
    """Set the option for scores on a pipeline's last step; skl2onnx sets it on the pipeline alone."""
    while isinstance(estimator, Pipeline):
        estimator = estimator[-1]
    if hasattr(estimator, "decision_function") and container.has_options(estimator, "raw_scores"):
        for options in (container, scope):
            options.add_options(id(estimator), {"raw_scores": True})


def _add_estimator(scope: Any, operator: Any, estimator: Any, inputs: Any = None) -> list[str]:
    """Add an estimator that reads and answers the operator's types; return the names of its outputs."""
    inner = scope.declare_local_operator(sklearn_operator_name_map[type(estimator)], estimator)
    inner.inputs = inputs or operator.inputs
    for result in operator.outputs:
        inner.outputs.append(scope.declare_local_variable("answer", result.type.__class__()))
    return [result.full_name for result in inner.outputs]


def _temperature_scaled(scope: Any, operator: Any, container: Any, calibrated: Any) -> Any:
    """Return [N, C]: the softmax of scores (−s and s of two classes), or of log(p + 1e-12), times beta."""
    estimator, (calibrator,), ops = calibrated.estimator, calibrated.calibrators, Ops(container)
    _, name = _add_estimator(scope, operator, estimator)
    scores: Any = ops.Cast(name, to=_DOUBLE)
    if not hasattr(estimator, "decision_function"):
        scores = ops.Log(ops.Add(scores, np.asarray([1e-12])))
    elif len(calibrated.classes) == 2:
        scores = ops.Gather(scores, np.asarray([-1]), axis=1)
        scores = ops.Concat(ops.Neg(scores), scores, axis=1)
    beta = np.asarray([float(calibrator.beta_)])
    return ops.Softmax(ops.Mul(scores, beta), axis=1)


def _interpolate(scope: Any, operator: Any, container: Any, calibrated: Any) -> Any:
    """Return [N, 1] for class 1: a sum of ramps, each from one threshold of the scores to the next."""
    (calibrator,), ops = calibrated.calibrators, Ops(container)
    _, scores = _add_estimator(scope, operator, calibrated.estimator)
    last = ops.Gather(scores, np.asarray([-1]), axis=1)
    x, y = (np.asarray(n, np.float64) for n in (calibrator.X_thresholds_, calibrator.y_thresholds_))
    if len(x) == 1:
        x, y = np.append(x, x + 1), np.append(y, y)
    ramps: Any = ops.Sub(ops.Cast(last, to=_DOUBLE), x[None, :-1])
    ramps = ops.Div(ramps, np.diff(x)[None])
    ramps = ops.Clip(ramps, np.asarray(0.0), np.asarray(1.0))
    return ops.Add(ops.MatMul(ramps, np.diff(y)[:, None]), y[:1])


_CALIBRATIONS = {"isotonic": _interpolate, "temperature": _temperature_scaled}


def _convert_thresholded(scope: Any, operator: Any, container: Any) -> None:
    """Convert the estimator, and label rows by the threshold."""
    model, ops = operator.raw_operator, Ops(container)
    _, scores = _add_estimator(scope, operator, model.estimator_)
    _write_scores(scope, operator, container, ops.Identity(scores))
    positive = _positive_label(model)
    classes = np.asarray(model.classes_)
    order = (
        [0, 1]
        if positive is None
        else [*np.flatnonzero(classes != positive), *np.flatnonzero(classes == positive)]
    )
    score: Any = ops.Cast(scores, to=_DOUBLE)
    if hasattr(model.estimator_, "predict_proba"):
        score, default = ops.Gather(score, np.asarray([order[1]]), axis=1), 0.5
    else:
        score, default = ops.Gather(score, np.asarray([-1]), axis=1), 0.0
        score = score if order[1] == 1 else ops.Neg(score)
    threshold = model.best_threshold_ if hasattr(model, "best_threshold_") else model.threshold
    threshold = default if threshold == "auto" else float(threshold)
    below = ops.Less(score, np.asarray([threshold]))
    index = ops.Where(below, np.asarray([order[0]]), np.asarray([order[1]]))
    index = ops.Reshape(index, np.asarray([-1]))
    _write_labels(scope, operator, container, index, classes)


def _threshold_shapes(operator: Any) -> None:
    model, (label, scores) = operator.raw_operator, operator.outputs
    label.type = (StringTensorType if labels_of(model.classes_).dtype.kind in "UO" else Int64TensorType)(
        [None]
    )
    scores.type = scores.type.__class__([None, 2 if hasattr(model, "predict_proba") else 1])


def _positive_label(model: Any) -> Any:
    """Return the label whose scores a threshold classifier compares; None for the second class."""
    scorer = getattr(model, "_curve_scorer", None)
    return model.pos_label if scorer is None else scorer._get_pos_label()


def _convert_chain(scope: Any, operator: Any, container: Any) -> None:
    """Convert an estimator for each target; it reads the row, and the answers of those before it."""
    model, ops = operator.raw_operator, Ops(container)
    rows = concatenate_variables(scope, operator.inputs, container)
    kind, count = operator.inputs[0].type.__class__, model.n_features_in_
    passed_on = int(getattr(model, "chain_method_", "predict") == "predict_proba")
    answers = list[list[Any]]()
    for number, estimator in enumerate(model.estimators_):
        read = scope.declare_local_variable("row", kind([None, count + number]))
        element = kind([])._get_element_onnx_type()
        before = [ops.Cast(target[passed_on], to=element) for target in answers]
        joined = ops.Concat(rows, *before, axis=1, output_names=[read.full_name])
        joined.add_to(scope, container)
        answer, *scores = _add_estimator(scope, operator, estimator, [read])
        target = [ops.Reshape(answer, np.asarray([-1, 1]))]
        target += [ops.Gather(name, np.asarray([-1]), axis=1) for name in scores]
        answers.append(target)
    places = np.argsort(model.order_)
    for number, result in enumerate(operator.outputs):
        columns = [answers[place][number] for place in places]
        end = ops.Concat(*columns, axis=1, output_names=[result.full_name])
        end.add_to(scope, container)


def _chain_shapes(operator: Any) -> None:
    count = len(operator.raw_operator.estimators_)
    for result in operator.outputs:
        result.type = result.type.__class__([None, count])


# estimators that skl2onnx does not convert, or not correctly
NEW: dict[type, tuple[Convert, Callable[[Any], None]]] = {
    ClassifierChain: (_convert_chain, _chain_shapes),
    RegressorChain: (_convert_chain, _chain_shapes),
    FixedThresholdClassifier: (_convert_thresholded, _threshold_shapes),
    TunedThresholdClassifierCV: (_convert_thresholded, _threshold_shapes),
}
CLASSIFIERS: dict[type, Convert] = {
    CalibratedClassifierCV: _convert_calibrated,
    LinearDiscriminantAnalysis: _discriminant,
    LinearSVC: get_converter(sklearn_operator_name_map[LinearSVC]),  # skl2onnx registers no option for it
    QuadraticDiscriminantAnalysis: _quadratic,
    StackingClassifier: _stack,
}
_skl2onnx = {kind: get_converter(sklearn_operator_name_map[kind]) for kind in CLASSIFIERS}
