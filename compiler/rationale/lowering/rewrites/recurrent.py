"""RNN, GRU and LSTM, unrolled over the steps of a sequence into operators that have rules.

The length of a sequence is an axis of X, so it is known at compile time. One product computes the gates of x
for all steps; each step adds the product of its state. Rows come first here: X is [N, S, I], a state is
[N, 1, H].

The formulas are those of the operators' documentation, or else those of ONNX Runtime: `clip`
bounds the input of a gate's activation, not the cell, and a row of length 0 ends in states of 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering.rewrites.engine import Rewriting, rewrites

State = ir.Value | None  # None: zeros, if the model gives no initial state
Activation = Callable[[ir.Value], ir.Value]
LONGEST = 2_000  # steps; a step is some 12 nodes, and some 40 in a graph with an explanation
_MOVES = frozenset("Expand Slice Transpose Reshape Unsqueeze Squeeze Identity Cast Gather".split())
# ONNX Runtime's defaults: ONNX gives Affine and ScaledTanh none, and a ThresholdedRelu of its own has 1
_ACTIVATIONS: dict[str, dict[str, float]] = {
    "Affine": {"alpha": 0.0, "beta": 0.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "ScaledTanh": {"alpha": 0.0, "beta": 0.0},
    "ThresholdedRelu": {"alpha": 0.0},
    **{name: {} for name in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")},
}


@dataclass(frozen=True)
class _Cell:
    """One direction's parameters: w [I, G·H], r [H, G·H], their biases [G·H], peepholes [3·H]."""

    op: Rewriting
    size: int
    w: ir.Value
    r: ir.Value
    w_bias: ir.Value | None
    r_bias: ir.Value | None
    peepholes: ir.Value | None
    activations: tuple[Activation, ...]
    clip: float | None
    variant: bool  # linear_before_reset, input_forget

    @cached_property
    def r_parts(self) -> list[ir.Value]:
        """A GRU's r in two parts: [H, 2·H] for its gates and [H, H] for h̃."""
        return self.op.split(self.r, [2 * self.size, self.size], axis=1)

    @cached_property
    def new_bias(self) -> ir.Value | None:
        """A GRU's state bias of h̃ [H]."""
        if self.r_bias is None:
            return None
        return self.op.split(self.r_bias, [2 * self.size, self.size], axis=0)[1]

    @cached_property
    def peephole_parts(self) -> list[ir.Value]:
        """The peepholes of i, o and f, [H] each."""
        assert self.peepholes is not None
        return self.op.split(self.peepholes, [self.size] * 3, axis=0)

    def clipped(self, z: ir.Value) -> ir.Value:
        return z if self.clip is None else self.op.Clip(z, -self.clip, self.clip)

    def gates(self, z: ir.Value, *counts: int) -> list[ir.Value]:
        """Split z [N, 1, Σ counts·H] into parts of `counts` gates each."""
        return self.op.split(z, [n * self.size for n in counts], axis=-1)

    def from_state(self, z: ir.Value, h: State) -> ir.Value:
        return z if h is None else self.op.Add(z, self.op.MatMul(h, self.r))


Step = Callable[[_Cell, ir.Value, tuple[State, ...]], tuple[ir.Value, ...]]


@rewrites("RNN")
def rnn(
    op: Rewriting, x: ir.Value, w: ir.Value, r: ir.Value, *optional: ir.Value | None, **attributes: Any
) -> Any:
    """Compute h = f(x·Wᵀ + h·Rᵀ + b), unrolled over the steps."""
    bias, lengths, h = _pad_inputs(optional, 3)
    return _unroll(op, x, (w, r, bias, None), lengths, (h,), rnn_step, ("Tanh",), attributes)


def rnn_step(cell: _Cell, z: ir.Value, states: tuple[State, ...]) -> tuple[ir.Value, ...]:
    """Compute h = f(z_x + h·Rᵀ)."""
    return (cell.activations[0](cell.clipped(cell.from_state(z, states[0]))),)


