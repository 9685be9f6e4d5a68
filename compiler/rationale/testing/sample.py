"""The samples for checks of rules: one node and its inputs, the model of that node, and rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass(frozen=True)
class Var:
    """A varying input: the shape of one row without the batch, drawn from `low` to `high`."""

    shape: tuple[int, ...] = ()
    low: float = -2.0
    high: float = 2.0


@dataclass(frozen=True, eq=False)
class Sample:
    """One node `op_type(*operands, **attributes)`; float64 arrays are constants of x's type.

    Use unequal dimensions, so that a transposed or wrongly summed multiplier cannot pass.
    """

    op_type: str
    operands: Sequence[Var | np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 21
    domain: str = ""
    note: str = ""
    smooth: bool = True  # whether it is differentiable in the range of its inputs
    float64: bool = True  # false if ONNX has the operator only in float32
    given_as: Mapping[int, int] = field(default_factory=dict)  # type by operand: BOOL is x > 0.2, else 3·x
    counted: bool = False  # whether y is no float, and is cast to one
    unread: int = 0  # number of last outputs that nothing reads
    bare: bool = False  # whether the node sees a row without its batch axis, like ONNX's node tests
    result: tuple[int, ...] | None = (
        None  # the shape of one row of y, if ONNX's inference does not know that shape
    )
    function: str = ""  # the operator's definition in ONNX's text format, if ONNX does not know it
    inferred: bool = True  # false if ONNX's inference does not know that y has the shape of x

    @property
    def label(self) -> str:
        shapes = "x".join(str(list(o.shape)).replace(" ", "") for o in self.operands if o is not None)
        return f"{self.op_type}-{self.note or shapes}"

    def model(self, dtype: type[np.floating[Any]]) -> onnx.ModelProto:
        """Return a model of that node, with a Sum over its outputs if there are several."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        inputs, initializers, names = [], [], []
        for i, operand in enumerate(self.operands):
            name = f"x{i}" if operand is not None else ""
            names.append(name)
            if isinstance(operand, Var):
                inputs.append(
                    helper.make_tensor_value_info(self.input_name(name), kind, self._rows(operand.shape))
                )
            elif operand is not None:
                wide = operand.astype(dtype) if operand.dtype == np.float64 else operand
                initializers.append(numpy_helper.from_array(wide, name))
        results = [f"y{i}" for i in range(self.outputs)]
        attributes: dict[str, Any] = {k: kind if v == "own" else v for k, v in self.attributes.items()}
        every = [*results, *(f"unread{i}" for i in range(self.unread))]
        nodes = self._discrete(names, initializers, dtype)
        nodes += [helper.make_node(self.op_type, names, every, "the_node", domain=self.domain, **attributes)]
        output = results[0]
        if self.counted:
            nodes.append(helper.make_node("Cast", results, ["y"], to=kind))
            output = "y"
        if self.outputs > 1:  # the parts are added, each with its own weight
            for i, result in enumerate(results):
                initializers.append(numpy_helper.from_array(np.asarray(0.5 + i, dtype), f"w{i}"))
                nodes.append(helper.make_node("Mul", [result, f"w{i}"], [f"s{i}"]))
            nodes.append(helper.make_node("Concat", [f"s{i}" for i in range(self.outputs)], ["y"], axis=-1))
            output = "y"
        if self.bare:
            nodes, output = self._without_batch_axis(nodes, output, initializers)
        graph = helper.make_graph(
            nodes,
            "sample",
            inputs,
            [helper.make_tensor_value_info(output, kind, self._result_shape())],
            initializers,
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 3)]
        functions = [onnx.parser.parse_function(self.function)] if self.function else []
        domains = {*(function.domain for function in functions), self.domain} - {"", "ai.onnx.ml"}
        imports += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        model = helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    def input_name(self, name: str) -> str:
        return f"{name}_row" if self.bare else name

    def _rows(self, shape: tuple[int, ...]) -> list[Any]:
        return [1 if self.bare else "N", *shape]

    def _without_batch_axis(
        self, nodes: list[onnx.NodeProto], output: str, constants: list[onnx.TensorProto]
    ) -> tuple[list[onnx.NodeProto], str]:
        """Take the batch axis off every input, and add one to the output."""
        constants.append(numpy_helper.from_array(np.zeros(1, np.int64), "axis_0"))
        varying = [f"x{i}" for i, o in enumerate(self.operands) if isinstance(o, Var)]
        before = [helper.make_node("Squeeze", [self.input_name(n), "axis_0"], [n]) for n in varying]
        after = helper.make_node("Unsqueeze", [output, "axis_0"], [f"{output}_row"])
        return [*before, *nodes, after], f"{output}_row"

    def _discrete(self, names: list[str], initializers: list[Any], dtype: Any) -> list[onnx.NodeProto]:
        """Make conditions and integers of operands; set `names` to those that the node reads."""
        nodes = []
        for i, kind in self.given_as.items():
            name, names[i] = names[i], f"d{i}"
            if kind == onnx.TensorProto.BOOL:
                initializers.append(numpy_helper.from_array(np.asarray(0.2, dtype), f"limit{i}"))
                nodes.append(helper.make_node("Greater", [name, f"limit{i}"], [f"d{i}"]))
            else:
                initializers.append(numpy_helper.from_array(np.asarray(3, dtype), f"factor{i}"))
                nodes.append(helper.make_node("Mul", [name, f"factor{i}"], [f"m{i}"]))
                nodes.append(helper.make_node("Cast", [f"m{i}"], [f"d{i}"], to=kind))
        return nodes

    def _result_shape(self) -> list[Any] | None:
        if self.result is not None:
            return self._rows(self.result)
        first = self.operands[0]
        return None if self.inferred or not isinstance(first, Var) else ["N", *first.shape]

    def draw(self, rows: int, seed: int, dtype: type[np.floating[Any]]) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            self.input_name(f"x{i}"): rng.uniform(o.low, o.high, (rows, *o.shape)).astype(dtype)
            for i, o in enumerate(self.operands)
            if isinstance(o, Var)
        }
