"""Classifiers of scikit-learn that skl2onnx converts otherwise than scikit-learn computes them."""

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
    OnnxMatMul,
    OnnxSub,
)
from skl2onnx.common._registration import get_converter
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import StackingClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC

from rationale.conversion.boosters.trees import labels_of

Convert = Callable[[Any, Any, Any], None]
_DOUBLE, _FLOAT = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT


def _discriminant(scope: Any, operator: Any, container: Any) -> None:
    """As skl2onnx converts it, with half of each score of two classes, of which it takes the softmax.

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
    """As skl2onnx converts it, which does not let it take the option that a pipeline sets."""
    _known[LinearSVC](scope, operator, container)


def _quadratic(scope: Any, operator: Any, container: Any) -> None:
    """As skl2onnx converts it, with labels [N], which it writes as [1, N]."""
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
    """As skl2onnx converts it, with one column of each estimator where there are two classes.

    It takes one where all of them answer probabilities alone.
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
    """As skl2onnx converts it; isotonic calibration of two classes by what scikit-learn interpolates."""
    model, version = operator.raw_operator, container.target_opset
    for part in model.calibrated_classifiers_:
        _request_scores(scope, container, part.estimator)
    if model.method != "isotonic":
        _known[CalibratedClassifierCV](scope, operator, container)
        return
    parts = [_interpolated(scope, operator, container, part) for part in model.calibrated_classifiers_]
    share = functools.reduce(lambda a, b: OnnxAdd(a, b, op_version=version), parts)
    share = OnnxDiv(share, np.asarray([len(parts)], np.float64), op_version=version)
    both = OnnxConcat(OnnxSub(np.ones(1), share, op_version=version), share, axis=1, op_version=version)
    best = OnnxArgMax(both, axis=1, keepdims=0, op_version=version)
    label, probabilities = operator.outputs
    labels = OnnxGather(labels_of(model.classes_), best, op_version=version, output_names=[label.full_name])
    labels.add_to(scope, container)
    kind = _DOUBLE if isinstance(probabilities.type, DoubleTensorType) else _FLOAT
    OnnxCast(both, to=kind, op_version=version, output_names=[probabilities.full_name]).add_to(
        scope, container
    )


def _request_scores(scope: Any, container: Any, estimator: Any) -> None:
    """Set the option for scores of the last step, where skl2onnx sets that of the pipeline alone."""
    while isinstance(estimator, Pipeline):
        estimator = estimator[-1]
    if hasattr(estimator, "decision_function") and container.has_options(estimator, "raw_scores"):
        for options in (container, scope):
            options.add_options(id(estimator), {"raw_scores": True})


def _interpolated(scope: Any, operator: Any, container: Any, part: Any) -> Any:
    """[N, 1] of class 1: a sum of ramps, each from one threshold of the scores to the next."""
    estimator, (calibrator,), version = part.estimator, part.calibrators, container.target_opset
    inner = scope.declare_local_operator(sklearn_operator_name_map[type(estimator)], estimator)
    inner.inputs = operator.inputs
    inner.outputs.append(scope.declare_local_variable("label", operator.outputs[0].type.__class__()))
    inner.outputs.append(scope.declare_local_variable("scores", FloatTensorType()))
    last = OnnxGather(inner.outputs[1].full_name, np.asarray([-1]), axis=1, op_version=version)
    x, y = (np.asarray(n, np.float64) for n in (calibrator.X_thresholds_, calibrator.y_thresholds_))
    if len(x) == 1:
        x, y = np.append(x, x + 1), np.append(y, y)
    ramps: Any = OnnxSub(OnnxCast(last, to=_DOUBLE, op_version=version), x[None, :-1], op_version=version)
    ramps = OnnxDiv(ramps, np.diff(x)[None], op_version=version)
    ramps = OnnxClip(ramps, np.asarray(0.0), np.asarray(1.0), op_version=version)
    return OnnxAdd(OnnxMatMul(ramps, np.diff(y)[:, None], op_version=version), y[:1], op_version=version)


CLASSIFIERS: dict[type, Convert] = {
    CalibratedClassifierCV: _calibrated,
    LinearDiscriminantAnalysis: _discriminant,
    LinearSVC: _margins,
    QuadraticDiscriminantAnalysis: _quadratic,
    StackingClassifier: _stack,
}
_known = {kind: get_converter(sklearn_operator_name_map[kind]) for kind in CLASSIFIERS}
