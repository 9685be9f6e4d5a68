"""Products of matrices, sums of products over chosen indices, and determinants."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.rule import Evaluation, Kind, Trait, Weights, local, rule


@rule("MatMul", kind=Kind.BILINEAR, traits=[Trait.PRODUCT])
def matmul(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = a·b over the last two axes; operands may be vectors."""
    matrix_a, matrix_b = _matrix(op, a, (1, *a.shape)), _matrix(op, b, (*b.shape, 1))
    vector = a.rank == 1 or b.rank == 1
    y = op.MatMul(matrix_a, matrix_b)

    def matmul_pullback_a(m: Tensor) -> Tensor:
        m = op.reshape(m, y.shape) if vector else m
        return _vector(op, op.MatMul(m, swap_last_axes(op, matrix_b)), a)

    def matmul_pullback_b(m: Tensor) -> Tensor:
        m = op.reshape(m, y.shape) if vector else m
        return _vector(op, op.MatMul(swap_last_axes(op, matrix_a), m), b)

    drop = [axis for axis, x in ((-2, a), (-1, b)) if x.rank == 1]
    row_shape = [n for i, n in enumerate(y.shape) if i - y.rank not in drop]
    return op.reshape(y, row_shape), (matmul_pullback_a, matmul_pullback_b)


def _matrix(op: Ops, x: Tensor, shape: Sequence[int]) -> Tensor:
    return op.reshape(x, shape) if x.rank == 1 else x


def _vector(op: Ops, m: Tensor, x: Tensor) -> Tensor:
    """Reduce the multiplier of the matrix that stood for a vector to the multiplier of the vector."""
    if x.rank > 1:
        return m
    if m.rank > 2:
        m = op.ReduceSum(m, list(range(m.rank - 2)), keepdims=0)
    return op.reshape(m, x.shape)


@matmul.layer
def matmul_layer(op: Ops, w: Tensor, bias: Tensor | None) -> Weights:
    """Return W [K, M]."""
    return Weights(w, bias, axis=-1, inputs=(-1, 1), outputs=(1, -1))


def swap_last_axes(op: Ops, x: Tensor) -> Tensor:
    """Exchange the last two axes."""
    order = list(range(x.rank))
    order[-2:] = order[-1], order[-2]
    return op.Transpose(x, perm=order)


@rule("Gemm", kind=Kind.BILINEAR)
def gemm(
    op: Ops,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Evaluation:
    """Compute y = α·a·b + β·c."""
    bias_varies = c is not None and (c.rows or (c.rank == 2 and c.shape[0] != 1))
    if transA or b.rows or bias_varies:
        return _gemm_of_rows(op, a, b, c, alpha, beta, (transA, transB))

    def gemm_pullback_a(m: Tensor) -> Tensor:
        if alpha == 1.0 and (transB or op.is_one_hot(m)):
            # equal to Gemm, but without a change of layout for the references' axis
            return op.MatMul(m, b if transB else swap_last_axes(op, b))
        return op.Gemm(m, b, alpha=alpha, transB=1 - transB)

    def gemm_pullback_c(m: Tensor) -> Tensor:
        return op.Mul(m, beta) if beta != 1.0 else m

    y = op.Gemm(a, b, c, alpha=alpha, beta=beta, transB=transB)
    return y, (gemm_pullback_a, None, gemm_pullback_c)


def _gemm_of_rows(
    op: Ops, a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, turns: tuple[int, int]
) -> Evaluation:
    """Compute a Gemm by MatMul, which takes batch axes that Gemm lacks."""
    matrix_a, matrix_b = (swap_last_axes(op, x) if turn else x for x, turn in zip((a, b), turns, strict=True))

    def scaled(x: Tensor, factor: float) -> Tensor:
        return x if factor == 1.0 else op.Mul(x, factor)

    def gemm_pullback_a(m: Tensor) -> Tensor:
        back = op.MatMul(scaled(m, alpha), swap_last_axes(op, matrix_b))
        return swap_last_axes(op, back) if turns[0] else back

    def gemm_pullback_b(m: Tensor) -> Tensor:
        back = op.MatMul(swap_last_axes(op, matrix_a), scaled(m, alpha))
        return swap_last_axes(op, back) if turns[1] else back

    def gemm_pullback_c(m: Tensor) -> Tensor:
        return scaled(m, beta)

    y = scaled(op.MatMul(matrix_a, matrix_b), alpha)
    y = y if c is None else op.Add(y, scaled(c, beta))
    return y, (gemm_pullback_a, gemm_pullback_b, gemm_pullback_c)


@gemm.layer
def gemm_layer(
    op: Ops, w: Tensor, c: Tensor | None, *, alpha: float = 1.0, beta: float = 1.0, transB: int = 0, **_: int
) -> Weights:
    """Return α·W [K, M], or [M, K] with transB."""
    weight = w if alpha == 1.0 else op.Mul(w, alpha)
    bias = c if c is None or beta == 1.0 else op.Mul(c, beta)
    inputs, outputs = ((1, -1), (-1, 1)) if transB else ((-1, 1), (1, -1))
    return Weights(weight, bias, -1, inputs, outputs, attributes={"alpha": 1.0})


@dataclass(frozen=True)
class Equation:
    """The labels of an Einsum, one letter per axis; the axes of an ellipsis have letters too."""

    inputs: tuple[str, ...]
    output: str


def parse_equation(equation: str, ranks: Sequence[int]) -> Equation:
    """Write out the implicit parts of an equation: the ellipsis and the output."""
    operands, arrow, output = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    widths = [n - len(t.replace("...", "")) for n, t in zip(ranks, terms, strict=True)]
    dots = "".join(free[: max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)])
    if not arrow:
        single_labels = sorted(c for c in set(operands) - set(",.") if operands.count(c) == 1)
        output = ("..." if "..." in operands else "") + "".join(single_labels)
    written = [t.replace("...", dots[len(dots) - w :]) for t, w in zip(terms, widths, strict=True)]
    return Equation(tuple(written), output.replace("...", dots))


