"""DeepLIFT's rescale rule for PyTorch modules, slow and in float64: the truth of the peer tests.

It shares nothing with the compiler: it walks a tree of modules, one reference at a time, and writes each
rule as the quotient it is. Linear layers are transposed by PyTorch itself.

Shrikumar et al., "Learning Important Features Through Propagating Activation Differences", 2017; the
average over references: Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", 2017.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, nn

Pull = Callable[[Tensor], Tensor]
Walked = tuple[Tensor, Tensor, Pull]

NEAR = 1e-5  # |x − r| below which f' at the middle (error d²/24·f‴) beats the quotient (error 1e-16/d)


class Sum(nn.Module):
    """The sum of branches that read the same value: a residual connection."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        first, *rest_of_branches = (branch(x) for branch in self.branches)
        return sum(rest_of_branches, start=first)


class Concat(nn.Module):
    """The branches' channels one after the other: a dense connection."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Product(nn.Module):
    """Two branches that read the same value, multiplied: a gate."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.left, self.right = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


class Functional(nn.Module):
    """A pointwise function that is called, not held as a module: what hooks on modules cannot see."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Standardise(nn.Module):
    """(x − mean)/deviation with fixed statistics, so that a network takes raw units."""

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


def deepshap(model: nn.Module, x: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Attributions of every output of `model`.

    Args:
        model: made of the layers of `_WALKS`; its output is [N, T].
        x: [N, …]; references: [K, …].

    Returns:
        float64 [N, T, …].
    """
    double = copy.deepcopy(model).double().eval()
    rows = torch.from_numpy(x).double()
    total = torch.zeros(())
    for reference in torch.from_numpy(references).double():
        r = reference.expand_as(rows).contiguous()
        y, _, pull = _walk(double, rows, r)
        seeds = torch.eye(y.shape[1], dtype=y.dtype)
        multipliers = torch.stack([pull(seed.expand_as(y)) for seed in seeds], dim=1)
        total = total + multipliers * (rows - r).unsqueeze(1)
    return (total / len(references)).detach().numpy()


