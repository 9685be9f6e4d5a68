"""Networks that ONNX Runtime's optimisers have fused: explained as the networks they were."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rationale import AttnLrp, DeepShap, Gradient, UnsupportedModelError, compile_model
from rationale.artifact.finishing.fused import DOMAIN
from tests.compiler.models import parsed, rows
from tests.models.transformers_models import LENGTH, VOCABULARY, Exported, transformer
from tests.tolerances import FUSED_32

pytestmark = pytest.mark.full

Optimise = Callable[[onnx.ModelProto, Path], onnx.ModelProto]
LEVEL = onnxruntime.GraphOptimizationLevel


def by_onnx_runtime(
    model: onnx.ModelProto, folder: Path, level: Any = LEVEL.ORT_ENABLE_EXTENDED
) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 3
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(folder / "optimised.onnx")


def by_transformers(kind: str, level: int | None, model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    from onnxruntime.transformers.optimizer import optimize_model

    onnx.save(model, folder / "model.onnx")
    logging.disable(logging.WARNING)  # it tells of each step, and of each fusion that it leaves
    try:
        how = {"model_type": kind, "num_heads": 4, "hidden_size": 32, "opt_level": level, "use_gpu": False}
        return optimize_model(str(folder / "model.onnx"), **how).model
    finally:
        logging.disable(logging.NOTSET)


ALL = functools.partial(by_onnx_runtime, level=LEVEL.ORT_ENABLE_ALL)
BERT, GPT = functools.partial(by_transformers, "bert"), functools.partial(by_transformers, "gpt2")
ATTENTION = {"EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu"}
FULL, SLOW = pytest.mark.full, pytest.mark.slow
# the network, how it was optimised, what that left in it, and its mark
FUSED = [
    ("BERT, eager", by_onnx_runtime, {"FusedMatMul", "BiasGelu", "FusedGemm"}, FULL),
    ("BERT, eager", ALL, {"FusedMatMul", "BiasGelu", "FusedGemm"}, SLOW),
    ("BERT, eager", functools.partial(BERT, None), ATTENTION, SLOW),
    ("BERT, eager", functools.partial(BERT, 1), ATTENTION, ()),
    ("BERT, eager", functools.partial(BERT, 2), ATTENTION, SLOW),
    ("GPT-2", by_onnx_runtime, {"FusedMatMul", "FastGelu"}, SLOW),
    ("GPT-2", functools.partial(GPT, 1), {"SkipLayerNormalization", "FastGelu"}, FULL),
    ("GPT-2", functools.partial(GPT, 2), {"SkipLayerNormalization", "FastGelu"}, SLOW),
    ("Llama", by_onnx_runtime, {"FusedMatMul", "SimplifiedLayerNormalization", "QuickGelu"}, SLOW),
    (
        "Llama",
        functools.partial(GPT, 1),
        {"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"},
        (),
    ),
]
# of ids, a gradient is summed over what they are looked up as: behind a LayerNormalization that is 0
METHODS = {
    "deepshap": DeepShap,
    "gradient": lambda _: Gradient(times_input=True),
    "attnlrp": lambda _: AttnLrp(),
}


def exported(name: str) -> Exported:
    return transformer(name, dynamo=False)


def explained(name: str, method: str, model: onnx.ModelProto) -> tuple[dict[str, np.ndarray], Any]:
    source = exported(name)
    targets = [0, 2] if name.startswith("BERT") else [(LENGTH - 1) * VOCABULARY + i for i in (5, 9)]
    compiled = compile_model(model, METHODS[method](source.references), targets=targets)
    assert {entry.domain for entry in compiled.model.opset_import} <= {"", "ai.onnx.ml", DOMAIN}
    assert {node.domain for node in compiled.model.graph.node} <= {"", "ai.onnx.ml", DOMAIN}
    return compiled.explain(source.x), compiled.manifest


@functools.cache
def unoptimised(name: str, method: str) -> tuple[dict[str, np.ndarray], Any]:
    return explained(name, method, exported(name).model)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "optimise", "remaining"),
    [
        pytest.param(n, o, remaining, marks=marks, id=f"{n}, {i}")
        for i, (n, o, remaining, marks) in enumerate(FUSED)
    ],
)
def test_a_fused_transformer_is_explained_as_it_was(
    name: str, optimise: Optimise, remaining: set[str], method: str, tmp_path: Path
) -> None:
    model = optimise(exported(name).model, tmp_path)
    assert {n.op_type for n in model.graph.node} >= remaining, "not fused: a test of nothing"
    (got, warnings), (want, before) = explained(name, method, model), unoptimised(name, method)
    assert got.keys() == want.keys()
    assert (warnings.inputs, warnings.outputs) == (before.inputs, before.outputs)
    for key in ("logits", "ids_attributions"):
        np.testing.assert_allclose(got[key], want[key], 0, FUSED_32 * np.abs(want[key]).max())
    if name.startswith("BERT"):  # two masked tokens
        assert np.abs(got["ids_attributions"][1, :, 5:]).max() <= 1e-6 * np.abs(got["ids_attributions"]).max()


IMAGES = """network (float[N, 3, 9, 8] x) => (float[N, 2] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    h = Relu (c)
    d = Conv <pads = [1, 1, 1, 1]> (h, v)
    e = Add (d, h)
    f = LeakyRelu <alpha = 0.2> (e)
    p = GlobalAveragePool (f)
    flat = Flatten (p)
    g = Gemm (flat, u)
    y = Relu (g)
}"""
WEIGHTS = {"w": rows(4, 3, 3, 3), "b": rows(4), "v": rows(4, 4, 3, 3, seed=1) / 6, "u": rows(4, 2, seed=2)}


def test_fused_convolutions(tmp_path: Path) -> None:
    model, x = parsed(IMAGES, WEIGHTS), rows(5, 3, 9, 8, seed=3)
    fused = by_onnx_runtime(model, tmp_path)
    assert {"FusedConv", "FusedGemm"} <= {n.op_type for n in fused.graph.node}
    for method in (DeepShap(rows(3, 3, 9, 8, seed=4)), Gradient()):
        got, want = (compile_model(m, method, targets=[0, 1]).explain(x) for m in (fused, model))
        for key, value in want.items():
            np.testing.assert_allclose(
                got[key], value, 0, FUSED_32 * np.abs(value).max(initial=1), err_msg=key
            )


def test_a_layout_of_one_machine_is_refused_with_advice(tmp_path: Path) -> None:
    fused = ALL(
        parsed(
            IMAGES,
            {**WEIGHTS, "w": rows(16, 3, 3, 3), "b": rows(16), "v": rows(16, 16, 3, 3), "u": rows(16, 2)},
        ),
        tmp_path,
    )
    if not any(n.domain == "com.microsoft.nchwc" for n in fused.graph.node):
        pytest.skip("this machine's ONNX Runtime has no blocked layout")
    with pytest.raises(UnsupportedModelError, match=r"com\.microsoft\.nchwc: .*EXTENDED"):
        compile_model(fused, Gradient(), targets=[0])
