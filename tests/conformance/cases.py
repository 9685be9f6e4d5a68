"""The ONNX project's own node tests, each as a function of one row.

A node test is a model of one node (or of the nodes its function body expands to) with its inputs. Here every
float input gets an axis 0 of length 1 for the batch; inputs that hold no floats become constants; float
outputs get that axis back, and where there are several they are joined into one.
"""

import contextlib
import functools
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
EXPLAINED = "explained"


@dataclass(frozen=True, eq=False)
class ConformanceCase:
    """One node test.

    Attributes:
        operator: the node's type; where a test runs the body of a function in its place, the function's.
        model: as the ONNX project made it.
        inputs: what it is run at, by name; None where that is no tensor.
        results: what it must answer.
    """

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray | None]
    results: dict[str, np.ndarray | None]

    @property
    def is_body(self) -> bool:
        """True if the case is the body of a function, in place of the function itself."""
        return "_expanded" in self.name

    @property
    def floats(self) -> tuple[str, ...]:
        """Names of the inputs that hold floats."""
        return _floats(self.model.graph.input, self.inputs)

    @property
    def answers(self) -> tuple[str, ...]:
        """Names of the outputs that hold floats."""
        return _floats(self.model.graph.output, self.results)

    @property
    def filled(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those of the inputs, and of the outputs, that have elements."""
        inputs = tuple(n for n in self.floats if self.inputs[n].size)
        return inputs, tuple(n for n in self.answers if self.results[n].size)

    @property
    def tensors_only(self) -> bool:
        values = (*self.model.graph.input, *self.model.graph.output)
        return all(v.type.HasField("tensor_type") for v in values)

    def one_row(self, varying: Sequence[str], answers: Sequence[str]) -> onnx.ModelProto:
        """The model of one row: `varying` inputs [1, *shape] to `answers` joined as one output [1, …]."""
        graph = self.model.graph
        kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
        initializers = {t.name for t in graph.initializer}
        inputs, constants, before, after = [], list(graph.initializer), [], []
        axes, attributes = (["axis_0"], {}) if _opset(self.model) >= 13 else ([], {"axes": [0]})
        if axes:
            constants.append(numpy_helper.from_array(np.zeros(1, np.int64), "axis_0"))
        for name, value in self.inputs.items():
            if name in varying:
                inputs.append(helper.make_tensor_value_info(f"{name}_row", kinds[name], [1, *value.shape]))
                before.append(helper.make_node("Squeeze", [f"{name}_row", *axes], [name], **attributes))
            elif name not in initializers:
                constants.append(_tensor(value, name))
        rows = [f"{name}_row" for name in answers]
        after += [
            helper.make_node("Unsqueeze", [a, *axes], [r], **attributes)
            for a, r in zip(answers, rows, strict=True)
        ]
        shape = [1, *self.results[answers[0]].shape]
        if len(answers) > 1:
            after += [helper.make_node("Flatten", [r], [f"{r}_flat"], axis=1) for r in rows]
            after.append(helper.make_node("Concat", [f"{r}_flat" for r in rows], ["joined"], axis=1))
            shape = [1, sum(self.results[a].size for a in answers)]
        after[-1].output[0] = EXPLAINED
        output = helper.make_tensor_value_info(EXPLAINED, kinds[answers[0]], shape)
        return self._with([*before, *graph.node, *after], inputs, output, constants)

    def _with(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[onnx.ValueInfoProto],
        output: onnx.ValueInfoProto,
        constants: Sequence[onnx.TensorProto],
    ) -> onnx.ModelProto:
        imports = list(self.model.opset_import)
        if all(entry.domain not in ("", "ai.onnx") for entry in imports):
            imports.append(helper.make_opsetid("", 21))
        model = helper.make_model(
            helper.make_graph(nodes, self.name, inputs, [output], constants),
            opset_imports=imports,
            functions=list(self.model.functions),
        )
        model.ir_version = max(self.model.ir_version, 4)  # since when initializers are no inputs
        return model


def _opset(model: onnx.ModelProto) -> int:
    return next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 21)


def _floats(values: Iterable[onnx.ValueInfoProto], arrays: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        v.name
        for v in values
        if v.type.tensor_type.elem_type in FLOATS and v.name in arrays and arrays[v.name] is not None
    )


def _tensor(value: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


@functools.cache
def collect() -> tuple[ConformanceCase, ...]:
    """Every node test of the installed onnx package that takes and returns floats."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    operators = {t.name: t.model.graph.node[-1].op_type for t in tests}
    cases = (_case(t, operators[t.name.split("_expanded")[0]]) for t in tests)
    return tuple(case for case in cases if _holds_floats(case.model))


def _holds_floats(model: onnx.ModelProto) -> bool:
    def some(values: Iterable[onnx.ValueInfoProto]) -> bool:
        return any(_element(v.type) in FLOATS for v in values)

    return some(model.graph.input) and some(model.graph.output)


def _element(kind: onnx.TypeProto) -> int:
    """What a tensor, or a sequence or optional of tensors, holds."""
    if kind.HasField("sequence_type"):
        return _element(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _element(kind.optional_type.elem_type)
    return kind.tensor_type.elem_type


def _case(test: TestCase, operator: str) -> ConformanceCase:
    input_arrays, output_arrays = test.data_sets[0]
    graph = test.model.graph
    inputs = {v.name: _array(a, v) for v, a in zip(graph.input, input_arrays, strict=False)}
    results = {v.name: _array(a, v) for v, a in zip(graph.output, output_arrays, strict=False)}
    return ConformanceCase(test.name, operator, test.model, inputs, results)


def _array(value: Any, info: onnx.ValueInfoProto) -> np.ndarray | None:
    if not info.type.HasField("tensor_type") or value is None:
        return None
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
