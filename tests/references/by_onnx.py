"""What an operator is in the onnx package's own words, for the float64 interpreter."""

from typing import Any

import numpy as np
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

T = torch.Tensor


def wide(array: np.ndarray) -> T:
    return torch.from_numpy(np.array(array, np.float64 if array.dtype.kind == "f" else array.dtype))


def by_onnx(op_type: str, *operands: T | None, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
    """The onnx package's own definition of an operator, in numpy."""
    names = [f"x{i}" if o is not None else "" for i, o in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    arrays = {name: o.numpy() for name, o in zip(names, operands, strict=True) if o is not None}
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
    ]
    result_infos = [helper.make_empty_tensor_value_info(name) for name in results]
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "alone", inputs, result_infos), opset_imports=imports)
    return tuple(wide(np.asarray(a)) for a in ReferenceEvaluator(model).run(None, arrays))
