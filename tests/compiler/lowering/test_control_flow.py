"""If, Loop and Scan: the same outputs, and the attributions of the same computation written out."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale import DeepShap, ExactShap, Gradient, compile_model
from rationale.errors import UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.lowering.control_flow.branches import rows_decide
from rationale.lowering.loading.load import load, standardise
from tests.compiler.models import parsed, rows
from tests.grid import grid
from tests.tolerances import COMPLETE_32, PARITY_32

K, N = 3, 2
W = np.asarray([0.5, -1.0, 2.0], np.float32)
X = rows(N, 3, seed=1)
REFERENCES = rows(K, 3, seed=2)


def explained(
    model: onnx.ModelProto,
    constants: dict[str, Any] | None = None,
    x: np.ndarray = X,
    references: Any = REFERENCES,
) -> dict[str, np.ndarray]:
    """The answer, after a look at its completeness and at what is left of control flow."""
    method = DeepShap({"x": references})
    compiled = compile_model(model, method, output="y", targets=[0, 2], inputs=["x"])
    assert not {"If", "Loop"} & {node.op_type for node in compiled.model.graph.node}
    answer = compiled.explain({"x": x, **(constants or {})})
    change = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert change > 1e-2
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * change
    return answer


def assert_same(model: onnx.ModelProto, written_out: onnx.ModelProto, **options: Any) -> None:
    got, want = explained(model, options), explained(written_out)
    for name in ("y", "x_attributions", "base_value"):
        size = np.abs(want[name]).max()
        np.testing.assert_allclose(got[name], want[name], atol=PARITY_32 * size, rtol=0, err_msg=name)


def straight(body: str) -> onnx.ModelProto:
    return parsed(f"g (float[N, 3] x) => (float[N, 3] y) {{ {body} }}", {"w": W})


BRANCHES = """<then_branch = yes () => (float[N, 3] u) { t = Mul (x, w)  u = Tanh (t) },
    else_branch = no () => (float[N, 3] v) { v = Exp (x) }>"""
THEN, ELSE = "t = Mul (x, w)  y = Tanh (t)", "y = Exp (x)"


@pytest.mark.parametrize(("condition", "same"), [(1, THEN), (0, ELSE)])
def test_a_constant_condition_chooses_its_branch(condition: int, same: str) -> None:
    text = f"g (float[N, 3] x) => (float[N, 3] y) <bool c = {{{condition}}}> {{ y = If (c) {BRANCHES} }}"
    assert_same(parsed(text, {"w": W}), straight(same))


def test_a_branch_may_answer_with_what_stands_outside() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y) <bool c = {1}> {
        t = Mul (x, w)
        u = If (c) <then_branch = yes () => (float[N, 3] a) { a = Identity (t) },
                    else_branch = no () => (float[3] b) { b = Identity (w) }>
        y = Tanh (u)
    }"""
    assert_same(parsed(text, {"w": W}), straight(THEN))


def test_a_branch_may_hand_on_an_output_of_the_model() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] t, float[N, 3] y) <bool c = {1}> {
        t = Mul (x, w)
        u = If (c) <then_branch = yes () => (float[N, 3] a) { a = Identity (t) },
                    else_branch = no () => (float[N, 3] b) { b = Tanh (t) }>
        y = Sin (u)
    }"""
    assert_same(parsed(text, {"w": W}), straight("t = Mul (x, w)  y = Sin (t)"))


@pytest.mark.parametrize("condition", ["<bool c = {1}>", ""], ids=["constant", "data"])
def test_a_branch_may_answer_with_a_constant_of_its_own(condition: str) -> None:
    text = f"""g (float[N, 3] x{"" if condition else ", bool c"}) => (float[N, 3] y) {condition} {{
        k = If (c) <then_branch = yes () => (float[3] a) <float[3] a = {{0.5, -1, 2}}> {{ }},
                    else_branch = no () => (float[3] b) {{ b = Abs (w) }}>
        t = Mul (x, k)  y = Tanh (t)
    }}"""
    constants = {} if condition else {"c": np.asarray(True)}
    assert_same(parsed(text, {"w": W}), straight(THEN), **constants)


def test_a_condition_on_sizes_is_constant() -> None:
    text = f"""g (float[N, 3] x) => (float[N, 3] y) <int64[1] three = {{3}}> {{
        s = Shape <start = 1> (x)  e = Equal (s, three)  y = If (e) {BRANCHES}
    }}"""
    assert_same(parsed(text, {"w": W}), straight(THEN))


@pytest.mark.parametrize(("flag", "same"), [(True, THEN), (False, ELSE)])
def test_a_condition_that_is_an_input_is_chosen_by_at_run_time(flag: bool, same: str) -> None:
    text = f"g (float[N, 3] x, bool c) => (float[N, 3] y) {{ y = If (c) {BRANCHES} }}"
    assert_same(parsed(text, {"w": W}), straight(same), c=np.asarray(flag))


LOOP_BODY = """body = b (int64 i, bool go, float[N, 3] h) => (bool on, float[N, 3] next) {
    on = Identity (go)  f = Cast <to = 1> (i)  z = Mul (h, w)  q = Add (z, f)  next = Sin (q)
}"""


def iterations(count: int) -> str:
    """The Loop's body, written out."""
    lines, h = [], "x"
    for t in range(count):
        result = "y" if t == count - 1 else f"h{t}"
        lines.append(f"c{t} = Constant <value_float = {float(t)}> ()")
        lines.append(f"z{t} = Mul ({h}, w)  q{t} = Add (z{t}, c{t})  {result} = Sin (q{t})")
        h = result
    return "\n".join(lines)


