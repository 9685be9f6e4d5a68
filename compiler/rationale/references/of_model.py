"""The columns of a table that the inputs of an ONNX model need, and the text columns among them."""

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from rationale.tables.files import Columns


def columns_of_inputs(model: Path) -> tuple[list[str] | None, frozenset[str]]:
    """Return the names of inputs of one feature each, where a model has several, and of inputs of text.

    Nothing is known of a file that is no model: the compile says so.
    """
    try:
        graph = onnx.load(model, load_external_data=False).graph
    except (OSError, DecodeError):
        return None, frozenset()
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {v.name: v.type.tensor_type for v in graph.input if v.name not in constants}
    rows = [[d.dim_value for d in t.shape.dim[1:]] for t in inputs.values() if t.shape.dim]
    single = len(rows) == len(inputs) and all(row in ([], [1]) for row in rows)  # [N], or [N, 1]
    texts = frozenset(name for name, t in inputs.items() if t.elem_type == onnx.TensorProto.STRING)
    return (list(inputs) if single and len(inputs) > 1 else None), texts


def text_columns(columns: Columns, texts: Collection[str]) -> frozenset[str]:
    """Return the text inputs' columns; if columns are not divided by input, those named like such inputs."""
    if not isinstance(columns, Mapping):
        return frozenset(texts)
    return frozenset(column for name in texts for column in columns.get(name, ()))
