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


def holds_estimators(part: object) -> bool:
    """Tell whether an object's attributes may hold fitted estimators."""
    return isinstance(part, BaseEstimator) or type(part).__name__ == "_CalibratedClassifier"


def plain(model: Any) -> Any:
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
            for i, one in enumerate(value.flat):  # each may be an array
                copies.flat[i] = self.of(one)
            return copies
        if not holds_estimators(value):
            return value
        if id(value) not in self.made:
            self.kept.append(value)
            self.made[id(value)] = self._copy(value)
        return self.made[id(value)]

    def _copy(self, part: Any) -> Any:
        attribute = attribute_of(part)
        if attribute is not None and hasattr(part, attribute):  # else an unfitted original
            return self.of(getattr(part, attribute))
        part = self._rewritten(part)
        self.transformers |= set(map(id, _transformers(part)))
        copied = copy.copy(part)
        for name, value in vars(copied).items():
            setattr(copied, name, self.of(value))
        return copied

    def _rewritten(self, part: Any) -> Any:
        """Return an estimator with the same answers, or the given one."""
        if isinstance(part, Pipeline):  # imbalanced-learn's and sklearn2pmml's, too
            return Pipeline([(name, step) for name, step in part.steps if not _is_idle(step)])
        if type(part).__module__.startswith("imblearn.ensemble."):
            return _of_scikit_learn(part)
        if isinstance(part, RFE) and id(part) not in self.transformers:
            selector = copy.copy(part)
            self.transformers.add(id(selector))
            return Pipeline([("selected", selector), ("model", part.estimator_)])
        if isinstance(part, VotingClassifier | VotingRegressor):
            return _votes(part)
        if isinstance(part, KBinsDiscretizer) and part.encode == "onehot":
            return _with(part, encode="onehot-dense")  # the same numbers
        return part


def _is_idle(step: Any) -> bool:
    """Tell whether a pipeline's step does nothing at prediction, as samplers do."""
    return step in (None, "passthrough") or hasattr(step, "fit_resample")


def _transformers(part: Any) -> Iterable[Any]:
    """Return the steps whose `transform` an estimator calls."""
    if isinstance(part, Pipeline):
        return [step for _, step in part.steps[:-1]]
    if isinstance(part, ColumnTransformer):
        return [step for _, step, _ in part.transformers_]
    return [step for _, step in part.transformer_list] if isinstance(part, FeatureUnion) else []


def _with(part: Any, **settings: Any) -> Any:
    changed = copy.copy(part)
    for name, value in settings.items():
        setattr(changed, name, value)
    return changed


def _votes(part: Any) -> Any:
    """Return a vote with weights in skl2onnx's form; flattening concerns `transform` alone."""
    weights = part._weights_not_none
    changed = _with(part, weights=None if weights is None else np.asarray(weights, float))
    return _with(changed, flatten_transform=False) if isinstance(part, VotingClassifier) else changed


def _of_scikit_learn(part: Any) -> Any:
    """Return imbalanced-learn's ensemble as its scikit-learn base class, which predicts the same."""
    kinds = (kind for kind in type(part).__mro__ if kind.__module__.startswith("sklearn.ensemble."))
    changed = copy.copy(part)
    changed.__class__ = next(kinds)
    return changed
