"""Refusals, with advice, of fitted estimators that skl2onnx would convert to something else."""

from typing import Any

from sklearn.base import is_classifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import QuantileTransformer

from rationale.conversion.vectorisers import refused


def refusal(part: Any) -> str | None:
    """Return the reason for refusing a fitted part, with advice; None if it is accepted."""
    if isinstance(part, MultiOutputClassifier):
        return (
            " answers several targets: give one of its estimators_ at a time, each of which is a classifier. "
            "Behind other steps: make_pipeline(*pipeline[:-1], pipeline[-1].estimators_[0])."
        )
    if is_classifier(part) and not isinstance(part, ClassifierChain) and _has_targets(part):
        return " of several targets: fit one classifier for each target, and compile each."
    if isinstance(part, MLPRegressor) and part.n_outputs_ > 1:
        return " of several targets: fit MultiOutputRegressor(MLPRegressor(…)), a network for each."
    if isinstance(part, ClassifierChain) and part.chain_method_ not in ("predict", "predict_proba"):
        return f"(chain_method={part.chain_method!r}): fit it with 'predict' or 'predict_proba'."
    if isinstance(part, KNeighborsClassifier | KNeighborsRegressor) and part.weights != "uniform":
        return (
            f"(weights={part.weights!r}): a row that equals one of the training has a weight without end, "
            "which a rounding takes away. Fit it with weights='uniform'."
        )
    if isinstance(part, FixedThresholdClassifier | TunedThresholdClassifierCV) and _has_other_scores(part):
        return (
            "(response_method='decision_function') labels by other scores than it answers. Give its "
            "estimator_, whose scores are the same, and let a decision profile hold the threshold."
        )
    if isinstance(part, CountVectorizer):
        return refused(part)
    if isinstance(part, QuantileTransformer) and part.output_distribution == "normal":
        return "(output_distribution='normal'): no operator of ONNX is its inverse. Fit it with 'uniform'."
    return None


def _has_targets(part: Any) -> bool:
    binarizer = getattr(part, "_label_binarizer", None)  # a network's
    return isinstance(getattr(part, "classes_", None), list) or (
        str(getattr(binarizer, "y_type_", "")).startswith("multilabel")
    )


def has_categories(part: Any) -> bool:
    """Tell whether a part is a fitted CatBoost model that reads categories."""
    is_catboost = type(part).__module__.startswith("catboost.")
    return is_catboost and part.is_fitted() and bool(part.get_cat_feature_indices())


def _has_other_scores(part: Any) -> bool:
    return part.response_method == "decision_function" and hasattr(part, "predict_proba")
