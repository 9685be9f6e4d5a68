"""The walk: values and rules at x and at the references, then multipliers from the output back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rationale.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError
from rationale.graph.ops import along
from rationale.graph.tensor import Tensor
from rationale.lowering import Lowered
from rationale.methods.engine import Canvas, Engine, Method, MissingValues, Selection
from rationale.methods.environment import (
    Calls,
    Environment,
    MovedEnvironment,
    RuleCall,
    at_open_references,
    mean_at_references,
)
from rationale.methods.feature_names import with_named_features
from rationale.methods.leaves import ChosenLeaves, Leaf, choose_leaves
from rationale.methods.outputs import Outputs, attributions_name, check_group_names, make_seed
from rationale.methods.propagation.attributions import (
    concepts_of,
    emit_channels,
    emit_heatmaps,
    emit_walk,
    layers_walked,
    requested_layers,
)
from rationale.methods.propagation.backward import (
    Carried,
    ExplainedTensor,
    FinishedWalk,
    PropagationMethod,
    Pull,
    RulePull,
    walk,
)
from rationale.methods.propagation.imputed import behind_imputers
from rationale.methods.propagation.path import Path, choose_path
from rationale.methods.target import check_names, reach_forward
from rationale.references.reference_set import Baseline, OpenReferences, ReferenceSet
from rationale.schema.manifest import LayerRule
from rationale.schema.request import CompileRequest

WalkSelection = Selection[PropagationMethod, Path]


class Walk(Engine[PropagationMethod, Path]):
    """The engine of DeepSHAP, gradients and LRP: a walk back from the output, operator by operator."""

    players = "sum"
    missing = MissingValues.NEVER

    def leaves(
        self, lowered: Lowered, method: PropagationMethod, inputs: Sequence[str] | None
    ) -> tuple[Leaf, ...]:
        return _choose_leaves(method, lowered, inputs).leaves

    def select(self, lowered: Lowered, method: PropagationMethod, request: CompileRequest) -> WalkSelection:
        """Find the path from the explained inputs to the explained output.

        If an operator before the first of the named layers has no rule, the path begins at that layer.
        """
        if (request.layers or request.concepts) and method.points:
            raise InvalidOptionError(
                f"{method.name} follows a path between inputs, so it cannot explain layers in the same "
                "run: explain a layer alone (--input LAYER), or choose deepshap, gradient, lrp or attnlrp."
            )
        choose = partial(
            choose_path,
            choose=partial(_choose_leaves, method),
            scores_for=method.name if method.explains_scores else None,
        )
        try:
            lowered, target, path = choose(lowered, request)
        except UnsupportedModelError as error:
            if request.inputs is not None or request.layers == "all" or not request.layers:
                raise
            first = _foremost(lowered, request.layers)
            lowered, target, path = choose(lowered, request.model_copy(update={"inputs": first}))
            note = f"attributions end at {first}, and the inputs have none: {error}"
            target = replace(target, notes=(*target.notes, note))
        if method.reference_set is None and method.has_base_value:
            raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
        return with_named_features(Selection(lowered, target, method, None, path), request)

    def outputs(self, selection: WalkSelection) -> Outputs:
        concepts = concepts_of(selection, selection.choice.concepts)
        return replace(super().outputs(selection), concepts=concepts)

    def emit(self, canvas: Canvas[PropagationMethod, Path]) -> None:
        """Walk back from the output to the explained tensors; the graph's own nodes are the forward pass."""
        op, references, selection = canvas.op, canvas.references, canvas.selection
        method, path, target = selection.method, selection.choice, selection.target
        at_x = canvas.at_x(path.active, path.blocked)
        calls = [at_x.evaluate_at_sample(node, rule) for node, rule in path.nodes]
        at_x.lift_outputs()
        at_r = None if references is None else _at_references(at_x, references, path)
        if at_r is not None:
            calls = [replace(call, r=at_r.evaluate(call)) for call in calls]
        starts, calls = _onto_paths(at_x, at_r, selection, references, calls)
        weights = references.weights if references else None
        op.scope = "seed"
        y = at_x.tensor(target.output)
        base = None
        if at_r is not None and method.has_base_value:
            base = mean_at_references(at_r, target.output, weights)
        seed = make_seed(op, target, y, base, at_x.lowered.narrow.edges.get(target.output))
        requested, concepts = requested_layers(path, target.output, calls), self.outputs(selection).concepts
        concept_layers = [path.concepts.layer] if path.concepts else []
        kept_values = {*requested, *concept_layers}
        steps, pull = method.plan(op, calls, kept_values)
        canvas.rules[:] = _rules(steps, pull)
        layer_names = layers_walked(requested, calls, steps, are_named=path.layers != "all")
        check_names(selection.lowered, {attributions_name(name) for name in layer_names})
        check_group_names(target, layer_names)
        layers_walked(concept_layers, calls, steps, are_named=True)
        ends = {*layer_names, *concept_layers}

        def walk_from(output: str, multiplier: Carried) -> dict[str, Any]:
            report = partial(canvas.progress, "walking back")
            return walk(op, steps, output, multiplier, pull, lambda i: report(i, len(steps)), ends)

        def explained(arriving: Mapping[str, Any]) -> list[ExplainedTensor]:
            leaves = target.leaves
            return [
                ExplainedTensor(s, at_x.tensor(s.tensor), arriving[s.tensor], starts[s.tensor])
                for s in leaves
            ]

        arriving = walk_from(target.output, seed.multiplier)
        layers = {
            n: ExplainedTensor(Leaf(n, n), at_x.tensor(n), arriving[n], at_r.tensor(n) if at_r else None)
            for n in (*layer_names, *concept_layers)
        }
        if concepts is not None:
            outputs, masked = emit_channels(op, method, concepts, layers[concept_layers[0]], weights)
            zeros = {
                t: np.zeros((1,) * at_x.tensor(t).rank, seed.explained.dtype.numpy()) for t in target.tensors
            }
            zero_multipliers = {t: op.row_constant(array) for t, array in zeros.items()}
            by_channel = explained(zero_multipliers | walk_from(concept_layers[0], masked))
            op.graph.outputs.extend([*outputs, *emit_heatmaps(op, method, concepts, by_channel, weights)])
        results = FinishedWalk(op, seed, method, explained(arriving), references, target.players)
        emit_walk(canvas, results, [layers[n] for n in layer_names])


