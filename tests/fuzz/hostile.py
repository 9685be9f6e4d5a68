"""Models that someone could write to make a compiler crash, hang, exhaust memory or read what it must not."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.models import FEATURES, mlp, parsed, rows

Make = Callable[[], onnx.ModelProto]
HUGE = 2**40
FILLED = "w = ConstantOfShape (s) r = ReduceSum (w) y = Add (x, r)"
PADDED = "w = Pad (x, p) r = ReduceSum <keepdims = 1> (w, ax) y = Add (x, r)"


def _graph(body: str, **weights: np.ndarray) -> onnx.ModelProto:
    return parsed(f"g (float[N, {FEATURES}] x) => (float[N, {FEATURES}] y) {{ {body} }}", weights)


def _changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = mlp()
    change(model)
    return model


def _with_weight(dims: list[int], data: bytes = b"", kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A perceptron whose first weight says that it is larger than what it holds."""
    weight = onnx.TensorProto(name="w1", data_type=kind, dims=dims, raw_data=data)
    return _changed(lambda m: m.graph.initializer[0].CopyFrom(weight))


def _with_external(location: str, **entries: int) -> onnx.ModelProto:
    model = mlp()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


def _functions(count: int, calls: int, *, last: str = "Relu") -> onnx.ModelProto:
    """Function i calls function i − 1 several times in a row: calls ** count nodes when inlined."""
    model = _graph("y = Relu (x)")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    for i in range(count):
        below, domain = (f"f{i - 1}", "own") if i else (last, "" if last == "Relu" else "own")
        names = ["a", *(f"b{k}" for k in range(calls - 1)), "z"]
        body = [helper.make_node(below, [names[k]], [names[k + 1]], domain=domain) for k in range(calls)]
        model.functions.append(helper.make_function("own", f"f{i}", ["a"], ["z"], body, opsets))
    model.opset_import.add(domain="own", version=1)
    model.graph.node[0].op_type, model.graph.node[0].domain = f"f{count - 1}", "own"
    return model


def _nested_ifs(depth: int) -> onnx.ModelProto:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "b", [], [helper.make_tensor_value_info("y", 1, ["N", 5])]
    )
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        outputs = [helper.make_tensor_value_info("y", 1, ["N", 5])]
        inner = helper.make_graph([node], "b", [], outputs)
    model = _graph("y = Relu (x)", c=np.bool_(True))
    model.graph.ClearField("node")
    model.graph.node.extend(inner.node)
    return model


def _long(count: int) -> onnx.ModelProto:
    nodes = " ".join(f"v{i + 1} = Softplus (v{i})" for i in range(count))
    return _graph(f"v0 = Relu (x) {nodes} y = Relu (v{count})")


def _loop(trips: int, body: str = "z = Tanh (a)") -> onnx.ModelProto:
    return _graph(
        f"y = Loop (n, c, x) <body = b (int64 i, bool k, float[N, {FEATURES}] a) "
        f"=> (bool m, float[N, {FEATURES}] z) {{ m = Identity (k) {body} }}>",
        n=np.int64(trips),
        c=np.bool_(True),
    )


def _doubling(times: int) -> onnx.ModelProto:
    """A constant of five numbers, beside itself again and again: 5 · 2 ** times numbers."""
    nodes = " ".join(f"w{i + 1} = Concat <axis = 0> (w{i}, w{i})" for i in range(times))
    return _graph(f"{nodes} s = ReduceSum (w{times}) y = Add (x, s)", w0=rows(FEATURES))


def _wide_sequence_type(depth: int) -> onnx.ModelProto:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", FEATURES])
    for _ in range(depth):
        kind = helper.make_sequence_type_proto(kind)
    model = mlp()
    model.graph.value_info.add(name="deep", type=kind)
    return model


def _input(dims: list[int], kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    model = parsed("g (float[N, 5] x) => (float[N, 5] y) { y = Relu (x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, ["N", *dims]))
    return model


def _ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _sparse(dims: list[int], indices: list[int]) -> onnx.ModelProto:
    values = numpy_helper.from_array(rows(len(indices)), "w1")
    places = numpy_helper.from_array(np.asarray(indices, np.int64), "w1_i")
    model = _changed(lambda m: m.graph.initializer.pop(0))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, dims))
    return model


def _named(name: str) -> onnx.ModelProto:
    model = mlp()
    model.graph.node[0].name = name
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = name
    return model


def _of_opset(version: int, model: onnx.ModelProto) -> onnx.ModelProto:
    model.opset_import[0].version = version
    return model


def _outside_a_function() -> onnx.ModelProto:
    model = _graph("y = Softmax (x)")
    model.graph.node[0].attribute.add(name="axis", ref_attr_name="other", type=onnx.AttributeProto.INT)
    return model


