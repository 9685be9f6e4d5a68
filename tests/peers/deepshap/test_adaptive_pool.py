"""Adaptive pools with windows of different sizes: torch.export gathers places, with the batch behind them."""

import contextlib
import io
import warnings

import numpy as np
import onnx
import torch

from rationale import DeepShap, Gradient, compile_model


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    pool = torch.nn.AdaptiveAvgPool2d((5, 3))
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.Tanh(), pool, torch.nn.Flatten(), torch.nn.Linear(60, 3)
    ).eval()


def exported(module: torch.nn.Module) -> onnx.ModelProto:
    batch = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter warns about itself
        program = torch.onnx.export(module, (torch.randn(2, 2, 5, 6),), dynamo=True, verbose=False, **batch)
    return program.model_proto


def test_an_adaptive_pool_is_explained() -> None:
    module = network()
    model = exported(module)
    assert "GatherND" in {node.op_type for node in model.graph.node}
    rows = np.random.default_rng(0).standard_normal((7, 2, 5, 6)).astype(np.float32)
    name = model.graph.input[0].name

    answer = compile_model(model, DeepShap(rows[:4]), targets="all").explain(rows[4:])
    difference = answer["explained_value"] - answer["base_value"]
    assert np.abs(answer["completeness_gap"]).max() <= 1e-6 * np.abs(difference).max()

    x = torch.from_numpy(rows[4:]).requires_grad_()
    module(x)[:, 1].sum().backward()
    got = compile_model(model, Gradient(), targets=[1]).explain(rows[4:])[f"{name}_attributions"][:, 0]
    assert x.grad is not None
    np.testing.assert_allclose(got, x.grad.numpy(), atol=1e-6, rtol=0)