def test_a_loop_is_its_iterations() -> None:
    text = f"g (float[N, 3] x) => (float[N, 3] y) <int64 m = {{4}}> {{ y = Loop (m, , x) <{LOOP_BODY}> }}"
    assert_same(parsed(text, {"w": W}), straight(iterations(4)))


def test_a_loop_that_counts_ends_where_its_condition_does() -> None:
    """While k < 5, with k in the loop: no trip count is given, but it follows."""
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64 k0 = {2}, int64 one = {1}, int64 end = {5}> {
        y, k = Loop ( , , x, k0) <body = b (int64 i, bool go, float[N, 3] h, int64 k)
            => (bool on, float[N, 3] next, int64 k_next) {
            k_next = Add (k, one)  on = Less (k_next, end)  f = Cast <to = 1> (i)
            z = Mul (h, w)  q = Add (z, f)  next = Sin (q)
        }>
    }"""
    assert_same(parsed(text, {"w": W}), straight(iterations(3)))


@pytest.mark.parametrize("times", [1, 3, 6])
def test_a_loop_that_data_ends_keeps_its_last_values(times: int) -> None:
    text = """g (float[N, 3] x, float n) => (float[N, 3] y)
        <int64 m = {6}, float zero = {0}, float one = {1}> {
        c = Greater (n, zero)
        y, k = Loop (m, c, x, n) <body = b (int64 i, bool go, float[N, 3] h, float k)
            => (bool on, float[N, 3] next, float k_next) {
            k_next = Sub (k, one)  on = Greater (k_next, zero)  f = Cast <to = 1> (i)
            z = Mul (h, w)  q = Add (z, f)  next = Sin (q)
        }>
    }"""
    assert_same(parsed(text, {"w": W}), straight(iterations(times)), n=np.asarray(times, np.float32))


def test_a_loop_that_never_runs_hands_on_what_others_read_too() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] h, float[N, 3] y) <int64 m = {0}> {
        h = Loop (m, , x) <body = b (int64 i, bool go, float[N, 3] a) => (bool go, float[N, 3] next) {
            next = Sin (a) }>
        t = Mul (h, w)  q = Mul (t, x)  y = Tanh (q)
    }"""
    assert_same(parsed(text, {"w": W}), straight("t = Mul (x, w)  q = Mul (t, x)  y = Tanh (q)"))


BOUNDED = {
    "Min": "most = Constant <value_int = 6> ()  m = Min (n, most)",
    "Clip": "low = Constant <value_int = 0> ()  most = Constant <value_int = 6> ()  m = Clip (n, low, most)",
    "Mod": "most = Constant <value_int = 7> ()  m = Mod (n, most)",
    "Reshape": """most = Constant <value_int = 6> ()  least = Min (n, most)
        one = Constant <value_ints = [1]> ()  r = Reshape (least, one)  m = Squeeze (r)""",
    "Add": """eight = Constant <value_int = 8> ()  two = Constant <value_int = 2> ()
        less = Constant <value_int = -2> ()  six = Constant <value_int = 6> ()
        d = Sub (eight, n)  least = Max (d, two)  short = Add (least, less)  m = Sub (six, short)""",
    "Sigmoid": """g = Cast <to = 1> (n)  s = Sigmoid (g)  t = Mul (s, c13)  u = Sub (t, c6)  v = Min (u, g)
        m = Cast <to = 7> (v)""",
}


