"""Between which bounds numbers lie, whatever the data: against the numbers themselves."""

import math

import numpy as np
import onnx_ir as ir
import pytest

from rationale.graph.runtime.session import Runner
from rationale.lowering.control_flow.bounds import positions_read, span
from rationale.lowering.inference import note_shapes
from tests.compiler.models import parsed

INT64 = np.iinfo(np.int64)
WHOLE = (INT64.min, INT64.max)
CASES = {
    "y = Identity (n)": WHOLE,
    "y = Min (n, three)": (INT64.min, 3),
    "y = Max (n, three)": (3, INT64.max),
    "y = Clip (n, three, five)": (3, 5),
    "y = Clip (n, , five)": (INT64.min, 5),
    "y = Mod (n, five)": (0, 4),
    "y = Mod <fmod = 1> (n, five)": (-4, 4),
    "y = ArgMax <axis = 1> (x)": (0, 3),
    "a = Mod <fmod = 1> (n, five)  y = Neg (a)": (-4, 4),
    "a = Mod (n, five)  b = Neg (a)  y = Concat <axis = 0> (b, five1)": (-4, 5),
    "a = Mod (n, five)  b = Sub (a, three)  y = Abs (b)": (0, 3),
    "a = Mod (n, five)  b = Sub (a, three)  y = Relu (b)": (0, 1),
    "a = Mod (n, five)  y = Sub (three, a)": (-1, 3),
    "a = Mod (n, five)  b = Sub (a, three)  y = Mul (b, a)": (-12, 4),
    "a = Mod (n, five)  c = Greater (n, three)  y = Where (c, five1, a)": (0, 5),
    "y = Add (n, three)": WHOLE,  # it wraps around
    "a = Min (n, three)  y = Sub (a, n)": WHOLE,
    "a = Cast <to = 2> (n)  y = Cast <to = 7> (a)": (0, 255),
    "s = Sigmoid (x)  t = Mul (s, x7)  y = Cast <to = 7> (t)": (0, 7),
    "c = Greater (x, x7)  i = Cast <to = 7> (c)  y = ReduceSum (i, one1)": (0, 4),
    "c = Greater (x, x7)  i = Cast <to = 7> (c)  y = ReduceSum (i)": (0, 12),
    "y = Cast <to = 7> (x)": WHOLE,
}


@pytest.mark.parametrize("body", CASES)
def test_the_numbers_lie_within(body: str) -> None:
    text = f"""g (int64[1] n, float[3, 4] x) => (int64[K] y) <int64 three = {{3}}, int64 five = {{5}},
        int64[1] five1 = {{5}}, int64[1] one1 = {{1}}, float x7 = {{6.5}}> {{ {body} }}"""
    proto = parsed(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    note_shapes(model)
    low, high = span(model.graph.outputs[0])
    assert (low, high) == CASES[body]
    run, rng = Runner(proto, optimise=False), np.random.default_rng(0)
    for n in (INT64.min, -8, -5, -1, 0, 1, 3, 4, 5, 255, 256, INT64.max):
        x = rng.normal(scale=9, size=(3, 4)).astype(np.float32)
        y = run({"n": np.asarray([n]), "x": x})["y"]
        assert low <= y.min() <= y.max() <= high


BODIES = {
    "a = Gather <axis = 1> (x, i)  n = Add (h, a)": 4,
    "j = Unsqueeze (i, zero)  b = Gather <axis = -2> (x, j)  a = Squeeze (b, one1)  n = Add (h, a)": 4,
    "a = Gather <axis = 1> (x, i)  c = Gather (two, i)  b = Mul (a, c)  n = Add (h, b)": 2,  # the shorter one
    "c = Gather (two, i)  a = Gather <axis = 1> (x, i)  b = Mul (a, c)  n = Add (h, b)": 2,
    "a = Gather <axis = 1> (x, i)  n = Identity (h)": math.inf,  # nobody reads it
    "j = Add (i, i)  a = Gather <axis = 1> (x, j)  n = Add (h, a)": math.inf,
    "a = Gather <axis = 2> (x, i)  b = ReduceSum (a, one1, one1)  n = Add (h, b)": math.inf,
}


@pytest.mark.parametrize("body", BODIES)
def test_what_a_body_reads_at_its_own_number(body: str) -> None:
    text = f"""g (float[N, 4, S] x, int64 m) => (float[N, S] y)
        <int64[1] zero = {{0}}, int64[1] one1 = {{1}}, float[2] two = {{1, 3}}> {{
        h = ReduceSum <keepdims = 0> (x, one1)
        y = Loop (m, , h) <body = b (int64 i, bool go, float[N, S] h) => (bool go, float[N, S] n) {{
            {body}
        }}>
    }}"""
    model = ir.from_proto(parsed(text))
    note_shapes(model)
    (loop,) = (node for node in model.graph if node.op_type == "Loop")
    assert positions_read(loop.attributes["body"].as_graph()) == BODIES[body]
