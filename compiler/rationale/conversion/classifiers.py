"""scikit-learn estimators that skl2onnx does not convert, or converts to something else."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.algebra.onnx_ops import (
    OnnxAdd,
    OnnxArgMax,
    OnnxCast,
    OnnxClip,
    OnnxConcat,
    OnnxDiv,
    OnnxGather,
    OnnxIdentity,
    OnnxLess,
    OnnxLog,
    OnnxMatMul,
    OnnxMul,
    OnnxNeg,
    OnnxReshape,
    OnnxSoftmax,
    OnnxSub,
    OnnxWhere,
)
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

Convert = Callable[[Any, Any, Any], None]
_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT


def _discriminant(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but halve each score of two classes, of which it takes the softmax.

    The scores are s and −s: σ(s) is due, and softmax(−s, s) is σ(2s).
    """
    first, model = len(container.nodes), operator.raw_operator
    _known[LinearDiscriminantAnalysis](scope, operator, container)
    if len(model.classes_) > 2 or container.get_options(model, {"raw_scores": False})["raw_scores"]:
        return
    for node in container.nodes[first:]:
        for attribute in node.attribute:
            if attribute.name in ("coefficients", "intercepts"):
                attribute.floats[:] = [number / 2 for number in attribute.floats]


def _margins(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, whose own registration does not accept the option that a pipeline sets."""
    _known[LinearSVC](scope, operator, container)


def _quadratic(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but answer labels [N], which it writes as [1, N]."""
    first = len(container.nodes)
    _known[QuadraticDiscriminantAnalysis](scope, operator, container)
    for node in container.nodes[first:]:
        if node.op_type == "ArgMax":
            kept = [attribute for attribute in node.attribute if attribute.name != "keepdims"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("keepdims", 0)])
        elif node.output[0] == operator.outputs[0].full_name:
            node.op_type, node.domain = "Gather", ""


