"""The end of an output: its last Sigmoid or Softmax, the logits behind it, and its classes' names."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.numpy_helper

from rationale.errors import InvalidOptionError
from rationale.trees.read import read_ensemble

_PROBABILITIES = frozenset({"Sigmoid", "Softmax", "LogSoftmax"})
# operators allowed after it: they move or round probabilities, or derive others (1 − p beside p, log p)
_PASSABLE = frozenset(
    "Add Cast Clip Concat DequantizeLinear Div Dropout Expand Flatten Gather Identity Log Max Min Mul Neg "
    "QuantizeLinear Reshape Slice Split Squeeze Sub Tile Transpose Unsqueeze".split()
)
_INPUT = "an input"
_REGRESSORS = frozenset({"TreeEnsembleRegressor", "LinearRegressor", "SVMRegressor"})
# operators that keep numbers between 0 and 1
_KEEPS_RANGE = frozenset(
    "Cast Concat Dropout Expand Flatten Gather Identity Max Mean Min Reshape Slice Split Squeeze Tile "
    "Transpose Unsqueeze".split()
)
_MOVES = frozenset("Cast Flatten Identity Reshape Squeeze Unsqueeze".split())
_SAME_ORDER = _MOVES | _PROBABILITIES | frozenset("Clip Div Max Min Mul Normalizer Sum".split())
_ROUNDING = 1e-3  # a sum of rounded leaves may exceed 0 or 1 by this
_TO_PROBABILITIES = frozenset({b"LOGISTIC", b"SOFTMAX", b"SOFTMAX_ZERO", b"PROBIT"})


def logits_behind(model: onnx.ModelProto, output: str) -> str | None:
    """Return the only tensor whose Softmax, LogSoftmax or Sigmoid is `output`, or None."""
    closed = closing_operator(model, output)
    return None if closed is None else closed[1]


def closing_operator(model: onnx.ModelProto, output: str) -> tuple[str, str] | None:
    """Return the operator that closes `output`, and the tensor behind it, or None."""
    ends = set(_end_operators(model.graph, output))
    is_one = len(ends) == 1 and all(operator in _PROBABILITIES for operator, _ in ends)
    return next(iter(ends)) if is_one else None


def comes_from_regressors(model: onnx.ModelProto, output: str) -> bool:
    """Tell whether only regressors of ai.onnx.ml give `output` its values, and these are no probabilities."""
    ends = {operator for operator, _ in _end_operators(model.graph, output)}
    return bool(ends) and ends <= _REGRESSORS and not is_probability(model, output)


def choose_logits(model: onnx.ModelProto, output: str) -> str:
    """Return the tensor of `logits_behind`.

    Raises:
        InvalidOptionError: if there is none; the message names the operators at the output's end.
    """
    logits = logits_behind(model, output)
    if logits is not None:
        return logits
    ends = sorted(set(_end_operators(model.graph, output)))
    other_operators = ", ".join(sorted({operator for operator, _ in ends if operator not in _PROBABILITIES}))
    if ends and not other_operators:
        reason = f"depends on several logits, {[name for _, name in ends]}: choose one with --output"
    else:
        reason = (
            f"ends with {other_operators or 'a constant'}, not with a Sigmoid, Softmax or LogSoftmax: leave "
            "--logits out, or name the tensor to explain with --output"
        )
    raise InvalidOptionError(f"--logits: output {output!r} {reason}.")


def is_probability(model: onnx.ModelProto, output: str) -> bool:
    """Tell whether the operators at a tensor's end keep it between 0 and 1.

    These are a Sigmoid, a Softmax, similar functions in a classifier, or trees that average probabilities.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {t.name for t in model.graph.initializer}
    constants |= {n.output[0] for n in model.graph.node if n.op_type == "Constant"}
    pending, seen = [output], {output}
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None:
            return False
        is_rest = node.op_type == "Sub" and _is_one(model, node.input[0])  # 1 − p, beside p
        if node.op_type in _KEEPS_RANGE or is_rest:
            reads = node.input[:1] if node.op_type not in ("Concat", "Max", "Mean", "Min") else node.input
            reads = node.input[1:] if is_rest else reads
            if not all(_is_between(model, name) for name in reads if name in constants):
                return False
            pending += {*reads} - seen - constants
            seen.update(node.input)
        elif node.op_type not in ("Sigmoid", "Softmax", "HardSigmoid") and not _is_classifier(node, name):
            return False
    return True


