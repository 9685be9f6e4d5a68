"""A small network of two inputs in float64, with rows, references and its derivatives by torch."""

from collections.abc import Mapping

import numpy as np
import onnx
import torch

from tests.compiler.models import parsed

N, T, K = 5, 2, 3
A, B = 3, 4  # features of the two inputs
Arrays = Mapping[str, np.ndarray]


def wide(count: int, *shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *shape))


U, V = wide(A, T, seed=1), wide(B, T, seed=2)
X = {"a": wide(N, A, seed=3), "b": wide(N, B, seed=4)}
R = {"a": wide(K, A, seed=5), "b": wide(K, B, seed=6)}


def gated() -> onnx.ModelProto:
    """y [N, T] = tanh(a·u) ⊙ σ(b·v) in float64."""
    text = """gated (double[N, 3] a, double[N, 4] b) => (double[N, 2] y) {
        p = MatMul (a, u) s = Tanh (p) q = MatMul (b, v) g = Sigmoid (q) y = Mul (s, g)
    }"""
    return parsed(text, {"u": U, "v": V})


def derivatives(points: Arrays) -> dict[str, np.ndarray]:
    """dy/dx of `gated` at [P, …] points, by torch: [P, T, …]."""
    a, b = (torch.tensor(points[name], requires_grad=True) for name in "ab")
    y = torch.tanh(a @ torch.tensor(U)) * torch.sigmoid(b @ torch.tensor(V))
    columns = [torch.autograd.grad(y[:, t].sum(), (a, b), retain_graph=True) for t in range(T)]
    stacked = (torch.stack(list(group), dim=1).numpy() for group in zip(*columns, strict=True))
    return dict(zip("ab", stacked, strict=True))


def value(points: Arrays) -> np.ndarray:
    return np.asarray(np.tanh(points["a"] @ U) / (1 + np.exp(-points["b"] @ V)))
