"""The errors for models that cannot be walked back from the explained output, with advice."""

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.nodes import names_read
from rationale.lowering import Lowered
from rationale.lowering.control_flow.branches import REASON
from rationale.methods.leaves import keeps_batch
from rationale.methods.target import MOST_STOPS
from rationale.rules.rule import find_rule

_AVOIDED = frozenset({"LinearClassifier", "LinearRegressor"})  # skl2onnx can write others
_TREES = "decision trees (forests, gradient boosting) have no slope to walk. --method treeshap explains them."
_MARGINS = (
    "support vector machines have no rule, but for a linear SVMRegressor. --method exactshap (up to 12 "
    "features) and permutationshap explain any model."
)
_FEATURES = (
    "a step that makes features, which only --method treeshap supports. Apply it before the model, and "
    "export the steps after it."
)
_BLOCKED = "com.microsoft.nchwc"
_ADVICE_BY_OPERATOR = {
    "TreeEnsemble": _TREES,
    "TreeEnsembleClassifier": _TREES,
    "TreeEnsembleRegressor": _TREES,
    "SVMClassifier": _MARGINS,
    "SVMRegressor": _MARGINS,
    **dict.fromkeys(
        "CastMap CategoryMapper DictVectorizer FeatureVectorizer LabelEncoder OneHotEncoder".split(),
        _FEATURES,
    ),
}


def no_slope_error(
    graph: ir.Graph,
    output: str,
    explained: Sequence[str],
    active: Collection[str],
    needed: Collection[str],
) -> UnsupportedModelError:
    """Return the error that no attributions reach the output; it names the operators that end them.

    Args:
        explained: names of the explained tensors.
        active: names of the values that carry attributions.
        needed: names of the values from which the output is computed, including the output.
    """
    ends = [
        node
        for node in graph
        if not names_read(node).isdisjoint(active)
        and any(v.name in needed and v.name not in active for v in node.outputs)
    ]
    named = [f"{node.op_type} node {node.name or node.outputs[0].name!r}" for node in ends[:MOST_STOPS]]
    custom = [node for node in ends if node.domain and find_rule(node.op_type, node.domain) is None]
    unruled = sorted({f"{node.domain}.{node.op_type}" for node in custom})
    why = f"{', '.join(unruled)} has no rule" if unruled else "nothing differentiable connects them"
    return UnsupportedModelError(
        f"output {output!r} depends on {', '.join(explained)} only through integers or conditions "
        f"({', '.join(named)}): {why}. Explain another output (--output) if one changes continuously; "
        "--method exactshap (up to 12 features) and permutationshap explain any model."
    )


def no_rules_error(
    lowered: Lowered, path: Sequence[ir.Node], active: Collection[str], ends: Sequence[str], output: str
) -> UnsupportedModelError:
    """Return the error that nodes of the path have no rule; it lists them all, with advice.

    Args:
        path: the nodes between the `ends` of the walk and the output, in topological order.
        active: names of the values on the path.
    """
    missing = [i for i, node in enumerate(path) if find_rule(node.op_type, node.domain) is None]
    count = "1 node" if len(missing) == 1 else f"{len(missing)} nodes"
    verb = "has" if len(missing) == 1 else "have"
    lines = [f"{count} on the way to {output!r} {verb} no rule:"]
    lines += [f"  {_describe_node(lowered, path, i)}" for i in missing]
    lines += ["What can be done today:"]
    lines += [f"  {advice}" for advice in _advice(lowered, path, missing, active, ends, output)]
    return UnsupportedModelError("\n".join(lines))


def _describe_node(lowered: Lowered, path: Sequence[ir.Node], i: int) -> str:
    node = path[i]
    reason = f": {node.metadata_props[REASON]}." if REASON in node.metadata_props else ""
    opset = lowered.model.graph.opset_imports.get(node.domain, "?")
    read_names, result_names = (
        [str(v.name) for v in values if v and v.name] for values in (node.inputs, node.outputs)
    )
    return (
        f"{node.domain or 'ai.onnx'}.{node.op_type} (opset {opset}), node {node.name or result_names[0]!r}, "
        f"{i + 1} of {len(path)} on the path, {', '.join(read_names)} -> {', '.join(result_names)}"
        f"{reason}"
    )


def _advice(
    lowered: Lowered,
    path: Sequence[ir.Node],
    missing: Sequence[int],
    active: Collection[str],
    ends: Sequence[str],
    output: str,
) -> Iterator[str]:
    operators = {i: path[i].op_type if path[i].domain == "ai.onnx.ml" else "" for i in missing}
    avoided = sorted(_AVOIDED.intersection(operators.values()))
    stuck = [i for i in missing if operators[i] not in _AVOIDED]
    if avoided:
        named = ", ".join(map(repr, avoided))
        yield (
            f"{', '.join(avoided)}: skl2onnx writes other operators, which have rules, with "
            f"to_onnx(…, black_op={{{named}}})."
        )
    for name in dict.fromkeys(operators.values()):
        if name in _ADVICE_BY_OPERATOR:
            yield f"{name}: {_ADVICE_BY_OPERATOR[name]}"
    if any(path[i].domain == _BLOCKED for i in stuck):
        yield f"{_BLOCKED}: weights laid out for one machine. Optimise the model at level EXTENDED, not ALL."
    if any(operators[i] not in _ADVICE_BY_OPERATOR for i in stuck):
        yield "Export the model with other operators: `rationale operators` lists those that have rules."
    waists = [
        (i, name)
        for i, name in _waists(path, active, ends, output)
        if keeps_batch(lowered, name) and lowered.specs[name][1].is_floating_point()
    ]
    behind = [name for i, name in waists if stuck and i >= stuck[-1] and name != output]
    if behind:
        yield (
            f"Explain from {behind[0]!r} on, behind {'it' if len(stuck) == 1 else 'them'} "
            f"(--input {behind[0]}), with references of that tensor or of the model's inputs."
        )
    before = [name for i, name in waists if stuck and i < stuck[0] and 2 * (i + 1) >= len(path)]
    if before:
        yield f"Explain {before[-1]!r}, before {'it' if len(stuck) == 1 else 'them'} (--output {before[-1]})."


def _waists(
    path: Sequence[ir.Node], active: Collection[str], ends: Sequence[str], output: str
) -> Iterator[tuple[int, str]]:
    """Yield the values through which the whole path goes, each with the index of the last node before it."""
    last = {name: i for i, node in enumerate(path) for name in names_read(node) if name in active}
    last[output] = len(path)
    live = set(ends).intersection(last)
    for i, node in enumerate(path):
        live |= {str(v.name) for v in node.outputs if v.name in last}
        live = {name for name in live if last[name] > i}
        if len(live) == 1:
            yield i, next(iter(live))
