"""Static shapes in a finished graph, by ONNX's own inference, which its large constants are kept from."""

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from compiler.graph.shape_inference import Spec, may_be_sizes, spec_of


def infer(
    nodes: Iterable[onnx.NodeProto],
    given: Mapping[str, Spec],
    constants: Iterable[ir.Value],
    opsets: Mapping[str, int],
) -> dict[str, Spec]:
    """By name, of all that the nodes make or read.

    Args:
        given: of what they read, but for constants.
    """
    skeleton = onnx.GraphProto(name="skeleton", node=nodes)
    told = dict(given)
    for value in constants:
        array, name = value.const_value, str(value.name)
        assert array is not None
        if may_be_sizes(array.dtype, array.size):
            skeleton.initializer.append(ir.serde.serialize_tensor(array))
            skeleton.initializer[-1].name = name
        else:
            told[name] = tuple(array.shape.numpy()), array.dtype
    for name, (shape, dtype) in told.items():
        skeleton.input.append(onnx.helper.make_tensor_value_info(name, int(dtype), shape))
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(skeleton, opset_imports=imports)
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    kinds = (*found.value_info, *found.input, *found.output)
    return {v.name: spec for v in kinds if (spec := spec_of(v.type)) is not None}