def predict(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """The model's output in float64."""
    with torch.no_grad():
        return copy.deepcopy(model).double().eval()(torch.from_numpy(x).double()).numpy()


def _walk(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """y, y_r, and the function from the output's multiplier to the input's."""
    try:
        walk = _WALKS[type(module)]
    except KeyError:
        raise NotImplementedError(f"the float64 reference has no rule for {type(module).__name__}") from None
    return walk(module, x, r)


def _sequential(module: nn.Sequential, x: Tensor, r: Tensor) -> Walked:
    pulls: list[Pull] = []
    for child in module:  # a module that stands there twice is walked twice
        x, r, pull = _walk(child, x, r)
        pulls.append(pull)

    def pull_all(m: Tensor) -> Tensor:
        for pull in reversed(pulls):
            m = pull(m)
        return m

    return x, r, pull_all


def _sum(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    ys, y_rs, pulls = zip(*(_walk(branch, x, r) for branch in module.branches), strict=True)
    return sum(ys), sum(y_rs), lambda m: sum(pull(m) for pull in pulls)


def _concat(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    ys, y_rs, pulls = zip(*(_walk(branch, x, r) for branch in module.branches), strict=True)
    sizes = [y.shape[1] for y in ys]

    def pull_all(m: Tensor) -> Tensor:
        return sum(pull(slice_of_m) for pull, slice_of_m in zip(pulls, m.split(sizes, dim=1), strict=True))

    return torch.cat(ys, dim=1), torch.cat(y_rs, dim=1), pull_all


def _product(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """Each factor at the other's midpoint: the Shapley value of a game of two players."""
    a, a_r, pull_left = _walk(module.left, x, r)
    b, b_r, pull_right = _walk(module.right, x, r)
    return a * b, a_r * b_r, lambda m: pull_left(m * (b + b_r) / 2) + pull_right(m * (a + a_r) / 2)


def _layer_norm(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """γ·d·s + β for d = x − mean x and s = 1/√(mean d² + ε): products and quotients, one after the other."""
    (d, v), (d_r, v_r) = (_spread(z) for z in (x, r))
    s, s_r = ((u + module.eps) ** -0.5 for u in (v, v_r))

    def pull(m: Tensor) -> Tensor:
        m = m * module.weight
        of_s = (m * (d + d_r) / 2).sum(dim=-1, keepdim=True)
        of_v = of_s * _quotient(s - s_r, v - v_r, -(s**3) / 2)
        of_d = m * (s + s_r) / 2 + of_v * (d + d_r) / x.shape[-1]
        return of_d - of_d.mean(dim=-1, keepdim=True)

    return module(x), module(r), pull


def _spread(x: Tensor) -> tuple[Tensor, Tensor]:
    d = x - x.mean(dim=-1, keepdim=True)
    return d, (d**2).mean(dim=-1, keepdim=True)


def _linear(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """The transpose of an affine layer."""
    y, transpose = torch.func.vjp(module, x)
    return y.detach(), module(r).detach(), lambda m: transpose(m)[0].detach()


def _piecewise_linear(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """(y − y_r)/(x − r): float64's quotient is exact enough however near x and r are."""
    return _pointwise(module, x, r, near=0.0)


def _smooth(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    return _pointwise(module, x, r, near=NEAR)


def _pointwise(module: nn.Module, x: Tensor, r: Tensor, near: float) -> Walked:
    y, y_r = module(x), module(r)
    d = x - r
    middle, derivative = torch.func.vjp(module, (x + r) / 2)
    slope = derivative(torch.ones_like(middle))[0]
    tie = d.abs() <= near
    multiplier = torch.where(tie, slope, (y - y_r) / torch.where(tie, 1.0, d)).detach()
    return y, y_r, lambda m: m * multiplier


def _max_pool(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """c = max(y, y_r); (c − y_r)·m to x's winner, (y − c)·m to r's, adding where windows overlap."""
    options = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    y, winner = F.max_pool2d(x, *options, return_indices=True)
    y_r, winner_r = F.max_pool2d(r, *options, return_indices=True)
    c = torch.maximum(y, y_r)
    d = x - r

    def pull(m: Tensor) -> Tensor:
        relevance = torch.zeros_like(x).flatten(2)
        relevance.scatter_add_(2, winner.flatten(2), (m * (c - y_r)).flatten(2))
        relevance.scatter_add_(2, winner_r.flatten(2), (m * (y - c)).flatten(2))
        relevance = relevance.reshape(x.shape)
        return torch.where(d == 0, 0.0, relevance / torch.where(d == 0, 1.0, d))

    return y, y_r, pull


def _softmax(module: nn.Module, x: Tensor, r: Tensor) -> Walked:
    """p_i = exp(z_i − log Σ e^z) as a chain of exponentials and one logarithm, each by its quotient."""
    shift = torch.maximum(x, r).amax(dim=1, keepdim=True)  # p depends on neither shift nor its choice
    e, e_r = (x - shift).exp(), (r - shift).exp()
    s, s_r = e.sum(dim=1, keepdim=True), e_r.sum(dim=1, keepdim=True)
    p, p_r = e / s, e_r / s_r
    of_exp = _quotient(e - e_r, x - r, e)
    of_log = _quotient(s.log() - s_r.log(), s - s_r, 1 / s)
    of_p = _quotient(p - p_r, p.log() - p_r.log(), p)

    def pull(m: Tensor) -> Tensor:
        arriving = m * of_p
        return arriving - arriving.sum(dim=1, keepdim=True) * of_log * of_exp

    assert module.dim in (1, -1)
    assert x.ndim == 2
    return p, p_r, pull


def _quotient(top: Tensor, bottom: Tensor, at_tie: Tensor) -> Tensor:
    tie = bottom.abs() < 1e-9
    return torch.where(tie, at_tie, top / torch.where(tie, 1.0, bottom))


_LINEAR = (
    nn.Linear,
    nn.Conv2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    Standardise,
)
_WALKS: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], Walked]] = {
    nn.Sequential: _sequential,
    Sum: _sum,
    Concat: _concat,
    Product: _product,
    Functional: _smooth,
    nn.LayerNorm: _layer_norm,
    nn.MaxPool2d: _max_pool,
    nn.Softmax: _softmax,
    **dict.fromkeys(_LINEAR, _linear),
    **dict.fromkeys((nn.ReLU, nn.LeakyReLU), _piecewise_linear),
    **dict.fromkeys((nn.Sigmoid, nn.Tanh, nn.ELU, nn.Softplus, nn.SiLU, nn.GELU), _smooth),
}
