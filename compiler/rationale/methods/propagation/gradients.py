"""The gradient family: the gradient at x, at noisy copies of it, or on paths from references to it.

All of them use the same pullback; they differ only in the points at which rules are called.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops, along, mean, rows_along
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Gap, References
from rationale.methods.environment import RuleCall
from rationale.methods.propagation.backward import PathPoint, PropagationMethod, pull_back
from rationale.methods.propagation.engine import WALK
from rationale.references.reference_set import Baseline
from rationale.schema.request import whole_number

Sigma = npt.ArrayLike | Mapping[str, npt.ArrayLike]
MAX_STEPS, MAX_SAMPLES = 1000, 100_000


def path_quadrature(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points α in (0, 1) and weights of sum 1: Gauss–Legendre, exact up to degree 2·steps − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (nodes + 1) / 2, weights / weights.sum()


class _Derivative(PropagationMethod):
    """The plain pullback, at x or at the points that `point` returns."""

    engine = WALK

    def pull(self, op: Ops, call: RuleCall, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        return pull_back(call.x, call, m)


@dataclass(frozen=True)
class Gradient(_Derivative):
    """The signed gradient dy/dx of the target, or x·dy/dx with `times_input`.

    Simonyan et al., "Deep Inside Convolutional Networks", 2014 (there as an absolute value);
    Shrikumar et al., "Not Just a Black Box", 2016 for the product.
    Neither adds up to the output, so the graph has no base value and no completeness gap.
    """

    times_input: bool = False

    name: ClassVar[str] = "gradient"

    @property
    def options(self) -> dict[str, Any]:
        return {"times_input": self.times_input}

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        return op.Mul(m, x) if self.times_input else op.expand(m, x.shape)


@dataclass(frozen=True, eq=False)
class IntegratedGradients(_Derivative):
    """(x − r)·∫ f'(r + α(x − r)) dα from 0 to 1, by the Gauss–Legendre rule; the mean over references.

    Sundararajan et al., "Axiomatic Attribution for Deep Networks", 2017, equation 1. The integral adds up
    to f(x) − f(r) exactly, so the completeness gap is the quadrature error.

    Args:
        references: a number, for one reference row filled with it; or an array [K, *shape of the input], like
            DeepShap's.
        steps: S, the number of quadrature points. A row costs K·S rows of the model.
        standard_error: like DeepShap's; needs K > 1.

    Raises:
        InvalidOptionError: if steps are outside 1 to 1000.
    """

    references: References = 0
    steps: int = 50
    standard_error: bool = False

    name: ClassVar[str] = "integrated-gradients"
    has_base_value: ClassVar[bool] = True
    gap: ClassVar[Gap | None] = Gap.QUADRATURE
    averages: ClassVar[str] = "K"

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1, MAX_STEPS)

    @property
    def reference_set(self) -> References:
        return _baseline(self.references) or self.references

    @property
    def points(self) -> int:
        return self.steps

    @property
    def options(self) -> dict[str, Any]:
        return {"steps": int(self.steps), "standard_error": self.standard_error}

    def point(self, op: Ops, name: str, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> PathPoint:
        assert r is not None
        alphas, _ = path_quadrature(self.steps)
        return PathPoint(_between(op, r, x, alphas), r)

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        return mean(op, self.spread(op, m, x, r), "K", weights)

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        _, over_path = path_quadrature(self.steps)
        return op.Mul(mean(op, m, "S", over_path), op.Sub(x, r))


@dataclass(frozen=True, eq=False)
class ExpectedGradients(_Derivative):
    """The mean of (x − r)·f'(r + α(x − r)) over references r and α in (0, 1), drawn at compile time.

    Erion et al., "Improving performance of deep learning models with axiomatic attribution priors and
    expected gradients", 2021, equation 3; SHAP's GradientExplainer, captum's GradientShap. The expectation
    adds up to f(x) − mean f(r) over all references, so the completeness gap is the sampling error.

    Args:
        references: rows to compare with, like DeepShap's.
        samples: S, the number of pairs (r, α), drawn with replacement. A row costs S rows of the model.
        seed: seed of the draws; the same seed makes the same graph.
        standard_error: whether the graph also returns each attribution's standard error.

    Raises:
        InvalidOptionError: if samples are outside 2 to 100,000, or the seed is negative.
    """

    references: References
    samples: int = 200
    seed: int = 0
    standard_error: bool = False

    name: ClassVar[str] = "expected-gradients"
    has_base_value: ClassVar[bool] = True
    gap: ClassVar[Gap | None] = Gap.SAMPLING
    averages: ClassVar[str] = "S"
    each_reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole_number("samples", self.samples, 2, MAX_SAMPLES)
        whole_number("seed", self.seed, 0)

    @property
    def reference_set(self) -> References:
        return self.references

    @property
    def points(self) -> int:
        return self.samples

    @property
    def options(self) -> dict[str, Any]:
        draws = {"samples": int(self.samples), "seed": int(self.seed)}
        return {**draws, "standard_error": self.standard_error}

    def pairs(self, count: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Draw [S] indices of the references and [S] values of α."""
        random = np.random.default_rng(self.seed)
        return random.choice(count, self.samples, p=weights), random.random(self.samples)

    def point(self, op: Ops, name: str, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> PathPoint:
        assert r is not None
        rows = rows_along(op, r)
        indices, alphas = self.pairs(len(rows), weights)
        start = along(op, rows[indices], "S")
        return PathPoint(_between(op, start, x, alphas), start)

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        return mean(op, self.spread(op, m, x, r), "S")

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        return op.Mul(m, op.Sub(x, r))


@dataclass(frozen=True, eq=False)
class SmoothGrad(_Derivative):
    """The mean of the signed gradient over copies of x with normal noise, drawn at compile time.

    Smilkov et al., "SmoothGrad: removing noise by adding noise", 2017. Like the gradient, it has no
    completeness.

    Args:
        samples: S, the number of noisy copies. A row costs S rows of the model.
        sigma: the noise's standard deviation in the input's own units (not, as in the paper, a share of
            the range of one image): a number, an array that broadcasts to a row of the input, such as one
            number per feature, or a mapping from input name to either.
        seed: seed of the noise; the same seed makes the same graph.
        standard_error: whether the graph also returns each attribution's standard error.

    Raises:
        InvalidOptionError: if samples are outside 2 to 100,000, the seed is negative, or sigma is not
            positive.
    """

    samples: int
    sigma: Sigma
    seed: int = 0
    standard_error: bool = False

    name: ClassVar[str] = "smoothgrad"
    averages: ClassVar[str] = "S"
    each_reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole_number("samples", self.samples, 2, MAX_SAMPLES)
        whole_number("seed", self.seed, 0)
        for sigma in self.sigma.values() if isinstance(self.sigma, Mapping) else [self.sigma]:
            _check_sigma(sigma)

    @property
    def points(self) -> int:
        return self.samples

    @property
    def options(self) -> dict[str, Any]:
        sigma_values = (
            {name: np.asarray(sigma).tolist() for name, sigma in self.sigma.items()}
            if isinstance(self.sigma, Mapping)
            else np.asarray(self.sigma).tolist()
        )
        options = {"samples": int(self.samples), "sigma": sigma_values, "seed": int(self.seed)}
        return {**options, "standard_error": self.standard_error}

    def noise(self, name: str, row: Sequence[int]) -> np.ndarray:
        """Draw the noise of one input: [S, *row]; it is the same for any choice of other inputs.

        Raises:
            InvalidOptionError: if sigma has no entry for that input, or does not broadcast to a row.
        """
        if isinstance(self.sigma, Mapping) and name not in self.sigma:
            raise InvalidOptionError(f"sigma has no entry for input {name!r}: {sorted(self.sigma)}.")
        sigma = np.asarray(self.sigma[name] if isinstance(self.sigma, Mapping) else self.sigma, np.float64)
        if sigma.ndim > len(row) or any(
            s not in (1, n) for s, n in zip(sigma.shape[::-1], row[::-1], strict=False)
        ):
            raise InvalidOptionError(
                f"sigma of shape {list(sigma.shape)} does not broadcast to a row of {name!r}, {list(row)}."
            )
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        return np.asarray(random.standard_normal((self.samples, *row)) * sigma)

    def point(self, op: Ops, name: str, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> PathPoint:
        noise = self.noise(name, x.shape[1:]).astype(x.dtype.numpy())
        return PathPoint(op.Add(x, along(op, noise, "S")), None)

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        return op.expand(mean(op, m, "S"), x.shape)

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        return m


def _baseline(references: object) -> Baseline | None:
    """Return the baseline that a number stands for; None for anything else."""
    number = isinstance(references, int | float | np.number) and not isinstance(references, bool)
    return Baseline(float(np.asarray(references))) if number else None


def _between(op: Ops, start: Tensor, x: Tensor, alphas: np.ndarray) -> Tensor:
    """Return start + α(x − start), varying over S. In this form no constant has the size K·S."""
    shaped = alphas.astype(x.dtype.numpy()).reshape(-1, *(1 for _ in x.shape[1:]))
    return op.Add(op.Mul(op.Sub(x, start), along(op, shaped, "S")), start)


def _check_sigma(sigma: npt.ArrayLike) -> None:
    try:
        array = np.asarray(sigma, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(f"sigma {sigma!r}: give numbers in the input's units.") from error
    if array.size == 0 or not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise InvalidOptionError(f"sigma {sigma!r} must be finite, not negative, and not zero throughout.")