HOSTILE: dict[str, Make] = {
    "a weight of 8 TB": lambda: _with_weight([HUGE, 2]),
    "a weight of 8 TB with some data": lambda: _with_weight([HUGE, 2], bytes(100)),
    "a weight whose size overflows to nothing": lambda: _with_weight([2**32, 2**32]),
    "a weight whose size overflows to something": lambda: _with_weight([2**62, 5, 7], bytes(140)),
    "a weight with a negative size": lambda: _with_weight([-1, -7], bytes(28)),
    "a weight of strings": lambda: _with_weight([HUGE], kind=TensorProto.STRING),
    "a weight of no type": lambda: _with_weight([5, 7], bytes(140), kind=0),
    "a weight of an unknown type": lambda: _with_weight([5, 7], bytes(140), kind=77),
    "a weight in 4 bits": lambda: _with_weight([5, 7], bytes(18), kind=TensorProto.UINT4),
    "a weight of too much, which ONNX Runtime has no kernel for": lambda: _of_opset(
        3, _with_weight([], bytes(140))
    ),
    "an attribute of a function that is not there": _outside_a_function,
    "a sparse weight of 8 TB": lambda: _sparse([HUGE, 2], [0, 3]),
    "a sparse weight that points outside": lambda: _sparse([5, 7], [0, 999]),
    "external data above the folder": lambda: _with_external("../secret"),
    "external data of the system": lambda: _with_external("/etc/passwd"),
    "external data from a device": lambda: _with_external("/dev/zero"),
    "external data in the file itself": lambda: _with_external("model.onnx"),
    "external data of 8 TB": lambda: _with_external("model.onnx", length=HUGE * 8),
    "external data before the file": lambda: _with_external("model.onnx", offset=-100, length=140),
    "external data behind the file": lambda: _with_external("model.onnx", offset=HUGE, length=140),
    "functions that double forty times": lambda: _functions(40, 2),
    "functions that double twenty times": lambda: _functions(20, 2),
    "a function that calls itself": lambda: _functions(1, 1, last="f0"),
    "functions that call each other": lambda: _functions(3, 2, last="f2"),
    "a chain of two thousand functions": lambda: _functions(2000, 1),
    "branches nested 16 deep": lambda: _nested_ifs(16),
    "a loop without an end": lambda: _loop(2**62),
    "a loop that doubles": lambda: _graph(
        "n1 = Loop (n, c, x) <body = b (int64 i, bool k, float[N, M] a) => (bool m, float[N, P] z) "
        "{ m = Identity (k) z = Concat <axis = 1> (a, a) }> y = ReduceSum <keepdims = 1> (n1, ax)",
        n=np.int64(60),
        c=np.bool_(True),
        ax=_ints(1),
    ),
    "a constant doubled forty times": lambda: _doubling(40),
    "a constant of 4 TB": lambda: _graph(FILLED, s=_ints(HUGE)),
    "a negative size": lambda: _graph(FILLED, s=_ints(-3)),
    "a range without an end": lambda: _graph(
        "w = Range (a, b, d) f = Cast <to = 1> (w) r = ReduceSum (f) y = Add (x, r)",
        a=np.int64(0),
        b=np.int64(HUGE),
        d=np.int64(1),
    ),
    "a range without steps": lambda: _graph(
        "w = Range (a, b, d) f = Cast <to = 1> (w) r = ReduceSum (f) y = Add (x, r)",
        a=np.int64(0),
        b=np.int64(9),
        d=np.int64(0),
    ),
    "a constant expanded": lambda: _graph(
        "w = Expand (k, s) r = ReduceSum (w) y = Add (x, r)", k=rows(1), s=_ints(HUGE)
    ),
    "a constant tiled": lambda: _graph(
        "w = Tile (k, s) r = ReduceSum (w) y = Add (x, r)", k=rows(3), s=_ints(HUGE)
    ),
    "rows padded": lambda: _graph(PADDED, p=_ints(0, 0, 0, HUGE), ax=_ints(1)),
    "rows tiled": lambda: _graph(
        "w = Tile (x, s) r = ReduceSum <keepdims = 1> (w, ax) y = Add (x, r)", s=_ints(1, HUGE), ax=_ints(1)
    ),
    "rows expanded": lambda: _graph(
        "u = Unsqueeze (x, ax) w = Expand (u, s) y = ReduceSum <keepdims = 0> (w, ax)",
        s=_ints(1, HUGE, FEATURES),
        ax=_ints(1),
    ),
    "an image resized": lambda: parsed(
        "g (float[N, 1, 2, 3] x) => (float[N, 1, A, B] y) { y = Resize (x, , s) }",
        {"s": np.asarray([1, 1, 1e7, 1e7], np.float32)},
    ),
    "one-hot rows": lambda: _graph(
        "w = OneHot <axis = 1> (k, d, v) r = ReduceSum (w) y = Add (x, r)",
        k=_ints(1, 2),
        d=np.int64(HUGE),
        v=rows(2),
    ),
    "a random constant": lambda: _graph(
        f"w = RandomNormal <shape = [{HUGE}]> () r = ReduceSum (w) y = Add (x, r)"
    ),
    "an input of 4 TB": lambda: _input([HUGE]),
    "an input whose size overflows": lambda: _input([2**32, 2**32]),
    "an input of 4 GB": lambda: _input([2**30]),
    "an input with a negative size": lambda: _input([-5]),
    "an input of 4000 axes": lambda: _input([1] * 4000),
    "a convolution with a wide kernel": lambda: parsed(
        f"""g (float[N, 1, 8] x) => (float[N, 1, L] y) {{
            y = Conv <kernel_shape = [3], dilations = [{2**30}], pads = [{2**31}, {2**31}]> (x, k) }}""",
        {"k": rows(1, 1, 3)},
    ),
    "a convolution without strides": lambda: parsed(
        "g (float[N, 1, 8] x) => (float[N, 1, L] y) { y = Conv <strides = [0]> (x, k) }", {"k": rows(1, 1, 3)}
    ),
    "a convolution in no groups": lambda: parsed(
        "g (float[N, 1, 8] x) => (float[N, 1, L] y) { y = Conv <group = 0> (x, k) }", {"k": rows(1, 1, 3)}
    ),
    "a pool without strides": lambda: parsed(
        "g (float[N, 1, 8] x) => (float[N, 1, L] y) { y = MaxPool <kernel_shape = [2], strides = [0]> (x) }"
    ),
    "a pool with a wide window": lambda: parsed(
        f"g (float[N, 1, 8] x) => (float[N, 1, L] y) {{ y = AveragePool <kernel_shape = [{HUGE}]> (x) }}"
    ),
    "a reshape by zero": lambda: _graph("y = Reshape <allowzero = 1> (x, s)", s=_ints(0, -1)),
    "a reshape by minus five": lambda: _graph("y = Reshape (x, s)", s=_ints(-5, -1)),
    "a split into nothing": lambda: _graph("y, z = Split <axis = 1> (x, s)", s=_ints(-1, 6)),
    "a split into billions": lambda: _graph("y = Split <axis = 1, num_outputs = 4000000000> (x)"),
    "a slice by nothing": lambda: _graph(
        "y = Slice (x, a, b, ax, d)", a=_ints(0), b=_ints(5), ax=_ints(1), d=_ints(0)
    ),
    "a gather of nothing": lambda: _graph("y = Gather <axis = 1> (x, i)", i=_ints(99, 0, 0, 0, 0)),
    "an axis far away": lambda: _graph("y = Softmax <axis = 9999999999> (x)"),
    "a transpose by nonsense": lambda: _graph("y = Transpose <perm = [0, 7]> (x)"),
    "a transpose that repeats": lambda: _graph("y = Transpose <perm = [0, 0]> (x)"),
    "an LRN of no size": lambda: parsed(
        "g (float[N, 4, 8] x) => (float[N, 4, 8] y) { y = LRN <size = 0> (x) }"
    ),
    "an LRN of a huge size": lambda: parsed(
        f"g (float[N, 4, 8, 2] x) => (float[N, 4, 8, 2] y) {{ y = LRN <size = {HUGE + 1}> (x) }}"
    ),
    "no groups to normalise": lambda: parsed(
        "g (float[N, 4, 8] x) => (float[N, 4, 8] y) { y = GroupNormalization <num_groups = 0> (x, s, s) }",
        {"s": rows(4)},
    ),
    "weights that are no numbers": lambda: _changed(
        lambda m: m.graph.initializer[0].CopyFrom(numpy_helper.from_array(rows(5, 7) * np.nan, "w1"))
    ),
    "weights that are infinite": lambda: _changed(
        lambda m: m.graph.initializer[0].CopyFrom(numpy_helper.from_array(rows(5, 7) * np.inf, "w1"))
    ),
}