@rule("Einsum", kind=Kind.BILINEAR, traits=[Trait.PRODUCT])
def einsum(op: Ops, *xs: Tensor, equation: str) -> Evaluation:
    """Compute y = Σ Π x over the indices that the output lacks; linear in each operand."""
    parsed = parse_equation(equation, [x.rank for x in xs])
    written = f"{','.join(parsed.inputs)}->{parsed.output}"
    y = op.Einsum(*xs, equation=written)
    return y, tuple(_adjoint(op, xs, parsed, i) for i in range(len(xs)))


def _adjoint(op: Ops, xs: Sequence[Tensor], equation: Equation, i: int) -> object:
    def einsum_pullback(m: Tensor) -> Tensor:
        x, other_operands = xs[i], [j for j in range(len(xs)) if j != i]
        terms, tensors = (
            [equation.output, *(equation.inputs[j] for j in other_operands)],
            [m, *(xs[j] for j in other_operands)],
        )
        target, diagonals = _without_repetition(equation.inputs[i], equation)
        for first, second in diagonals:  # x_ii gets the multiplier at i if both indices agree
            terms.append(first + second)
            tensors.append(op.constant(np.eye(x.shape[target.index(second)], dtype=x.dtype.numpy())))
        for axis, label in enumerate(target):  # an index that only x has was summed over
            if not any(label in term for term in terms):
                terms.append(label)
                tensors.append(op.constant(np.ones(x.shape[axis], x.dtype.numpy())))
        return op.Einsum(*tensors, equation=f"{','.join(terms)}->{target}")

    return einsum_pullback


def _without_repetition(term: str, equation: Equation) -> tuple[str, list[tuple[str, str]]]:
    """Return the term with a new letter for each repeated index, and pairs of old and new letters."""
    used = set(equation.output).union(*equation.inputs)
    free = iter(c for c in string.ascii_letters if c not in used)
    written, pairs = "", []
    for label in term:
        if label in written:
            fresh = next(free)
            pairs.append((label, fresh))
            label = fresh
        written += label
    return written, pairs


@local("Det")
def determinant(op: Ops, m: Tensor, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute y = det x over the last two axes;  dy/dx = the cofactors.

    It is linear in each row: row k changes with rows before it at r and rows behind it at x, or vice versa.
    """
    slope = _cofactors(op, r, x)
    if r is not x:
        slope = op.Mul(op.Add(slope, _cofactors(op, x, r)), 0.5)
    return op.Mul(op.reshape(m, [*x.shape[:-2], 1, 1]), slope)


def _cofactors(op: Ops, above: Tensor, below: Tensor) -> Tensor:
    """Return for row k and column j the determinant of `above` before row k, a one at j, `below` behind."""
    n, dtype = above.shape[-1], above.dtype.numpy()
    row, k = np.indices((n, n))[1], np.indices((n, n))[0]
    masks = [(row < k), (row > k)]  # [k, row]
    before, behind = (op.constant(mask.astype(dtype).reshape(n, 1, n, 1)) for mask in masks)
    ones = op.constant(np.eye(n, dtype=dtype)[:, None, :, None] * np.eye(n, dtype=dtype)[None, :, None, :])
    lifted = [op.reshape(v, [*v.shape[:-2], 1, 1, n, n]) for v in (above, below)]
    mixed = op.Add(op.Mul(lifted[0], before), op.Mul(lifted[1], behind))
    return op.Det(op.Add(mixed, ones))
