"""Fourier transforms: linear operators that are each other's adjoints up to a factor."""

import math

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, rule

LONGEST_MATRIX = 1024  # above it the adjoint is a transform too, which loses two digits in float32


@rule("DFT", kind=Kind.BILINEAR)
def dft(
    op: Ops,
    x: Tensor,
    length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Evaluation:
    """Compute y = F·x, or F⁻¹·x = F̄ᵀ·x/n;  the adjoint of F is n·F⁻¹, that of F⁻¹ is F/n."""
    along = (ints(axis, "DFT axes")[0] if axis is not None else -2) % x.rank
    y = op.DFT(x, length, axis, inverse=inverse, onesided=onesided)
    n = x.shape[along] if length is None else ints(length, "DFT lengths")[0]
    n = y.shape[along] if inverse and onesided else n

    def dft_pullback(m: Tensor) -> Tensor:
        if max(n, x.shape[along]) > LONGEST_MATRIX:
            return _by_transform(op, m, x, along, n, bool(inverse), bool(onesided))
        return _by_matrix(op, m, x, along, _matrix(x, along, n, bool(inverse), bool(onesided)))

    return y, (dft_pullback, None, None)


def _matrix(x: Tensor, along: int, n: int, inverse: bool, onesided: bool) -> np.ndarray:
    """Return the transform of each unit vector of the axis: [size · parts, size of y · parts of y]."""
    size, parts = x.shape[along], x.shape[-1]
    basis = np.eye(size, dtype=complex)
    units = np.stack([basis, 1j * basis][:parts], axis=1).reshape(size * parts, size)
    if inverse and onesided:
        return np.fft.irfft(units, n).astype(x.dtype.numpy())
    y = np.fft.ifft(units, n) if inverse else np.fft.fft(units, n)
    y = y[:, : n // 2 + 1] if onesided else y
    return np.stack([y.real, y.imag], axis=2).reshape(size * parts, -1).astype(x.dtype.numpy())


def _by_matrix(op: Ops, m: Tensor, x: Tensor, along: int, matrix: np.ndarray) -> Tensor:
    other_axes = [a for a in range(x.rank - 1) if a != along]
    order = [*other_axes, along, x.rank - 1]
    back = [order.index(a) for a in range(x.rank)]
    is_reordered = order != sorted(order)
    reordered = op.Transpose(m, perm=order) if is_reordered else m
    shape = [x.shape[a] for a in other_axes]
    flat = op.reshape(reordered, (math.prod(shape), matrix.shape[1]))
    result = op.reshape(op.MatMul(flat, op.constant(matrix.T.copy())), (*shape, x.shape[along], x.shape[-1]))
    return op.Transpose(result, perm=back) if is_reordered else result


def _by_transform(op: Ops, m: Tensor, x: Tensor, along: int, n: int, inverse: bool, onesided: bool) -> Tensor:
    if onesided and not inverse:  # the other half did not contribute
        m = _resize_end(op, m, along, n)
    length, axis = (op.constant(np.asarray(i, np.int64)) for i in (n, along))
    g = op.DFT(m, length, axis, inverse=0 if inverse else 1)
    if inverse and onesided:  # each frequency but 0 and n/2 occurs twice
        g = _resize_end(op, g, along, n // 2 + 1)
        twice = np.full(n // 2 + 1, 2.0, x.dtype.numpy())
        twice[0] = 1.0
        twice[n // 2 :] = 1.0 if n % 2 == 0 else 2.0
        g = op.Mul(g, op.constant(twice.reshape([-1, *(1 for _ in x.shape[along + 1 :])])))
    g = _resize_end(op, op.Mul(g, 1.0 / n if inverse else float(n)), along, x.shape[along])
    return g if x.shape[-1] == 2 else op.Slice(g, [0], [1], [x.rank - 1])


def _resize_end(op: Ops, x: Tensor, axis: int, size: int) -> Tensor:
    """Cut the end off, or pad it with zeros."""
    extra = size - x.shape[axis]
    if extra < 0:
        return op.Slice(x, [0], [size], [axis])
    return op.Pad(x, [0, extra], None, [axis]) if extra else x
