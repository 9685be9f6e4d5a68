"""Fused attention of domain com.microsoft: softmax(s·Q·Kᵀ + mask)·V, head by head, in products and a Softmax.

Masks are added, like in ONNX Runtime's CPU kernels: a row whose keys are all masked keeps its shares. N rows,
S queries, T keys, h heads of size d; "heads" below are [N, h, S, d].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.lowering.rewrites.engine import Rewriting, length_of, rank_of
from rationale.lowering.rewrites.microsoft import fused, number, rewrite_error

_WITHOUT_CACHE = "Export the model without a cache (use_cache=False in transformers)."
_UNFUSED = "Compile the model before ONNX Runtime's optimiser changes it."


def _refuse(op: Rewriting, feature: str, present: object, advice: str = _UNFUSED) -> None:
    """Raise UnsupportedModelError if a feature that cannot be explained is present."""
    if present:
        raise rewrite_error(op, f"{feature} cannot be explained", advice)


def _without_cache(op: Rewriting, *past: ir.Value | None) -> None:
    names = [value.name for value in past if value is not None]
    _refuse(op, f"its past state {', '.join(map(repr, names))}", names, _WITHOUT_CACHE)


# -- heads -------------------------------------------------------------------------------------------------


def _heads(op: Rewriting, x: ir.Value, count: int, *, split: bool = False) -> ir.Value:
    """Return [N, S, h·d], or [N, S, h, d] if heads are `split`, as [N, h, S, d]."""
    return op.Transpose(x if split else op.Reshape(x, [0, 0, count, -1]), perm=[0, 2, 1, 3])


def _join_heads(op: Rewriting, heads: ir.Value) -> ir.Value:
    """Return [N, h, S, d] as [N, S, h·d]."""
    return op.Reshape(op.Transpose(heads, perm=[0, 2, 1, 3]), [0, 0, -1])


def _length(op: Rewriting, x: ir.Value, axis: int) -> ir.Value:
    """Return the size along `axis`, a tensor of shape [1]; a known one is folded."""
    return op.Shape(x, start=axis, end=axis + 1)


def _attend(
    op: Rewriting,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    scale: np.ndarray,
    masks: Sequence[ir.Value | None],
    softcap: float = 0.0,
) -> ir.Value:
    """Return softmax(s·Q·Kᵀ + masks)·V of heads, joined."""
    scores = op.Mul(op.MatMul(q, op.transpose(k, [0, 1, 3, 2])), scale)
    if softcap:
        cap = np.asarray(softcap, scale.dtype)
        scores = op.Mul(op.Tanh(op.Div(scores, cap)), cap)
    for mask in masks:
        scores = op.plus(scores, mask)
    return _join_heads(op, op.MatMul(op.Softmax(scores, axis=-1), v))


def _scale(scale: float, size: int, like: ir.Value) -> np.ndarray:
    return number(scale or size**-0.5, like)


# -- masks -------------------------------------------------------------------------------------------------


def _causal(op: Rewriting, q: ir.Value, k: ir.Value, like: ir.Value, window: int = -1) -> ir.Value:
    """Return [S, T] with the least float for keys behind a query, or too far before it; 0 elsewhere."""
    shape = op.Concat(_length(op, q, 2), _length(op, k, 2), axis=0)
    full = op.ConstantOfShape(shape, value=ir.tensor(_lowest(like).reshape(1)))
    behind = op.Trilu(full, np.asarray(1), upper=1)
    if window < 0:
        return behind
    return op.Add(behind, op.Trilu(full, np.asarray(-window), upper=0))


def _lowest(like: ir.Value) -> np.ndarray:
    """Return the least float of the value's size; numpy knows no limits of bfloat16."""
    dtype = number(0, like).dtype
    return np.asarray(np.finfo(f"f{dtype.itemsize}").min, dtype)


