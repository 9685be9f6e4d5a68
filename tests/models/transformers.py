"""Small transformers for the tests: a BERT-like and a Llama-like model that read embeddings [N, S, E].

Written out in plain operations, as many models are: attention by two MatMuls and a Softmax, heads folded by
Reshape and Transpose that leave the batch on axis 0. No two dimensions of a model are equal. √D is 2, since
exporters write a Python number as float32 in a float64 model, too.
"""

import io
import math
import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import Tensor, nn

CLASSES = 3


@dataclass(frozen=True)
class Size:
    """Sequence S, embedding E, H heads of D features that share KV keys and values, M hidden units."""

    sequence: int
    embedding: int
    heads: int
    shared: int
    head: int
    hidden: int


BERT, LLAMA = Size(5, 12, 3, 3, 4, 11), Size(7, 10, 6, 3, 4, 13)


class BertLike(nn.Module):
    """Post-norm blocks: attention, LayerNorm, GELU; the classifier reads the first token."""

    def __init__(self, size: Size = BERT, blocks: int = 2, bias: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BertBlock(size, bias) for _ in range(blocks))
        self.head = nn.Linear(size.embedding, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class BertBlock(nn.Module):
    def __init__(self, size: Size, bias: bool) -> None:
        super().__init__()
        e, width = size.embedding, size.heads * size.head
        self.size = size
        self.q, self.k, self.v = (nn.Linear(e, width, bias=bias) for _ in range(3))
        self.o = nn.Linear(width, e, bias=bias)
        self.up, self.down = nn.Linear(e, size.hidden, bias=bias), nn.Linear(size.hidden, e, bias=bias)
        self.norm1, self.norm2 = (nn.LayerNorm(e, eps=1e-5, bias=bias) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(f(x), self.size.head) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size.head)
        x = self.norm1(x + self.o(merge(scores.softmax(-1) @ v)))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class LlamaLike(nn.Module):
    """Pre-norm blocks: RMSNorm, rotary embeddings, causal grouped attention, a SiLU gate; no biases."""

    def __init__(self, size: Size = LLAMA, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LlamaBlock(size) for _ in range(blocks))
        self.norm = RMSNorm(size.embedding)
        self.head = nn.Linear(size.embedding, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -1])


class LlamaBlock(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        e, width, shared = size.embedding, size.heads * size.head, size.shared * size.head
        self.size = size
        self.q, self.o = nn.Linear(e, width, bias=False), nn.Linear(width, e, bias=False)
        self.k, self.v = nn.Linear(e, shared, bias=False), nn.Linear(e, shared, bias=False)
        self.gate, self.up = (nn.Linear(e, size.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(size.hidden, e, bias=False)
        self.norm1, self.norm2 = RMSNorm(e), RMSNorm(e)
        cos, sin, mask = rotary(size)
        self.register_buffer("cos", torch.tensor(cos))
        self.register_buffer("sin", torch.tensor(sin))
        self.register_buffer("mask", torch.tensor(mask))

    def forward(self, x: Tensor) -> Tensor:
        h, head = self.norm1(x), self.size.head
        q = self.turn(heads(self.q(h), head))
        k, v = self.turn(heads(self.k(h), head)), heads(self.v(h), head)
        k, v = (self.repeat(t) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size.head) + self.mask
        x = x + self.o(merge(scores.softmax(-1) @ v))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))

    def turn(self, x: Tensor) -> Tensor:
        """Rotary position embeddings, [N, H, S, D]."""
        half = self.size.head // 2
        a, b = x[..., :half], x[..., half:]
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin

    def repeat(self, x: Tensor) -> Tensor:
        """[N, KV, S, D] → [N, H, S, D]."""
        size = self.size
        times = size.heads // size.shared
        x = x.unsqueeze(2).expand(-1, -1, times, -1, -1)
        return x.reshape(-1, size.heads, size.sequence, size.head)


class RMSNorm(nn.Module):
    """As models write it: x/√(mean x² + ε), then the weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def heads(x: Tensor, head: int) -> Tensor:
    """[N, S, H·D] → [N, H, S, D]."""
    return x.reshape(x.shape[0], x.shape[1], -1, head).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """[N, H, S, D] → [N, S, H·D]."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def rotary(size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """cos and sin [S, D] of the positions' angles, and the causal mask [S, S] with −∞ above its diagonal."""
    half = size.head // 2
    angles = np.arange(size.sequence)[:, None] * 0.7 ** np.arange(half)
    both_angles = np.concatenate([angles, angles], axis=1)
    mask = np.triu(np.full((size.sequence, size.sequence), -np.inf), 1)
    return tuple(a.astype(np.float32) for a in (np.cos(both_angles), np.sin(both_angles), mask))


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in evaluation mode with weights that keep the signal: matrices by Xavier, scales near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                gain = 1.4 / math.sqrt(parameter.shape[1])
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * gain)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            else:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return module.eval()


def exported(
    module: nn.Module,
    size: Size,
    *,
    dynamo: bool,
    dtype: torch.dtype = torch.float32,
    open_length: bool = False,
) -> onnx.ModelProto:
    """The module with the input x [N, S, E] and the output y [N, 3], by one of PyTorch's exporters.

    Args:
        open_length: whether S is left open.
    """
    module = module.to(dtype)
    row = torch.randn(2, size.sequence, size.embedding, dtype=dtype)
    names = {"input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            dims = {0: torch.export.Dim("N", min=1)}
            dims |= {1: torch.export.Dim("S", min=2)} if open_length else {}
            program = torch.onnx.export(
                module, (row,), dynamo=True, dynamic_shapes=(dims,), verbose=False, **names
            )
            return program.model_proto
        buffer = io.BytesIO()
        torch.onnx.export(
            module,
            (row,),
            buffer,
            dynamo=False,
            dynamic_axes={"x": {0: "N", **({1: "S"} if open_length else {})}, "y": {0: "N"}},
            opset_version=18,
            **names,
        )
        return onnx.load_model_from_string(buffer.getvalue())
