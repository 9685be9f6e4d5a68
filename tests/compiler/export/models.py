"""Small entries of every kind that a page can hold."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

from rationale import Compiled, DeepShap, Deployment, ExactShap, Lrp, TreeShap, compile_model
from tests.compiler.models import mlp, parsed, rows
from tests.service.console import models as console

CREDIT = Path("examples/credit").resolve()
PROFILE: dict[str, Any] = {
    "output": "p",
    "threshold": 0.5,
    "refer": [0.45, 0.55],
    "adverse": "below",
    "max_reasons": 2,
    "outside": "refuse",
    "features": {
        "job": {
            "title": "Job",
            "categories": {"0": "none", "1": "part time", "2": "full time"},
            "reason": "J",
        },
        "age": {"title": "Age", "unit": "years", "least": 18, "most": 99, "reason": "A"},
    },
    "groups": {"money": {"members": ["income", "debt"], "title": "Money", "reason": "M"}},
    "reasons": {
        "J": {"text": "Employment", "when": [{"equals": 0, "text": "No employment"}]},
        "A": "Age of the account",
        "M": "Income against debt",
        "X": "Bankruptcy",
    },
    "knock_outs": [{"feature": "bankruptcies", "above": 0, "reason": "X"}],
}


def credit() -> Compiled:
    references = pd.read_csv(CREDIT / "near_threshold.csv").astype(np.float32)
    return compile_model(CREDIT / "credit.onnx", DeepShap(references), decision=CREDIT / "decision.yaml")


def trees() -> Compiled:
    """Boosted trees, which take missing values."""
    random = np.random.default_rng(0)
    x = random.integers(0, 64, (300, 4)).astype(np.float32)
    x[random.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1] * x[:, 2]) / 32 > 50
    table = pd.DataFrame(x, columns=["age", "debt", "cards", "__proto__"])
    model = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(table, y)
    return compile_model(model, TreeShap(table[:40]))


def double() -> Compiled:
    """In float64, with a group, categories, a bounded feature, and a knock-out on what is no input."""
    weights = np.array([[0.6], [1e-5], [-4e-5], [0.02]])
    model = parsed(
        "g (double[N, 4] x) => (double[N, 1] p) { z = MatMul (x, w) y = Add (z, b) p = Sigmoid (y) }",
        {"w": weights, "b": np.array([-1.5])},
    )
    random = np.random.default_rng(3)
    references = np.column_stack(
        [
            random.integers(0, 3, 30),
            random.integers(10, 60, 30) * 1000,
            random.integers(0, 20, 30) * 1000,
            random.integers(18, 90, 30),
        ]
    )
    names = ["job", "income", "debt", "age"]
    return compile_model(model, ExactShap(references), feature_names=names, decision=PROFILE)


def ends(space: str = "margin", end: int = 0) -> Compiled:
    """A threshold at 1e-8 from 0 or 1, where a Sigmoid of float32 tells no margins apart."""
    graph = "g (float[N, 3] x) => (float[N, 1] p) { z = MatMul (x, w)  p = Sigmoid (z) }"
    model = parsed(graph, {"w": np.array([[1], [1], [20]], np.float32)})
    profile = {"output": "p", "threshold": abs(end - 1e-8), "adverse": "above", "space": space}
    references = np.array([[-19, -1, 0], [-18, 1, 1], [-18, -1, 0]], np.float32)  # one far from the end
    method = DeepShap(-references if end else references)
    return compile_model(model, method, feature_names=["a", "b", "c"], decision=profile)


def unfamiliar() -> Compiled:
    """References with a word that the model was not trained on, beside numbers that are categories."""
    random = np.random.default_rng(4)
    table = pd.DataFrame(
        {"job": random.choice(["clerk", "nurse"], 300), "code": random.choice([2, 7, 31], 300)}
    )
    typed = table.astype("category")
    model = lgb.LGBMClassifier(n_estimators=5, verbose=-1).fit(
        typed, (table["code"] == 7) ^ (table["job"] == "nurse")
    )
    references = table[:20].assign(job=["boat", *table["job"][1:20]])
    profile = {"output": "probabilities[1]", "threshold": 0.5, "adverse": "above"}
    return compile_model(model, ExactShap(references), decision=profile)


def classes() -> Compiled:
    """Several classes, each explained, with the standard errors of their attributions."""
    method = DeepShap(rows(6, 5, seed=1), standard_error=True)
    return compile_model(mlp(), method, targets="all")


def one_shot() -> Compiled:
    method = DeepShap(rows(6, 5, seed=1))
    return compile_model(mlp(), method, targets="predicted", deployment=Deployment(one_shot=True))


def relevance() -> Compiled:
    """Without references: no base value, and no ranges."""
    return compile_model(mlp(), Lrp("EpsilonPlus"), targets=[1])


def integers() -> Compiled:
    """Whole numbers and flags beside what is explained."""
    text = """g (float[N, 2] x, int64[N, 1] months, bool[N, 1] own) => (float[N, 1] y) {
        m = Cast <to = 1> (months)
        o = Cast <to = 1> (own)
        all = Concat <axis = 1> (x, m, o)
        y = MatMul (all, w)
    }"""
    model = parsed(text, {"w": np.array([[1], [2], [-0.1], [3]], np.float32)})
    return compile_model(model, DeepShap(rows(5, 2)), inputs=["x"])


MAKE: dict[str, Callable[[], Compiled]] = {
    "credit": credit,
    "trees": trees,
    "double": double,
    "ends": ends,
    "low_end": partial(ends, "output"),
    "high_end": partial(ends, "output", 1),
    "unfamiliar": unfamiliar,
    "classes": classes,
    "one_shot": one_shot,
    "relevance": relevance,
    "integers": integers,
}


def write(folder: Path, name: str) -> None:
    if name in MAKE:
        MAKE[name]().write(folder, name)
    else:
        {"words": console.words, "hostile.model": console.hostile, "five": console.five}[name](folder)
