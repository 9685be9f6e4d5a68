"""The kind of an output: a score for each class, or several separate numbers."""

import onnx

from rationale.methods.logits import comes_from_regressors

_KEY, _NUMBERS = "rationale.answers", "numbers"
_LABELS = (onnx.TensorProto.INT64, onnx.TensorProto.STRING)


def mark_numbers(model: onnx.ModelProto) -> None:
    """Mark a converted model as one that answers numbers, if no output holds a row's label."""
    if not any(_is_label(value) for value in model.graph.output):
        onnx.helper.set_model_props(model, {_KEY: _NUMBERS})


def holds_numbers(model: onnx.ModelProto, output: str) -> bool:
    """Tell whether a row of an output holds several targets, quantiles or the like, rather than classes.

    A converted fitted model is marked. In any other model, only the output of regressors without a label
    beside it holds numbers.
    """
    outputs = {value.name: value for value in model.graph.output}
    if any(entry.key == _KEY and entry.value == _NUMBERS for entry in model.metadata_props):
        return output in outputs
    return not any(map(_is_label, outputs.values())) and comes_from_regressors(model, output)


def _is_label(value: onnx.ValueInfoProto) -> bool:
    """Tell whether an output is the label of a row, [N] or [N, 1]."""
    kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
    return kind in _LABELS and all(d.dim_value == 1 for d in dims[1:])
