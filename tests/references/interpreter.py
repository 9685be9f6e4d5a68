"""An independent float64 interpreter of ONNX graphs, on torch.

It shares no code with ONNX Runtime or with this project: what an emitted float32 graph answers is
compared with what its nodes mean in float64. `observe` sees every node's outputs and may replace them,
which is how test models get weights that keep the signal alive.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.references.math_operators import MATH
from tests.references.recurrent import recurrent
from tests.references.sampling_operators import SAMPLING

_MUCH = 1 << 20  # numbers that a model starts with
T = torch.Tensor
Observe = Callable[[onnx.NodeProto, dict[str, T]], None]


def run64(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
    observe: Observe | None = None,
    operators: Mapping[str, Callable[..., Any]] | None = None,
) -> dict[str, np.ndarray]:
    """Runs a model with every float in float64.

    Args:
        operators: in place of OPERATORS' own.

    Returns:
        The graph's outputs (or the named tensors) by name, as arrays.
    """
    values = _constants(model.graph)
    values |= {name: _wide(np.asarray(array)) for name, array in inputs.items()}
    wanted = list(outputs or (o.name for o in model.graph.output))
    table = {**OPERATORS, **(operators or {})}
    with torch.no_grad(), _threads_for(values):
        _run(model.graph, values, wanted, table, observe)
    return {name: values[name].numpy() for name in wanted}


@contextlib.contextmanager
def _threads_for(values: Mapping[str, T]) -> Iterator[None]:
    """One, unless there is much to compute: several wait for each other, milliseconds on a busy machine."""
    before = torch.get_num_threads()
    if sum(value.numel() for value in values.values()) < _MUCH:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _constants(graph: onnx.GraphProto) -> dict[str, T]:
    return {t.name: _wide(numpy_helper.to_array(t)) for t in graph.initializer}


def _run(
    graph: onnx.GraphProto,
    values: dict[str, T],
    wanted: Sequence[str],
    table: Mapping[str, Callable[..., Any]],
    observe: Observe | None = None,
) -> None:
    """Adds what the nodes compute to `values`; what is read no more and not wanted is dropped."""
    last = {name: i for i, node in enumerate(graph.node) for name in _names_read(node)}
    for i, node in enumerate(graph.node):
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        operands = [values[name] if name else None for name in node.input]
        if node.op_type == "Scan":
            results = _scan(operands, values, table, **attributes)
        else:
            run = table.get(node.op_type) or functools.partial(
                _by_onnx, node.op_type, domain=node.domain, outputs=len(node.output)
            )
            results = run(*operands, **attributes)
        results = results if isinstance(results, tuple | list) else (results,)
        values.update(zip(node.output, results, strict=False))
        if observe is not None:
            observe(node, values)
        elif i % 16 == 0:
            dead = [n for n in values if last.get(n, -1) < i and n not in wanted and n in last]
            for name in dead:
                del values[name]


def _by_onnx(op_type: str, *operands: T | None, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
    """The onnx package's own definition of an operator, in numpy."""
    names = [f"x{i}" if o is not None else "" for i, o in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    given = {name: o.numpy() for name, o in zip(names, operands, strict=True) if o is not None}
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in given.items()
    ]
    made = [helper.make_empty_tensor_value_info(name) for name in results]
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "alone", inputs, made), opset_imports=imports)
    return tuple(_wide(np.asarray(a)) for a in ReferenceEvaluator(model).run(None, given))