def _stack(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but with one column of each estimator if there are two classes.

    skl2onnx takes one column only if all estimators answer probabilities.
    """
    first, model = len(container.nodes), operator.raw_operator
    _known[StackingClassifier](scope, operator, container)
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


def _calibrated(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does, but isotonic calibration of two classes by scikit-learn's interpolation."""
    model, version = operator.raw_operator, container.target_opset
    for part in model.calibrated_classifiers_:
        _request_scores(scope, container, part.estimator)
    if model.method not in _CALIBRATIONS:
        _known[CalibratedClassifierCV](scope, operator, container)
        return
    calibrated = _CALIBRATIONS[model.method]
    parts = [calibrated(scope, operator, container, part) for part in model.calibrated_classifiers_]
    share = functools.reduce(lambda a, b: OnnxAdd(a, b, op_version=version), parts)
    share = OnnxDiv(share, np.asarray([len(parts)], np.float64), op_version=version)
    if model.method == "isotonic":
        share = OnnxConcat(OnnxSub(np.ones(1), share, op_version=version), share, axis=1, op_version=version)
    best = OnnxArgMax(share, axis=1, keepdims=0, op_version=version)
    _labelled(scope, operator, container, best, model.classes_)
    _scored(scope, operator, container, share)


def _labelled(scope: Any, operator: Any, container: Any, index: Any, classes: Any) -> None:
    """Write the classes of these indices [N] to an operator's first output."""
    name = operator.outputs[0].full_name
    labels = OnnxGather(labels_of(classes), index, op_version=container.target_opset, output_names=[name])
    labels.add_to(scope, container)


def _scored(scope: Any, operator: Any, container: Any, scores: Any) -> None:
    """Write these scores to an operator's second output, in its type."""
    result, version = operator.outputs[1], container.target_opset
    kind = _DOUBLE if isinstance(result.type, DoubleTensorType) else _FLOAT
    cast = OnnxCast(scores, to=kind, op_version=version, output_names=[result.full_name])
    cast.add_to(scope, container)


def _request_scores(scope: Any, container: Any, estimator: Any) -> None:
    """Set the option for scores on a pipeline's last step; skl2onnx sets it on the pipeline alone."""
    while isinstance(estimator, Pipeline):
        estimator = estimator[-1]
    if hasattr(estimator, "decision_function") and container.has_options(estimator, "raw_scores"):
        for options in (container, scope):
            options.add_options(id(estimator), {"raw_scores": True})


def _asked(scope: Any, operator: Any, estimator: Any, inputs: Any = None) -> list[str]:
    """Add an estimator that reads and answers the operator's types; return the names of its outputs."""
    inner = scope.declare_local_operator(sklearn_operator_name_map[type(estimator)], estimator)
    inner.inputs = inputs or operator.inputs
    for result in operator.outputs:
        inner.outputs.append(scope.declare_local_variable("answer", result.type.__class__()))
    return [result.full_name for result in inner.outputs]


def _tempered(scope: Any, operator: Any, container: Any, part: Any) -> Any:
    """Return [N, C]: the softmax of scores (−s and s of two classes), or of log(p + 1e-12), times beta."""
    estimator, (calibrator,), version = part.estimator, part.calibrators, container.target_opset
    _, name = _asked(scope, operator, estimator)
    scores: Any = OnnxCast(name, to=_DOUBLE, op_version=version)
    if not hasattr(estimator, "decision_function"):
        scores = OnnxLog(OnnxAdd(scores, np.asarray([1e-12]), op_version=version), op_version=version)
    elif len(part.classes) == 2:
        scores = OnnxGather(scores, np.asarray([-1]), axis=1, op_version=version)
        scores = OnnxConcat(OnnxNeg(scores, op_version=version), scores, axis=1, op_version=version)
    beta = np.asarray([float(calibrator.beta_)])
    return OnnxSoftmax(OnnxMul(scores, beta, op_version=version), axis=1, op_version=version)


def _interpolated(scope: Any, operator: Any, container: Any, part: Any) -> Any:
    """Return [N, 1] for class 1: a sum of ramps, each from one threshold of the scores to the next."""
    (calibrator,), version = part.calibrators, container.target_opset
    _, scores = _asked(scope, operator, part.estimator)
    last = OnnxGather(scores, np.asarray([-1]), axis=1, op_version=version)
    x, y = (np.asarray(n, np.float64) for n in (calibrator.X_thresholds_, calibrator.y_thresholds_))
    if len(x) == 1:
        x, y = np.append(x, x + 1), np.append(y, y)
    ramps: Any = OnnxSub(OnnxCast(last, to=_DOUBLE, op_version=version), x[None, :-1], op_version=version)
    ramps = OnnxDiv(ramps, np.diff(x)[None], op_version=version)
    ramps = OnnxClip(ramps, np.asarray(0.0), np.asarray(1.0), op_version=version)
    return OnnxAdd(OnnxMatMul(ramps, np.diff(y)[:, None], op_version=version), y[:1], op_version=version)


_CALIBRATIONS = {"isotonic": _interpolated, "temperature": _tempered}


def _thresholded(scope: Any, operator: Any, container: Any) -> None:
    """Convert the estimator, and label rows by the threshold."""
    model, version = operator.raw_operator, container.target_opset
    _, scores = _asked(scope, operator, model.estimator_)
    _scored(scope, operator, container, OnnxIdentity(scores, op_version=version))
    positive = _positive_label(model)
    classes = np.asarray(model.classes_)
    order = (
        [0, 1]
        if positive is None
        else [*np.flatnonzero(classes != positive), *np.flatnonzero(classes == positive)]
    )
    score: Any = OnnxCast(scores, to=_DOUBLE, op_version=version)
    if hasattr(model.estimator_, "predict_proba"):
        score, default = OnnxGather(score, np.asarray([order[1]]), axis=1, op_version=version), 0.5
    else:
        score, default = OnnxGather(score, np.asarray([-1]), axis=1, op_version=version), 0.0
        score = score if order[1] == 1 else OnnxNeg(score, op_version=version)
    threshold = model.best_threshold_ if hasattr(model, "best_threshold_") else model.threshold
    threshold = default if threshold == "auto" else float(threshold)
    below = OnnxLess(score, np.asarray([threshold]), op_version=version)
    index = OnnxWhere(below, np.asarray([order[0]]), np.asarray([order[1]]), op_version=version)
    index = OnnxReshape(index, np.asarray([-1]), op_version=version)
    _labelled(scope, operator, container, index, classes)


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


def _chained(scope: Any, operator: Any, container: Any) -> None:
    """Convert an estimator for each target; it reads the row, and the answers of those before it."""
    model, version = operator.raw_operator, container.target_opset
    rows = concatenate_variables(scope, operator.inputs, container)
    kind, count = operator.inputs[0].type.__class__, model.n_features_in_
    told = int(getattr(model, "chain_method_", "predict") == "predict_proba")
    answers = list[list[Any]]()
    for number, estimator in enumerate(model.estimators_):
        read = scope.declare_local_variable("row", kind([None, count + number]))
        element = kind([])._get_element_onnx_type()
        before = [OnnxCast(own[told], to=element, op_version=version) for own in answers]
        joined = OnnxConcat(rows, *before, axis=1, op_version=version, output_names=[read.full_name])
        joined.add_to(scope, container)
        answer, *scores = _asked(scope, operator, estimator, [read])
        own = [OnnxReshape(answer, np.asarray([-1, 1]), op_version=version)]
        own += [OnnxGather(name, np.asarray([-1]), axis=1, op_version=version) for name in scores]
        answers.append(own)
    places = np.argsort(model.order_)
    for number, result in enumerate(operator.outputs):
        columns = [answers[place][number] for place in places]
        end = OnnxConcat(*columns, axis=1, op_version=version, output_names=[result.full_name])
        end.add_to(scope, container)


def _chain_shapes(operator: Any) -> None:
    count = len(operator.raw_operator.estimators_)
    for result in operator.outputs:
        result.type = result.type.__class__([None, count])


# estimators that skl2onnx does not convert, or not correctly
NEW: dict[type, tuple[Convert, Callable[[Any], None]]] = {
    ClassifierChain: (_chained, _chain_shapes),
    RegressorChain: (_chained, _chain_shapes),
    FixedThresholdClassifier: (_thresholded, _threshold_shapes),
    TunedThresholdClassifierCV: (_thresholded, _threshold_shapes),
}
CLASSIFIERS: dict[type, Convert] = {
    CalibratedClassifierCV: _calibrated,
    LinearDiscriminantAnalysis: _discriminant,
    LinearSVC: _margins,
    QuadraticDiscriminantAnalysis: _quadratic,
    StackingClassifier: _stack,
}
_known = {kind: get_converter(sklearn_operator_name_map[kind]) for kind in CLASSIFIERS}
