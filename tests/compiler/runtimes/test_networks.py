"""Whole networks in OpenVINO beside ONNX Runtime: a credit network, images, transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.cases import BenchmarkCase
from benchmarks.subjects import make_subject
from rationale import DeepShap, Deployment, compile_model
from rationale.artifact.compiled import Compiled
from rationale.errors import CheckFailedError
from rationale.graph.runtime.openvino import OpenVinoRunner
from rationale.graph.runtime.session import Runner
from tests.models.transformers_models import transformer
from tests.tolerances import ACROSS_RUNTIMES

OWN_ROUNDINGS = 8  # of what ONNX Runtime itself answers otherwise where it computes in another order
PORTABLE = Deployment(runtime="openvino")
SUBJECTS = {
    "credit-softmax": BenchmarkCase("credit-softmax", (30,), 50, 4),
    "resnet50": BenchmarkCase("resnet50", (3, 64, 64), 4, 2),
    "densenet201": BenchmarkCase("densenet201", (3, 64, 64), 4, 2),
    "vgg19": BenchmarkCase("vgg19", (3, 64, 64), 4, 2),
    "efficientnetb0": BenchmarkCase("efficientnetb0", (3, 64, 64), 4, 2),
}
IMAGES = {name for name, case in SUBJECTS.items() if len(case.shape) > 1}


def demand_the_same(compiled: Compiled, x: Mapping[str, np.ndarray]) -> None:
    """Each answer, over its own largest, or as far as ONNX Runtime without its optimisations is off."""
    want, got = compiled.run(x), OpenVinoRunner(compiled.model)(x)
    own = Runner(compiled.model, optimise=False)(x)
    for name, value in want.items():
        size = np.abs(want["explained_value"] if name == "completeness_gap" else value).max()
        limit = max(ACROSS_RUNTIMES, OWN_ROUNDINGS * np.abs(own[name] - value).max() / size)
        assert np.abs(got[name] - value).max() / size <= limit, name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in IMAGES else name for name in SUBJECTS]
)
def test_a_network_in_openvino(name: str) -> None:
    subject = make_subject(SUBJECTS[name], 0)
    method = DeepShap(subject.references.numpy())
    compiled = compile_model(subject.model, method, targets="predicted", deployment=PORTABLE)
    demand_the_same(compiled, compiled.fit({"x": subject.rows.numpy()}))


@pytest.mark.parametrize("name", ["BERT", pytest.param("Swin", marks=pytest.mark.slow)])
def test_a_transformer_in_openvino(name: str) -> None:
    given: Any = transformer(name, dynamo=False)
    compiled = compile_model(given.model, DeepShap(given.references), targets=[0, 2], deployment=PORTABLE)
    demand_the_same(compiled, compiled.fit(given.x))


def test_references_in_chunks_do_not_load_in_openvino() -> None:
    """The body of their Scan reads values from outside, which OpenVINO counts as its state."""
    subject = make_subject(BenchmarkCase("credit-softmax", (30,), 200, 3), 0)
    deployment = Deployment(runtime="openvino", memory_budget=4_000_000)
    method = DeepShap(subject.references.numpy())
    compiled = compile_model(subject.model, method, targets="all", deployment=deployment)
    assert compiled.manifest.memory is not None
    assert compiled.manifest.memory.chunks > 1
    with pytest.raises(CheckFailedError, match=r"num_initial_values"):
        OpenVinoRunner(compiled.model)
