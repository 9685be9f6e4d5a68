"""scikit-learn's estimators in forms that skl2onnx knows: without wrappers, with settings that it reads."""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.feature_selection import RFE
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import KBinsDiscretizer

from rationale.conversion.wrappers import attribute_of


def holds_estimators(value: object) -> bool:
    """Tell whether an object's attributes may hold fitted estimators."""
    return isinstance(value, BaseEstimator) or type(value).__name__ == "_CalibratedClassifier"


def without_wrappers(model: Any) -> Any:
    """Return a copy that predicts as a fitted model does, of parts that skl2onnx knows.

    Each estimator is copied once, with its attributes; their values are shared, except other estimators.
    """
    return _Copies().of(model)


class _Copies:
    def __init__(self) -> None:
        self.made = dict[int, Any]()
        self.kept = list[Any]()  # so that no number in `made` is another object's
        self.transformers = set[int]()

    def of(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(self.of, value))
        if isinstance(value, np.ndarray) and value.dtype == object:
            copies = np.empty_like(value)
            for i, element in enumerate(value.flat):  # each may be an array
                copies.flat[i] = self.of(element)
            return copies
        if not holds_estimators(value):
            return value
        if id(value) not in self.made:
            self.kept.append(value)
            self.made[id(value)] = self._copy(value)
        return self.made[id(value)]

    def _copy(self, estimator: Any) -> Any:
        attribute = attribute_of(estimator)
        if attribute is not None and hasattr(estimator, attribute):  # else an unfitted original
            return self.of(getattr(estimator, attribute))
        estimator = self._rewrite(estimator)
        self.transformers |= set(map(id, _transformers(estimator)))
        copied = copy.copy(estimator)
        for name, value in vars(copied).items():
            setattr(copied, name, self.of(value))
        return copied

    def _rewrite(self, estimator: Any) -> Any:
        """Return an estimator with the same answers, or the given one."""
        if isinstance(estimator, Pipeline):  # imbalanced-learn's and sklearn2pmml's, too
            return Pipeline([(name, step) for name, step in estimator.steps if not _is_idle(step)])
        if type(estimator).__module__.startswith("imblearn.ensemble."):
            return _as_base_class(estimator)
        if isinstance(estimator, RFE) and id(estimator) not in self.transformers:
            selector = copy.copy(estimator)
            self.transformers.add(id(selector))
            return Pipeline([("selected", selector), ("model", estimator.estimator_)])
        if isinstance(estimator, VotingClassifier | VotingRegressor):
            return _votes(estimator)
        if isinstance(estimator, KBinsDiscretizer) and estimator.encode == "onehot":
            return _changed(estimator, encode="onehot-dense")  # the same numbers
        return estimator


def _is_idle(step: Any) -> bool:
    """Tell whether a pipeline's step does nothing at prediction, as samplers do."""
    return step in (None, "passthrough") or hasattr(step, "fit_resample")


def _transformers(estimator: Any) -> Iterable[Any]:
    """Return the steps whose `transform` an estimator calls."""
    if isinstance(estimator, Pipeline):
        return [step for _, step in estimator.steps[:-1]]
    if isinstance(estimator, ColumnTransformer):
        return [step for _, step, _ in estimator.transformers_]
    return [step for _, step in estimator.transformer_list] if isinstance(estimator, FeatureUnion) else []


def _changed(estimator: Any, **settings: Any) -> Any:
    changed = copy.copy(estimator)
    for name, value in settings.items():
        setattr(changed, name, value)
    return changed


def _votes(estimator: Any) -> Any:
    """Return a vote with weights in skl2onnx's form; flattening concerns `transform` alone."""
    weights = estimator._weights_not_none
    changed = _changed(estimator, weights=None if weights is None else np.asarray(weights, float))
    return _changed(changed, flatten_transform=False) if isinstance(estimator, VotingClassifier) else changed


def _as_base_class(estimator: Any) -> Any:
    """Return imbalanced-learn's ensemble as its scikit-learn base class, which predicts the same."""
    kinds = (kind for kind in type(estimator).__mro__ if kind.__module__.startswith("sklearn.ensemble."))
    changed = copy.copy(estimator)
    changed.__class__ = next(kinds)
    return changed