def _names_read(node: onnx.NodeProto) -> set[str]:
    """With what its subgraphs take from outside."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    return set(node.input).union(*(_names_read(n) for g in bodies for n in g.node))


def _scan(
    operands: Sequence[Any],
    outside: Mapping[str, T],
    table: Mapping[str, Callable[..., Any]],
    *,
    body: onnx.GraphProto,
    num_scan_inputs: int,
) -> list[T]:
    """Along axis 0 of the scan inputs and outputs, forwards."""
    count = len(operands) - num_scan_inputs
    states, sequences = list(operands[:count]), operands[count:]
    stacks: list[list[T]] = []
    names, wanted = [v.name for v in body.input], [v.name for v in body.output]
    constants = _constants(body)
    for parts in zip(*sequences, strict=True):
        inside = {**outside, **constants, **dict(zip(names, [*states, *parts], strict=True))}
        _run(body, inside, wanted, table)
        states = [inside[name] for name in wanted[:count]]
        stacks.append([inside[name] for name in wanted[count:]])
    return [*states, *(torch.stack(parts) for parts in zip(*stacks, strict=True))]


def _wide(array: np.ndarray) -> T:
    return torch.from_numpy(np.array(array, np.float64 if array.dtype.kind == "f" else array.dtype))


def _constant(value: Any) -> T:
    """A Constant's one attribute: a tensor, a number, or a list of numbers."""
    return _wide(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value))


def _axes(x: T, axes: T | Sequence[int] | None, noop: int = 0) -> list[int]:
    if axes is None or len(axes) == 0:
        return [] if noop else list(range(x.ndim))
    return [int(a) % x.ndim for a in axes]


