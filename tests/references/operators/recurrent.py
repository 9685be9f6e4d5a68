"""RNN, GRU and LSTM step by step and row by row, in float64: the slow, obvious way."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

T = torch.Tensor
_DEFAULTS = {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}
_ALPHA = {"affine": 0.0, "elu": 1.0, "hardsigmoid": 0.2, "leakyrelu": 0.01, "scaledtanh": 0.0}
_ALPHA["thresholdedrelu"] = 0.0
_BETA = {"affine": 0.0, "hardsigmoid": 0.5, "scaledtanh": 0.0}
_FUNCTIONS: dict[str, Callable[[T, float, float], T]] = {
    "affine": lambda z, a, b: a * z + b,
    "elu": lambda z, a, b: torch.where(z > 0, z, a * torch.expm1(z)),
    "hardsigmoid": lambda z, a, b: torch.clamp(a * z + b, 0, 1),
    "leakyrelu": lambda z, a, b: torch.where(z > 0, z, a * z),
    "relu": lambda z, a, b: torch.relu(z),
    "scaledtanh": lambda z, a, b: a * torch.tanh(b * z),
    "sigmoid": lambda z, a, b: torch.sigmoid(z),
    "softplus": lambda z, a, b: torch.nn.functional.softplus(z),
    "softsign": lambda z, a, b: z / (1 + z.abs()),
    "tanh": lambda z, a, b: torch.tanh(z),
    "thresholdedrelu": lambda z, a, b: torch.where(z > a, z, torch.zeros_like(z)),
}


def recurrent(kind: str) -> Callable[..., tuple[T, ...]]:
    """The operator "rnn", "gru" or "lstm" as `run(X, W, R, B, sequence_lens, initial_h, …, **attributes)`."""

    def run(x: T, w: T, r: T, *states: T | None, **attributes: Any) -> tuple[T, ...]:
        b, lens, h0, c0, p = (*states, *[None] * (5 - len(states)))
        first = bool(attributes.get("layout", 0))
        if first:
            x, h0, c0 = (None if v is None else v.transpose(0, 1) for v in (x, h0, c0))
        assert x is not None
        ways = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}
        backwards = ways[attributes.get("direction", b"forward")]
        steps, rows, size = x.shape[0], x.shape[1], r.shape[2]
        y = x.new_zeros(steps, len(backwards), rows, size)
        last = x.new_zeros(2, len(backwards), rows, size)
        for d, back in enumerate(backwards):
            functions = _functions(kind, d, len(backwards), attributes)
            for n in range(rows):
                state = [x.new_zeros(size) if s is None else s[d, n] for s in (h0, c0)]
                parts = [None if v is None else v[d] for v in (w, r, b, p)]
                count = steps if lens is None else int(lens[n])
                for t in reversed(range(count)) if back else range(count):
                    state = _STEPS[kind](x[t, n], *state, *parts, functions, attributes)
                    y[t, d, n] = state[0]
                if count:
                    last[:, d, n] = torch.stack(state)
        if first:
            return y.permute(2, 0, 1, 3), *(v.transpose(0, 1) for v in last)
        return y, *last

    return run


def _functions(kind: str, d: int, ways: int, attributes: dict[str, Any]) -> list[Callable[[T], T]]:
    names = [n.decode().lower() for n in attributes.get("activations", ())] or _DEFAULTS[kind] * ways
    alphas, betas = list(attributes.get("activation_alpha", ())), list(attributes.get("activation_beta", ()))
    clip = attributes.get("clip")
    functions = []
    for name in names:
        alpha = (alphas.pop(0) if alphas else _ALPHA[name]) if name in _ALPHA else 0.0
        beta = (betas.pop(0) if betas else _BETA[name]) if name in _BETA else 0.0
        functions.append(_activation(name, alpha, beta, clip))
    count = len(_DEFAULTS[kind])
    chosen = functions[d * count : (d + 1) * count]
    if kind == "lstm":  # the cell is not clipped
        name = names[d * count + 2]
        assert clip is None or (name not in _ALPHA), "not needed by the tests"
        chosen[2] = _activation(name, 0.0, 0.0, None) if name not in _ALPHA else chosen[2]
    return chosen


def _activation(name: str, alpha: float, beta: float, clip: float | None) -> Callable[[T], T]:
    return lambda z: _FUNCTIONS[name](z if clip is None else z.clamp(-clip, clip), alpha, beta)


def _halves(b: T | None, gates: int, like: T) -> tuple[Sequence[T], Sequence[T]]:
    w_bias, r_bias = like.new_zeros(2, gates * len(like)) if b is None else b.reshape(2, -1)
    return w_bias.chunk(gates), r_bias.chunk(gates)


def _rnn(x: T, h: T, c: T, w: T, r: T, b: T | None, p: None, fs: Any, _: Any) -> list[T]:
    (wb,), (rb,) = _halves(b, 1, h)
    return [fs[0](w @ x + r @ h + wb + rb), c]


def _gru(x: T, h: T, c: T, w: T, r: T, b: T | None, p: None, fs: Any, attributes: Any) -> list[T]:
    (wz, wr, wh), (rz, rr, rh) = w.chunk(3), r.chunk(3)
    (bz, br, bh), (cz, cr, ch) = _halves(b, 3, h)
    update, reset = fs[0](wz @ x + rz @ h + bz + cz), fs[0](wr @ x + rr @ h + br + cr)
    if attributes.get("linear_before_reset"):
        new = fs[1](wh @ x + reset * (rh @ h + ch) + bh)
    else:
        new = fs[1](wh @ x + rh @ (reset * h) + ch + bh)
    return [(1 - update) * new + update * h, c]


def _lstm(x: T, h: T, c: T, w: T, r: T, b: T | None, p: T | None, fs: Any, attributes: Any) -> list[T]:
    wb, rb = _halves(b, 4, h)
    i, o, f, new = (
        wk @ x + rk @ h + bk + ck for wk, rk, bk, ck in zip(w.chunk(4), r.chunk(4), wb, rb, strict=True)
    )
    p_i, p_o, p_f = h.new_zeros(3, len(h)) if p is None else p.reshape(3, -1)
    i = fs[0](i + p_i * c)
    f = 1 - i if attributes.get("input_forget") else fs[0](f + p_f * c)
    c = f * c + i * fs[1](new)
    return [fs[0](o + p_o * c) * fs[2](c), c]


_STEPS = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}