@rewrites("GRU")
def gru(
    op: Rewriting, x: ir.Value, w: ir.Value, r: ir.Value, *optional: ir.Value | None, **attributes: Any
) -> Any:
    """Compute z, r = σ(…), h̃ = tanh(x·Wᵀ + (r⊙h)·Rᵀ + b), h = (1 − z)⊙h̃ + z⊙h, unrolled over the steps."""
    bias, lengths, h = _pad_inputs(optional, 3)
    names = ("Sigmoid", "Tanh")
    return _unroll(op, x, (w, r, bias, None), lengths, (h,), gru_step, names, attributes)


def gru_step(cell: _Cell, zx: ir.Value, states: tuple[State, ...]) -> tuple[ir.Value, ...]:
    """Compute a step from gates z, r, h̃, in order; linear_before_reset: r scales h·Rᵀ + b instead of h."""
    op, (f, g), (h,) = cell.op, cell.activations, states
    zx_gates, zx_new = cell.gates(zx, 2, 1)
    if cell.variant:
        zr, update = _linear_before_reset(cell, zx_gates, h)
    else:
        gates = zx_gates if h is None else op.Add(zx_gates, op.MatMul(h, cell.r_parts[0]))
        zr = cell.gates(f(cell.clipped(gates)), 1, 1)
        update = cell.new_bias
        if h is not None:
            update = op.plus(op.MatMul(op.Mul(zr[1], h), cell.r_parts[1]), update)
    new = g(cell.clipped(op.plus(zx_new, update)))
    update_share = op.Mul(op.Sub(1.0, zr[0]), new)
    return (update_share if h is None else op.Add(update_share, op.Mul(zr[0], h)),)


def _linear_before_reset(cell: _Cell, zx_gates: ir.Value, h: State) -> tuple[list[ir.Value], ir.Value | None]:
    """Return the gates z and r, and r⊙(h·Rᵀ + b)."""
    op, f = cell.op, cell.activations[0]
    inner = cell.new_bias
    if h is not None:
        gates, new = cell.gates(op.MatMul(h, cell.r), 2, 1)
        zx_gates, inner = op.Add(zx_gates, gates), op.plus(new, inner)
    zr = cell.gates(f(cell.clipped(zx_gates)), 1, 1)
    return zr, None if inner is None else op.Mul(zr[1], inner)


@rewrites("LSTM")
def lstm(
    op: Rewriting, x: ir.Value, w: ir.Value, r: ir.Value, *optional: ir.Value | None, **attributes: Any
) -> Any:
    """Compute i, o, f = σ(…), c = f⊙c + i⊙tanh(…), h = o⊙tanh(c), unrolled over the steps."""
    bias, lengths, h, c, peepholes = _pad_inputs(optional, 5)
    names = ("Sigmoid", "Tanh", "Tanh")
    return _unroll(op, x, (w, r, bias, peepholes), lengths, (h, c), lstm_step, names, attributes)


def lstm_step(cell: _Cell, zx: ir.Value, states: tuple[State, ...]) -> tuple[ir.Value, ...]:
    """Compute a step from gates i, o, f, c̃; peepholes of i and f read the old cell, that of o the new."""
    op, (f, g, h_of), (h, c) = cell.op, cell.activations, states
    z = cell.from_state(zx, h)
    if cell.peepholes is None:
        gates, new = cell.gates(cell.clipped(z), 3, 1)
        i, o, forget = cell.gates(f(gates), 1, 1, 1)
    else:
        p_i, p_o, p_f = cell.peephole_parts
        z_i, z_o, z_f, new = cell.gates(z, 1, 1, 1, 1)
        i, forget = (
            f(cell.clipped(v if c is None else op.Add(v, op.Mul(c, p)))) for v, p in ((z_i, p_i), (z_f, p_f))
        )
        new = cell.clipped(new)
    if cell.variant:
        forget = op.Sub(1.0, i)
    written = op.Mul(i, g(new))
    c = written if c is None else op.Add(op.Mul(forget, c), written)
    if cell.peepholes is not None:
        o = f(cell.clipped(op.Add(z_o, op.Mul(c, p_o))))
    return op.Mul(o, h_of(c)), c