def _is_one(model: onnx.ModelProto, name: str) -> bool:
    values = _constant(model, name)
    return values is not None and bool((values == 1).all())


def _is_between(model: onnx.ModelProto, name: str) -> bool:
    """Tell whether a constant lies between 0 and 1."""
    values = _constant(model, name)
    return values is not None and values.dtype.kind == "f" and bool(((values >= 0) & (values <= 1)).all())


def _constant(model: onnx.ModelProto, name: str) -> np.ndarray | None:
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] == name:
            tensors |= [(name, a.t) for a in node.attribute if a.name == "value"]
    return onnx.numpy_helper.to_array(tensors[name]) if name in tensors else None


def _is_classifier(node: onnx.NodeProto, output: str) -> bool:
    """Tell whether an output is the probabilities, not the label, of a classifier of ai.onnx.ml."""
    if node.op_type.endswith("Classifier") and output == node.output[0]:
        return False
    if any(a.name == "post_transform" and a.s in _TO_PROBABILITIES for a in node.attribute):
        return True
    if node.op_type != "TreeEnsembleClassifier":
        return False
    between = read_ensemble(node).scores_between()
    if between.shape[1] == 2 and (between[0] == -between[1][::-1]).all():
        between = between[:, 1:]  # for two classes side by side, 1 − p is read as −p
    return bool((between > -_ROUNDING).all() and (between < 1 + _ROUNDING).all())


def class_names(model: onnx.ModelProto, output: str, count: int) -> tuple[str, ...]:
    """Return the class names of the `count` elements of `output`, from the label that chooses among them.

    Labels come from a classifier of ai.onnx.ml, or from a table that ArgMax indexes. The result is empty if
    no label belongs to the output, or the names are just 0, 1 ….
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    scores = _same_elements(producers, output)
    for end in model.graph.output:
        label = end.name
        while label in producers and producers[label].op_type in _MOVES:
            label = producers[label].input[0]
        names, chosen = _names_and_scores_of_label(model, producers, label)
        if len(names) == count and scores & _same_elements(producers, chosen):
            return () if names == tuple(map(str, range(count))) else names
    return ()


def _names_and_scores_of_label(
    model: onnx.ModelProto, producers: Mapping[str, onnx.NodeProto], label: str
) -> tuple[tuple[str, ...], str]:
    """Return the names of a label's classes, and the tensor of scores that chooses one."""
    node = producers.get(label)
    if node is None:
        return (), ""
    named = [a for a in node.attribute if a.name.startswith("classlabels_")]
    if named and node.output[0] == label:
        texts_of_classes = [text.decode(errors="replace") for a in named for text in a.strings]
        return (*texts_of_classes, *(str(number) for a in named for number in a.ints)), node.output[1]
    if node.op_type not in ("ArrayFeatureExtractor", "Gather"):
        return (), ""
    table, best = _constant(model, node.input[0]), node.input[1]
    while best in producers and producers[best].op_type in _MOVES:
        best = producers[best].input[0]
    if table is None or best not in producers or producers[best].op_type not in ("ArgMax", "TopK"):
        return (), ""
    texts = (name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in table.flat)
    return tuple(texts), producers[best].input[0]


def _same_elements(producers: Mapping[str, onnx.NodeProto], name: str) -> set[str]:
    """Return the names of a tensor, and of tensors before it with the same elements in the same order."""
    names = {name}
    while name in producers and producers[name].op_type in _SAME_ORDER:
        name = producers[name].input[0]
        names.add(name)
    return names


def _end_operators(graph: onnx.GraphProto, output: str) -> Iterator[tuple[str, str]]:
    """Yield the operators that give `output` its values, with their operands; constants are left out."""
    producers = {name: node for node in graph.node for name in node.output}
    inputs = {v.name for v in graph.input} - {t.name for t in graph.initializer}
    pending, seen = [output], {output, ""}
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None:
            yield from [(_INPUT, name)] * (name in inputs)
        elif node.op_type in _PASSABLE and node.domain in ("", "ai.onnx"):
            pending += [read for read in node.input if read not in seen]
            seen.update(node.input)
        elif node.input:
            yield node.op_type, _behind_identities(producers, node.input[0])


def _behind_identities(producers: Mapping[str, onnx.NodeProto], name: str) -> str:
    """Return the name that lowering keeps for the same values."""
    while name in producers and producers[name].op_type in ("Identity", "Dropout"):
        name = producers[name].input[0]
    return name