@grid("bound, times", BOUNDED, [0, 1, 4, 6])
def test_a_trip_count_that_is_data_needs_a_bound(bound: str, times: int) -> None:
    """All iterations up to the bound are in the graph; those beyond the count keep the values."""
    text = f"""g (float[N, 3] x, int64 n) => (float[N, 3] y) <float c13 = {{13}}, float c6 = {{6.5}}> {{
        {BOUNDED[bound]}  z = Loop (m, , x) <{LOOP_BODY}>  y = Exp (z)
    }}"""
    last = f"{iterations(times).replace('y =', 'z =')}  y = Exp (z)" if times else "y = Exp (x)"
    assert_same(parsed(text, {"w": W}), straight(last), n=np.asarray(times))


COUNTED = """g (float[N, 4, 3] x, int64[N, 4] ids) => (float[N, 3] y)
    <int64[1] zero = {0}, int64[1] one = {1}, float start = {0}> {
    kept = Greater (ids, zero)  whole = Cast <to = 7> (kept)  counts = ReduceSum <keepdims = 0> (whole, one)
    m = Squeeze (counts)  h = ReduceSum <keepdims = 0> (x, one)
    y = Loop (m, , h) <body = b (int64 i, bool go, float[1, 3] h) => (bool on, float[1, 3] next) {
        on = Identity (go)  a = Gather <axis = 1> (x, i)  z = Mul (h, w)  q = Add (z, a)  next = Tanh (q) }>
}"""


@pytest.mark.parametrize("bounded", ["by what it counts", "by what it reads"])
def test_each_row_has_a_trip_count_of_its_own(bounded: str) -> None:
    """Of a batch that is exported as one row: how many of its ids are not padding."""
    text = COUNTED.replace("[N, ", "[1, ")
    if bounded == "by what it reads":  # an unbounded count
        text = text.replace("m = Squeeze (counts)", "s = Squeeze (counts)  m = Abs (s)  ").replace(
            "(kept)", "(ids)"
        )
    model = parsed(text, {"w": W})
    x, ids = rows(4, 4, 3, seed=3), np.tril(np.ones((5, 4), np.int64), -1)[[1, 4, 0, 2]]
    method = DeepShap({"x": rows(K, 4, 3, seed=4)})
    answer = compile_model(model, method, targets="all", inputs=["x"]).explain({"x": x, "ids": ids})
    for row, count in enumerate(ids.sum(1)):
        h = x[row].sum(0)
        for a in x[row][:count]:
            h = np.tanh(h * W + a)
        np.testing.assert_allclose(answer["y"][row], h, atol=PARITY_32, rtol=PARITY_32)
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32


ROW_DECIDES = {
    "If": """<int64[1] axis = {1}, float zero = {0}> {
        s = ReduceSum <keepdims = 0> (x, axis)  t = Squeeze (s)  c = Greater (t, zero)
        y = If (c) <then_branch = yes () => (float[1, 3] u) { a = Mul (x, w)  u = Tanh (a) },
                    else_branch = no () => (float[1, 3] v) { v = Exp (x) }> }""",
    "Loop": """<int64 m = {6}, bool c = {1}, int64[1] axis = {1}, float limit = {9}> {
        y = Loop (m, c, x) <body = b (int64 i, bool go, float[1, 3] h) => (bool on, float[1, 3] next) {
            z = Mul (h, w)  next = Add (z, h)
            s = ReduceL1 <keepdims = 0> (next, axis)  t = Squeeze (s)  on = Less (t, limit) }> }""",
    "Loop that may not begin": """<int64 m = {3}, int64[1] axis = {1}, float zero = {0}> {
        s = ReduceSum <keepdims = 0> (x, axis)  t = Squeeze (s)  c = Greater (t, zero)
        y = Loop (m, c, x) <body = b (int64 i, bool go, float[1, 3] h) => (bool go, float[1, 3] next) {
            z = Mul (h, w)  next = Tanh (z) }> }""",
}


