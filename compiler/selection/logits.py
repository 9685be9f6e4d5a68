"""The logits behind an output: what the last Sigmoid or Softmax on the way to it is taken of."""

from collections.abc import Iterator, Mapping

import onnx

from compiler.errors import InvalidOptionError

_PROBABILITIES = frozenset({"Sigmoid", "Softmax", "LogSoftmax"})
# what may follow: it moves or rounds probabilities, or makes others of them (1 − p beside p, log p)
_PASSED = frozenset(
    "Add Cast Clip Concat DequantizeLinear Div Dropout Expand Flatten Gather Identity Log Max Min Mul Neg "
    "QuantizeLinear Reshape Slice Split Squeeze Sub Tile Transpose Unsqueeze".split()
)
_INPUT = "an input"


def logits_behind(model: onnx.ModelProto, output: str) -> str | None:
    """The one tensor of which `output` is the Softmax, LogSoftmax or Sigmoid; None where there is no such."""
    ends = set(_ends(model.graph, output))
    is_one = len(ends) == 1 and all(operator in _PROBABILITIES for operator, _ in ends)
    return next(iter(ends))[1] if is_one else None


def choose_logits(model: onnx.ModelProto, output: str) -> str:
    """The same; raises InvalidOptionError, which says what the output ends with, where there is no such."""
    logits = logits_behind(model, output)
    if logits is not None:
        return logits
    ends = sorted(set(_ends(model.graph, output)))
    others = ", ".join(sorted({operator for operator, _ in ends if operator not in _PROBABILITIES}))
    if ends and not others:
        reason = f"is made of several logits, {[name for _, name in ends]}: choose one with --output"
    else:
        reason = (
            f"ends with {others or 'a constant'}, not with a Sigmoid, Softmax or LogSoftmax: leave --logits "
            "out, or name the tensor to explain with --output"
        )
    raise InvalidOptionError(f"--logits: output {output!r} {reason}.")


def _ends(graph: onnx.GraphProto, output: str) -> Iterator[tuple[str, str]]:
    """The operators that give `output` its values, and what they are taken of; constants are left out."""
    producers = {name: node for node in graph.node for name in node.output}
    inputs = {v.name for v in graph.input} - {t.name for t in graph.initializer}
    pending, seen = [output], {output, ""}
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if node is None:
            yield from [(_INPUT, name)] * (name in inputs)
        elif node.op_type in _PASSED and node.domain in ("", "ai.onnx"):
            pending += [read for read in node.input if read not in seen]
            seen.update(node.input)
        elif node.input:
            yield node.op_type, _behind_identities(producers, node.input[0])


def _behind_identities(producers: Mapping[str, onnx.NodeProto], name: str) -> str:
    """The same values under a name that lowering keeps."""
    while name in producers and producers[name].op_type in ("Identity", "Dropout"):
        name = producers[name].input[0]
    return name
