"""Every sample's graph in OpenVINO and in the onnx package's evaluator, beside ONNX Runtime.

What differs is listed with its reason, and what is listed differs: a list that is out of date fails.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from rationale import DeepShap, Deployment, Gradient, Lrp, compile_model
from rationale.errors import CheckFailedError, UnsupportedModelError
from rationale.graph.runtime.openvino import OpenVinoRunner
from rationale.graph.runtime.session import Runner
from rationale.testing.harness import targets_of
from tests.compiler.runtimes.differences import (
    EVALUATOR,
    EVALUATOR_LRP,
    LRP_NOT_COMPILED,
    OPENVINO,
    OPENVINO_EXPLAINED,
)
from tests.compiler.samples import SAMPLES, Sample, parameters
from tests.tolerances import ACROSS_RUNTIMES

pytestmark = pytest.mark.full

N, K = 2, 3
Answers = Mapping[str, np.ndarray]
Run = Callable[[Answers], Answers]

each_sample = pytest.mark.parametrize("sample", parameters(SAMPLES))
METHODS: dict[str, Callable[[Sample], Any]] = {
    "deepshap": lambda sample: DeepShap(sample.draw(K, 8, np.float32)),
    "gradient": lambda _: Gradient(),
    "lrp": lambda _: Lrp(),
}
each_method = pytest.mark.parametrize(
    "method", ["deepshap", *(pytest.param(m, marks=pytest.mark.slow) for m in ("gradient", "lrp"))]
)


def agrees(run: Callable[[], Answers], want: Answers) -> bool:
    """Whether every answer is ONNX Runtime's, within 1e-4 of the largest; what does not load is not."""
    try:
        got = run()
    except (CheckFailedError, ValueError):
        return False
    size = max(np.abs(value).max() for name, value in want.items() if name != "completeness_gap")
    return all(
        got[name].shape == value.shape and np.abs(got[name] - value).max() <= ACROSS_RUNTIMES * (size or 1.0)
        for name, value in want.items()
    )


def by_evaluator(model: onnx.ModelProto, x: Answers) -> Answers:
    names = [output.name for output in model.graph.output]
    with np.errstate(all="ignore"):  # infinities are meant: what is divided by one is 0
        return dict(
            zip(names, ReferenceEvaluator(inline_local_functions(model)).run(None, dict(x)), strict=True)
        )


@each_method
@each_sample
def test_a_sample_elsewhere(sample: Sample, method: str) -> None:
    model, x = sample.model(np.float32), sample.draw(N, 9, np.float32)
    made = METHODS[method](sample)
    deployment = Deployment(runtime="openvino")
    try:
        compiled = compile_model(model, made, targets=targets_of(model), deployment=deployment)
    except UnsupportedModelError:
        assert method == "lrp", "only LRP has no rule for some operators"
        return
    except CheckFailedError:
        assert method == "lrp"
        assert sample.label in LRP_NOT_COMPILED
        return
    assert method != "lrp" or sample.label not in LRP_NOT_COMPILED
    want = compiled.explain(x)
    if all(value.dtype.kind == "f" for value in want.values()):
        in_openvino = agrees(lambda: OpenVinoRunner(compiled.model)(compiled.fit(x)), want)
        otherwise = OPENVINO | OPENVINO_EXPLAINED
        assert in_openvino == (sample.label not in otherwise), otherwise.get(sample.label)
    listed = EVALUATOR | (EVALUATOR_LRP if method == "lrp" else {})
    in_evaluator = agrees(lambda: by_evaluator(compiled.model, compiled.fit(x)), want)
    assert in_evaluator == (sample.label not in listed), listed.get(sample.label)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.label in OPENVINO], ids=lambda s: s.label)
def test_what_openvino_does_otherwise_it_does_in_the_plain_model(sample: Sample) -> None:
    """So that no reason hides a fault of what the compiler emits."""
    model, x = sample.model(np.float32), sample.draw(1, 9, np.float32)
    assert not agrees(lambda: OpenVinoRunner(model)(x), Runner(model)(x))


def test_every_reason_is_of_a_sample() -> None:
    assert {*OPENVINO, *EVALUATOR, *EVALUATOR_LRP, *LRP_NOT_COMPILED} <= {sample.label for sample in SAMPLES}