@pytest.mark.parametrize("name", ROW_DECIDES)
def test_each_row_decides_for_itself(name: str) -> None:
    """Completeness holds where x and a reference go different ways, or go on for longer."""
    model = parsed(f"g (float[1, 3] x) => (float[1, 3] y) {ROW_DECIDES[name]}", {"w": W})
    x, run = rows(6, 3, seed=8), Runner(model)
    answer = explained(model, x=x)
    want = np.concatenate([run({"x": row[None]})["y"] for row in x])
    size = np.abs(want).max()
    np.testing.assert_allclose(answer["y"], want, atol=PARITY_32 * size, rtol=0)
    base = np.concatenate([run({"x": row[None]})["y"] for row in REFERENCES]).mean(0)[[0, 2]]
    np.testing.assert_allclose(answer["base_value"], np.tile(base, (6, 1)), atol=PARITY_32 * size, rtol=0)


def test_control_flow_in_control_flow() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64 m = {3}, int64 one = {1}> {
        y = Loop (m, , x) <body = b (int64 i, bool go, float[N, 3] h) => (bool go, float[N, 3] next) {
            e = Equal (i, one)  z = Mul (h, w)
            next = If (e) <
                then_branch = yes () => (float[N, 3] p) {
                    p = Loop (m, , z) <body = inner (int64 j, bool go2, float[N, 3] a)
                        => (bool go2, float[N, 3] b) {
                            n = Add (i, j)  f = Cast <to = 1> (n)  b = Mul (a, f) }>
                },
                else_branch = no () => (float[N, 3] q) { q = Tanh (z) }>
        }>
    }"""
    out = """six = Constant <value_float = 6.0> ()
        a = Mul (x, w)  b = Tanh (a)  c = Mul (b, w)  d = Mul (c, six)  e = Mul (d, w)  y = Tanh (e)"""
    assert_same(parsed(text, {"w": W}), straight(out))


def test_what_a_loop_collects_has_its_rows_on_axis_1() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y, float[4, N, 3] s) <int64 m = {4}, int64[1] axis = {0}> {
        h, s = Loop (m, , x) <body = b (int64 i, bool go, float[N, 3] a)
            => (bool go, float[N, 3] next, float[N, 3] z) { z = Mul (a, w)  next = Sin (z) }>
        t = ReduceSum <keepdims = 0> (s, axis)  y = Add (t, h)
    }"""
    out = """z0 = Mul (x, w)  h0 = Sin (z0)  z1 = Mul (h0, w)  h1 = Sin (z1)  z2 = Mul (h1, w)  h2 = Sin (z2)
        z3 = Mul (h2, w)  h3 = Sin (z3)  y = Sum (z0, z1, z2, z3, h3)"""
    assert_same(parsed(text, {"w": W}), straight(out))


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("out_back", [0, 1])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_scan_is_its_steps(back: int, out_back: int, axis: int) -> None:
    """Over a positive or negative axis, either way, with outputs along another axis, either way."""
    shape = "N, 4, 3" if axis == 1 else "N, 3, 4"
    text = f"""g (float[{shape}] x, float[N, 3] s) => (float[N, 3, 4] y, float[N, 3] last) {{
        last, y = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [{back}],
            scan_output_axes = [-1], scan_output_directions = [{out_back}],
            body = b (float[N, 3] h, float[N, 3] a) => (float[N, 3] next, float[N, 3] out) {{
                t = Mul (h, w)  q = Add (t, a)  next = Tanh (q)  out = Mul (next, a) }}> (s, x)
    }}"""
    sizes = (4, 3) if axis == 1 else (3, 4)
    x, s = rows(N, *sizes, seed=3), rows(N, 3, seed=4)
    answer = explained(parsed(text, {"w": W}), {"s": s}, x, rows(K, *sizes, seed=5))
    steps = np.moveaxis(x, 1 if axis == 1 else 2, 0)
    h, outs = s, []
    for a in steps[::-1] if back else steps:
        h = np.tanh(h * W + a)
        outs.append(h * a)
    want = np.stack(outs[::-1] if out_back else outs, axis=-1)
    np.testing.assert_allclose(answer["y"], want, atol=PARITY_32)
    np.testing.assert_allclose(answer["last"], h, atol=PARITY_32)


