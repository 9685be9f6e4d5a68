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
_PASSING = frozenset(
    "Cast Concat Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze Transpose "
    "Unsqueeze Where".split()
)
_TRUNCATES = ("Sign", "Abs", "Floor")  # sign(x)·⌊|x|⌋, the lowered form of a Cast to integers
_KEYS = {
    "CategoryMapper": ("cats_strings", "cats_int64s"),
    "LabelEncoder": ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor"),
    "OneHotEncoder": ("cats_strings", "cats_int64s"),
}


def known_categories(
    lowered: Lowered, features: Mapping[str, tuple[str, ...] | None]
) -> dict[str, Categories]:
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
        origins = all_origins(lowered, [node for node in nodes if _passes_values(node)], players)
    except UnsupportedModelError:
        return {}
    keys_by_feature: dict[int, set[str | float]] = {}
    unclear = set[int]()
    for node in nodes:
        if _passes_values(node) or node.op_type in SIZE_OPERATORS or node.op_type == "IsNaN":
            continue
        keys = _keys(node)
        for value in node.inputs:
            for owners in origins.get(str(value.name), ()) if value is not None else ():
                if keys is None or len(owners) > 1:
                    unclear |= owners
                for owner in owners:
                    keys_by_feature.setdefault(owner, set()).update(keys or ())
    return {labels[i]: frozenset(keys) for i, keys in keys_by_feature.items() if i not in unclear}


def _passes_values(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        producers = [v.producer() for v in node.inputs if v is not None]
        return {producer.op_type for producer in producers if producer is not None} == {"Sign", "Floor"}
    return not node.domain and (node.op_type in _PASSING or node.op_type in _TRUNCATES)


def _keys(node: ir.Node) -> set[str | float] | None:
    """Return the values that a node tells apart from all others; None for a node that takes any value."""
    if node.domain == "ai.onnx.ml" and node.op_type in _KEYS:
        attributes = [node.attributes.get(name) for name in _KEYS[node.op_type]]
        values = [attribute.value for attribute in attributes if attribute is not None]
        return {
            key
            for each in values
            for attribute in (each.numpy().ravel() if isinstance(each, ir.TensorProtocol) else each)
            if (key := _key(attribute)) is not None
        }
    constants = [v.const_value for v in node.inputs if v is not None and v.const_value is not None]
    if (node.domain, node.op_type) == ("", "Equal") and constants:
        return {key for attribute in constants[0].numpy().ravel() if (key := _key(attribute)) is not None}
    return None


def _key(value: object) -> str | float | None:
    """Return text, or a number by its shortest digits; None for a missing value."""
    if isinstance(value, bytes | str):
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    number = float(str(np.float32(value) if isinstance(value, float) else value))
    return None if math.isnan(number) else number