SOUND_BUT_ODD: dict[str, Make] = {
    "branches nested 6 deep": lambda: _nested_ifs(6),
    "a chain of 200 operators": lambda: _long(200),
    "sequences nested 30 deep": lambda: _wide_sequence_type(30),
    "a name of a million letters": lambda: _changed(lambda m: setattr(m.graph.node[0], "name", "n" * 10**6)),
    "a name that is a path": lambda: _changed(lambda m: setattr(m.graph, "name", "../../etc/passwd")),
    "names in control characters": lambda: _named("\x00\n\x1b[31m"),
    "training information": lambda: _changed(lambda m: m.training_info.add()),
}


def _conditions(count: int) -> onnx.ModelProto:
    """A chain that is longer than Python's stack, of values that are no floats."""
    chain = " ".join(f"c{i + 1} = Not (c{i})" for i in range(count))
    return _graph(f"c0 = Cast <to = 9> (x) {chain} z = Neg (x) y = Where (c{count}, x, z)")


HEAVY: dict[str, Make] = {
    "a condition behind 1500 operators": lambda: _conditions(1500),
    "rows padded to a gigabyte": lambda: _graph(PADDED, p=_ints(0, 0, 0, 2**28), ax=_ints(1)),
}
"""Sound, and explained where there is memory for it."""