def _padding(
    op: Rewriting, mask: ir.Value | None, rows: ir.Value, q: ir.Value, k: ir.Value, fill: float
) -> ir.Value | None:
    """Return the addend that a mask of any documented shape stands for: `fill` if it is 0.

    Args:
        rows: a value whose axis 0 is N.
    """
    if mask is None:
        return None
    rank = rank_of(mask)
    if rank == 1:
        visible = _within(op, mask, rows, k)
    elif rank == 4:
        ends = op.Concat(_length(op, q, 2), _length(op, k, 2), axis=0)
        visible = op.Greater(op.Slice(mask, [0, 0], ends, [2, 3]), _zero(mask))
    else:
        visible = op.Greater(op.Unsqueeze(mask, [1, 2] if rank == 2 else [1]), _zero(mask))
    return op.Where(visible, number(0, rows), number(fill, rows))


def _zero(mask: ir.Value) -> np.ndarray:
    return np.zeros((), (mask.dtype or ir.DataType.INT32).numpy())


def _within(op: Rewriting, ends: ir.Value, rows: ir.Value, k: ir.Value) -> ir.Value:
    """Return [N, 1, 1, T], true for keys before each row's end and, if given, from its begin."""
    positions = _positions(op, k, 2)
    if _parts(op, ends, rows) == 1:
        return op.Less(positions, _per_row(op, ends))
    end, begin = op.split(ends, None, axis=0)
    return op.And(op.Less(positions, _per_row(op, end)), op.Not(op.Less(positions, _per_row(op, begin))))


def _per_row(op: Rewriting, numbers: ir.Value) -> ir.Value:
    return op.Unsqueeze(op.Cast(numbers, to=int(ir.DataType.INT64)), [1, 2, 3])


def _parts(op: Rewriting, ends: ir.Value, rows: ir.Value) -> int:
    """Return 1 for ends [N], 2 for ends and begins [2·N]."""
    count, batch = (None if v.shape is None else v.shape[0] for v in (ends, rows))
    if isinstance(count, int) and isinstance(batch, int):
        if count not in (batch, 2 * batch):
            raise rewrite_error(
                op, f"its mask of {count} numbers for {batch} rows belongs to packed sequences", _UNFUSED
            )
        return count // batch
    before = ends.producer()
    return 2 if count != batch and before is not None and before.op_type == "Concat" else 1


# -- operators ---------------------------------------------------------------------------------------------