def _pad_inputs(optional: Sequence[ir.Value | None], count: int) -> list[ir.Value | None]:
    return [*optional, *[None] * (count - len(optional))]


def _unroll(
    op: Rewriting,
    x: ir.Value,
    parameters: tuple[ir.Value, ir.Value, ir.Value | None, ir.Value | None],
    lengths: ir.Value | None,
    initial: tuple[ir.Value | None, ...],
    step: Step,
    names: tuple[str, ...],
    attributes: dict[str, Any],
) -> tuple[ir.Value, ...]:
    """Return Y [S, D, N, H] and the last states [D, N, H]."""
    rows, count = op.transpose(x, [1, 0, 2]), _length(x)
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    backwards = directions[attributes.get("direction", "forward")]
    cells = _cells(op, parameters, names, len(backwards), attributes)
    starts = [_starts(op, value, len(backwards)) for value in initial]
    masks = _masks(op, lengths, count)
    runs = [
        _run(step, cell, rows, count, tuple(start[d] for start in starts), masks, back)
        for d, (cell, back) in enumerate(zip(cells, backwards, strict=True))
    ]
    stacked = op.concat([op.Unsqueeze(states, [2]) for states, _ in runs], axis=2)  # [N, S, D, H]
    last = [op.concat([ends[i] for _, ends in runs], axis=1) for i in range(len(initial))]  # [N, D, H]
    return op.Transpose(stacked, perm=[1, 2, 0, 3]), *(op.Transpose(v, perm=[1, 0, 2]) for v in last)


def _length(x: ir.Value) -> int:
    """Return the length of a sequence.

    Raises:
        UnsupportedModelError: if it is unknown, or too long to be unrolled.
    """
    count = None if x.shape is None else x.shape[0]
    if not isinstance(count, int):
        raise UnsupportedModelError(
            f"the length of the sequence {x.name!r} is not known before the model runs. Export with a fixed "
            "length (pad the sequences; their lengths may stay an input)."
        )
    if not 1 <= count <= LONGEST:
        raise UnsupportedModelError(
            f"the sequence {x.name!r} has {count} steps; 1 to {LONGEST} can be unrolled. "
            "Explain shorter sequences."
        )
    return count


def _cells(
    op: Rewriting,
    parameters: tuple[ir.Value, ir.Value, ir.Value | None, ir.Value | None],
    names: tuple[str, ...],
    count: int,
    attributes: dict[str, Any],
) -> Iterator[_Cell]:
    """Yield a cell for each direction.

    Raises:
        UnsupportedModelError: if an activation is unknown to ONNX, or the size is unknown.
    """
    w, r, bias, peepholes = parameters
    size = attributes.get("hidden_size") or (r.shape[-1] if r.shape is not None else None)
    if not isinstance(size, int):
        raise UnsupportedModelError(f"the size of its state is unknown, because the shape of {r.name!r} is")
    activation_names = [str(name) for name in attributes.get("activations") or names * count]
    activations = _activations(
        op, activation_names, attributes.get("activation_alpha"), attributes.get("activation_beta")
    )
    for d in range(count):
        w_bias, r_bias = (None, None) if bias is None else op.split(_of_direction(op, bias, d), None, axis=0)
        yield _Cell(
            op,
            size,
            op.Transpose(_of_direction(op, w, d), perm=[1, 0]),
            op.Transpose(_of_direction(op, r, d), perm=[1, 0]),
            w_bias,
            r_bias,
            None if peepholes is None else _of_direction(op, peepholes, d),
            tuple(activations[d * len(names) : (d + 1) * len(names)]),
            attributes.get("clip"),
            bool(attributes.get("linear_before_reset") or attributes.get("input_forget")),
        )


def _of_direction(op: Rewriting, parameter: ir.Value, d: int) -> ir.Value:
    """Return a parameter of direction d."""
    return op.Gather(parameter, np.asarray(d), axis=0)


