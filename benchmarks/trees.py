"""Boosted trees: 300 of depth 6 on 50 features, 2% of them missing."""

from importlib import import_module
from typing import Any

import numpy as np
import onnx

from benchmarks.cases import BOOSTERS
from benchmarks.timing import quietly

TREES, DEPTH, FEATURES, MISSING = 300, 6, 50, 0.02
TRAINED, REFERENCE_ROWS = 4000, 2000


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and labels to train with, and other rows."""
    random = np.random.default_rng(0)
    x = random.standard_normal((TRAINED + REFERENCE_ROWS, FEATURES)).astype(np.float32)
    score = x @ random.standard_normal(FEATURES) / 2 + np.sin(3 * x[:, 0]) * x[:, 1] + (x[:, 2] > 0) * x[:, 3]
    label = score + random.standard_normal(len(x)) > 0
    x[random.random(x.shape) < MISSING] = np.nan
    return x[:TRAINED], label[:TRAINED].astype(int), x[TRAINED:]


def trained(name: str, threads: int = 1) -> tuple[Any, onnx.ModelProto]:
    """Return a booster, and its conversion by onnxmltools."""
    rows, labels, _ = data()
    more = {"num_leaves": 2**DEPTH, "verbose": -1} if name == "lightgbm" else {}
    estimator = getattr(import_module(name), BOOSTERS[name])
    grown = estimator(n_estimators=TREES, max_depth=DEPTH, n_jobs=threads, learning_rate=0.1, **more)
    with quietly():
        booster = grown.fit(rows, labels)
        types = import_module("onnxmltools.convert.common.data_types")
        convert = getattr(import_module("onnxmltools"), f"convert_{name}")
        return booster, convert(booster, initial_types=[("x", types.FloatTensorType([None, FEATURES]))])
