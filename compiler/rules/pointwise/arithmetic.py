"""Sums and products. Broadcasting is undone by the walk, so no rule here mentions shapes."""

from collections.abc import Sequence

from compiler.errors import UnsupportedModelError
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Trait, Weights, rule
from compiler.rules.secants import relu_secant

BILINEAR = Kind.BILINEAR
ELEMENTWISE = Trait.ELEMENTWISE


def same(m: Tensor) -> Tensor:
    return m


@rule("Add", kind=BILINEAR, traits=[ELEMENTWISE])
def add(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """y = a + b."""
    return op.Add(a, b), (same, same)


@rule("Sub", kind=BILINEAR, traits=[ELEMENTWISE])
def sub(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """y = a − b."""
    return op.Sub(a, b), (same, op.Neg)


@rule("Sum", kind=BILINEAR, traits=[ELEMENTWISE])
def sum_(op: Ops, *xs: Tensor) -> Evaluation:
    """y = Σ x."""
    return op.Sum(*xs), tuple(same for _ in xs)


@rule("Neg", kind=BILINEAR, traits=[ELEMENTWISE])
def neg(op: Ops, x: Tensor) -> Evaluation:
    """y = −x."""
    return op.Neg(x), op.Neg


@rule("Mul", kind=BILINEAR, traits=[ELEMENTWISE, Trait.PRODUCT])
def mul(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """y = a·b."""

    def mul_pullback_a(m: Tensor) -> Tensor:
        return op.Mul(m, b)

    def mul_pullback_b(m: Tensor) -> Tensor:
        return op.Mul(m, a)

    return op.Mul(a, b), (mul_pullback_a, mul_pullback_b)


@rule("Div", kind=Kind.LOCAL, traits=[ELEMENTWISE, Trait.PRODUCT, Trait.LINEAR_IN_FIRST])
def div(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """y = a/b;  dy/da = 1/b, dy/db = −y/b."""
    y = op.Div(a, b)

    def div_pullback_a(m: Tensor) -> Tensor:
        return op.Div(m, b)

    def div_pullback_b(m: Tensor) -> Tensor:
        return op.Neg(op.Mul(m, op.Div(y, b)))

    return y, (div_pullback_a, div_pullback_b)


@div.deeplift
def div_shapley(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[Tensor, Tensor]:
    """The product a·(1/b) at its midpoint, 1/b by its secant −1/(b·b_r)."""
    (a, b), (a_r, b_r) = xs, rs
    inverse, inverse_r = op.Reciprocal(b), op.Reciprocal(b_r)
    middle = op.Mul(op.Add(inverse, inverse_r), 0.5) if b is not b_r else inverse
    slope = op.Mul(op.Mul(op.Add(a, a_r), -0.5), op.Mul(inverse, inverse_r))
    return op.Mul(m, middle), op.Mul(m, slope)


@rule("MatMul", kind=BILINEAR, traits=[Trait.PRODUCT])
def matmul(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """y = a·b over the last two axes; of vectors too."""
    left, right = _matrix(op, a, (1, *a.shape)), _matrix(op, b, (*b.shape, 1))
    vector = a.rank == 1 or b.rank == 1
    y = op.MatMul(left, right)

    def matmul_pullback_a(m: Tensor) -> Tensor:
        m = op.reshape(m, y.shape) if vector else m
        return _vector(op, op.MatMul(m, transposed(op, right)), a)

    def matmul_pullback_b(m: Tensor) -> Tensor:
        m = op.reshape(m, y.shape) if vector else m
        return _vector(op, op.MatMul(transposed(op, left), m), b)

    drop = [axis for axis, x in ((-2, a), (-1, b)) if x.rank == 1]
    kept = [n for i, n in enumerate(y.shape) if i - y.rank not in drop]
    return op.reshape(y, kept), (matmul_pullback_a, matmul_pullback_b)


def _matrix(op: Ops, x: Tensor, shape: Sequence[int]) -> Tensor:
    return op.reshape(x, shape) if x.rank == 1 else x


def _vector(op: Ops, m: Tensor, x: Tensor) -> Tensor:
    """What a vector is due, of the multiplier of the matrices it was multiplied as."""
    if x.rank > 1:
        return m
    if m.rank > 2:
        m = op.ReduceSum(m, list(range(m.rank - 2)), keepdims=0)
    return op.reshape(m, x.shape)


@matmul.layer
def matmul_layer(op: Ops, w: Tensor, bias: Tensor | None) -> Weights:
    """W [K, M]."""
    return Weights(w, bias, axis=-1, inputs=(-1, 1), outputs=(1, -1))


def transposed(op: Ops, x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    order = list(range(x.rank))
    order[-2:] = order[-1], order[-2]
    return op.Transpose(x, perm=order)


@rule("Gemm", kind=BILINEAR)
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
    """y = α·a·b + β·c."""
    wide = c is not None and (c.rows or (c.rank == 2 and c.shape[0] != 1))
    if transA or b.rows or wide:
        return _gemm_of_rows(op, a, b, c, alpha, beta, (transA, transB))

    def gemm_pullback_a(m: Tensor) -> Tensor:
        if alpha == 1.0 and (transB or op.is_one_hot(m)):
            # as Gemm, but it takes the references' own axis as it is
            return op.MatMul(m, b if transB else transposed(op, b))
        return op.Gemm(m, b, alpha=alpha, transB=1 - transB)

    def gemm_pullback_c(m: Tensor) -> Tensor:
        return op.Mul(m, beta) if beta != 1.0 else m

    y = op.Gemm(a, b, c, alpha=alpha, beta=beta, transB=transB)
    return y, (gemm_pullback_a, None, gemm_pullback_c)


def _gemm_of_rows(
    op: Ops, a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, turned: tuple[int, int]
) -> Evaluation:
    """By MatMul, which takes what Gemm has no batch axis for."""
    left, right = (transposed(op, x) if turn else x for x, turn in zip((a, b), turned, strict=True))

    def scaled(x: Tensor, factor: float) -> Tensor:
        return x if factor == 1.0 else op.Mul(x, factor)

    def gemm_pullback_a(m: Tensor) -> Tensor:
        back = op.MatMul(scaled(m, alpha), transposed(op, right))
        return transposed(op, back) if turned[0] else back

    def gemm_pullback_b(m: Tensor) -> Tensor:
        back = op.MatMul(transposed(op, left), scaled(m, alpha))
        return transposed(op, back) if turned[1] else back

    def gemm_pullback_c(m: Tensor) -> Tensor:
        return scaled(m, beta)

    y = scaled(op.MatMul(left, right), alpha)
    y = y if c is None else op.Add(y, scaled(c, beta))
    return y, (gemm_pullback_a, gemm_pullback_b, gemm_pullback_c)


@gemm.layer
def gemm_layer(
    op: Ops, w: Tensor, c: Tensor | None, *, alpha: float = 1.0, beta: float = 1.0, transB: int = 0, **_: int
) -> Weights:
    """α·W [K, M], or [M, K] with transB."""
    weight = w if alpha == 1.0 else op.Mul(w, alpha)
    bias = c if c is None or beta == 1.0 else op.Mul(c, beta)
    inputs, outputs = ((1, -1), (-1, 1)) if transB else ((-1, 1), (1, -1))
    return Weights(weight, bias, -1, inputs, outputs, attributes={"alpha": 1.0})


@rule("BatchNormalization", kind=BILINEAR, traits=[ELEMENTWISE])
def batch_normalization(
    op: Ops,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Evaluation:
    """y = (x − mean)·scale/√(variance + ε) + bias, per channel."""
    if training_mode:
        raise UnsupportedModelError(
            "BatchNormalization in training mode mixes rows: export with model.eval()"
        )
    shape = [-1, *(1 for _ in range(x.rank - 2))]

    def batch_normalization_pullback(m: Tensor) -> Tensor:
        factor = op.Div(scale, op.Sqrt(op.Add(variance, epsilon)))
        return op.Mul(m, op.Reshape(factor, shape) if x.rank > 2 else factor)

    y = op.BatchNormalization(x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum)
    return y, (batch_normalization_pullback, None, None, None, None)


@rule("Max", kind=Kind.LOCAL, traits=[ELEMENTWISE, Trait.CONSERVING])
def maximum(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """y = max(a, b); ties go to b."""

    def max_pullback_a(m: Tensor) -> Tensor:
        return op.Where(op.Greater(a, b), m, 0.0)

    def max_pullback_b(m: Tensor) -> Tensor:
        return op.Where(op.Greater(a, b), 0.0, m)

    return op.Max(a, b), (max_pullback_a, max_pullback_b)


@maximum.deeplift
def max_shapley(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[Tensor, Tensor]:
    """The two-player Shapley value: each operand's slope, averaged over the other at x and at r."""
    (a, b), (a_r, b_r) = xs, rs
    slope_a = op.Add(
        relu_secant(op, op.Sub(a, b), op.Sub(a_r, b)), relu_secant(op, op.Sub(a, b_r), op.Sub(a_r, b_r))
    )
    slope_b = op.Add(
        relu_secant(op, op.Sub(b, a), op.Sub(b_r, a)), relu_secant(op, op.Sub(b, a_r), op.Sub(b_r, a_r))
    )
    return op.Mul(m, op.Mul(slope_a, 0.5)), op.Mul(m, op.Mul(slope_b, 0.5))


@maximum.relevance
def max_winner(op: Ops, m: Tensor, xs: list[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """To the winner; ties go to b."""
    first = op.Greater(xs[0], xs[1])
    return op.Where(first, m, 0.0), op.Where(first, 0.0, m)
