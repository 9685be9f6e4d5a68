"""More models for the console: one that decides, digits of 8×8 pixels, reviews of seven tokens, an array."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits

from rationale import Comparisons, DeepShap, Gradient, Lrp, compile_model
from tests.compiler.models import parsed
from tests.service.console.models import IMAGE, SCRIPT

POLARITY = {"good": 2.0, "bad": -2.0, "very": 0.5, "dull": -1.0, "fine": 1.0}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "was", *POLARITY, "##ly", IMAGE, SCRIPT]
LENGTH = 7


JUDGED = {
    "output": "y",
    "threshold": 0.0,
    "adverse": "above",
    "refer": [0.0, 0.5],
    "features": {
        "a": {"reason": "A", "title": f"Title {SCRIPT}", "unit": "<b>EUR</b>"},
        "b": {"reason": "B"},
        "c": {"reason": "C"},
    },
    "reasons": {"A": f"Too much {IMAGE}", "B": "Too little", "C": "Too late", "K": {"text": "Bankruptcy"}},
    "knock_outs": [{"feature": "bankruptcies <i>", "above": 0, "reason": "K"}],
    "output_range": [-20, 20],
}


def write_all(folder: Path) -> None:
    judged(folder)
    digits(folder)
    reviews(folder)
    array(folder)
    two_inputs(folder)


def judged(folder: Path) -> None:
    """A linear score: hostile texts, a knock-out that the model does not know, other references."""
    model = parsed(
        "g (float[N, 3] x) => (float[N, 1] y) { y = MatMul (x, w) }", {"w": np.ones((3, 1), np.float32)}
    )
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    comparisons = Comparisons(
        baselines={"all_applicants": DeepShap(rows + np.array([0, 3, 0], np.float32))}, draws=4
    )
    compile_model(
        model, DeepShap(rows), feature_names=["a", "b", "c"], decision=JUDGED, comparisons=comparisons
    ).write(folder, "judged")


def digits(folder: Path) -> None:
    """Random filters, and a last layer that is fitted to scikit-learn's digits, whose pixels are 0 to 16."""
    random = np.random.default_rng(0)
    pixels, labels = load_digits(return_X_y=True)
    weights: dict[str, np.ndarray] = {
        "w": random.normal(size=(16, 1, 3, 3)).astype(np.float32),
        "b": random.normal(size=16).astype(np.float32),
        "scale": np.array(1 / 16, np.float32),
    }
    text = """g (float[N, 8, 8, 1] pixels) => (float[N, 256] flat) {
        turned = Transpose <perm = [0, 3, 1, 2]> (pixels)
        lit = Mul (turned, scale)
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (lit, w, b)
        hidden = Relu (c)
        pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (hidden)
        flat = Flatten (pooled)
    }"""
    rows = pixels.reshape(-1, 8, 8, 1).astype(np.float32)
    evaluator: Any = ReferenceEvaluator(parsed(text, weights))
    (features,) = evaluator.run(None, {"pixels": rows})
    expected = np.eye(10)[labels] - 0.1
    fitted = np.linalg.solve(features.T @ features + 10 * np.eye(256), features.T @ expected)
    text = text.replace("(float[N, 256] flat)", "(float[N, 10] scores)").replace(
        "\n    }", "\n        scores = MatMul (flat, v)\n    }"
    )
    model = parsed(text, weights | {"v": fitted.astype(np.float32)})
    compile_model(model, Lrp("EpsilonPlus"), targets="all", layers=["hidden"]).write(folder, "digits")


def reviews(folder: Path) -> None:
    """Words that are good or bad: embeddings, a layer, and their sum over what the mask leaves."""
    random = np.random.default_rng(0)
    table = random.normal(size=(len(VOCABULARY), 4)).astype(np.float32) / 20
    table[:, 0] += [POLARITY.get(word, 0.0) for word in VOCABULARY]
    weights: dict[str, np.ndarray] = {
        "table": table,
        "w": np.vstack([[1, -1, 0, 0], random.normal(size=(3, 4)) / 9]).astype(np.float32),
        "v": np.array([[-1, 1], [1, -1], [0.1, 0], [0, 0.1]], np.float32),
        "one": np.array([1]),
        "last": np.array([-1]),
    }
    text = f"""g (int64[N, {LENGTH}] ids, int64[N, {LENGTH}] mask) => (float[N, 2] y) {{
        words = Gather (table, ids)
        h = MatMul (words, w)
        a = Relu (h)
        m = Cast <to = 1> (mask)
        mm = Unsqueeze (m, last)
        kept = Mul (a, mm)
        sum = ReduceSum <keepdims = 0> (kept, one)
        y = MatMul (sum, v)
    }}"""
    compile_model(parsed(text, weights), Gradient(times_input=True), targets="all").write(folder, "reviews")


def array(folder: Path) -> None:
    """Recordings of 3 sensors at 5 times: neither a picture nor words."""
    model = parsed(
        "g (float[N, 5, 3] signals) => (float[N, 1] y) { f = Flatten (signals) y = MatMul (f, w) }",
        {"w": np.linspace(-1, 1, 15, dtype=np.float32)[:, None]},
    )
    compile_model(model, Gradient(times_input=True)).write(folder, "signals")


def two_inputs(folder: Path) -> None:
    """A person's features, and beside them a history of 4 measures at 5 times, which no form can fill in."""
    text = """g (float[N, 2] person, float[N, 5, 4] history) => (float[N, 1] risk) {
        flat = Flatten (history)
        both = Concat <axis = 1> (person, flat)
        z = MatMul (both, w)
        risk = Sigmoid (z)
    }"""
    random = np.random.default_rng(0)
    references = {
        "person": random.normal(size=(6, 2)).astype(np.float32),
        "history": random.normal(size=(6, 5, 4)).astype(np.float32),
    }
    weights = {"w": random.normal(size=(22, 1)).astype(np.float32) / 4}
    names = {"person": ["age", "debts"]}
    compile_model(parsed(text, weights), DeepShap(references), feature_names=names).write(
        folder, "two_inputs"
    )


def png(pixels: np.ndarray) -> bytes:
    """A picture file of bytes [rows, columns, 3]."""
    rows, columns, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + row.astype(np.uint8).tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )
