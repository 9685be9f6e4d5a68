"""AttnLRP and CP-LRP as explicit relevance arithmetic, slow and in float64, written from the paper.

Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", 2024 (arXiv
2402.05602). Each function takes what an operation read and the relevance R of what it computed, and returns
the relevance of what it read. It shares nothing with the compiler: no graph, no multipliers.

The two models are those of `tests.models.transformers`; `weights` are their parameters by PyTorch's names.
"""

import math
from collections.abc import Mapping

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]


def stabilised(z: Array, epsilon: float) -> Array:
    return z + epsilon * np.where(z < 0, -1.0, 1.0)


def linear(x: Array, w: Array, b: Array | None = None) -> Array:
    """w [out, in], as PyTorch has it."""
    y = x @ w.T
    return y if b is None else y + b


def linear_relevance(x: Array, w: Array, b: Array | None, relevance: Array, epsilon: float) -> Array:
    """Equation 8: R_i = Σ_j x_i·w_ji/(z_j + ε)·R_j; the bias keeps its share."""
    s = relevance / stabilised(linear(x, w, b), epsilon)
    return x * (s @ w)


def product_relevance(a: Array, b: Array, relevance: Array, epsilon: float) -> tuple[Array, Array]:
    """Proposition 3.3: R_ji = Σ_p a_ji·b_ip/(2·z_jp + ε)·R_jp, and for b likewise."""
    s = relevance / stabilised(2 * (a @ b), epsilon)
    return a * (s @ b.swapaxes(-1, -2)), b * (a.swapaxes(-1, -2) @ s)


def right_factor_relevance(a: Array, b: Array, relevance: Array, epsilon: float) -> Array:
    """CP-LRP: a is constant, so the product is a linear layer of b."""
    s = relevance / stabilised(a @ b, epsilon)
    return b * (a.swapaxes(-1, -2) @ s)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_relevance(z: Array, relevance: Array) -> Array:
    """Proposition 3.1: R_i = z_i·(R_i − p_i·Σ_j R_j); what a mask of −∞ hides has none."""
    finite = np.where(np.isneginf(z), 0.0, z)
    return finite * (relevance - softmax(z) * relevance.sum(-1, keepdims=True))


def sum_relevance(a: Array, b: Array, relevance: Array) -> tuple[Array, Array]:
    """In proportion to what each contributes."""
    s = relevance / (a + b)
    return a * s, b * s


def layer_norm(x: Array, scale: Array, bias: Array | None, epsilon: float = 1e-5) -> Array:
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + epsilon) * scale
    return y if bias is None else y + bias


def layer_norm_relevance(
    x: Array, scale: Array, bias: Array | None, relevance: Array, epsilon: float
) -> Array:
    """Proposition 3.4 holds the deviation constant; what is left is linear, y = Σ_i x_i·J_ij + β_j."""
    size = x.shape[-1]
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    s = relevance / stabilised(layer_norm(x, scale, bias), epsilon)
    jacobian = (np.eye(size) - 1 / size) * scale  # of y by x, times the deviation
    return x * ((s / deviation) @ jacobian.T)


def standardised_relevance(
    x: Array, axes: tuple[int, ...], scale: Array, bias: Array | float, relevance: Array, epsilon: float
) -> Array:
    """Proposition 3.4 over any axes, summed term by term; 1e-5 stands under the root."""
    where = tuple(a % x.ndim for a in axes)
    d = x - x.mean(where, keepdims=True)
    deviation = np.sqrt((d * d).mean(where, keepdims=True) + 1e-5)
    factor = np.broadcast_to(scale / deviation, x.shape)
    s = factor * relevance / stabilised(d * factor + bias, epsilon)
    return x * (s - s.mean(where, keepdims=True))


def rms_norm(x: Array, scale: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def heads(x: Array, head: int) -> Array:
    """[N, S, H·D] → [N, H, S, D]."""
    return x.reshape(*x.shape[:2], -1, head).transpose(0, 2, 1, 3)


def merge(x: Array) -> Array:
    """[N, H, S, D] → [N, S, H·D]."""
    return x.transpose(0, 2, 1, 3).reshape(len(x), x.shape[2], -1)


def weights_below(weights: Weights, prefix: str) -> dict[str, Array]:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def attention_relevance(
    q: Array, k: Array, v: Array, mask: Array, relevance: Array, epsilon: float, conservative: bool
) -> tuple[Array, Array, Array]:
    """Of softmax(q·kᵀ/√D + mask)·v by its three parts, all [N, H, S, D]."""
    keys = k.swapaxes(-1, -2)
    z = q @ keys / math.sqrt(q.shape[-1]) + mask
    p = softmax(z)
    if conservative:
        return np.zeros_like(q), np.zeros_like(k), right_factor_relevance(p, v, relevance, epsilon)
    to_p, to_v = product_relevance(p, v, relevance, epsilon)
    to_scores = softmax_relevance(z, to_p)  # a constant factor hands relevance on unchanged
    to_q, to_keys = product_relevance(q, keys, to_scores, epsilon)
    return to_q, to_keys.swapaxes(-1, -2), to_v


def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + mask) @ v


def gelu(x: Array) -> Array:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def bert_block(w: Weights, x: Array, head: int) -> dict[str, Array]:
    """Every value of a block by name; `y` is what it computes."""
    q, k, v = (heads(linear(x, w[f"{n}.weight"], w.get(f"{n}.bias")), head) for n in "qkv")
    mixed = merge(attend(q, k, v, np.zeros(1)))
    o = linear(mixed, w["o.weight"], w.get("o.bias"))
    a = layer_norm(x + o, w["norm1.weight"], w.get("norm1.bias"))
    up = linear(a, w["up.weight"], w.get("up.bias"))
    down = linear(gelu(up), w["down.weight"], w.get("down.bias"))
    y = layer_norm(a + down, w["norm2.weight"], w.get("norm2.bias"))
    return {"q": q, "k": k, "v": v, "mixed": mixed, "o": o, "a": a, "up": up, "down": down, "y": y}


def bert_block_relevance(
    w: Weights, x: Array, head: int, relevance: Array, epsilon: float, conservative: bool
) -> Array:
    activations = bert_block(w, x, head)

    def back(name: str, read: Array, r: Array) -> Array:
        return linear_relevance(read, w[f"{name}.weight"], w.get(f"{name}.bias"), r, epsilon)

    def norm_back(name: str, read: Array, r: Array) -> Array:
        return layer_norm_relevance(read, w[f"{name}.weight"], w.get(f"{name}.bias"), r, epsilon)

    to_a, to_down = sum_relevance(
        activations["a"],
        activations["down"],
        norm_back("norm2", activations["a"] + activations["down"], relevance),
    )
    to_up = back("down", gelu(activations["up"]), to_down)  # and unchanged through the activation
    to_a = to_a + back("up", activations["a"], to_up)
    to_x, to_o = sum_relevance(x, activations["o"], norm_back("norm1", x + activations["o"], to_a))
    to_mixed = heads(back("o", activations["mixed"], to_o), head)
    parts = attention_relevance(
        activations["q"], activations["k"], activations["v"], np.zeros(1), to_mixed, epsilon, conservative
    )
    return to_x + sum(back(n, x, merge(r)) for n, r in zip("qkv", parts, strict=True))


def bert_relevance(
    weights: Weights,
    blocks: int,
    head: int,
    x: Array,
    target: int,
    epsilon: float,
    conservative: bool = False,
) -> Array:
    """Relevance [N, S, E] of the embeddings for one class."""
    each = [weights_below(weights, f"blocks.{i}.") for i in range(blocks)]
    read = [x]
    for w in each:
        read.append(bert_block(w, read[-1], head)["y"])
    w, b = weights["head.weight"], weights.get("head.bias")
    r = _head_relevance(read[-1], 0, w, b, target, epsilon)
    for w, h in reversed(list(zip(each, read[:-1], strict=True))):
        r = bert_block_relevance(w, h, head, r, epsilon, conservative)
    return r


def _head_relevance(h: Array, token: int, w: Array, b: Array | None, target: int, epsilon: float) -> Array:
    """The classifier reads one token [N, E]; the class has its own value as relevance."""
    y = linear(h[:, token], w, b)
    relevance = np.zeros_like(h)
    seed = y * (np.arange(len(w)) == target)
    relevance[:, token] = linear_relevance(h[:, token], w, b, seed, epsilon)
    return relevance


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def half_turned(x: Array) -> Array:
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([-b, a], axis=-1)