def _reduce(function: Callable[[T, list[int], bool], T]) -> Callable[..., T]:
    def run(x: T, axes: T | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> T:
        chosen = _axes(x, axes, noop_with_empty_axes)
        return function(x, chosen, bool(keepdims)) if chosen else x

    return run


def _max(x: T, axes: list[int], keep: bool) -> T:
    return torch.amax(x, axes, keep)


def _pads(pads: Sequence[int] | None, n: int) -> list[tuple[int, int]]:
    p = list(pads or [0] * 2 * n)
    return list(zip(p[:n], p[n:], strict=True))


def _pad(x: T, pads: Sequence[tuple[int, int]], value: float) -> T:
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


def _auto_pads(
    auto_pad: bytes, pads: Any, size: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    if auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(size, window, strides, strict=True)]
        pairs = [(t // 2, t - t // 2) for t in totals]
        return pairs if auto_pad == b"SAME_UPPER" else [(b, a) for a, b in pairs]
    return _pads(pads, len(size))


def conv(
    x: T,
    w: T,
    b: T | None = None,
    *,
    auto_pad: bytes = b"NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    n = x.ndim - 2
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    x = _pad(x, _auto_pads(auto_pad, pads, x.shape[2:], window, strides), 0.0)
    if group > 1 and w.shape[1] == 1:
        y = _conv_by_channel(x, w, strides, dilations)
        return y if b is None else y + b.reshape(-1, *[1] * n)
    return (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, b, strides, 0, dilations, group)


def _conv_by_channel(x: T, w: T, strides: Sequence[int], dilations: Sequence[int]) -> T:
    """One input channel of x [N, C, …] for each output channel: torch calls a kernel for each in float64."""
    x = x.repeat_interleave(len(w) // x.shape[1], 1)
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    lengths = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], window, strides, strict=True)]
    y = x.new_zeros(*x.shape[:2], *lengths)
    for place in itertools.product(*map(range, w.shape[2:])):
        starts = [i * d for i, d in zip(place, dilations, strict=True)]
        read = [slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, lengths, strides, strict=True)]
        y += x[:, :, *read] * w[:, 0, *place].reshape(-1, *[1] * len(place))
    return y


def conv_transpose(
    x: T,
    w: T,
    b: T | None = None,
    *,
    auto_pad: bytes = b"NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Any = None,
    output_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    n = x.ndim - 2
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    full = function(x, w, None, strides, 0, 0, group, dilations)
    full = _pad(full, [(0, e) for e in output_padding or [0] * n], 0.0)  # no window reaches there
    pairs = _pads(pads, n)
    if output_shape is not None or auto_pad.startswith(b"SAME"):
        sizes = output_shape or [i * s for i, s in zip(x.shape[2:], strides, strict=True)]
        cut = [a - b for a, b in zip(full.shape[2:], sizes, strict=True)]
        pairs = [(c // 2, c - c // 2) if auto_pad == b"SAME_UPPER" else (c - c // 2, c // 2) for c in cut]
    for i, (begin, end) in enumerate(pairs):
        full = full.narrow(2 + i, begin, full.shape[2 + i] - begin - end)
    return full if b is None else full + b.reshape([-1, *[1] * n])


def _windows(x: T, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> T:
    """[…, out…, k…] by indexing: the slow, obvious way."""
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        axis = 2 + i
        out = (x.shape[axis] - (k - 1) * d - 1) // s + 1
        index = (torch.arange(out)[:, None] * s + torch.arange(k) * d).reshape(-1)
        x = x.index_select(axis, index).unflatten(axis, (out, k)).movedim(axis + 1, -1)
    return x


def _pool_geometry(
    x: T, kernel: Sequence[int], auto_pad: bytes, ceil_mode: int, dilations: Any, pads: Any, strides: Any
) -> tuple[list[int], list[int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Strides, dilations, the paddings, and what ceil_mode adds behind them."""
    n = len(kernel)
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pairs = _auto_pads(auto_pad, pads, x.shape[2:], window, strides)
    extra = []
    for size, w, s, (begin, end) in zip(x.shape[2:], window, strides, pairs, strict=True):
        free = size + begin + end - w
        out = -(-free // s) + 1 if ceil_mode else free // s + 1
        if ceil_mode and (out - 1) * s >= size + begin:
            out -= 1
        extra.append((0, max((out - 1) * s - free, 0)))
    return strides, dilations, pairs, extra


def max_pool(
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: bytes = b"NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    pads: Any = None,
    storage_order: int = 0,
    strides: Any = None,
) -> tuple[T, T]:
    strides, dilations, pairs, extra = _pool_geometry(
        x, kernel_shape, auto_pad, ceil_mode, dilations, pads, strides
    )
    flat = torch.arange(x.numel()).reshape(x.shape)
    n = len(kernel_shape)
    padded = _windows(_pad(_pad(x, pairs, -math.inf), extra, -math.inf), kernel_shape, strides, dilations)
    places = _windows(_pad(_pad(flat, pairs, -1), extra, -1), kernel_shape, strides, dilations)
    padded, places = padded.flatten(-n), places.flatten(-n)
    best, at = padded.max(-1)
    first = (padded == best[..., None]).to(torch.int8).argmax(-1, keepdim=True)
    del at
    return best, places.gather(-1, first)[..., 0]


def average_pool(
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: bytes = b"NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    strides, dilations, pairs, extra = _pool_geometry(
        x, kernel_shape, auto_pad, ceil_mode, dilations, pads, strides
    )
    ones = torch.ones_like(x)
    n = len(kernel_shape)
    counted = _pad(_pad(ones, pairs, float(count_include_pad)), extra, 0.0)
    total = (
        _windows(_pad(_pad(x, pairs, 0.0), extra, 0.0), kernel_shape, strides, dilations).flatten(-n).sum(-1)
    )
    return total / _windows(counted, kernel_shape, strides, dilations).flatten(-n).sum(-1)


def batch_normalization(
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> T:
    shape = [-1, *(1 for _ in range(x.ndim - 2))]
    factor = scale / torch.sqrt(var + epsilon)
    return (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)


def lrn(x: T, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> T:
    below = (size - 1) // 2
    square = F.pad((x * x).movedim(1, -1), (below, size - 1 - below)).movedim(-1, 1)
    total = sum(square.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (bias + alpha / size * total) ** beta


def layer_normalization(
    x: T, scale: T, bias: T | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> T:
    axes = list(range(axis % x.ndim, x.ndim))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + epsilon) * scale
    return y if bias is None else y + bias


def rms_normalization(x: T, scale: T, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> T:
    axes = list(range(axis % x.ndim, x.ndim))
    return x / torch.sqrt((x * x).mean(axes, keepdim=True) + epsilon) * scale


def gemm(
    a: T, b: T, c: T | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> T:
    y = alpha * (a.T if transA else a) @ (b.T if transB else b)
    return y if c is None else y + beta * c


def scatter_elements(x: T, index: T, updates: T, *, axis: int = 0, reduction: bytes = b"none") -> T:
    index = torch.where(index < 0, index + x.shape[axis], index)
    if reduction == b"none":
        return x.scatter(axis, index, updates)
    names = {b"add": "sum", b"mul": "prod", b"max": "amax", b"min": "amin"}
    return x.scatter_reduce(axis, index, updates, names[reduction])


def slice_(x: T, starts: T, ends: T, axes: T | None = None, steps: T | None = None) -> T:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        stop = None if int(step) < 0 and int(end) < -(2**30) else int(end)
        index = list(range(*slice(int(start), stop, int(step)).indices(x.shape[int(axis)])))
        x = x.index_select(int(axis), torch.tensor(index, dtype=torch.int64))
    return x


def reshape(x: T, shape: T, *, allowzero: int = 0) -> T:
    target = [x.shape[i] if s == 0 and not allowzero else int(s) for i, s in enumerate(shape.tolist())]
    return x.reshape(target)


def pad(x: T, pads: T, value: T | None = None, axes: T | None = None, *, mode: bytes = b"constant") -> T:
    chosen = [int(a) % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    pairs = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        pairs[axis] = int(pads[i]), int(pads[len(chosen) + i])
    if mode != b"constant":
        inner = tuple(slice(max(-b, 0), n - max(-e, 0)) for n, (b, e) in zip(x.shape, pairs, strict=True))
        border = [(max(b, 0), max(e, 0)) for b, e in pairs]
        return torch.from_numpy(np.pad(x.numpy()[inner], border, mode=mode.decode()))
    return _pad(x, pairs, 0.0 if value is None else float(value))


def split(x: T, sizes: T | None = None, *, axis: int = 0, num_outputs: int | None = None) -> tuple[T, ...]:
    if sizes is None:
        return torch.split(x, -(-x.shape[axis] // int(num_outputs or 1)), axis)
    return torch.split(x, [int(s) for s in sizes], axis)


def squeeze(x: T, axes: T | None = None) -> T:
    chosen = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else _axes(x, axes)
    return x.reshape([n for i, n in enumerate(x.shape) if i not in chosen])


def unsqueeze(x: T, axes: T | list[int]) -> T:
    rank = x.ndim + len(axes)
    for axis in sorted(int(a) % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def gather(x: T, index: T, *, axis: int = 0) -> T:
    axis = axis % x.ndim
    index = torch.where(index < 0, index + x.shape[axis], index)
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def clip(x: T, low: T | None = None, high: T | None = None) -> T:
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _elu(x: T, alpha: float, scale: float = 1.0, width: float = 1.0) -> T:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0) / width))


def _arg(function: Callable[..., T]) -> Callable[..., T]:
    def run(x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> T:
        return function(x, axis, bool(keepdims))

    return run


def _fold(function: Callable[[T, T], T]) -> Callable[..., T]:
    def run(*xs: T) -> T:
        total = xs[0]
        for x in xs[1:]:
            total = function(total, x)
        return total

    return run


def depth_to_space(x: T, *, blocksize: int, mode: bytes = b"DCR") -> T:
    """Blocks of channels become blocks of the plane; DCR: the channel varies fastest."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == b"CRD":
        blocks = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        blocks = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // b**2, h * b, w * b)


def resize(x: T, *operands: T | None, **attributes: Any) -> T:
    """By whole factors, each value a block of its own; else as the onnx package defines it."""
    if len(operands) == 1:  # before opset 11
        corners = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
        return resize(x, None, *operands, **attributes, **corners)
    plain = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    scales = operands[1] if len(operands) == 2 else None
    if attributes != plain or scales is None or any(float(s) != int(s) for s in scales):
        return _by_onnx("Resize", x, *operands, **attributes)[0]
    for axis, times in enumerate(scales):
        x = x.repeat_interleave(int(times), axis)
    return x


OPERATORS: dict[str, Callable[..., Any]] = {
    **MATH,
    **SAMPLING,
    "Abs": torch.abs,
    "Add": torch.add,
    "And": torch.logical_and,
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Atan": torch.atan,
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Ceil": torch.ceil,
    "Celu": lambda x, alpha=1.0: _elu(x, alpha, width=alpha),
    "Clip": clip,
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Constant": lambda **value: _constant(*value.values()),
    "ConstantOfShape": lambda shape, value=None: (
        torch.zeros([int(n) for n in shape], dtype=torch.float64)
        if value is None
        else _constant(value).expand([int(n) for n in shape]).clone()
    ),
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Cos": torch.cos,
    "Div": lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Dropout": lambda x, *_, **__: x,
    "Elu": lambda x, alpha=1.0: _elu(x, alpha),
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Expand": lambda x, shape: x * torch.ones([int(s) for s in shape], dtype=x.dtype),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Floor": torch.floor,
    "Gather": gather,
    "GatherElements": lambda x, index, axis=0: torch.gather(
        x, axis, torch.where(index < 0, index + x.shape[axis], index)
    ),
    "Gelu": lambda x, approximate=b"none": F.gelu(x, approximate=approximate.decode()),
    "Gemm": gemm,
    "GlobalAveragePool": lambda x: x.mean(list(range(2, x.ndim)), keepdim=True),
    "DepthToSpace": depth_to_space,
    "Range": lambda start, limit, delta: torch.arange(int(start), int(limit), int(delta)),
    "GlobalMaxPool": lambda x: x.amax(list(range(2, x.ndim)), keepdim=True),
    "Greater": torch.gt,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "GroupNormalization": lambda x, scale, bias, num_groups, epsilon=1e-5, stash_type=1: F.group_norm(
        x, num_groups, scale, bias, epsilon
    ),
    "HardSwish": lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1),
    "Identity": lambda x: x,
    "InstanceNormalization": lambda x, scale, bias, epsilon=1e-5: F.instance_norm(
        x, weight=scale, bias=bias, eps=epsilon
    ),
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "LeakyRelu": lambda x, alpha=0.01: torch.where(x > 0, x, alpha * x),
    "Less": torch.lt,
    "Log": torch.log,
    "LogSoftmax": lambda x, axis=-1: torch.log_softmax(x, axis),
    "MatMul": torch.matmul,
    "Max": _fold(torch.maximum),
    "MaxPool": max_pool,
    "Mean": lambda *xs: sum(xs) / len(xs),
    "Min": _fold(torch.minimum),
    "Mish": F.mish,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "PRelu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "Pad": pad,
    "Pow": torch.pow,
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "ReduceMax": _reduce(_max),
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keep)),
    "ReduceMin": _reduce(lambda x, axes, keep: x.amin(axes, keep)),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keep)),
    "Reciprocal": torch.reciprocal,
    "RMSNormalization": rms_normalization,
    "RNN": recurrent("rnn"),
    "GRU": recurrent("gru"),
    "LSTM": recurrent("lstm"),
    "Relu": torch.relu,
    "Reshape": reshape,
    "Round": torch.round,
    "Scaler": lambda x, offset, scale: (
        (x - torch.tensor(offset, dtype=x.dtype)) * torch.tensor(scale, dtype=x.dtype)
    ),
    "ScatterElements": scatter_elements,
    "Selu": lambda x, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: _elu(x, alpha, gamma),
    "Resize": resize,
    "Upsample": resize,
    "Shape": lambda x, start=0, end=None: torch.tensor(list(x.shape)[start:end], dtype=torch.int64),
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Slice": slice_,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Split": split,
    "Sqrt": torch.sqrt,
    "Squeeze": squeeze,
    "Sub": torch.sub,
    "Sum": _fold(torch.add),
    "Swish": lambda x, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Tanh": torch.tanh,
    "ThresholdedRelu": lambda x, alpha=1.0: torch.where(x > alpha, x, torch.zeros_like(x)),
    "Transpose": lambda x, perm=None: x.permute(list(perm) if perm else list(reversed(range(x.ndim)))),
    "Unsqueeze": unsqueeze,
    "Where": torch.where,
}
