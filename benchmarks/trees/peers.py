"""Other explainers of boosted trees: a function of rows for each. It imports no torch."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.cases import CONTRIBUTIONS, KERNEL, SHAP, SHAPIQ, WOODELF

Explain = Callable[..., Any]  # rows [N, features] to attributions


def own_contributions(booster: Any, references: np.ndarray) -> Explain:
    """Return the booster's own contributions, path-dependent."""
    del references
    if "xgboost" in type(booster).__module__:
        matrix = import_module("xgboost").DMatrix
        return lambda x: booster.get_booster().predict(matrix(x, nthread=1), pred_contribs=True)
    return lambda x: booster.predict(x, pred_contrib=True)


def by_shap(booster: Any, references: np.ndarray) -> Explain:
    """Return `shap.TreeExplainer` over all references; by itself it takes 100 of them."""
    shap = import_module("shap")
    masker = shap.maskers.Independent(references, max_samples=len(references))
    explainer = shap.TreeExplainer(booster, masker)
    return lambda x: explainer.shap_values(x, check_additivity=False)


def by_woodelf(booster: Any, references: np.ndarray) -> Explain:
    """Return woodelf's explainer over the references."""
    frame = import_module("pandas").DataFrame
    explainer = import_module("woodelf").WoodelfExplainer(booster, frame(references))
    return lambda x: explainer.shap_values(frame(x), verbose=False)


def by_shapiq(booster: Any, references: np.ndarray) -> Explain:
    """Return shapiq's explainer, path-dependent, row by row."""
    del references
    explainer = import_module("shapiq").TreeExplainer(booster, max_order=1, index="SV")
    return lambda x: [explainer.explain(row) for row in x]


def by_kernel(booster: Any, references: np.ndarray) -> Explain:
    """Return `shap.KernelExplainer` of the margin, with its own number of coalitions."""
    margin = {"output_margin" if "xgboost" in type(booster).__module__ else "raw_score": True}
    explainer = import_module("shap").KernelExplainer(partial(booster.predict, **margin), references)
    return lambda x: explainer.shap_values(x, silent=True)


TREE_EXPLAINERS = {
    CONTRIBUTIONS: own_contributions,
    SHAP: by_shap,
    SHAPIQ: by_shapiq,
    WOODELF: by_woodelf,
    KERNEL: by_kernel,
}
INTERVENTIONAL = (SHAP, WOODELF, KERNEL)  # the others' values are those of another game
