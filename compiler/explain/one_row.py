"""A batch for a model that was exported for one row: its operators lifted, as those of an explanation are."""

from dataclasses import replace

import onnx_ir as ir

from compiler.errors import UnsupportedModelError
from compiler.explain.environment import Environment
from compiler.graph.ops import Ops
from compiler.lowering import Lowered, narrow
from compiler.lowering.batch import how_rows_mix
from compiler.lowering.rows import in_front
from compiler.memory.fit import whole


def with_batch(lowered: Lowered) -> Lowered:
    """Return the model with a plain graph that takes any number of rows, where its own takes one.

    Raises:
        UnsupportedModelError: the lifted graph does not answer as the model does.
    """
    if not lowered.one_row:
        return lowered
    model = lowered.model.clone()
    op = Ops(model.graph, model.graph.opset_imports[""], {}, ir.DataType.FLOAT)
    at_x = Environment(op, replace(lowered, model=model), in_front(lowered))
    op.bind_batch(at_x.at(str(model.graph.inputs[0].name)))
    at_x.lift_outputs()
    source = narrow(whole(model), lowered.narrow)
    if how_rows_mix(source, ir.from_proto(lowered.source), in_front=True) is not None:
        raise UnsupportedModelError(
            "the batch is fixed at 1 and cannot be made symbolic: with more rows the model would answer "
            "otherwise. Export it with a dynamic batch axis (dynamic_axes or dynamic_shapes in "
            "torch.onnx.export)."
        )
    return replace(lowered, source=ir.serde.serialize_model(source))
