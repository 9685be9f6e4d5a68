"""What evaluates a model: ONNX Runtime in float32; in float64 our own interpreter, or ONNX's."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from rationale.graph.runtime.session import Runner
from tests.references.interpreter import OPERATORS, run64

Arrays = dict[str, np.ndarray]
Run = Callable[[Mapping[str, np.ndarray]], Arrays]


def _quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """To 0 … 255, over a range that holds zero."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round((-low / scale).clamp(0, 255))
    return (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def _spectrum(
    x: torch.Tensor,
    length: torch.Tensor | None = None,
    axis_input: torch.Tensor | None = None,
    *,
    axis: int = -2,
    inverse: int = 0,
    onesided: int = 0,
) -> torch.Tensor:
    """DFT: the last axis holds the real part, and the imaginary one where there is one."""
    axis = int(axis if axis_input is None else axis_input) % x.ndim
    z = torch.complex(x[..., 0], x[..., 1]) if x.shape[-1] == 2 else x[..., 0]
    n = None if length is None else int(length)
    if onesided and inverse:
        return torch.fft.irfft(z, n, axis)[..., None]
    if onesided:
        return torch.view_as_real(torch.fft.rfft(z, n, axis))
    return torch.view_as_real(torch.fft.ifft(z, n, axis) if inverse else torch.fft.fft(z, n, axis))


def _causal_conv(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    past: torch.Tensor | None = None,
    *,
    activation: bytes = b"none",
) -> tuple[torch.Tensor, torch.Tensor]:
    """CausalConvWithState [N, C, L]; ONNX's own evaluator rounds its activation to float32."""
    behind = w.shape[-1] - 1
    padded = torch.nn.functional.pad(x, (behind, 0)) if past is None else torch.cat([past, x], -1)
    y = torch.nn.functional.conv1d(padded, w, bias, groups=x.shape[1])
    y = y if activation == b"none" else torch.nn.functional.silu(y)
    return y, padded[..., padded.shape[-1] - behind :]


_MORE: dict[str, Callable[..., Any]] = {
    "AffineGrid": lambda theta, size, align_corners=0: torch.nn.functional.affine_grid(
        theta, size.tolist(), align_corners=bool(align_corners)
    ),
    "CausalConvWithState": _causal_conv,
    "DFT": _spectrum,
    "CastLike": lambda x, like, **_: x.to(like.dtype),
    "DynamicQuantizeLinear": _quantised,
}
"""What node tests use and no emitted graph; ONNX's evaluator rounds some of it to float32."""


def in_reference(model: onnx.ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model)
    names = [o.name for o in model.graph.output]

    def run(x: Mapping[str, np.ndarray]) -> Arrays:
        with np.errstate(all="ignore"):
            return dict(zip(names, evaluator.run(None, dict(x)), strict=True))

    return run


def engines(model: onnx.ModelProto) -> list[Callable[[onnx.ModelProto], Run]]:
    """Those that evaluate a model in float64: our own on torch is faster, ONNX's own knows every operator."""
    is_supported = all(n.op_type in (*OPERATORS, *_MORE, "Scan") for n in model.graph.node)
    return [in_torch, in_reference] if is_supported else [in_reference]


def in_torch(model: onnx.ModelProto) -> Run:
    return lambda x: run64(model, x, operators=_MORE)


def in_runtime(model: onnx.ModelProto) -> Run:
    runner = Runner(model, optimise=False, threads=1, users_model=True)
    kinds = {
        v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in model.graph.input
    }
    return lambda x: runner({n: a.astype(kinds[n]) for n, a in x.items()})
