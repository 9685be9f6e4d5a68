"""Wrappers that hold a fitted model and predict as it does, and libraries that export their own models."""

from typing import Any

from rationale.errors import InvalidModelError

_HOLDS = {  # the attribute that holds the fitted model, by a class or its base
    "sklearn.model_selection._search.BaseSearchCV": "best_estimator_",
    "sklearn.frozen._frozen.FrozenEstimator": "estimator",
    "sklearn.semi_supervised._self_training.SelfTrainingClassifier": "estimator_",
}
_NETWORK = "skorch.net.NeuralNet"
_KERAS_ON_TORCH = "keras.src.backend.torch.layer.TorchLayer"  # such models are modules of torch
_KERAS_MODEL = "keras.src.models.model.Model"
_KERAS = "Write it as ONNX by Keras 3, model.export('model.onnx', format='onnx'), and compile that file"
_PMML = "No exporter converts PMML to ONNX: compile the original fitted model, or export it as ONNX"
_EXPORTERS = {  # by package; their models are not converted here
    "keras": _KERAS,
    "tensorflow": f"{_KERAS}; a model of tf.keras 2 by tf2onnx.convert.from_keras",
    "pyspark": "Write it as ONNX by onnxmltools.convert_sparkml, and compile that file",
    "h2o": (
        "Write the MOJO of a gradient boosting machine as ONNX by onnxmltools.convert_h2o, and compile "
        "that file. Its other models have no exporter: fit those with XGBoost, LightGBM or scikit-learn"
    ),
    "statsmodels": (
        "No exporter converts it to ONNX: fit scikit-learn's LinearRegression(), "
        "LogisticRegression(C=np.inf) or PoissonRegressor(alpha=0), which have the same coefficients"
    ),
    "pypmml": _PMML,
    "jpmml_evaluator": _PMML,
}


def unwrap(model: Any) -> Any:
    """Return the fitted model that a wrapper predicts with; any other model unchanged.

    Raises:
        InvalidModelError: if the wrapper holds none.
    """
    while (attribute := attribute_of(model)) is not None:
        if not hasattr(model, attribute):
            raise InvalidModelError(
                f"{class_name(model)} contains no fitted model ({attribute}): call fit first; a search needs "
                "refit=True."
            )
        model = getattr(model, attribute)
    kinds = _kinds(model)
    if _NETWORK in kinds:
        from rationale.conversion.networks import network_of

        return network_of(model)
    if _KERAS_MODEL in kinds and _KERAS_ON_TORCH in kinds:
        from rationale.conversion.networks import KerasModel

        return KerasModel(model)
    return model


def exporter(model: object) -> str | None:
    """Return advice for models that their own library exports to ONNX; None for an unknown library."""
    packages = (kind.partition(".")[0] for kind in _kinds(model))
    return next(filter(None, map(export_advice, packages)), None)


def export_advice(package: str) -> str | None:
    """Return advice on the export of a library's models; None if there is none."""
    return _EXPORTERS.get(package)


def attribute_of(model: object) -> str | None:
    """Return the name of a wrapper's attribute that holds the fitted model; None for other objects."""
    return next((_HOLDS[kind] for kind in _kinds(model) if kind in _HOLDS), None)


def _kinds(model: object) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__]


def class_name(model: object) -> str:
    """Name a model, such as xgboost.XGBClassifier."""
    kind = type(model)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