def _run(
    step: Step,
    cell: _Cell,
    rows: ir.Value,
    count: int,
    states: tuple[State, ...],
    masks: tuple[ir.Value, list[ir.Value], ir.Value] | None,
    backwards: bool,
) -> tuple[ir.Value, tuple[ir.Value, ...]]:
    """Return every h of one direction [N, S, H], and its last states [N, 1, H]."""
    op = cell.op
    bias = cell.w_bias
    if bias is not None:
        bias = op.Add(bias, _outer_bias(cell, step))
    steps = op.split(op.plus(op.MatMul(rows, cell.w), bias), [1] * count, axis=1)
    hidden: list[ir.Value] = []
    for t in reversed(range(count)) if backwards else range(count):
        new = step(cell, steps[t], states)
        if masks is not None:
            new = tuple(
                op.Where(masks[1][t], v, 0.0 if old is None else old)
                for v, old in zip(new, states, strict=True)
            )
        states = new
        hidden.append(new[0])
    sequence = op.concat(hidden[::-1] if backwards else hidden, axis=1)
    if masks is None:
        return sequence, tuple(v for v in states if v is not None)
    return op.Where(masks[0], sequence, 0.0), tuple(op.Where(masks[2], v, 0.0) for v in states)


def _outer_bias(cell: _Cell, step: Step) -> ir.Value:
    """Return the state's bias for all steps at once, without that of h̃, which a GRU adds later."""
    assert cell.r_bias is not None
    if step is not gru_step:
        return cell.r_bias
    mask = np.repeat([1, 1, 0], cell.size)
    return cell.op.Mul(cell.r_bias, mask.astype(cell.op.dtype.numpy()))


def _starts(op: Rewriting, value: ir.Value | None, count: int) -> Sequence[State]:
    """Return the initial state of each direction [N, 1, H]."""
    if value is None or _is_zero(value):
        return [None] * count
    return op.split(op.transpose(value, [1, 0, 2]), [1] * count, axis=1)


def _is_zero(value: ir.Value | None) -> bool:
    """Tell whether a value holds zeros in any shape: PyTorch writes initial states in this way."""
    if value is None:
        return False
    if value.const_value is not None:
        return not value.const_value.numpy().any()
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        filled = node.attributes.get("value")
        return filled is None or not filled.as_tensor().numpy().any()
    if node.op_type == "Concat":
        return all(_is_zero(v) for v in node.inputs)
    return node.op_type in _MOVES and _is_zero(node.inputs[0])


def _masks(
    op: Rewriting, lengths: ir.Value | None, count: int
) -> tuple[ir.Value, list[ir.Value], ir.Value] | None:
    """Return masks of the steps within each row's length.

    They are a mask [N, S, 1], one [N, 1, 1] per step, and a mask of rows with any steps.
    """
    if lengths is None:
        return None
    if lengths.const_value is not None and lengths.const_value.numpy().min(initial=count) >= count:
        return None
    row_lengths = op.Unsqueeze(lengths, [1, 2])
    inside = op.Less(np.arange(count, dtype=np.int32).reshape(1, -1, 1), row_lengths)
    return inside, op.split(inside, [1] * count, axis=1), op.Less(np.zeros(1, np.int32), row_lengths)


def _activations(
    op: Rewriting, names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """Return the activations; each takes its alpha and beta from the lists in turn, else its defaults."""
    unused = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    functions: list[Activation] = []
    for name in names:
        match = next((n for n in _ACTIVATIONS if n.lower() == name.lower()), None)
        if match is None:
            raise UnsupportedModelError(
                f"its activation {name!r} is not one of ONNX's {sorted(_ACTIVATIONS)}"
            )
        defaults = _ACTIVATIONS[match]
        parameters = {key: unused[key].pop(0) if unused[key] else defaults[key] for key in defaults}
        functions.append(partial(_apply_activation, op, match, parameters))
    return functions


def _apply_activation(op: Rewriting, name: str, parameters: dict[str, float], z: ir.Value) -> ir.Value:
    if name == "Affine":
        return op.Add(op.Mul(z, parameters["alpha"]), parameters["beta"])
    if name == "ScaledTanh":
        return op.Mul(op.Tanh(op.Mul(z, parameters["beta"])), parameters["alpha"])
    return cast("ir.Value", getattr(op, name)(z, **parameters))
