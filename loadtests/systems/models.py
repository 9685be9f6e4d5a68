"""The models under load: a network of 24 features with its explanation, made here, and the credit example."""

import itertools
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, numpy_helper, parser

from benchmarks.runtime import session_of
from loadtests.load.questions import PREDICT, ROUTES, SUFFIX, Question
from rationale import DeepShap, compile_model

FEATURES = 24
NETWORK, CREDIT = "network", "credit"  # the latter is the example in `model_repository`
SEED = 24


def network(width: int) -> ModelProto:
    """A classifier of 24 features with two hidden layers: credit scoring, as banks do it with networks."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        network (float[N, 24] x) => (float[N, 1] y) {
            z0 = Gemm (x, w0, b0)   a0 = Relu (z0)
            z1 = Gemm (a0, w1, b1)  a1 = Relu (z1)
            z2 = Gemm (a1, w2, b2)  y = Sigmoid (z2)
        }
    """)
    generator = np.random.default_rng(SEED)
    for i, (rows, columns) in enumerate(itertools.pairwise([FEATURES, width, width, 1])):
        weights = (generator.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
        for name, array in ((f"w{i}", weights), (f"b{i}", np.full(columns, 0.1, np.float32))):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def write_network(repository: Path, *, width: int, references: int) -> None:
    """Write a network with its DeepSHAP explanation: about 5 ms a row at width 512 and 100 references."""
    rows = np.random.default_rng(SEED).normal(size=(references, FEATURES)).astype(np.float32)
    compile_model(network(width), DeepShap(rows)).write(repository, NETWORK)


def question(model: str, verb: str, rows: int = 1) -> Question:
    """Return a question about random rows for the network or the credit example."""
    random = np.random.default_rng(SEED + 1)
    if model == CREDIT:
        inputs = {"applicant": random.uniform(size=(rows, 10)).astype(np.float32)}
    else:
        inputs = {"x": random.normal(size=(rows, FEATURES)).astype(np.float32)}
    entry = model if verb == PREDICT else model + SUFFIX
    return Question(verb, f"/v2/models/{model}/{ROUTES[verb]}", entry, inputs)


def session(repository: Path, entry: str) -> ort.InferenceSession:
    """Return a session of one thread on the CPU."""
    return session_of(repository / entry / "1" / "model.onnx", 1, on_cpu=True)
