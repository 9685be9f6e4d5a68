"""Values of a feature that a model tells apart: the keys of encoders that read it unchanged."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering import Lowered
from rationale.methods.target import SIZE_OPERATORS
from rationale.methods.trees.provenance import all_origins

Categories = frozenset[str | float]

# Operators that pass values on unchanged; a Where replaces some of them.
_HANDS_ON = frozenset(
    "Cast Concat Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze Transpose "
    "Unsqueeze Where".split()
)
_TRUNCATES = ("Sign", "Abs", "Floor")  # sign(x)·⌊|x|⌋, the lowered form of a Cast to integers
_KEYS = {
    "CategoryMapper": ("cats_strings", "cats_int64s"),
    "LabelEncoder": ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor"),
    "OneHotEncoder": ("cats_strings", "cats_int64s"),
}


def categories_of(lowered: Lowered, features: Mapping[str, tuple[str, ...] | None]) -> dict[str, Categories]:
    """Return the categories that the model knows, by feature.

    A feature with any other reader, such as a sum, has none.

    Args:
        features: names by input.
    """
    named = [(tensor, names) for tensor, names in features.items() if names is not None]
    labels = [name for _, names in named for name in names]
    start, players = 0, dict[str, np.ndarray]()
    for tensor, names in named:
        shape = lowered.specs[tensor][0]
        players[tensor] = np.arange(start, start + len(names)).reshape(1, *shape[1:])
        start += len(names)
    nodes = list(lowered.model.graph)
    try:
        made = all_origins(lowered, [node for node in nodes if _hands_on(node)], players)
    except UnsupportedModelError:
        return {}
    known: dict[int, set[str | float]] = {}
    unclear = set[int]()
    for node in nodes:
        if _hands_on(node) or node.op_type in SIZE_OPERATORS or node.op_type == "IsNaN":
            continue
        keys = _keys(node)
        for value in node.inputs:
            for owners in made.get(str(value.name), ()) if value is not None else ():
                if keys is None or len(owners) > 1:
                    unclear |= owners
                for owner in owners:
                    known.setdefault(owner, set()).update(keys or ())
    return {labels[i]: frozenset(keys) for i, keys in known.items() if i not in unclear}


def _hands_on(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        made_by = [v.producer() for v in node.inputs if v is not None]
        return {one.op_type for one in made_by if one is not None} == {"Sign", "Floor"}
    return not node.domain and (node.op_type in _HANDS_ON or node.op_type in _TRUNCATES)


def _keys(node: ir.Node) -> set[str | float] | None:
    """Return the values that a node tells apart from all others; None for a node that takes any value."""
    if node.domain == "ai.onnx.ml" and node.op_type in _KEYS:
        given = [node.attributes.get(name) for name in _KEYS[node.op_type]]
        values = [one.value for one in given if one is not None]
        return {
            key
            for each in values
            for one in (each.numpy().ravel() if isinstance(each, ir.TensorProtocol) else each)
            if (key := _key(one)) is not None
        }
    constants = [v.const_value for v in node.inputs if v is not None and v.const_value is not None]
    if (node.domain, node.op_type) == ("", "Equal") and constants:
        return {key for one in constants[0].numpy().ravel() if (key := _key(one)) is not None}
    return None


def _key(value: object) -> str | float | None:
    """Return text, or a number by its shortest digits; None for a missing value."""
    if isinstance(value, bytes | str):
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    number = float(str(np.float32(value) if isinstance(value, float) else value))
    return None if math.isnan(number) else number
