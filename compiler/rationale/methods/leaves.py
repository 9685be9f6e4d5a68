"""The ends of a walk back: a float input, an inner tensor, or the table rows that ids look up.

An integer input has no multipliers. The table rows that its elements look up have them: the walk ends at
these rows, and each element gets the sum over its row. Everything else that the model computes from the ids
(a padding mask, positions) keeps its value for the explained row. If numbers may be missing,
`propagation.imputed` moves the end of the walk.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.graph.nodes import extract, new_constant
from rationale.graph.runtime.session import Runner
from rationale.lowering import Lowered

_MOVES = frozenset("Cast Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split())
_ANY_MODEL = "use exactshap (up to 12 features) or permutationshap, which explain whole numbers"
OTHER_INPUT = -1
_IDS_OPERAND = {"Gather": 1, "OneHot": 0, "Cast": 0, "DequantizeLinear": 0}  # the operand that holds the ids


@dataclass(frozen=True)
class Leaf:
    """A float tensor at which the walk ends.

    Attributes:
        name: the explained input: the tensor itself, or the integer input whose ids look up its rows.
        indices: for each id of one row, the index of its element in the input's row, in the row shape of the
            ids. None if the tensor explains itself; OTHERS for an element of another input.
        row: the shape of one row of that input.
        size: the number of different ids; None if unknown.
        is_filled: whether the tensor holds numbers in place of an input's missing values.
    """

    tensor: str
    name: str
    indices: np.ndarray | None = None
    row: tuple[int, ...] = ()
    size: int | None = None
    is_filled: bool = False

    @property
    def is_looked_up(self) -> bool:
        """Tell whether the leaf explains ids."""
        return self.indices is not None and not self.is_filled


@dataclass(frozen=True)
class ChosenLeaves:
    """The explained tensors, and notes about them for the user."""

    leaves: tuple[Leaf, ...]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.name for s in self.leaves))


def choose_leaves(
    lowered: Lowered, inputs: Sequence[str] | None, referenced: Collection[str] = ()
) -> ChosenLeaves:
    """Return the named tensors; by default every float input, or else the token ids.

    Args:
        referenced: names for which references are given; an integer input among them is explained.

    Raises:
        InvalidOptionError: if a name cannot be explained.
        UnsupportedModelError: if no input can be explained.
    """
    if inputs is not None:
        _check_names(lowered, inputs)
        return _with_notes(lowered, tuple(s for name in inputs for s in _leaves_of_input(lowered, name)))
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    floats = [name for name, v in values.items() if is_float(lowered, v) and _has_rows(v)]
    integers = [n for n, v in values.items() if n in referenced and not is_float(lowered, v)]
    if integers:
        accompanying = _accompanying_ids(lowered, integers)
        id_inputs = [n for n in values if n in referenced and n not in accompanying]
        return _with_notes(
            lowered,
            tuple(s for n in id_inputs for s in _leaves_of_input(lowered, n)),
            _fixed_note(accompanying),
        )
    if floats:
        return ChosenLeaves(tuple(Leaf(name, name) for name in floats))
    return _default_ids(lowered, list(values))


def raw_leaves(lowered: Lowered, inputs: Sequence[str] | None) -> tuple[Leaf, ...]:
    """Return the named tensors, by default every input with rows, of any type: text and integers too.

    Raises:
        InvalidOptionError: if a name does not exist, or has no rows.
    """
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    if inputs is None:
        return tuple(Leaf(name, name) for name, v in values.items() if _has_rows(v))
    _check_names(lowered, inputs)
    for name in inputs:
        if name in values:
            _check_rows(values[name])
    return tuple(Leaf(n, n) if n in values else _inner_leaf(lowered, n) for n in inputs)


def is_float(lowered: Lowered, value: ir.Value) -> bool:
    """Tell whether a value may have attributions; True if its type is unknown."""
    spec = lowered.specs.get(str(value.name))
    dtype = spec[1] if spec else value.dtype
    return dtype is None or dtype.is_floating_point()


def _has_rows(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() > 0


def _check_rows(value: ir.Value) -> None:
    if not _has_rows(value):
        raise InvalidOptionError(
            f"input {[value.name]} is one number for the whole batch, so it has no attribution per row."
        )


def _check_names(lowered: Lowered, inputs: Sequence[str]) -> None:
    input_names = [str(v.name) for v in lowered.model.graph.inputs]
    if isinstance(inputs, str) or not inputs or len(set(inputs)) < len(inputs):
        raise InvalidOptionError(f"inputs {inputs!r}: give a list of different names out of {input_names}.")
    inner = {str(v.name) for node in lowered.model.graph for v in node.outputs}
    unknown = [name for name in inputs if name not in inner and name not in input_names]
    if unknown:
        raise InvalidOptionError(
            f"no input {unknown}; the model has {input_names}. You can also name inner tensors, the "
            "outputs of operators (look them up in Netron; some disappear when the compiler folds or "
            "rewrites them)."
        )


def _leaves_of_input(lowered: Lowered, name: str) -> tuple[Leaf, ...]:
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    if name not in values:
        return (_inner_leaf(lowered, name),)
    _check_rows(values[name])
    if is_float(lowered, values[name]):
        return (Leaf(name, name),)
    leaves = lookups(lowered, name)
    if not leaves:
        raise InvalidOptionError(
            f"input {[name]} holds no floats and is not an index into an embedding table, so it has no "
            f"attributions. Name the float tensor that is computed from it (--input), or {_ANY_MODEL}."
        )
    return leaves


def _inner_leaf(lowered: Lowered, name: str) -> Leaf:
    value = next(v for node in lowered.model.graph for v in node.outputs if v.name == name)
    if not is_float(lowered, value):
        raise InvalidOptionError(f"{name!r} holds no floats, so it has no attributions.")
    if not keeps_batch(lowered, name):
        raise InvalidOptionError(
            f"{name!r} does not hold one row of floats, of a known size, for each row of the batch (axis "
            "0): name a tensor that does (--input)."
        )
    return Leaf(name, name)


def keeps_batch(lowered: Lowered, name: str) -> bool:
    """Tell whether a tensor has the batch on axis 0 and a known row shape."""
    spec = lowered.specs.get(name)
    return spec is not None and spec[0][:1] == (1,) and (lowered.single_row_only or name in lowered.batched)


def _default_ids(lowered: Lowered, names: Sequence[str]) -> ChosenLeaves:
    """Return the ids of the largest table; without a table, the numbers of every integer input."""
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    leaves_of = {name: lookups(lowered, name) for name in names if _has_rows(values[name])}
    leaves = [s for input_leaves in leaves_of.values() for s in input_leaves]
    tables = [s for s in leaves if s.size is not None]
    if not leaves:
        raise UnsupportedModelError(
            f"none of the model's inputs {list(names)} holds rows of floats or ids of an embedding table, "
            "so none can have attributions. Explain a model that takes floats (encoded features, or "
            "embeddings), or name an inner tensor (--input)."
        )
    if not tables:
        return _with_notes(lowered, tuple(leaves))
    name = max(tables, key=lambda s: s.size or 0).name
    return _with_notes(lowered, leaves_of[name], _fixed_note([n for n in names if n != name]))


def _accompanying_ids(lowered: Lowered, names: Sequence[str]) -> list[str]:
    """Return the inputs that accompany ids, such as an attention mask.

    If some inputs are ids of a table, others accompany them if they have the same shape, or look nothing up.
    """
    leaves_of = {name: lookups(lowered, name) for name in names}
    ids = [name for name, leaves in leaves_of.items() if any(s.size is not None for s in leaves)]
    rows = {lowered.specs[name][0] for name in ids}
    return [n for n in names if ids and n not in ids and (not leaves_of[n] or lowered.specs[n][0] in rows)]


def _fixed_note(names: Sequence[str]) -> str:
    return (
        f"; these inputs keep each row's own values: {', '.join(names)} (--input names others)"
        if names
        else ""
    )


def _with_notes(lowered: Lowered, leaves: tuple[Leaf, ...], addition: str = "") -> ChosenLeaves:
    """Return the leaves, with a note for each integer input."""
    groups: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        if leaf.is_looked_up:
            groups.setdefault(leaf.name, []).append(leaf)
    for group in groups.values():
        for leaf in group:
            if not keeps_batch(lowered, leaf.tensor):
                raise UnsupportedModelError(
                    f"the embeddings {leaf.tensor!r} of input {leaf.name!r} do not keep the batch on axis "
                    f"0. Name a tensor computed from them that does (--input), or {_ANY_MODEL}."
                )
    words = {n: "truth values" if lowered.specs[n][1] == ir.DataType.BOOL else "integers" for n in groups}
    notes = [
        f"{name!r} holds {words[name]}: it is explained at "
        f"{', '.join(repr(s.tensor) for s in group)}, summed to one value for each of its elements"
        for name, group in groups.items()
    ]
    notes[-1:] = [note + addition for note in notes[-1:]]
    return ChosenLeaves(leaves, tuple(notes))


# -- ids that become floats -------------------------------------------------------------------------------


def lookups(lowered: Lowered, name: str) -> tuple[Leaf, ...]:
    """Return every float tensor that elements of an integer input look up, one leaf for each."""
    if name not in lowered.specs:
        return ()
    moved: dict[str, list[ir.Node]] = {name: []}
    quantised: dict[str, Leaf] = {}  # rows of integer tables, which the next node turns into floats
    leaves = []
    for node in lowered.model.graph:
        ids, result = _ids_operand(node), node.outputs[0]
        if ids is None or node.domain:
            continue
        is_known_float = is_float(lowered, result) and str(result.name) in lowered.specs
        if ids.name in quantised and is_known_float:
            leaves.append(replace(quantised[str(ids.name)], tensor=str(result.name)))
        elif ids.name in moved:
            nodes = moved[str(ids.name)]
            if _keeps_ids(node, ids) and not is_known_float:
                moved.update((str(v.name), [*nodes, node]) for v in node.outputs)
            elif is_known_float or node.op_type == "Gather":
                indices, row = _indices(lowered, name, nodes, ids), lowered.specs[name][0]
                size = _table_size(node)
                leaf = Leaf(str(result.name), name, indices, row, size and size - _largest_offset(nodes))
                leaves += [leaf] if is_known_float else []
                quantised.update({} if is_known_float else {leaf.tensor: leaf})
    return tuple(leaves)


def _ids_operand(node: ir.Node) -> ir.Value | None:
    """Return the operand that may hold ids, if all other operands are constant."""
    values = list(node.inputs)
    varying = [v for v in values if v is not None and not v.is_initializer()]
    if len(varying) != 1 or node.op_type not in _MOVES | _IDS_OPERAND.keys() | {"Add"}:
        return None
    position = values.index(varying[0])
    axis = node.attributes.get_int("axis", 0 if node.op_type == "Gather" else -1)
    looks_up = position == _IDS_OPERAND.get(node.op_type) and (node.op_type != "Gather" or axis == 0)
    looks_up &= node.op_type != "OneHot" or axis == -1
    return varying[0] if looks_up or _keeps_ids(node, varying[0]) else None


def _keeps_ids(node: ir.Node, ids: ir.Value) -> bool:
    """Tell whether each element of the result is one of the ids, at another index or with a constant added.

    Ids that look up one table for several fields have an offset added: the number of rows before the field.
    """
    return node.op_type == "Add" or (node.op_type in _MOVES and node.inputs[0] is ids)


def _offsets_of_add(node: ir.Node) -> np.ndarray:
    """Return the constant that an Add adds to ids."""
    (array,) = (v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None)
    return array


def _largest_offset(nodes: Sequence[ir.Node]) -> int:
    """Return the largest number that is added to an id."""
    return sum(max(int(_offsets_of_add(node).max(initial=0)), 0) for node in nodes if node.op_type == "Add")


def _indices(lowered: Lowered, name: str, nodes: Sequence[ir.Node], ids: ir.Value) -> np.ndarray:
    """Return, for each of the ids, the index of its element in the input's row."""
    shape, _ = lowered.specs[name]
    positions = np.arange(int(np.prod(shape))).reshape(shape)
    if not nodes:
        return positions
    model_input = next(v for v in lowered.model.graph.inputs if v.name == name)
    model = extract(lowered.model, nodes, [model_input], [ids])
    for value in model.graph.inputs:
        value.type = ir.TensorType(ir.DataType.INT64)  # int8 could not hold the indices
    for node in model.graph:
        node.outputs[0].type = None
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.INT64)
        if node.op_type == "Add":
            i = [v is not None and v.is_initializer() for v in node.inputs].index(True)
            zeros = np.zeros_like(_offsets_of_add(node), np.int64)
            node.replace_input_with(i, new_constant(model.graph, f"{node.outputs[0].name}/nothing", zeros))
    return np.asarray(Runner(model, optimise=False)({name: positions.astype(np.int64)})[str(ids.name)])


def _table_size(node: ir.Node) -> int | None:
    if node.op_type == "Gather" and node.inputs[0] is not None and node.inputs[0].shape is not None:
        return int(str(node.inputs[0].shape[0]))
    depth = node.inputs[1].const_value if node.op_type == "OneHot" and node.inputs[1] is not None else None
    return None if depth is None else int(depth.numpy().reshape(-1)[0])
