"""The base value of many references whose outputs are large beside what sets them apart."""

from typing import Any

import numpy as np
import onnx
import pytest

from rationale import (
    Compiled,
    DeepShap,
    Deployment,
    ExactShap,
    IntegratedGradients,
    OpenReferences,
    compile_model,
)
from rationale.graph.runtime.openvino import OpenVinoRunner
from rationale.graph.runtime.session import Runner
from rationale.references.request_time import repeat_references
from tests.compiler.models import mlp, parsed, rows

K, LEVEL = 2000, 1e4
REFERENCES, X = rows(K, 5, seed=1), rows(4, 5, seed=2)
WEIGHTS = np.random.default_rng(3).random(K)
ULP = float(np.spacing(np.float32(LEVEL)))


def level_network() -> onnx.ModelProto:
    """1e4 plus a perceptron with two outputs; the second is the other way round."""
    model = "g (float[N, 5] x) => (float[N, 2] y) { h = MatMul (x, w) a = Relu (h) y = Gemm (a, v, c) }"
    v = rows(7, 1)
    return parsed(model, {"w": rows(5, 7), "v": np.hstack([v, -v]), "c": np.full(2, LEVEL, np.float32)})


def scores(x: np.ndarray) -> np.ndarray:
    """[N, 2] as the model answers them, in float64."""
    return np.asarray(Runner(level_network(), users_model=True)({"x": x})["y"], np.float64)


def question(compiled: Compiled, weights: np.ndarray | None) -> dict[str, Any]:
    if compiled.manifest.open_references is None:
        return compiled.explain(X)
    reference_inputs = repeat_references(
        compiled.manifest.open_references, {"x": REFERENCES}, weights, len(X)
    )
    return compiled.explain({"x": X, **reference_inputs})


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "whole": (DeepShap(REFERENCES), {}),
    "weights": (DeepShap(REFERENCES, WEIGHTS), {}),
    "chunks": (DeepShap(REFERENCES), {"deployment": Deployment(memory_budget=300_000)}),
    "weights in chunks": (DeepShap(REFERENCES, WEIGHTS), {"deployment": Deployment(memory_budget=300_000)}),
    "request": (DeepShap(OpenReferences(K)), {}),
    "weights of a request": (DeepShap(OpenReferences(K)), {}),
    "integrated": (IntegratedGradients(REFERENCES, steps=8), {}),
    "coalitions": (ExactShap(REFERENCES), {}),
    "float16": (DeepShap(REFERENCES), {"deployment": Deployment(storage="float16")}),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_mean_as_float64_has_it(way: str) -> None:
    method, how = WAYS[way]
    weights = WEIGHTS if "weights" in way else None
    compiled = compile_model(level_network(), method, targets=[0], **how)
    answer = question(compiled, weights)
    base, explained = np.average(scores(REFERENCES)[:, 0], weights=weights), scores(X)[:, 0]
    if "chunks" in way:
        assert compiled.manifest.memory is not None
        assert compiled.manifest.memory.chunks > 1
    np.testing.assert_allclose(answer["base_value"][:, 0], base, rtol=0, atol=0.51 * ULP)
    # What float32 leaves of the base value is in the gap: it is that of the exact one.
    gap = explained - base - answer["x_attributions"][:, 0].sum(-1, dtype=np.float64)
    np.testing.assert_allclose(
        answer["completeness_gap"][:, 0], gap, rtol=0, atol=1e-6 * np.abs(explained - base).max()
    )


@pytest.mark.parametrize(("targets", "sign"), [("predicted", None), (["0-1"], 2.0)])
def test_predicted_classes_and_contrasts_have_it_too(targets: Any, sign: float | None) -> None:
    answer = compile_model(level_network(), DeepShap(REFERENCES), targets=targets).explain(X)
    values, mean = scores(X), scores(REFERENCES).mean(axis=0)
    if sign is None:
        picked = values.argmax(axis=1)
        explained, base, ulp = values.max(axis=1), mean[picked], ULP
    else:
        explained, base = values[:, 0] - values[:, 1], np.full(4, mean[0] - mean[1])
        ulp = float(np.spacing(np.float32(base[0])))
    np.testing.assert_allclose(answer["base_value"][:, 0], base, rtol=0, atol=0.51 * ulp)
    gap = explained - base - answer["x_attributions"][:, 0].sum(-1, dtype=np.float64)
    np.testing.assert_allclose(
        answer["completeness_gap"][:, 0], gap, rtol=0, atol=2e-6 * np.abs(explained - base).max()
    )


def test_a_server_computes_nothing_in_float64_of_constant_references() -> None:
    compiled = compile_model(
        mlp(), DeepShap(REFERENCES), targets="predicted", deployment=Deployment(runtime="any")
    )
    kinds = [
        v.type.tensor_type.elem_type for v in (*compiled.model.graph.output, *compiled.model.graph.value_info)
    ]
    kinds += [t.data_type for t in compiled.model.graph.initializer]
    kinds += [a.i for n in compiled.model.graph.node if n.op_type == "Cast" for a in n.attribute]
    assert onnx.TensorProto.DOUBLE not in kinds


@pytest.mark.parametrize(
    "method", [DeepShap(REFERENCES[:9]), DeepShap(OpenReferences(9))], ids=["baked", "request"]
)
def test_another_runtime_answers_the_same(method: DeepShap) -> None:
    compiled = compile_model(mlp(), method, targets=[0], deployment=Deployment(runtime="any"))
    inputs = {"x": X}
    if compiled.manifest.open_references is not None:
        inputs |= repeat_references(compiled.manifest.open_references, {"x": REFERENCES[:9]}, None, len(X))
    want, got = compiled.run(inputs), OpenVinoRunner(compiled.model)(inputs)
    for name in ("base_value", "x_attributions"):
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-5)
