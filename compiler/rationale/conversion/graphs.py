"""The result of a library's module, and corrections of every graph that a converter writes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from rationale.conversion.rows import Rows
from rationale.errors import InvalidReferencesError, RationaleError, reason_of

INPUT = "x"  # the input of a model that takes one tensor of numbers
ROWS = "N"
Answer = Callable[[Rows], tuple[np.ndarray | None, ...]]


@dataclass(frozen=True)
class ModelPair:
    """Functions that ask the fitted model and the ONNX model about rows.

    Attributes:
        rows: the example.
        feed: a function that returns rows as the ONNX model takes them, by input.
        answer: a function that returns the fitted model's answers, one for each output of the ONNX model; see
            `parity.measure`.
        feature_groups: features that one step of the model reads together.
        numbers: the categories that the model knows of a feature, if they are numbers.
    """

    rows: Rows
    feed: Callable[[Rows], Mapping[str, np.ndarray]]
    answer: Answer
    feature_groups: Sequence[Sequence[int]] = ()
    numbers: Mapping[int, Collection[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ConversionResult:
    """A converted model.

    Attributes:
        feeds: the example as the ONNX model takes it; None if there is none.
        answers: the fitted model's answers to the example, for each output; see `parity.measure`.
        columns: names of the columns that it reads; None if it knows none.
        by_column: whether each of these is an input of its own.
        pair: functions that ask either model about further rows; None if the example is no table.
    """

    proto: onnx.ModelProto
    feeds: Mapping[str, np.ndarray] | None = None
    answers: tuple[np.ndarray | None, ...] = ()
    columns: tuple[str, ...] | None = None
    by_column: bool = False
    pair: ModelPair | None = None

    @staticmethod
    def from_table(
        proto: onnx.ModelProto, pair: ModelPair, columns: tuple[str, ...] | None, *, by_column: bool = False
    ) -> "ConversionResult":
        """Return the model with a table as the example; errors of later questions name the model.

        Raises:
            InvalidReferencesError: if the table is empty, or the fitted model fails on it.
        """
        if not len(pair.rows):
            raise InvalidReferencesError("the references are empty: at least one row is needed.")
        pair = replace(pair, answer=_naming_the_model(pair.answer))
        return ConversionResult(proto, pair.feed(pair.rows), pair.answer(pair.rows), columns, by_column, pair)


def _naming_the_model(answer: Answer) -> Answer:
    """Return the function with errors that name the fitted model; the converter is not at fault there."""

    def answers(rows: Rows) -> tuple[np.ndarray | None, ...]:
        try:
            return answer(rows)
        except RationaleError:
            raise
        except Exception as error:  # each library has errors of its own for rows that it refuses
            raise InvalidReferencesError(
                f"the fitted model itself fails on the references ({type(error).__name__}: "
                f"{reason_of(error)}). Give rows that its predict accepts."
            ) from error

    return answers


def tidy_graph(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Return the same model under fixed names, with rows on axis 0 and without needless parts.

    Converters draw the graph's name and the order of opsets, bend names of columns into identifiers, declare
    labels of one row, multiply by one, and write places of source files beside nodes.

    Args:
        names: the inputs' names, in order.
    """
    graph = proto.graph
    graph.name = "converted"
    new = {value.name: name for value, name in zip(graph.input, names, strict=True)}
    read = {name for node in graph.node for name in node.input}
    inputs = [value for value in graph.input if value.name in read]
    for value in inputs:
        value.name = new[value.name]
    del graph.input[:]
    graph.input.extend(inputs)
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = new.get(name, name)
        del node.metadata_props[:]
    del graph.value_info[:]
    _shorten(graph)
    opsets = sorted(proto.opset_import, key=lambda opset: opset.domain)
    del proto.opset_import[:]
    proto.opset_import.extend(opsets)
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.HasField("tensor_type") and dims:
            dims[0].ClearField("dim_value")
            dims[0].dim_param = ROWS
    return proto


def _shorten(graph: onnx.GraphProto) -> None:
    """Remove nodes that pass a computed tensor on unchanged: an Identity, or a Mul by 1."""
    ones = {
        constant.name
        for constant in graph.initializer
        if onnx.numpy_helper.to_array(constant).tolist() in (1, [1])
    }
    edges = {value.name for value in (*graph.input, *graph.output)}
    for node in list(graph.node):
        source = _passed_input(node, ones)
        if source is None or source in edges:
            continue
        graph.node.remove(node)
        for neighbour in graph.node:
            for names in (neighbour.input, neighbour.output):
                for i, name in enumerate(names):
                    names[i] = node.output[0] if name == source else name


def _passed_input(node: onnx.NodeProto, ones: Collection[str]) -> str | None:
    if node.op_type == "Identity":
        return node.input[0]
    if node.op_type == "Mul" and node.input[1] in ones:
        return node.input[0]
    return None
