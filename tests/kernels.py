"""An operator that a kernel library computes, NegPos of onnxruntime-extensions, and its rule."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx

from rationale import Kind, Trait, rule
from rationale.graph import shapes
from rationale.rules import rule as rule_module

with patch.dict(os.environ):  # it chooses another protobuf for child processes, with other errors
    import onnxruntime_extensions

DOMAIN = "ai.onnx.contrib"
LIBRARY = Path(onnxruntime_extensions.get_library_path())
ALLOWED = {"RATIONALE_ALLOW_CUSTOM_OPS": "true"}
W = np.array([[0.4, -0.7], [1.1, 0.3], [-0.2, 0.9]], np.float32)
V = np.array([[1.5], [-0.8]], np.float32)


def declare() -> None:
    """Declares the rule: a test forgets it again (`own_rules`), a package of a test does it when imported."""

    @rule("NegPos", domain=DOMAIN, kind=Kind.LOCAL, traits=[Trait.LINEAR_IN_FIRST])
    def neg_pos(op: Any, x: Any) -> Any:
        """min(x, 0) and max(x, 0)."""
        y = op.emit("NegPos", (x,), {}, outputs=2, domain=DOMAIN)
        below = op.Cast(op.Less(x, 0.0), to=int(x.dtype))

        def neg_pos_pullback(m: Any) -> Any:
            return op.Add(op.Mul(m[0], below), op.Mul(m[1], op.Sub(1.0, below)))

        return tuple(y), neg_pos_pullback

    @neg_pos.deeplift
    def neg_pos_deeplift(op: Any, m: Any, xs: Any, rs: Any, *_: Any) -> Any:
        """Each part's own quotient, 1 or 0 at ties."""
        y, y_r = (op.emit("NegPos", (v[0],), {}, outputs=2, domain=DOMAIN) for v in (xs, rs))
        d = op.Sub(xs[0], rs[0])
        tie = op.Equal(d, 0.0)
        safe = op.Where(tie, 1.0, d)
        below = op.Cast(op.Less(xs[0], 0.0), to=int(xs[0].dtype))
        slopes = [
            op.Where(tie, position, op.Div(op.Sub(a, b), safe))
            for a, b, position in zip(y, y_r, (below, op.Sub(1.0, below)), strict=True)
        ]
        return (op.Add(op.Mul(m[0], slopes[0]), op.Mul(m[1], slopes[1])),)

    @neg_pos.shape
    def neg_pos_shape(x: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [x, x]


@contextmanager
def own_rules() -> Iterator[None]:
    """What is declared within is forgotten after it."""
    registered = set(shapes._registered)
    with patch.object(rule_module, "_RULES", dict(rule_module._RULES)):
        yield
    for domain, op_type in shapes._registered - registered:
        onnx.defs.deregister_schema(op_type, shapes.CUSTOM_VERSION, domain)
    shapes._registered.intersection_update(registered)


def network() -> onnx.ModelProto:
    """y = (max(xW, 0) + 0.1·min(xW, 0))·V, a leaky network whose activation is a kernel's."""
    weights = ", ".join(str(v) for v in W.ravel())
    last = ", ".join(str(v) for v in V.ravel())
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "{DOMAIN}": 1]>
        network (float[N, 3] x) => (float[N, 1] y)
        <float[3, 2] w = {{{weights}}}, float[2, 1] v = {{{last}}}, float tenth = {{0.1}}> {{
            h = MatMul (x, w)
            low, high = {DOMAIN}.NegPos (h)
            small = Mul (low, tenth)
            s = Add (small, high)
            y = MatMul (s, v)
        }}
    """)


def predict(x: np.ndarray) -> np.ndarray:
    h = x @ W
    return (np.maximum(h, 0) + 0.1 * np.minimum(h, 0)) @ V


def slope(x: np.ndarray) -> np.ndarray:
    """The gradient at rows: [N, 3]."""
    return (np.where(x @ W < 0, 0.1, 1.0) * V[:, 0]) @ W.T