def turn(x: Array, cos: Array, sin: Array) -> Array:
    return x * cos + half_turned(x) * sin


def turn_relevance(x: Array, cos: Array, sin: Array, relevance: Array) -> Array:
    """A sum of two: what comes by the turned half goes back to the element it was taken from."""
    straight, turned = sum_relevance(x * cos, half_turned(x) * sin, relevance)
    first, second = np.split(turned, 2, axis=-1)
    return straight + np.concatenate([second, first], axis=-1)


def llama_block(w: Weights, x: Array, head: int) -> dict[str, Array]:
    h = rms_norm(x, w["norm1.weight"])
    q, k, v = (heads(linear(h, w[f"{n}.weight"]), head) for n in "qkv")
    times = q.shape[1] // k.shape[1]
    turned_q, turned_k = turn(q, w["cos"], w["sin"]), turn(k, w["cos"], w["sin"])
    many_k, many_v = np.repeat(turned_k, times, axis=1), np.repeat(v, times, axis=1)
    mixed = merge(attend(turned_q, many_k, many_v, w["mask"]))
    o = linear(mixed, w["o.weight"])
    a = x + o
    g = rms_norm(a, w["norm2.weight"])
    gate, up = linear(g, w["gate.weight"]), linear(g, w["up.weight"])
    down = linear(silu(gate) * up, w["down.weight"])
    values = {"h": h, "q": q, "k": k, "v": v, "turned_q": turned_q, "many_k": many_k, "many_v": many_v}
    return values | {
        "mixed": mixed, "o": o, "a": a, "g": g, "gate": gate, "up": up, "down": down, "y": a + down
    }  # fmt: skip


def llama_block_relevance(
    w: Weights, x: Array, head: int, relevance: Array, epsilon: float, conservative: bool
) -> Array:
    activations = llama_block(w, x, head)

    def back(name: str, read: Array, r: Array) -> Array:
        return linear_relevance(read, w[f"{name}.weight"], None, r, epsilon)

    to_a, to_down = sum_relevance(activations["a"], activations["down"], relevance)
    to_product = back("down", silu(activations["gate"]) * activations["up"], to_down)
    if conservative:  # the gate is a constant
        to_a = to_a + back("up", activations["g"], to_product)
    else:
        halves = to_product / 2  # proposition 3.2; unchanged through the activation, and through RMSNorm
        to_a = to_a + back("gate", activations["g"], halves) + back("up", activations["g"], halves)
    to_x, to_o = sum_relevance(x, activations["o"], to_a)
    to_mixed = heads(back("o", activations["mixed"], to_o), head)
    q, k, v = attention_relevance(
        activations["turned_q"],
        activations["many_k"],
        activations["many_v"],
        w["mask"],
        to_mixed,
        epsilon,
        conservative,
    )
    times = activations["q"].shape[1] // activations["k"].shape[1]
    k, v = (r.reshape(len(r), -1, times, *r.shape[2:]).sum(2) for r in (k, v))
    q, k = (turn_relevance(activations[n], w["cos"], w["sin"], r) for n, r in (("q", q), ("k", k)))
    parts = zip("qkv", (q, k, v), strict=True)
    return to_x + sum(back(n, activations["h"], merge(r)) for n, r in parts)


def llama_relevance(
    weights: Weights,
    blocks: int,
    head: int,
    x: Array,
    target: int,
    epsilon: float,
    conservative: bool = False,
) -> Array:
    """Relevance [N, S, E] of the embeddings for one class."""
    each = [weights_below(weights, f"blocks.{i}.") for i in range(blocks)]
    read = [x]
    for w in each:
        read.append(llama_block(w, read[-1], head)["y"])
    last = rms_norm(read[-1], weights["norm.weight"])
    r = _head_relevance(last, -1, weights["head.weight"], None, target, epsilon)
    for w, h in reversed(list(zip(each, read[:-1], strict=True))):
        r = llama_block_relevance(w, h, head, r, epsilon, conservative)
    return r
