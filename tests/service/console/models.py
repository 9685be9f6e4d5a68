"""What the console is shown with: compiled in seconds, without weights from anywhere."""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rationale import DeepShap, ExactShap, Gradient, Lrp, TreeShap, compile_model
from tests.compiler.models import NAMES, mlp, parsed, rows

CREDIT = Path("examples/credit").resolve()
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
BREAKOUT = "\"'><svg onload=alert(3)>"
HOSTILE = (SCRIPT, IMAGE, BREAKOUT, "__proto__", "constructor", "income\u202egnp.exe")


def write_all(folder: Path) -> None:
    credit(folder)
    credit_trees(folder)
    networks(folder)
    ends(folder)
    words(folder)
    image(folder)
    hostile(folder)
    five(folder)
    many(folder)


def credit(folder: Path) -> None:
    references = pd.read_csv(CREDIT / "near_threshold.csv")
    method = DeepShap(references.astype(np.float32))
    compile_model(CREDIT / "credit.onnx", method, decision=CREDIT / "decision.yaml").write(folder, "credit")


def credit_trees(folder: Path) -> None:
    """Boosted trees of the same features as `credit`, which take missing values; without a profile."""
    people = pd.read_csv(CREDIT / "references.csv").astype(np.float32)
    risk = people["debt_to_income"] + people["utilisation"] + people["late_payments_2y"] / 2
    people.loc[::9, "utilisation"] = np.nan
    model = HistGradientBoostingClassifier(max_iter=10, max_depth=3, random_state=0).fit(people, risk > 1)
    compile_model(model, TreeShap(people)).write(folder, "credit.trees")


def ends(folder: Path) -> None:
    """Thresholds near 0 and 1, where a Sigmoid of float32 tells no margins apart."""
    graph = "g (float[N, 2] x) => (float[N, 1] p) { z = MatMul (x, w)  p = Sigmoid (z) }"
    model = parsed(graph, {"w": np.ones((2, 1), np.float32)})
    references = np.array([[-19, -1], [2, 1], [19, -1]], np.float32)
    for space in ("output", "margin"):
        for name, threshold in (("low", 1e-8), ("high", 1 - 1e-8)):
            profile = {"output": "p", "threshold": threshold, "adverse": "above", "space": space}
            compiled = compile_model(model, DeepShap(references), feature_names=["a", "b"], decision=profile)
            compiled.write(folder, f"{name}.{space}")


def networks(folder: Path) -> None:
    """Of three classes: `classes` explains each of them, `bare` the predicted one without references."""
    compile_model(mlp(), DeepShap(rows(6, 5)), targets="all", feature_names=NAMES).write(folder, "several")
    compile_model(mlp(), Gradient(), feature_names=NAMES).write(folder, "gradient")


def table(count: int, seed: int = 0) -> pd.DataFrame:
    """Tenants, with words and whole numbers."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": random.integers(18, 80, count).astype(np.float32),
            "housing": random.choice(["own", "rent", "with parents"], count, p=[0.5, 0.4, 0.1]),
            "purpose": random.choice(["car", "holiday", "education & training"], count),
            "amount": np.round(random.lognormal(8, 0.6, count), 0).astype(np.float32),
        }
    )


def words(folder: Path) -> None:
    """Boosted trees behind one-hot columns of texts; no decision profile."""
    people = table(400)
    risk = (people["amount"] / 4000) + (people["housing"] == "rent") - people["age"] / 40
    columns = ColumnTransformer(
        [("words", OneHotEncoder(handle_unknown="ignore"), ["housing", "purpose"])], remainder="passthrough"
    )
    model = make_pipeline(columns, GradientBoostingClassifier(n_estimators=20, max_depth=3, random_state=0))
    model.fit(people, risk > risk.median())
    compile_model(model, TreeShap(people[:60])).write(folder, "words")


CLASSES = [
    "Returned within the first fortnight, unopened",
    "Kept, and bought again by the same household",
    "Kept & never bought again",
    "Returned by somebody who was given it as a present",
    "Neither kept nor returned: lost on its way, or stolen",
]


def five(folder: Path) -> None:
    """Boosted trees of five classes whose names are long, each of them explained."""
    people = table(400, seed=3)[["age", "amount"]]
    rank = pd.qcut(people["amount"] / 1000 - people["age"] / 30, 5, labels=False)
    model = HistGradientBoostingClassifier(max_iter=5, max_depth=3, random_state=0)
    model.fit(people, np.array(CLASSES)[rank])
    compile_model(model, TreeShap(people[:40]), targets="all").write(folder, "five")


def many(folder: Path) -> None:
    """300 features, of which the first ten are a group."""
    names = [f"feature_{i:03d}" for i in range(300)]
    weights = rows(300, 1) * np.exp(-np.arange(300) / 40, dtype=np.float32)[:, None]
    model = parsed(
        "g (float[N, 300] x) => (float[N, 1] p) { z = MatMul (x, w) p = Sigmoid (z) }", {"w": weights}
    )
    groups = {"The first ten": names[:10]}
    compile_model(model, DeepShap(rows(20, 300, seed=1)), feature_names=names, groups=groups).write(
        folder, "many"
    )


def image(folder: Path) -> None:
    """A small convolutional network over 8×8 pixels of one channel, by LRP, with its first layer."""
    random = np.random.default_rng(0)
    text = """g (float[N, 1, 8, 8] pixels) => (float[N, 10] digits) {
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (pixels, w, b)
        hidden = Relu (c)
        pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (hidden)
        flat = Flatten (pooled)
        digits = Gemm (flat, v, d)
    }"""
    model = parsed(
        text,
        {
            "w": random.normal(size=(6, 1, 3, 3)).astype(np.float32),
            "b": random.normal(size=6).astype(np.float32) / 4,
            "v": random.normal(size=(96, 10)).astype(np.float32) / 8,
            "d": np.zeros(10, np.float32),
        },
    )
    compile_model(model, Lrp("EpsilonPlus"), layers=["hidden"]).write(folder, "image")


def hostile(folder: Path) -> None:
    """A linear model whose features are called what no page may run, and a text with such values."""
    text = """g (float[N, 6] x, string[N, 1] kind) => (float[N, 1] y) {
        ones = ai.onnx.ml.OneHotEncoder
            <cats_strings = ["<b>", "<script>alert(4)</script>"], zeros = 1> (kind)
        flat = Reshape (ones, shape)
        z = Concat <axis = 1> (x, flat)
        y = MatMul (z, w)
    }"""
    weights = np.arange(1, 9, dtype=np.float32)[:, None]
    model = parsed(text, {"shape": np.array([-1, 2]), "w": weights}, opsets='"" : 21, "ai.onnx.ml" : 3')
    sample_rows = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    kinds = np.array([["<b>"], ["<script>alert(4)</script>"], ["<b>"], ["other"], ["other"]])
    names = {"x": list(HOSTILE), "kind": ["kind"]}
    compile_model(model, ExactShap({"x": sample_rows, "kind": kinds}), feature_names=names).write(
        folder, "hostile.model"
    )
