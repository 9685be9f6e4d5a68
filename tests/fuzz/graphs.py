"""Random graphs built from the registry: every operator's samples supply the nodes.

A graph grows node by node from the values that are there already, so values are reused, branches meet again
and residual sums arise. What a sample takes is made from what is there: by a product with random weights
where shapes differ, by a squash where the operator has a domain of its own. Each node is computed as it is
added, which gives its shape and keeps values on a scale of about 1.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, printer

from rationale.graph.batching import is_elementwise
from tests.compiler.samples import SAMPLES, Sample, Var
from tests.references.interpreter import run64

ROWS, REFERENCES = 3, 4
CLASSES = 3
MOST_INPUTS = 3
LEAST_NODES, MOST_NODES = 3, 12  # from samples; more of them join those
LARGEST = 8.0  # of a value; beyond it, it is scaled down
MOST_ELEMENTS = 400  # of a value's row
OPSET = 21


def _elements(sample: Sample) -> int:
    """Of its largest operand's row."""
    return max(int(np.prod(o.shape)) for o in sample.operands if isinstance(o, Var))


UNINFERABLE = {"STFT"}  # ONNX's inference is wrong, and what others read of it is refused
_USABLE = [
    s
    for s in SAMPLES
    if s.opset >= OPSET and not s.bare and 0 < _elements(s) <= MOST_ELEMENTS
    if s.op_type not in UNINFERABLE and not s.function
]
IN_FLOAT64 = [s for s in _USABLE if s.float64 and s.op_type != "MeanVarianceNormalization"]
"""ONNX's own body of the latter adds a float32 to it, so that nothing behind it has a shape."""


@functools.cache
def _samples_in_float32() -> list[Sample]:
    """Those that ONNX Runtime has kernels for.

    ONNX's evaluator in its place is wrong about other operators: an LpNormalization with p = 1 takes no
    absolute values there, and an LRN of more channels than rows leaves the last ones out.
    """
    return [s for s in _USABLE if _has_kernels(s)]


def _has_kernels(sample: Sample) -> bool:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what goes wrong is told by the exception
    try:
        ort.InferenceSession(sample.model(np.float32).SerializeToString(), options)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return False
    except ort.capi.onnxruntime_pybind11_state.Fail:
        return True  # there is one, which wants another layout: the compiler sees to that
    return True


ANY = (Var.low, Var.high)  # the range of a Var that says nothing of a domain


