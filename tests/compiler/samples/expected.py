"""What a sample's attributions must be, by references that know nothing of the compiler."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from rationale.testing import Sample, Var
from tests.references.coalitions import Group, Player, attributions
from tests.references.interpreter import run64
from tests.references.multipliers import FORMULAS, Flow, starting

Rows = dict[str, np.ndarray]

# Operands that work in groups. An Einsum takes two of them at a time. What is read at a place depends on its
# coordinates: they are apart from each other, but together beside what is read.
_GROUPS: dict[tuple[str, int], Group] = {
    ("Einsum", 3): ((Player(0), Player(1)), Player(2)),
    ("GridSample", 2): (Player(0), tuple(Player(1, (..., i)) for i in range(2))),
    ("GridSample", 3): (Player(0), tuple(Player(1, (..., i)) for i in range(3))),
    ("DeformConv", 2): (Player(0), tuple(Player(1, slice(i, None, 2)) for i in range(2))),
}
_GROUPS["DeformConv", 3] = (_GROUPS["DeformConv", 2], Player(2))


def expected(sample: Sample, model: onnx.ModelProto, x: Rows, r: Rows, weights: list[float]) -> Rows:
    """The mean over references of the attributions of each row: arrays [N, outputs, *shape] by input."""
    names = [sample.input_name(f"x{i}") for i in _varying(sample)]
    count, total = len(x[names[0]]), None
    for k, weight in enumerate(weights):
        rows = [
            _multipliers_of_row(sample, model, *(_row(v, i) for v, i in ((x, n), (r, k))))
            for n in range(count)
        ]
        slopes = [weight * np.stack(each) for each in zip(*rows, strict=True)]
        total = slopes if total is None else [a + b for a, b in zip(total, slopes, strict=True)]
    assert total is not None
    return dict(zip(names, total, strict=True))


def _varying(sample: Sample) -> list[int]:
    return [i for i, o in enumerate(sample.operands) if isinstance(o, Var)]


def _row(rows: Rows, i: int) -> list[np.ndarray]:
    return [a[i].astype(np.float64) for a in rows.values()]


def _multipliers_of_row(
    sample: Sample, model: onnx.ModelProto, xs: list[np.ndarray], rs: list[np.ndarray]
) -> list[np.ndarray]:
    multipliers = _by_formula(sample, model, xs, rs) if sample.op_type in FORMULAS else None
    if multipliers is None:
        return attributions(lambda rows: _run(sample, model, rows), xs, rs, _players(sample))
    return multipliers


def _players(sample: Sample) -> Group:
    varying = [sample.operands[i] for i in _varying(sample)]
    size = varying[-1].shape[-1] if sample.op_type == "GridSample" else len(varying)
    each = tuple(Player(i) for i in range(len(varying)))
    return _GROUPS.get((sample.op_type, size), each)


def _run(sample: Sample, model: onnx.ModelProto, rows: list[np.ndarray]) -> np.ndarray:
    """[B, outputs]; one row at a time where the model was made for one."""
    names, output = [v.name for v in model.graph.input], model.graph.output[0].name
    whole = dict(zip(names, rows, strict=True))
    if not sample.bare:
        return run64(model, whole)[output].reshape(len(rows[0]), -1)
    each = [{n: a[i : i + 1] for n, a in whole.items()} for i in range(len(rows[0]))]
    return np.stack([run64(model, row)[output].reshape(-1) for row in each])


def _by_formula(
    sample: Sample, model: onnx.ModelProto, xs: list[np.ndarray], rs: list[np.ndarray]
) -> list[np.ndarray] | None:
    constants = {t.name: _wide(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
    varying = _varying(sample)
    pair = [
        [
            v[varying.index(i)][None if not sample.bare else ...] if i in varying else constants.get(f"x{i}")
            for i in range(len(sample.operands))
        ]
        for v in (xs, rs)
    ]
    flags = [i in varying for i in range(len(sample.operands))]
    pairs = [v for v, flag in zip(zip(*pair, strict=True), flags, strict=True) if flag]
    flows = iter(starting([x for x, _ in pairs], [r for _, r in pairs], [True] * len(pairs)))
    operands = [next(flows) if flag else c for flag, c in zip(flags, pair[0], strict=True)]
    for i, kind in sample.given_as.items():
        operands[i] = operands[i].each((lambda v: v > 0.2) if kind == TensorProto.BOOL else _whole)
    y = FORMULAS[sample.op_type](*operands, **_attributes(model))
    return None if y is None else _split(y, xs, rs)


def _whole(x: np.ndarray) -> np.ndarray:
    return np.trunc(3 * x)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _attributes(model: onnx.ModelProto) -> dict[str, Any]:
    """As the model holds them: floats of 32 bits."""
    node = next(n for n in model.graph.node if n.name == "the_node")
    return {a.name: _text(helper.get_attribute_value(a)) for a in node.attribute}


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(v) for v in value]
    return value.decode() if isinstance(value, bytes) else value


def _split(y: Flow, xs: list[np.ndarray], rs: list[np.ndarray]) -> list[np.ndarray]:
    sizes = [x.size for x in xs]
    m = np.split(y.m.reshape(y.x.size, -1), np.cumsum(sizes)[:-1], axis=1)
    return [multiplier.reshape(-1, *x.shape) * (x - r) for multiplier, x, r in zip(m, xs, rs, strict=True)]
