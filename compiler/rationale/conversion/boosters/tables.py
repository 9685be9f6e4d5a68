"""The table that a booster takes, as ONNX inputs: one tensor of numbers, or one input for each column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import onnx

from rationale.conversion.boosters.trees import DOUBLE, ML, SINGLE, BoostedTrees, Nodes
from rationale.conversion.graphs import INPUT, ROWS, ConversionResult, ModelPair
from rationale.conversion.rows import Features, Rows, rows_of

OPSETS = {"": 17, ML: 3}
_FLOAT, _TEXT, _INT = onnx.TensorProto.FLOAT, onnx.TensorProto.STRING, onnx.TensorProto.INT64

Categories = Mapping[str | float, float]  # codes by category
Answers = Callable[[Any], Sequence[np.ndarray | None]]


@dataclass(frozen=True)
class BoosterTable:
    """The columns of a booster.

    Attributes:
        names: the columns' names, if they have any.
        categories: the categories of each column, texts or numbers; None for a column of plain numbers.
        other: the code of any other category, and of a missing text.
        underscored: see `Features`.
    """

    count: int
    names: tuple[str, ...] | None
    categories: Sequence[Categories | None]
    other: float = np.nan
    underscored: bool = False

    @property
    def features(self) -> Features:
        texts = (self.column_name(i) for i, categories in enumerate(self.categories) if is_text(categories))
        return Features(self.count, self.names, frozenset(texts), self.underscored)

    @property
    def by_column(self) -> bool:
        return any(categories is not None for categories in self.categories)

    def column_name(self, i: int) -> str:
        return self.names[i] if self.names else f"x[{i}]"

    def frame(self, rows: Rows) -> Any:
        """Return a DataFrame with a pandas type for categories."""
        import pandas as pd

        columns = dict[str, Any]()
        for i, categories in enumerate(self.categories):
            values: Any = self.texts(rows, i) if is_text(categories) else self._numbers(rows, i)
            if categories is not None:
                if not is_text(categories):
                    numbers = [int(v) if v.is_integer() else v for v in values.tolist()]
                    values = [None if np.isnan(v) else v for v in numbers]
                unseen = dict.fromkeys(v for v in values if v is not None and v not in categories)
                values = pd.Categorical(values, [*categories, *unseen])
            columns[self.column_name(i)] = values
        return pd.DataFrame(columns)

    def texts(self, rows: Rows, i: int) -> list[str | None]:
        """Return a column's texts; a missing one is None, if no category is empty."""
        categories = self.categories[i] or {}
        return [text if text or "" in categories else None for text in rows.onnx_column(i)[:, 0]]

    def onnx_inputs(self, rows: Rows) -> dict[str, np.ndarray]:
        """Return rows in the form that the ONNX model takes."""
        if not self.by_column:
            return {INPUT: rows.numbers()}
        return {self.column_name(i): rows.onnx_column(i) for i in range(len(self.categories))}

    def inputs(self, nodes: Nodes, dtype: np.dtype) -> list[onnx.ValueInfoProto]:
        """Return the inputs, and add nodes that join them to `x` [N, F].

        Args:
            dtype: the type of the number inputs, float32 or float64.
        """
        number = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        if not self.by_column:
            return [onnx.helper.make_tensor_value_info(INPUT, number, [ROWS, self.count])]
        columns, inputs = [], []
        for i, categories in enumerate(self.categories):
            kind = _TEXT if is_text(categories) else number
            inputs.append(onnx.helper.make_tensor_value_info(self.column_name(i), kind, [ROWS, 1]))
            columns.append(
                self.column_name(i) if categories is None else self._coded(nodes, i, categories, dtype)
            )
        nodes.add("Concat", columns, "/x", axis=1)
        return inputs

    def _coded(self, nodes: Nodes, i: int, categories: Categories, dtype: np.dtype) -> str:
        """Return a column's codes; if all categories are whole, other numbers count as unknown ones."""
        name, values = self.column_name(i), list(categories.values())
        settings: dict[str, Any] = {"domain": ML, "values_floats": values, "default_float": self.other}
        if is_text(categories):
            codes = nodes.add("LabelEncoder", [name], keys_strings=list(categories), **settings)
        elif not all(float(key).is_integer() for key in categories):
            key = name if dtype == SINGLE else nodes.cast(name, SINGLE)
            codes = nodes.add("LabelEncoder", [key], keys_floats=list(map(float, categories)), **settings)
        else:
            whole = nodes.add("Equal", [name, nodes.add("Floor", [name])])
            key = nodes.add("Cast", [name], to=_INT)
            codes = nodes.add("LabelEncoder", [key], keys_int64s=list(map(int, categories)), **settings)
            codes = nodes.add("Where", [whole, codes, nodes.constant(np.float32(self.other))])
        return codes if dtype == SINGLE else nodes.cast(codes, dtype)

    def _numbers(self, rows: Rows, i: int) -> np.ndarray:
        return Rows((rows.columns[i],), (self.column_name(i),)).numbers()[:, 0]


def as_onnx(
    boosted: BoostedTrees,
    table: BoosterTable,
    output: str,
    example: Any,
    answers: Answers,
    numbers: Mapping[int, Categories] | None = None,
) -> ConversionResult:
    """Return the model with its example, if there is one.

    Args:
        output: the output's name; a classifier has names of its own.
        answers: a function that returns the fitted model's answers for each output: to numbers [K, F] if all
            columns are numbers, else to a DataFrame.
        numbers: the categories of each column whose categories are numbers, if all columns are numbers.
    """
    rows = None if example is None else rows_of(example, table.features)
    table = table if rows is None else replace(table, names=rows.names)
    outputs = (output,) if boosted.classes is None else ("label", "probabilities")
    nodes, dtype = Nodes(), DOUBLE if rows is None else rows.dtype
    inputs = table.inputs(nodes, dtype)
    nodes.add_trees(boosted, "/x" if table.by_column else INPUT, table.count, outputs, dtype)
    ends = _outputs(boosted, outputs)
    graph = onnx.helper.make_graph(nodes.nodes, "converted", inputs, ends, nodes.constants)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    columns = tuple(value.name for value in inputs) if table.by_column else table.names
    if rows is None:
        return ConversionResult(proto, columns=columns, by_column=table.by_column)

    def answer(examples: Rows) -> tuple[np.ndarray | None, ...]:
        return tuple(answers(table.frame(examples) if table.by_column else examples.numbers()))

    coded = {i: keys for i, keys in enumerate(table.categories) if keys and not is_text(keys)}
    categories = {i: [*map(float, keys)] for i, keys in {**coded, **(numbers or {})}.items()}
    pair = ModelPair(rows, table.onnx_inputs, answer, numbers=categories)
    return ConversionResult.from_table(proto, pair, columns, by_column=table.by_column)


def is_text(categories: Categories | None) -> TypeGuard[Categories]:
    return categories is not None and any(isinstance(category, str) for category in categories)


def _outputs(boosted: BoostedTrees, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    columns = len(boosted.base)
    if boosted.classes is None:
        return [onnx.helper.make_tensor_value_info(names[0], _FLOAT, [ROWS, columns])]
    label = _TEXT if boosted.classes.dtype.kind in "UTO" else _INT
    return [
        onnx.helper.make_tensor_value_info(names[0], label, [ROWS]),
        onnx.helper.make_tensor_value_info(names[1], _FLOAT, [ROWS, max(columns, 2)]),
    ]
