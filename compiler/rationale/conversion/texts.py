"""The texts that a converted graph tells apart, by the column of the input that holds them."""

from collections.abc import Mapping

import numpy as np
import onnx

_KEYS = {"LabelEncoder": "keys_strings", "OneHotEncoder": "cats_strings"}
_Columns = list[set[tuple[str, int]]]  # of a tensor of texts [N, F]: the inputs' columns that each holds


def looked_up_texts(proto: onnx.ModelProto) -> dict[tuple[str, int], frozenset[str]]:
    """Return the texts that the graph looks up, by input and column; the empty one may be a missing value.

    A column with another reader, such as one that splits a text into words, is left out.
    """
    constants = {constant.name: onnx.numpy_helper.to_array(constant) for constant in proto.graph.initializer}
    held: dict[str, _Columns] = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        if tensor.elem_type == onnx.TensorProto.STRING:
            count = tensor.shape.dim[-1].dim_value
            held[value.name] = [{(value.name, i)} for i in range(count)]
    texts: dict[tuple[str, int], set[str]] = {
        key: set() for columns in held.values() for column in columns for key in column
    }
    unclear = set[tuple[str, int]]()
    for node in proto.graph.node:
        read = [held[name] for name in node.input if name in held]
        if not read:
            continue
        looked_up = _looked_up(node)
        if looked_up is not None:
            for column in read[0]:
                for key in column:
                    texts[key] |= looked_up
            continue
        output = _passed_on(node, held, constants)
        if output is None:
            unclear |= {key for columns in read for column in columns for key in column}
        else:
            held[node.output[0]] = output
    return {key: frozenset(texts[key]) for key in texts if key not in unclear and texts[key]}


def _looked_up(node: onnx.NodeProto) -> set[str] | None:
    for attribute in node.attribute:
        if attribute.name == _KEYS.get(node.op_type):
            return {text.decode() for text in attribute.strings}
    return None


def _passed_on(
    node: onnx.NodeProto, held: Mapping[str, _Columns], constants: Mapping[str, np.ndarray]
) -> _Columns | None:
    """Return the columns that a node passes on; None if it does more than choose among texts."""
    read = [held[name] for name in node.input if name in held]
    if node.op_type in ("Identity", "Where", "Cast"):
        return read[0] if len(read) == 1 else None
    if node.op_type == "Concat" and len(read) == len(node.input):
        return [column for columns in read for column in columns]
    if node.op_type in ("Gather", "ArrayFeatureExtractor") and node.input[1] in constants:
        return [read[0][i] for i in constants[node.input[1]].reshape(-1)]
    return None