WALK = Walk()


def _rules(steps: Calls, pull: Pull) -> list[LayerRule]:
    """Return the rule of each operator on the walk, first to last; empty for methods without such rules."""
    if not isinstance(pull, RulePull):
        return []
    named_rules = [(call, pull.rule_of(call)) for call in steps]
    return [
        LayerRule(operator=call.rule.op_type, name=call.name, tensor=call.outputs[0], rule=rule)
        for call, rule in named_rules
        if rule is not None
    ]


def _choose_leaves(method: Method, lowered: Lowered, inputs: Sequence[str] | None) -> ChosenLeaves:
    """Return the ends of the walk: behind imputers if the references, as rows, pass them too."""
    references = method.reference_set
    chosen = choose_leaves(lowered, inputs, references if isinstance(references, Mapping) else ())
    has_rows = references is not None and not isinstance(references, Baseline | OpenReferences)
    may_fill = has_rows and any(node.op_type == "IsNaN" for node in lowered.model.graph)
    return behind_imputers(lowered, chosen) if may_fill else chosen


def _foremost(lowered: Lowered, layers: Sequence[str]) -> list[str]:
    """Return the layers that depend on no other one."""
    behind = {name: reach_forward(lowered.model.graph, [name]) - {name} for name in layers}
    return [name for name in layers if not any(name in dependents for dependents in behind.values())]


def _at_references(at_x: Environment, references: ReferenceSet, path: Path) -> MovedEnvironment:
    op = at_x.op
    op.scope = "reference"
    if references.is_open:
        return at_open_references(at_x, references, path.dependent)
    rows = {name: along(op, array, "K") for name, array in references.arrays.items()}
    return MovedEnvironment(at_x, "reference", rows, path.dependent)


def _onto_paths(
    at_x: Environment,
    at_r: MovedEnvironment | None,
    selection: WalkSelection,
    references: ReferenceSet | None,
    calls: list[RuleCall],
) -> tuple[dict[str, Tensor | None], list[RuleCall]]:
    """Return the starts of the paths to x, by tensor, and the calls at the points of the paths.

    The calls change only if the method walks on paths.
    """
    method, path, target = selection.method, selection.choice, selection.target
    starts = {name: at_r.tensor(name) if at_r else None for name in target.tensors}
    if not method.points:
        return starts, calls
    at_x.op.scope = "point"
    weights = references.weights if references else None
    points = {
        s.tensor: method.point(at_x.op, s.name, at_x.tensor(s.tensor), starts[s.tensor], weights)
        for s in target.leaves
    }
    values_on_path = {name: point.x for name, point in points.items()}
    on_path = MovedEnvironment(at_x, "point", values_on_path, path.dependent)
    calls_on_path = [replace(call, x=on_path.evaluate(call)) for call in calls]
    return {name: point.start for name, point in points.items()}, calls_on_path