@fused("Attention")
def attention(
    op: Rewriting,
    x: ir.Value,
    weights: ir.Value,
    bias: ir.Value | None = None,
    mask: ir.Value | None = None,
    past: ir.Value | None = None,
    attention_bias: ir.Value | None = None,
    past_length: ir.Value | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] = (),
    unidirectional: int = 0,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    do_rotary: int = 0,
    **_: Any,
) -> tuple[ir.Value, ...]:
    """Compute softmax(s·Q·Kᵀ + mask)·V with Q, K, V = x·W + b; without a cache."""
    _without_cache(op, past, past_length)
    _refuse(op, "rotary positions inside of Attention", do_rotary)
    sizes = list(qkv_hidden_sizes) or [length_of(weights, 1) // 3] * 3
    projected = op.split(op.plus(op.MatMul(x, weights), bias), sizes, axis=-1)
    q, k, v = (_heads(op, piece, num_heads) for piece in projected)
    masks = [
        attention_bias,
        _padding(op, mask, x, q, k, mask_filter_value),
        _causal(op, q, k, x) if unidirectional else None,
    ]
    y = _attend(op, q, k, v, _scale(scale, sizes[0] // num_heads, x), masks)
    if not _is_read(op, 1):
        return (y,)
    return y, op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)


def _is_read(op: Rewriting, i: int) -> bool:
    outputs = op.before.outputs if op.before is not None else ()
    return any(v.uses() or v.is_graph_output() for v in outputs[i : i + 1])


@fused("MultiHeadAttention")
def multi_head_attention(
    op: Rewriting,
    query: ir.Value,
    key: ir.Value | None = None,
    value: ir.Value | None = None,
    bias: ir.Value | None = None,
    mask: ir.Value | None = None,
    attention_bias: ir.Value | None = None,
    *past: ir.Value | None,
    num_heads: int,
    unidirectional: int = 0,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    **_: Any,
) -> tuple[ir.Value, ...]:
    """Compute softmax(s·Q·Kᵀ + mask)·V from separate or packed Q, K and V, plus biases; without a cache."""
    _without_cache(op, *past)
    if unidirectional and key is not None:  # its CPU kernel shows all keys to the last query
        longer = length_of(key, 2 if rank_of(key) == 4 else 1) > length_of(query, 1)
        _refuse(op, "causal attention to more keys than there are queries", longer)
    size = length_of(query, -1) if key is None else length_of(query, -1) // num_heads
    biases: Sequence[ir.Value | None] = [None] * 3
    if bias is not None:
        width = num_heads * size
        biases = op.split(bias, [width, width, length_of(bias, 0) - 2 * width], axis=0)
    q, k, v = _three_heads(op, query, key, value, biases, num_heads)
    masks = [
        attention_bias,
        _padding(op, mask, query, q, k, mask_filter_value),
        _causal(op, q, k, query) if unidirectional else None,
    ]
    return _attend(op, q, k, v, _scale(scale, size, query), masks), k, v


def _three_heads(
    op: Rewriting,
    query: ir.Value,
    key: ir.Value | None,
    value: ir.Value | None,
    biases: Sequence[ir.Value | None],
    count: int,
) -> list[ir.Value]:
    """Return Q, K and V with their biases; [N, S, h, 3, d] holds all of them, [N, S, h, 2, d] K and V."""
    if key is None:
        parts = _unpack(op, query, 3)
    elif value is None:
        parts = [query, *_unpack(op, key, 2)]
    else:
        parts = [query, key, value]
    heads = []
    for x, bias in zip(parts, biases, strict=True):
        is_split = x not in (query, key, value)
        if x is not query and not is_split and rank_of(x) == 4:  # already heads, of another sequence
            _refuse(op, "a bias beside K and V in heads", bias is not None)
            heads.append(x)
            continue
        head_bias = op.Reshape(bias, [count, -1]) if is_split and bias is not None else bias
        heads.append(_heads(op, op.plus(x, head_bias), count, split=is_split))
    return heads


def _unpack(op: Rewriting, x: ir.Value, parts: int) -> list[ir.Value]:
    """Split [N, S, h, parts, d] into parts [N, S, h, d]."""
    return [op.Squeeze(piece, [3]) for piece in op.split(x, [1] * parts, axis=3)]


@fused("GroupQueryAttention")
def group_query_attention(
    op: Rewriting,
    query: ir.Value,
    key: ir.Value | None = None,
    value: ir.Value | None = None,
    past_key: ir.Value | None = None,
    past_value: ir.Value | None = None,
    lengths: ir.Value | None = None,
    total_length: ir.Value | None = None,
    cos: ir.Value | None = None,
    sin: ir.Value | None = None,
    position_ids: ir.Value | None = None,
    attention_bias: ir.Value | None = None,
    *further_inputs: ir.Value | None,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    causal: int = 1,
    local_window_size: int = -1,
    softcap: float = 0.0,
    scale: float = 0.0,
    smooth_softmax: int = 0,
    qk_output: int = 0,
    **_: Any,
) -> tuple[ir.Value, ...]:
    """Compute softmax(s·Q·Kᵀ + mask)·V, several heads of Q per head of K and V; whole prompts, no cache."""
    del total_length  # the largest of the lengths
    _without_cache(op, past_key, past_value)
    _refuse(op, "attention that is not causal", not causal)
    _refuse(op, "smooth_softmax", smooth_softmax)
    _refuse(op, "an output of its products", qk_output)
    _refuse(op, "an input position_ids", position_ids is not None)
    _refuse(op, "an input behind attention_bias", any(v is not None for v in further_inputs))
    heads = num_heads + 2 * kv_num_heads if key is None else num_heads
    size = length_of(query, -1) // heads
    parts = [query, key, value]
    if key is None:
        parts = list(op.split(query, [n * size for n in (num_heads, kv_num_heads, kv_num_heads)], axis=-1))
    counts = (num_heads, kv_num_heads, kv_num_heads)
    q, k, v = (_heads(op, x, n) for x, n in zip(parts, counts, strict=True) if x is not None)
    if do_rotary and cos is not None and sin is not None:
        positions = _positions(op, query)
        half = length_of(cos, 1)
        table = [op.Gather(t, positions, axis=0) for t in (cos, sin)]
        q, k = (_rotate(op, x, table[0], table[1], size, half, rotary_interleaved) for x in (q, k))
    mask = _causal(op, q, k, query, local_window_size)
    if lengths is not None:
        inside = op.Less(_positions(op, k, 2), op.Add(_per_row(op, lengths), np.asarray(1)))
        mask = op.Where(inside, mask, _lowest(query))
    repeated = [_repeat_heads(op, x, num_heads // kv_num_heads, num_heads, size) for x in (k, v)]
    y = _attend(op, q, repeated[0], repeated[1], _scale(scale, size, query), [attention_bias, mask], softcap)
    return y, k, v


def _repeat_heads(op: Rewriting, x: ir.Value, times: int, count: int, size: int) -> ir.Value:
    """Repeat each head [N, h, S, d] `times` times, one after the other."""
    if times == 1:
        return x
    expanded = op.Expand(op.Unsqueeze(x, [2]), [1, 1, times, 1, 1])
    return op.Reshape(expanded, [0, count, -1, size])


# -- rotary positions --------------------------------------------------------------------------------------


@fused("RotaryEmbedding")
def rotary_embedding(
    op: Rewriting,
    x: ir.Value,
    position_ids: ir.Value,
    cos: ir.Value,
    sin: ir.Value,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    scale: float = 1.0,
) -> ir.Value:
    """Compute (a·cos − b·sin, b·cos + a·sin) for each head's halves, or its neighbours if interleaved."""
    _refuse(op, "rows of different lengths in one batch", is_packed_batching)
    _refuse(op, "a scale", scale != 1)
    half, heads_first = length_of(cos, 1), rank_of(x) == 4
    size = length_of(x, -1) if heads_first else 2 * half
    if rotary_embedding_dim and not heads_first:
        size = length_of(x, -1) // num_heads
    rank = rank_of(position_ids)
    positions = position_ids
    if rank != 2:
        positions = op.Add(_positions(op, x, 2 if heads_first else 1), position_ids)
    axes = [rank] if not heads_first else [1] if rank == 2 else []
    table = [op.Gather(t, positions, axis=0) for t in (cos, sin)]
    c, s = (op.Unsqueeze(t, axes) if axes else t for t in table)
    heads = x if heads_first else op.Reshape(x, [0, 0, -1, size])
    y = _rotate(op, heads, c, s, size, half, interleaved)
    return y if heads_first else op.Reshape(y, [0, 0, -1])


def _positions(op: Rewriting, x: ir.Value, axis: int = 1) -> ir.Value:
    """Return 0, 1, 2 … along an axis."""
    return op.Range(np.asarray(0), op.Squeeze(_length(op, x, axis)), np.asarray(1))


def _rotate(
    op: Rewriting, x: ir.Value, cos: ir.Value, sin: ir.Value, size: int, half: int, interleaved: int
) -> ir.Value:
    """Rotate the first 2·half of the last axis; leave the rest unchanged."""
    is_full = size == 2 * half
    rotary, *unrotated = [x] if is_full else op.split(x, [2 * half, size - 2 * half], axis=-1)
    if interleaved:
        a, b = (op.Slice(rotary, [i], [2 * half], [-1], [2]) for i in (0, 1))
    else:
        a, b = op.split(rotary, [half, half], axis=-1)
    new = [op.Sub(op.Mul(a, cos), op.Mul(b, sin)), op.Add(op.Mul(b, cos), op.Mul(a, sin))]
    if interleaved:
        pairs = op.Concat(*(op.Unsqueeze(v, [-1]) for v in new), axis=-1)
        new = [op.Reshape(pairs, op.Concat(op.Shape(pairs, end=-2), [-1], axis=0))]
    return op.concat([*new, *unrotated], axis=-1)
