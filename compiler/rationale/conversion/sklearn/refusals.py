"""Refusals, with advice, of fitted estimators that skl2onnx would convert to something else."""

from typing import Any

from sklearn.base import is_classifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import QuantileTransformer

from rationale.conversion.sklearn.vectorisers import vectoriser_refusal


def refusal(estimator: Any) -> str | None:
    """Return the reason for refusing a fitted part, with advice; None if it is accepted."""
    if isinstance(estimator, MultiOutputClassifier):
        return (
            " answers several targets: give one of its estimators_ at a time, each of which is a classifier. "
            "Behind other steps: make_pipeline(*pipeline[:-1], pipeline[-1].estimators_[0])."
        )
    if is_classifier(estimator) and not isinstance(estimator, ClassifierChain) and _has_targets(estimator):
        return " of several targets: fit one classifier for each target, and compile each."
    if isinstance(estimator, MLPRegressor) and estimator.n_outputs_ > 1:
        return " of several targets: fit MultiOutputRegressor(MLPRegressor(…)), a network for each."
    if isinstance(estimator, ClassifierChain) and estimator.chain_method_ not in ("predict", "predict_proba"):
        return f"(chain_method={estimator.chain_method!r}): fit it with 'predict' or 'predict_proba'."
    if isinstance(estimator, KNeighborsClassifier | KNeighborsRegressor) and estimator.weights != "uniform":
        return (
            f"(weights={estimator.weights!r}): a row equal to a training row has an infinite weight, "
            "which rounding removes. Fit it with weights='uniform'."
        )
    if isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV) and _has_other_scores(
        estimator
    ):
        return (
            "(response_method='decision_function') chooses labels by other scores than it returns. "
            "Compile its estimator_, which has the same scores, and put the threshold into a decision "
            "profile."
        )
    if isinstance(estimator, CountVectorizer):
        return vectoriser_refusal(estimator)
    if isinstance(estimator, QuantileTransformer) and estimator.output_distribution == "normal":
        return "(output_distribution='normal'): no operator of ONNX is its inverse. Fit it with 'uniform'."
    return None


def _has_targets(estimator: Any) -> bool:
    binarizer = getattr(estimator, "_label_binarizer", None)  # a network's
    return isinstance(getattr(estimator, "classes_", None), list) or (
        str(getattr(binarizer, "y_type_", "")).startswith("multilabel")
    )


def has_categories(estimator: Any) -> bool:
    """Tell whether a part is a fitted CatBoost model that reads categories."""
    is_catboost = type(estimator).__module__.startswith("catboost.")
    return is_catboost and estimator.is_fitted() and bool(estimator.get_cat_feature_indices())


def _has_other_scores(estimator: Any) -> bool:
    return estimator.response_method == "decision_function" and hasattr(estimator, "predict_proba")
