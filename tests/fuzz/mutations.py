"""Random damage to ONNX files: in their bytes, and in the fields of their messages."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.compiler.models import cnn, mlp, parsed, rows, two_inputs

LENGTHS = [0, 1, 2, 3, 5, 7, 10, 11, 16, 99, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1]
LENGTHS += [-1, -(2**31), -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-38, 3e38, float("inf"), float("-inf"), float("nan")]
WORDS = [
    *("", "x", "y", "nil", "../x", "/etc/passwd", "\x00", "名", "N", "ai.onnx.ml", "w" * 300),
    *"Relu Identity Softmax Loop If Scan Conv Shape Gather Einsum TopK Cast".split(),
    *"axis axes to perm value kernel_shape pads strides group equation".split(),
]
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _attention() -> onnx.ModelProto:
    """One head with a mask, sizes computed in the graph, and a function of the model's own."""
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[N, 4, 6] x) => (float[N, 3] y) {
            q = MatMul (x, wq)  k = MatMul (x, wk)  kt = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul (q, kt)  m = own.masked (s, mask)  a = Softmax <axis = -1> (m)
            o = MatMul (a, x)   n = LayerNormalization <axis = -1> (o, scale)
            sh = Shape (n)  b = Gather <axis = 0> (sh, zero)  c = Concat <axis = 0> (b, minus)
            f = Reshape (n, c)  y = MatMul (f, wo)
        }
        <domain: "own", opset_import: ["" : 21]>
        masked (s, mask) => (m) { z = Add (s, mask)  m = Identity (z) }"""
    model = onnx.parser.parse_model(text)
    weights = {
        "wq": rows(6, 5, seed=1),
        "wk": rows(6, 5, seed=2),
        "wo": rows(24, 3, seed=3),
        "mask": np.triu(np.full((4, 4), -1e4, np.float32), 1),
        "scale": rows(6, seed=4),
        "zero": np.array([0]),
        "minus": np.array([-1]),
    }
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _control() -> onnx.ModelProto:
    return parsed(
        """g (float[N, 5] x, bool c) => (float[N, 5] y) {
            a = If (c) <then_branch = t () => (float[N, 5] p) { p = Relu (x) },
                        else_branch = e () => (float[N, 5] q) { q = Tanh (x) }>
            y = Loop (n, , a) <body = b (int64 i, bool k, float[N, 5] v) => (bool m, float[N, 5] z)
                { m = Identity (k) z = Sin (v) }>
        }""",
        {"n": np.int64(3)},
    )


def _recurrent() -> onnx.ModelProto:
    return parsed(
        """g (float[N, 3, 4] x) => (float[N, 2] y) {
            t = Transpose <perm = [1, 0, 2]> (x)
            o, h, c = LSTM <hidden_size = 5> (t, w, r, b)
            s = Squeeze (h, zero)  y = MatMul (s, v)
        }""",
        {
            "w": rows(1, 20, 4, seed=1),
            "r": rows(1, 20, 5, seed=2),
            "b": rows(1, 40, seed=3),
            "v": rows(5, 2, seed=4),
            "zero": np.array([0]),
        },
    )


SOUND: dict[str, Callable[[], onnx.ModelProto]] = {
    "perceptron": mlp,
    "two inputs": two_inputs,
    "image": cnn,
    "attention": _attention,
    "control flow": _control,
    "recurrent": _recurrent,
}


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """The same file with bytes flipped, a stretch lost, doubled or replaced, or cut off."""
    data = bytearray(content)
    low, high = sorted(random.integers(0, len(data) + 1, 2))
    match random.integers(5):
        case 0:
            for place in random.integers(0, len(data), random.integers(1, 9)):
                data[place] ^= 1 << random.integers(8)
        case 1:
            data[low : min(high, low + 16)] = b""
        case 2:
            data[low:low] = data[low:high]
        case 3:
            data[low : min(high, low + 16)] = random.bytes(random.integers(1, 20))
        case 4:
            del data[low:]
    return bytes(data)


def mutated(model: onnx.ModelProto, random: np.random.Generator) -> bytes:
    """The model with one to three fields changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(random.integers(1, 4)):
        places = list(_fields(copy))
        message, field = places[random.integers(len(places))]
        if field.is_repeated:
            _change_list(message, field, random)
        else:
            _change_field(message, field, random)
    return copy.SerializeToString()


def _fields(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field that is set, at every depth."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _fields(inner)


def _change_field(message: Message, field: FieldDescriptor, random: np.random.Generator) -> None:
    if random.integers(5) == 0:
        message.ClearField(field.name)
    elif field.message_type is not None:  # another field of the message inside, most of which are not set
        inner = getattr(message, field.name)
        _change_unset(inner, random)
    else:
        setattr(message, field.name, _scalar(field, random))


def _change_unset(message: Message, random: np.random.Generator) -> None:
    fields = [f for f in message.DESCRIPTOR.fields if not f.is_repeated and f.message_type is None]
    if fields:
        field = fields[random.integers(len(fields))]
        setattr(message, field.name, _scalar(field, random))


def _change_list(message: Message, field: FieldDescriptor, random: np.random.Generator) -> None:
    """An element lost, doubled, moved, or changed."""
    values = getattr(message, field.name)
    remaining = list(values)
    i, j = random.integers(len(remaining), size=2)
    choice = random.integers(5)
    if choice == 0:
        del remaining[i]
    elif choice == 1:
        remaining.insert(j, remaining[i])
    elif choice == 2:
        remaining[i], remaining[j] = remaining[j], remaining[i]
    elif field.message_type is None:
        remaining[i] = _scalar(field, random)
    else:
        _change_unset(remaining[i], random)
    copies = [_copy(value) for value in remaining]
    message.ClearField(field.name)
    getattr(message, field.name).extend(copies)


def _copy(value: Any) -> Any:
    if not isinstance(value, Message):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _scalar(field: FieldDescriptor, random: np.random.Generator) -> Any:
    kind = field.cpp_type
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return min(max(int(random.choice(LENGTHS)), low), high)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return int(random.choice([value.number for value in field.enum_type.values]))
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return float(random.choice(FLOATS))
    word = str(random.choice(WORDS))
    return word if field.type == FieldDescriptor.TYPE_STRING else word.encode() or random.bytes(7)