@dataclass(frozen=True, repr=False)
class Fuzzed:
    """A model with what it is explained on.

    Attributes:
        rows: [ROWS, …] of each input; references: [REFERENCES, …] of each.
        weights: of the references, or None.
        explained: names of the inputs that are explained.
        smooth: every operator in it is differentiable almost everywhere, and its gradient says so.
        recipe: the seed and the steps that `in_float64` or `in_float32` makes it from.
    """

    model: onnx.ModelProto
    rows: dict[str, np.ndarray]
    references: dict[str, np.ndarray]
    weights: list[float] | None
    explained: tuple[str, ...]
    smooth: bool
    recipe: str

    def __repr__(self) -> str:
        """The graph as text, without its weights: what a failing test prints."""
        outline = onnx.ModelProto()
        outline.CopyFrom(self.model)
        for tensor in outline.graph.initializer:
            if np.prod(tensor.dims) > 8:
                tensor.ClearField("raw_data")
        explained = ", ".join(self.explained)
        return f"explained: {explained}; weights: {self.weights}\n{printer.to_text(outline)}"

    def rounded(self) -> "Fuzzed":
        """The same graph and numbers in float32."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.DOUBLE:
                rounded = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        for attribute in (a for node in model.graph.node if node.op_type == "Cast" for a in node.attribute):
            attribute.i = TensorProto.FLOAT if attribute.i == TensorProto.DOUBLE else attribute.i
        rows, references = (
            {n: a.astype(np.float32) for n, a in arrays.items()} for arrays in (self.rows, self.references)
        )
        return replace(self, model=model, rows=rows, references=references)


@dataclass
class Growing:
    """A graph under construction.

    Attributes:
        values: the rows and the references one after the other, [ROWS + REFERENCES, …] by name.
        read: names of the values that a node reads.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    opset: int = OPSET
    smooth: bool = True

    def add_input(self, shape: Sequence[int], random: np.random.Generator) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.values[name] = random.uniform(-2, 2, (ROWS + REFERENCES, *shape))
        return name

    def constant(self, array: np.ndarray) -> str:
        """Equal constants are one: weights are shared where a sample comes twice."""
        wide = np.array(array)
        for name, initializer in self.initializers.items():
            if initializer.dtype == wide.dtype and np.array_equal(initializer, wide):
                return name
        name = f"c{len(self.initializers)}"
        self.initializers[name] = wide
        return name

    def add(self, op_type: str, names: Sequence[str], **attributes: Any) -> str:
        """Appends a node and computes it; returns the name of its output."""
        node = helper.make_node(op_type, names, ["y"], **attributes)
        return self.splice([node], {name: name for name in names})["y"]

    def splice(self, nodes: Sequence[onnx.NodeProto], names_here: Mapping[str, str]) -> dict[str, str]:
        """Appends nodes and computes them, under names of their own.

        Args:
            names_here: what stands for the names that the nodes read and do not make.

        Returns:
            By the nodes' names of them: the outputs that others may read.
        """
        names, block = dict(names_here), []
        for i, node in enumerate(nodes, start=len(self.nodes)):
            names |= {name: f"v{i}_{k}" for k, name in enumerate(node.output)}
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"n{i}"
            copy.input[:] = [names.get(n, "") for n in node.input]
            copy.output[:] = [names[n] for n in node.output]
            block.append(copy)
        results = {new: old for old, new in names.items() if old not in names_here}
        inputs = [n for n in dict.fromkeys(names.values()) if n in self.values]
        answers = run64(self.model(block, inputs, list(results)), {n: self.values[n] for n in inputs})
        sound = [n for n, y in answers.items() if _carries(y) and not results[n].startswith("unread")]
        read = {name for node in block for name in node.input}
        if not set(sound) - read:
            return {}
        self.nodes += block
        self.values |= {n: answers[n] for n in sound}
        self.read |= read
        return {results[n]: n for n in sound}

    def scaled(self, name: str) -> str:
        """The value, brought to the scale of 1 where it is larger than LARGEST."""
        largest = np.abs(self.values[name]).max()
        if largest <= LARGEST:
            return name
        return self.add("Mul", [name, self.constant(np.asarray(1 / largest))])

    def model(
        self, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        """A model of some of the nodes; outputs without a shape where it is not known yet."""
        used = {name for node in nodes for name in node.input}
        row_shapes = {n: self.values[n].shape[1:] if n in self.values else None for n in (*inputs, *outputs)}
        graph = helper.make_graph(
            nodes,
            "fuzzed",
            [_value_info(n, row_shapes[n]) for n in inputs],
            [_value_info(n, row_shapes[n]) for n in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.initializers.items() if n in used],
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _value_info(name: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    full = None if shape is None else ["N", *shape]
    return helper.make_tensor_value_info(name, TensorProto.DOUBLE, full)


def _carries(y: np.ndarray) -> bool:
    """Floats with a row for each row, finite and not too large."""
    return (
        y.dtype == np.float64
        and y.ndim > 1
        and len(y) == ROWS + REFERENCES
        and 0 < y[0].size <= MOST_ELEMENTS
        and bool(np.isfinite(y).all())
        and bool(np.abs(y).max() < 1e6)
    )


def fuzzed_graphs(make: Callable[..., Fuzzed]) -> st.SearchStrategy[Fuzzed]:
    """Graphs of a few to MOST_NODES operators from the samples, and of those that join them.

    What step i adds depends on the seed and on i, so that a failing graph shrinks to the steps it needs.
    """
    masks = st.integers(0, 2**MOST_NODES - 1).filter(lambda mask: mask.bit_count() >= LEAST_NODES)
    steps = masks.map(lambda mask: [i for i in range(MOST_NODES) if mask >> i & 1])
    return st.builds(make, st.integers(0, 2**32 - 1), steps)


def in_float64(seed: int, steps: Sequence[int]) -> Fuzzed:
    return _fuzzed(seed, steps, IN_FLOAT64)


def in_float32(seed: int, steps: Sequence[int]) -> Fuzzed:
    return _fuzzed(seed, steps, _samples_in_float32()).rounded()


def _fuzzed(seed: int, steps: Sequence[int], samples: Sequence[Sample]) -> Fuzzed:
    """The graph of a seed, of which some steps are taken."""
    growing = Growing()
    for step in steps:
        random = np.random.default_rng([seed, step])
        sample = samples[int(random.integers(len(samples)))]
        if not growing.inputs:
            growing.add_input(next((o.shape for o in sample.operands if isinstance(o, Var)), (5,)), random)
        _add_sample(growing, sample, random)
    random = np.random.default_rng([seed, MOST_NODES])
    output = _join(growing, random)
    rows = {n: growing.values[n][:ROWS].copy() for n in growing.inputs}
    references = {n: growing.values[n][ROWS:] for n in growing.inputs}
    if random.random() < 0.5:  # half of the features are those of a reference
        for name, array in rows.items():
            array.reshape(ROWS, -1)[:, ::2] = references[name][0].reshape(-1)[::2]
    return Fuzzed(
        growing.model(growing.nodes, growing.inputs, [output]),
        rows,
        references,
        [0.4, 0.3, 0.2, 0.1] if random.random() < 0.5 else None,
        tuple(growing.inputs[: random.integers(len(growing.inputs)) + 1]),
        growing.smooth,
        f"{seed}, {list(steps)}",
    )


def _add_sample(growing: Growing, sample: Sample, random: np.random.Generator) -> None:
    """The sample's own nodes, and what brings values that are there to its shapes and ranges."""
    growing.opset = max(growing.opset, sample.opset)
    fitted = _fitted(growing, sample, random)
    graph = fitted.model(np.float64).graph
    constants = {t.name: growing.constant(numpy_helper.to_array(t)) for t in graph.initializer}
    varying = [o for o in fitted.operands if isinstance(o, Var)]
    for value, operand in zip(graph.input, varying, strict=True):
        constants[value.name] = _operand(growing, operand, random)
    results = growing.splice(graph.node, constants)
    if not results:
        return
    growing.smooth &= sample.smooth
    last = growing.scaled(list(results.values())[-1])
    shape = growing.values[last].shape
    residual = [n for n in constants.values() if n in growing.values and growing.values[n].shape == shape]
    if residual and random.random() < 0.25:
        growing.add("Add", [last, residual[0]])


def _fitted(growing: Growing, sample: Sample, random: np.random.Generator) -> Sample:
    """The sample in the shape of a value that is there, where the operator goes element by element."""
    fixed = any(isinstance(o, np.ndarray) and o.ndim for o in sample.operands)
    shapes = {o.shape for o in sample.operands if isinstance(o, Var)}
    if fixed or len(shapes) != 1 or not is_elementwise(sample.op_type, sample.domain):
        return sample
    shape = growing.values[_chosen(list(growing.values), random)].shape[1:]
    operands = [replace(o, shape=shape) if isinstance(o, Var) else o for o in sample.operands]
    return replace(sample, operands=operands)


def _chosen(names: Sequence[str], random: np.random.Generator) -> str:
    """The newest in two of three cases, which makes graphs deep; else any, which makes them branch."""
    return names[-1] if random.random() < 0.67 else names[int(random.integers(len(names)))]


def _operand(growing: Growing, var: Var, random: np.random.Generator) -> str:
    """A value of that shape and range: one that is there, a new input, or made from what is there."""
    shape = var.shape
    fitting = [n for n, v in growing.values.items() if v.shape[1:] == shape]
    unfit = [n for n in growing.values if n not in fitting]
    if len(growing.inputs) < MOST_INPUTS and random.random() < 0.15:
        name = growing.add_input(shape, random)
    elif fitting and (not unfit or random.random() < 0.8):
        name = _chosen(fitting, random)
    else:
        name = _reshaped(growing, _chosen(unfit, random), shape, random)
    value = growing.values[name]
    inside = value.min() >= var.low and value.max() <= var.high
    return name if inside or (var.low, var.high) == ANY else _squashed(growing, name, var)


def _reshaped(growing: Growing, name: str, shape: tuple[int, ...], random: np.random.Generator) -> str:
    """Random weights from one shape to another."""
    source, target = growing.values[name][0].size, int(np.prod(shape))
    weight = growing.constant(random.standard_normal((source, target)) / np.sqrt(source))
    flat = growing.add("Flatten", [name])
    product = growing.add("MatMul", [flat, weight])
    return growing.add("Reshape", [product, growing.constant(np.asarray([0, *shape], np.int64))])


def _squashed(growing: Growing, name: str, var: Var) -> str:
    """A little inside of the operator's domain."""
    width = var.high - var.low
    share = growing.add("Sigmoid", [name])
    spread = growing.add("Mul", [share, growing.constant(np.asarray(0.96 * width))])
    return growing.add("Add", [spread, growing.constant(np.asarray(var.low + 0.02 * width))])


def _join(growing: Growing, random: np.random.Generator) -> str:
    """Everything that nobody reads meets in the output [N, CLASSES]."""
    leaves = [n for n in growing.values if n not in growing.read]
    total = growing.add("Sum", [_reshaped(growing, n, (CLASSES,), random) for n in leaves])
    return growing.add(str(random.choice(["Identity", "Softmax", "Tanh"])), [total])
