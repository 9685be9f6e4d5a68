"""Nodes and constants, appended to a graph as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from compiler.graph.tensor import Tensor

Operand = Tensor | float | int | np.ndarray | Sequence[int] | None


class Emitter:
    """A graph under construction: fresh names, shared constants, plain nodes."""

    def __init__(self, graph: ir.Graph, opset: int, dtype: ir.DataType) -> None:
        self.graph = graph
        self.opset = opset
        self.dtype = dtype  # of numbers beside which no tensor says another
        self.scope = "rationale"
        self._count = 0
        owned = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        self._taken = {v.name for v in owned} | {n.name for n in graph}
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], Tensor] = {}

    def tensor(self, operand: Operand, like: Tensor | None = None) -> Tensor | None:
        if operand is None or isinstance(operand, Tensor):
            return operand
        if isinstance(operand, np.ndarray):
            return self.constant(operand)
        if isinstance(operand, (list, tuple)):
            return self.constant(np.asarray(operand, np.int64))
        dtype = self.dtype if like is None else like.dtype
        return self.constant(np.asarray(operand, dtype.numpy()))

    def array(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        """Return a constant of `like`'s dtype."""
        return self.constant(np.asarray(numbers, like.dtype.numpy()))

    def row_constant(self, array: np.ndarray) -> Tensor:
        """Return a constant whose axis 0 is the batch's: the same for every row."""
        return replace(self.constant(array), rows=True)

    def constant(self, array: np.ndarray) -> Tensor:
        """Return an initializer; small equal ones are shared."""
        key = (array.tobytes(), str(array.dtype), array.shape) if array.size <= 64 else None
        if key is not None and key in self._constants:
            return self._constants[key]
        name = self._fresh("constant")
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        self.graph.register_initializer(value)
        tensor = Tensor(value, array.shape, ir.DataType.from_numpy(array.dtype))
        if key is not None:
            self._constants[key] = tensor
        return tensor

    def _node(
        self,
        op_type: str,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int = 1,
        domain: str = "",
    ) -> Sequence[ir.Value]:
        """Append a node as it is, on values as they lie in memory."""
        name = self._fresh(op_type)
        used = {k: v for k, v in attributes.items() if v is not None}
        node = ir.node(op_type, values, used, domain=domain, num_outputs=outputs, name=name)
        for i, value in enumerate(node.outputs):
            value.name = name if i == 0 else f"{name}.{i}"
        self.graph.append(node)
        return node.outputs

    def _fresh(self, what: str) -> str:
        while True:
            self._count += 1
            name = f"{self.scope}/{what}_{self._count}"
            if name not in self._taken:
                return name

    def _ints(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.asarray(numbers, np.int64)).value