OLD_SCAN = """g (float[2, 3] s, float[2, 4, 3] x) => (float[2, 3] y, float[2, 4, 3] z) {
    y, z = Scan <num_scan_inputs = 1, directions = [1], body = b (float[3] h, float[3] a)
        => (float[3] next, float[3] out) { t = Mul (h, a)  next = Sin (t)  out = Add (next, a) }> ( , s, x)
}"""


def test_a_scan_of_opset_8_keeps_its_batch() -> None:
    """ONNX's own converter takes it for one without."""
    model = parsed(OLD_SCAN, opsets='"" : 8')
    lowered = standardise(load(model).model)
    x = {"s": rows(2, 3, seed=6), "x": rows(2, 4, 3, seed=7)}
    want, got = Runner(model)(x), Runner(ir.to_proto(lowered))(x)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=PARITY_32, rtol=0)


SEQUENCES = {
    "a list that a loop fills": """<int64 m = {3}> {
        none = SequenceEmpty ()
        h, parts = Loop (m, , x, none) <body = b (int64 i, bool go, float[N, 3] a, seq(float[N, 3]) before)
            => (bool go, float[N, 3] next, seq(float[N, 3]) after) {
            z = Mul (a, w)  next = Sin (z)  after = SequenceInsert (before, next) }>
        all = ConcatFromSequence <axis = 1, new_axis = 1> (parts)
        y = ReduceSum <keepdims = 0> (all, one)
    }""",
    "taken out, put in, counted": """<int64 first = {0}, int64 last = {-1}, float[1] half = {0.5}> {
        z = Mul (x, w)  h = Sin (z)  i = Mul (h, w)  j = Sin (i)  k = Mul (j, w)  l = Sin (k)
        s = SequenceConstruct (l, x, h)  t = SequenceErase (s, one_)  u = SequenceInsert (t, j, first)
        n = SequenceLength (u)  f = Cast <to = 1> (n)  a = SequenceAt (u, first)
        b = SequenceAt (u, one_)  c = SequenceAt (u, last)  three = Div (f, f)
        p = Sum (a, b, c)  y = Mul (p, three)
    }""",
    "split by a size": """<int64 each = {2}> {
        z = Mul (x, w)  h = Sin (z)  i = Mul (h, w)  j = Sin (i)  k = Mul (j, w)  l = Sin (k)
        q = Sum (h, j, l)  s = SplitToSequence <axis = 1> (q, each)  y = ConcatFromSequence <axis = 1> (s)
    }""",
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_what_is_taken_out_of_a_sequence_is_what_was_put_in(name: str) -> None:
    text = f"g (float[N, 3] x) => (float[N, 3] y) {SEQUENCES[name]}"
    ones = {"one": np.asarray([1]), "one_": np.asarray(1)}
    used = {k: v for k, v in ones.items() if f" {k})" in text}
    out = """z = Mul (x, w)  h = Sin (z)  i = Mul (h, w)  j = Sin (i)  k = Mul (j, w)  l = Sin (k)
        y = Sum (h, j, l)"""
    assert_same(parsed(text, {"w": W, **used}), straight(out))


# What is left of the list (a, b, c) at some places, by its place in (a, b, c, d).
PLACES_OF_A_LIST: dict[str, tuple[str, list[int]]] = {
    "erased": ("t = SequenceErase (s, zero)", [1, 2]),
    "erased in the middle": ("t = SequenceErase (s, one)", [0, 2]),
    "erased from the end": ("t = SequenceErase (s, minus)", [0, 1]),
    "the last erased": ("t = SequenceErase (s)", [0, 1]),
    "put in first": ("t = SequenceInsert (s, d, zero)", [3, 0, 1, 2]),
    "put in before the last": ("t = SequenceInsert (s, d, minus)", [0, 1, 3, 2]),
    "put in last": ("t = SequenceInsert (s, d)", [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", PLACES_OF_A_LIST)
def test_places_of_a_list(name: str) -> None:
    body, remaining = PLACES_OF_A_LIST[name]
    held = {"zero": np.asarray(0), "one": np.asarray(1), "minus": np.asarray(-1)}
    parts = "a = Sin (x) b = Tanh (x) c = Neg (x) d = Relu (x) s = SequenceConstruct (a, b, c)"
    text = f"{parts} {body} y = ConcatFromSequence <axis = 1> (t)"
    used = {k: v for k, v in held.items() if f" {k})" in body}
    model = parsed(f"g (float[N, 3] x) => (float[N, M] y) {{ {text} }}", used)
    answer = compile_model(model, DeepShap(REFERENCES), targets=[0]).explain(X)
    values = [np.sin(X), np.tanh(X), -X, np.maximum(X, 0)]
    np.testing.assert_allclose(answer["y"], np.concatenate([values[i] for i in remaining], axis=1), atol=1e-6)


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
g (float[N, 3] x) => (float[N, 3] y) { a = own.Outer <slope = 0.3> (x)  y = Mul (a, x) }
<domain: "own", opset_import: ["" : 21, "own" : 1]>
Outer <slope> (v) => (r) { h = own.Inner <alpha : float = @slope> (v)  r = Tanh (h) }
<domain: "own", opset_import: ["" : 21]>
Inner <alpha> (v) => (r) { a = LeakyRelu <alpha : float = @alpha> (v)  r = Add (a, v) }"""


def test_functions_in_functions_with_attributes_handed_on() -> None:
    model = onnx.parser.parse_model(FUNCTIONS)
    out = "a = LeakyRelu <alpha = 0.3> (x)  b = Add (a, x)  c = Tanh (b)  y = Mul (c, x)"
    assert_same(model, straight(out))


REFUSED = {
    "nothing bounds it: .* Export with Min": """g (float[N, 3] x, int64 m) => (float[N, 3] y) {
        y = Loop (m, , x) <body = b (int64 i, bool go, float[N, 3] h) => (bool go, float[N, 3] n) {
            n = Tanh (h) }> }""",
    "without a limit": """g (float[N, 3] x, bool c) => (float[N, 3] y) {
        y, last = Loop ( , c, x, c) <body = b (int64 i, bool go, float[N, 3] h, bool c1)
            => (bool on, float[N, 3] n, bool c2) { n = Tanh (h)  on = Not (c1)  c2 = Not (c1) }> }""",
    "the number of values that it collects depends": """g (float[N, 3] x, bool c) => (float[N, 3] y)
        <int64 m = {4}, int64[1] axis = {0}> {
        z, s = Loop (m, c, x) <body = b (int64 i, bool go, float[N, 3] h)
            => (bool on, float[N, 3] n, float[N, 3] e) { n = Tanh (h)  e = Exp (h)  on = Not (c) }>
        y = ReduceSum <keepdims = 0> (s, axis) }""",
    "more than 20000 nodes": """g (float[N, 3] x) => (float[N, 3] y) <int64 m = {15000}> {
        y = Loop (m, , x) <body = b (int64 i, bool go, float[N, 3] h) => (bool go, float[N, 3] n) {
            t = Tanh (h)  n = Mul (t, t) }> }""",
    "it runs over .*, which is empty|is not known before": """g (float[N, S, 3] x, float[N, 3] s)
        => (float[N, 3] y) {
        y = Scan <num_scan_inputs = 1, scan_input_axes = [1],
            body = b (float[N, 3] h, float[N, 3] a) => (float[N, 3] n) { n = Add (h, a) }> (s, x) }""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_unrolled_says_why(reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        compile_model(parsed(REFUSED[reason]), Gradient(), output="y", inputs=["x"])


def looping(batch: str) -> onnx.ModelProto:
    """A Loop that nothing bounds, with branches that read what stands before them."""
    return parsed(f"""g (float[{batch}, 3] x, bool p, float most) => (float[{batch}, 3] y) {{
        y = Loop ( , , x) <body = b (int64 i, bool go, float[{batch}, 3] h)
            => (bool on, float[{batch}, 3] n) {{
            j = Cast <to = 1> (i)  on = Less (j, most)  t = Tanh (h)
            n = If (p) <then_branch = yes () => (float[{batch}, 3] u) {{ u = Identity (t) }},
                        else_branch = no () => (float[{batch}, 3] v) {{ v = Sin (t) }}> }}> }}""")


@pytest.mark.parametrize("batch", ["N", "1"])
def test_a_loop_that_nothing_bounds_is_refused_by_that_reason(batch: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"condition.*trip count"):
        compile_model(looping(batch), DeepShap({"x": REFERENCES}))


def test_a_loop_that_nothing_bounds_runs_in_a_game_of_coalitions() -> None:
    inputs = {"x": X, "p": np.asarray(True), "most": np.asarray(2, np.float32)}
    answer = compile_model(looping("N"), ExactShap({"x": REFERENCES}), targets=[0]).explain(inputs)
    assert np.abs(answer["explained_value"] - answer["base_value"]).min() > 1e-2
    assert np.abs(answer["completeness_gap"]).max() < PARITY_32


def test_a_condition_that_takes_terabytes_is_refused_by_counting() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64[1] size = {2000000000000}, int64 m = {2}> {
        y = Loop (m, , x) <body = b (int64 i, bool go, float[N, 3] h) => (bool on, float[N, 3] n) {
            s = Max (size, i)  big = ConstantOfShape (s)  most = ReduceMax <keepdims = 0> (big)
            none = Sub (most, most)  on = Equal (none, most)  n = Tanh (h) }> }"""
    with pytest.raises(UnsupportedModelError, match=r"ConstantOfShape node .* computes a constant of"):
        compile_model(parsed(text), Gradient(), inputs=["x"])


def test_a_range_may_have_bounds_with_an_axis() -> None:
    """As in ONNX's own expansion of AffineGrid; ONNX Runtime takes them where they are not constants."""
    text = """g (float[N, 3] x) => (float[N, 3] y) <int64 zero = {0}, int64 one = {1}> {
        size = Shape (x)  rows, n = Split <num_outputs = 2> (size)  i = Range (zero, n, one)
        f = Cast <to = 1> (i)  a = Mul (x, f)  b = Mul (a, w)  y = Tanh (b)
    }"""
    out = "f = Constant <value_floats = [0.0, 1.0, 2.0]> ()  a = Mul (x, f)  b = Mul (a, w)  y = Tanh (b)"
    assert_same(parsed(text, {"w": W}), straight(out))


def test_control_flow_that_is_not_on_the_path_stays() -> None:
    text = """g (float[N, 3] x, int64 m) => (float[N, 3] y, int64 z) <int64 two = {2}> {
        y = Tanh (x)
        z = Loop (m, , two) <body = b (int64 i, bool go, int64 h) => (bool go, int64 n) { n = Mul (h, h) }>
    }"""
    compiled = compile_model(parsed(text), Gradient(), output="y", inputs=["x"], targets=[0])
    answer = compiled.explain({"x": X, "m": np.asarray(3)})
    assert answer["z"] == 2 ** (2**3)
    assert "Loop" in {node.op_type for node in compiled.model.graph.node}


@pytest.mark.parametrize(
    ("graph", "decide"),
    [
        ("s = ReduceSum <keepdims = 0> (x) c = Greater (s, zero) y = If (c) <{branches}>", True),
        ("c = Greater (p, zero) y = If (c) <{branches}>", False),
        ("s = ReduceSum <keepdims = 0> (x) n = Cast <to = 7> (s) y = Loop (n, , x) <{body}>", True),
        ("n = Cast <to = 7> (p) y = Loop (n, , x) <{body}>", False),
        ("y = Loop (, yes, x) <{ends}>", True),
        ("y = Scan <num_scan_inputs = 1, {step}> (t, x)", True),
        ("y = Scan <num_scan_inputs = 1, scan_input_axes = [1], {step}> (t, x)", False),
    ],
    ids=[
        "if",
        "if of a constant",
        "loop",
        "loop of a constant",
        "loop that ends",
        "scan of rows",
        "scan of steps",
    ],
)
def test_rows_decide_where_a_condition_or_a_count_is_theirs(graph: str, decide: bool) -> None:
    row = "float[N, 3]"
    parts = {
        "branches": f"then_branch = t () => ({row} a) {{ a = Relu (x) }}, "
        f"else_branch = e () => ({row} b) {{ b = Neg (x) }}",
        "body": f"body = b (int64 i, bool go, {row} h) => (bool go, {row} n) {{ n = Tanh (h) }}",
        "ends": f"body = b (int64 i, bool go, {row} h) => (bool on, {row} n) {{ n = Tanh (h) "
        "m = ReduceSum <keepdims = 0> (n) on = Greater (m, zero) }",
        "step": "body = b (float[3] h, float[3] s) => (float[3] n) { n = Add (h, s) }",
    }
    text = f"g ({row} x, float p, float[3] t) => ({row} y) {{ {graph.format(**parts)} }}"
    held = {"zero": np.float32(0), "yes": np.bool_(True)}
    assert rows_decide(ir.from_proto(parsed(text, {k: v for k, v in held.items() if k in text}))) == decide
