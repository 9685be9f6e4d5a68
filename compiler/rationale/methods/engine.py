"""The interface between the compile, a method, and the engine that the method names.

An engine chooses what a kind of method needs in a model and adds its attributions to the graph: the walk
(DeepSHAP, gradients, LRP), trees, coalitions. A custom method names one of them; an installed package may
bring another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy.typing as npt
import onnx_ir as ir
from pydantic import ValidationError

from rationale.errors import InvalidOptionError
from rationale.graph.nodes import rename_inner_values
from rationale.graph.ops import Ops
from rationale.graph.tensor import Chunks, Tensor
from rationale.graph.variants import VariantChoices
from rationale.lowering import Lowered, with_model
from rationale.lowering.rewrites.discrete import spell_out_dequantising
from rationale.methods.environment import Environment, batch_leading
from rationale.methods.leaves import Leaf
from rationale.methods.outputs import (
    Outputs,
    Seed,
    attributions_name,
    emit_values,
    output_name,
    total_over_features,
)
from rationale.methods.target import Target, check_names
from rationale.references.reference_set import Baseline, OpenReferences, ReferenceSet
from rationale.references.request_time import names_of_inputs
from rationale.rules.rule import Rule
from rationale.schema.manifest import Extension, LayerRule
from rationale.schema.outputs import OUTPUT_KINDS
from rationale.schema.request import CompileRequest, FeatureNames, Progress

References = npt.ArrayLike | Mapping[str, npt.ArrayLike] | Baseline | OpenReferences


class Gap(StrEnum):
    """The reason why explained − base − Σ attributions may differ from 0; the check judges the gap by it."""

    ROUNDING = "rounding"  # the rules add up exactly: a larger gap means a wrong rule
    QUADRATURE = "quadrature"  # an integral by a few points: more points make it smaller
    SAMPLING = "sampling"  # a mean over random draws: compare it with its standard error
    ABSORBED = "absorbed"  # the share that biases and stabilisers keep, by the method's definition


class Method(ABC):
    """A way to attribute an output to its inputs: a frozen dataclass that names its engine.

    The defaults suit a method without references, whose attributions need not add up.
    """

    name: ClassVar[str]
    engine: "ClassVar[Engine[Any, Any]]"
    has_base_value: ClassVar[bool] = False

    @property
    def gap(self) -> Gap | None:
        """The reason why the completeness gap may differ from 0; None if the graph has no gap output."""
        return None

    @property
    def reference_set(self) -> References | None:
        """One array [K, *shape of the input], or one for each explained input; None without references.

        A number stands for one row filled with that number.
        """
        return None

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        """One weight per reference, or None for equal weights."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """The options that the manifest records, references aside."""
        return {}

    @property
    def further_outputs(self) -> Sequence[str]:
        """Kinds of outputs (`rationale/schema/outputs.py`) that the graph answers besides attributions."""
        return ()

    def emit_output(self, kind: str, results: Any) -> Mapping[str, Tensor]:
        """Return the outputs of a kind that only this method has.

        Args:
            kind: one of `further_outputs`.
            results: the engine's `Results`.

        Returns:
            By explained tensor, like `results.attributions`; under `WHOLE` a number for each target.
        """
        raise NotImplementedError(f"{self.name} has outputs of kind {kind!r}, and emits none")

    @property
    def extensions(self) -> Sequence[Extension]:
        """Parts of the method that come from installed packages, each once."""
        return ()

    @property
    def features_with_fixed_references(self) -> Sequence[str]:
        """Features of the method that need its references when the graph is made."""
        return ()

    @property
    def points(self) -> int:
        """S: the number of points at which the walk differentiates the model; 0 if it differentiates at x."""
        return 0

    def axes(self, references: ReferenceSet | None) -> dict[str, int]:
        """Return the axes that can be computed in chunks, with the number of their rows."""
        del references
        return {}

    def rows_per_target(self, references: int) -> int:
        """Return the number of model rows that one row and target cost, with K references."""
        return references

    def choices(self, lowered: Lowered, request: CompileRequest) -> "list[MethodChoice]":
        """Return the methods to try, in order; by default only this one.

        Raises:
            RationaleError: if no method can answer the request.
        """
        del lowered, request
        return [MethodChoice(self)]

    def in_space(self, space: str, transform: str) -> "Method":
        """Return the method that explains a score, or its margin.

        Args:
            space: "output" or "margin", as in a decision profile.
            transform: the function, such as LOGISTIC, by which trees turn a margin into a score; empty for
                other models.

        Raises:
            InvalidOptionError: if only another method explains that space; the message names it.
        """
        if space == "margin" and transform:
            raise InvalidOptionError(f"space 'margin' works only for treeshap, not for {self.name}")
        return self


class WeightedMethod(Method):
    """A method with weighted references, whose attributions add up. Each subclass declares the fields."""

    references: References
    weights: npt.ArrayLike | None

    has_base_value: ClassVar[bool] = True

    @property
    def gap(self) -> Gap | None:
        return Gap.ROUNDING

    @property
    def reference_set(self) -> References:
        return self.references

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        return self.weights


class EngineChoice:
    """The engine's own choice in a model besides the target: a path, an ensemble, a game.

    The defaults suit an engine that calls no rules.
    """

    nodes: Sequence[tuple[ir.Node, Rule]] = ()
    """The operators whose rules are called, in topological order."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """Lengths of the graph's axes besides N, T, K and S."""
        return {}

    @property
    def options(self) -> Mapping[str, Any]:
        """Options that go into the digest besides the method's own."""
        return {}

    def carries_all(self, target: Target, layer: str) -> bool:
        """Tell whether the attributions of an inner tensor add up to the output's difference."""
        del target, layer
        return False

    def splits(self, lowered: Lowered, target: Target) -> Mapping[str, Sequence[Sequence[float]]]:
        """Return, for each input and each element of its row, the numbers at which answers may change.

        An input is absent if its split points are unknown.
        """
        del lowered, target
        return {}


MethodT = TypeVar("MethodT", bound=Method)
ChoiceT = TypeVar("ChoiceT", bound=EngineChoice)


@dataclass(frozen=True)
class Selection(Generic[MethodT, ChoiceT]):
    """The parts of a lowered model that an explanation concerns.

    Attributes:
        method: the method, with arrays in place of tables with named columns.
        feature_names: the names that the user gave, or the columns of those tables.
        choice: the engine's own choice; each engine has its own class for it.
    """

    lowered: Lowered
    target: Target
    method: MethodT
    feature_names: FeatureNames | None
    choice: ChoiceT


@dataclass(frozen=True)
class MethodChoice:
    """A method that can answer a request, and the reason to take it.

    Attributes:
        is_exact: false if it approximates values that another method computes exactly; the user gets a
            warning.
    """

    method: Method
    why: str = ""
    is_exact: bool = True


@dataclass(frozen=True)
class Results:
    """The results of an engine, from which the outputs of the graph are made.

    Attributes:
        seed: the start of the explanation, with the explained value and the base value.
        attributions: attributions by explained tensor (`GROUPS`: all players); `emit_outputs` fills them in.
    """

    op: Ops
    seed: Seed
    attributions: dict[str, Tensor] = field(default_factory=dict, init=False)


Emitters = Mapping[str, Callable[[], Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Canvas(Generic[MethodT, ChoiceT]):
    """A copy of the lowered model, and everything an engine needs to add an explanation to it.

    Attributes:
        selection: the selection, with the copied model.
        flat: names of values whose rows lie one after the other, as lowering determined.
        progress: called as `progress(stage, done, total)`.
        rules: the rule of each operator; an engine fills it in if its method has such rules.
    """

    op: Ops
    selection: Selection[MethodT, ChoiceT]
    flat: frozenset[str]
    references: ReferenceSet | None
    progress: Progress
    rules: list[LayerRule]

    def at_x(
        self, active: frozenset[str] = frozenset(), blocked: frozenset[tuple[str, int]] = frozenset()
    ) -> Environment:
        """Return the values of the model at x, and bind the batch axis.

        Args:
            active, blocked: see `Path`.
        """
        lowered, target = self.selection.lowered, self.selection.target
        values = Environment(self.op, lowered, self.flat, active, blocked)
        names = [str(v.name) for v in lowered.model.graph.inputs if v.name in lowered.batched]
        source = next(name for name in (*target.tensors, *names) if name in names)  # axis 0 is the batch
        self.op.bind_batch(values.tensor(source))
        return values

    def emit_outputs(
        self, results: Results, attributions: Iterable[tuple[str, Tensor]], emitters: Emitters
    ) -> None:
        """Add attributions, base value, explained value, gap and the method's further outputs to the graph's.

        Args:
            attributions: each explained tensor's name (`GROUPS` for all players) and attributions.
            emitters: functions that emit the engine's own kinds of outputs; the method emits all others.
        """
        op, method, outputs, totals = self.op, self.selection.method, list[ir.Value](), list[Tensor]()
        for name, values in attributions:
            results.attributions[name] = values
            outputs.append(op.attributions_output(values, attributions_name(name)))
            totals.append(total_over_features(op, outputs[-1], values))

        def emit_further(*, per_row: bool) -> None:
            for kind in method.further_outputs:
                if (OUTPUT_KINDS[kind].axes == "NT") is per_row:
                    emit = emitters.get(kind, partial(method.emit_output, kind, results))
                    for name, values in emit().items():
                        outputs.append(op.attributions_output(values, output_name(kind, name)))

        emit_further(per_row=False)
        outputs += emit_values(op, results.seed, totals, gap=method.gap is not None)
        emit_further(per_row=True)
        op.graph.outputs.extend(outputs)


class MissingValues(StrEnum):
    """The permission for rows of an explained input to have missing values; a text may always be empty."""

    NEVER = "never"
    AS_REFERENCES = "as references"  # allowed if references have missing values too
    ALWAYS = "always"


class Engine(ABC, Generic[MethodT, ChoiceT]):
    """The way in which methods of one kind choose parts of a model and add attributions to the graph."""

    players: ClassVar[Literal["player", "sum"]] = "player"
    """The attribution of a group: that of a single player, or the sum over its features."""

    missing: ClassVar[MissingValues] = MissingValues.AS_REFERENCES

    @property
    def takes_missing(self) -> bool:
        """Tell whether references may hold missing values."""
        return self.missing is not MissingValues.NEVER

    @abstractmethod
    def leaves(self, lowered: Lowered, method: MethodT, inputs: Sequence[str] | None) -> tuple[Leaf, ...]:
        """Return the tensors that can get attributions, before an output is chosen."""

    @abstractmethod
    def select(
        self, lowered: Lowered, method: MethodT, request: CompileRequest
    ) -> Selection[MethodT, ChoiceT]:
        """Choose the target, and the parts of the model that the engine needs for it.

        Raises:
            InvalidOptionError: if an output, target, input, layer or feature name does not exist, or options
                contradict each other.
            UnsupportedModelError: if the engine cannot explain the model; the message gives the reason.
            InvalidReferencesError: if references are missing, or their columns do not fit.
        """

    def outputs(self, selection: Selection[MethodT, ChoiceT]) -> Outputs:
        """Return the names of the graph's outputs besides the model's own."""
        return Outputs.of(selection.target, selection.method.further_outputs)

    @abstractmethod
    def emit(self, canvas: Canvas[MethodT, ChoiceT]) -> None:
        """Add the explanation to the graph.

        Raises:
            UnsupportedModelError, InvalidReferencesError, InvalidOptionError: for faults that no earlier
                stage sees.
        """


def demand_no_layers(method: Method, request: CompileRequest) -> None:
    """Raise InvalidOptionError if the request names layers for a method that has none."""
    if request.layers or request.concepts:
        raise InvalidOptionError(f"{method.name} walks through no layers: leave --layers and --concepts out.")


def combine(
    selection: Selection[Any, Any],
    references: ReferenceSet | None,
    variants: VariantChoices,
    progress: Progress,
) -> "Plan":
    """Plan the combined model next to the lowered one: the fourth stage of a compile.

    Args:
        variants: choices between forms of an operator, for the machine.
        progress: called as `progress(stage, done, total)`.

    Raises:
        InvalidOptionError: if the model already uses a name of the explanation.
    """
    target = selection.target
    reference_inputs = names_of_inputs(target.tensors) if references and references.is_open else set()
    check_names(selection.lowered, selection.method.engine.outputs(selection).names | reference_inputs)
    return Plan(selection, references, variants, progress)


@dataclass(frozen=True)
class Plan:
    """A combined model that can be built whole, or with axes in chunks; it contains no results yet.

    Attributes:
        rules: the rule of each operator, if the method has such rules; `build` fills them in.
    """

    selection: Selection[Any, Any]
    references: ReferenceSet | None
    variants: VariantChoices
    progress: Progress
    rules: list[LayerRule] = field(default_factory=list)

    @property
    def axes(self) -> Mapping[str, int]:
        """Axes that can be computed in chunks, with the number of their rows."""
        method: Method = self.selection.method
        return method.axes(self.references)

    def build(self, chunks: Chunks) -> ir.Model:
        """Emit the combined graph; constants are not folded yet."""
        copy, flat = _copy_for_graph(self.selection)
        method, target, references = copy.method, copy.target, self.references
        graph = copy.lowered.model.graph
        lengths = {"T": target.count, "K": references.count if references else 1, "S": method.points or 1}
        lengths |= {"C": 1, **copy.choice.lengths}
        dtype = copy.lowered.specs[target.output][1]
        op = Ops(graph, graph.opset_imports.get("", 21), lengths, dtype, self.variants, chunks)
        self.variants.begin()
        method.engine.emit(Canvas(op, copy, flat, references, self.progress, self.rules))
        rename_inner_values(
            copy.lowered.model, {v.name for v in (*graph.inputs, *graph.outputs)}.__contains__
        )
        return copy.lowered.model


def _copy_for_graph(selection: Selection[Any, Any]) -> tuple[Selection[Any, Any], frozenset[str]]:
    """Return a copy of the selection whose graph may be changed, and the names of `batch_leading`.

    The copy shares tensors. The names come from the lowered model: this function spells out dequantisation,
    and lowering knows nothing of the new inner values unless they must be lifted.
    """
    lowered, choice = selection.lowered, selection.choice
    model = lowered.model.clone()
    copy_of = dict(zip(lowered.model.graph, model.graph, strict=True))
    nodes = [(copy_of[node], rule) for node, rule in choice.nodes]
    on_path = {node for node, _ in nodes}
    before = len(model.graph)
    off_path = [n for n in copy_of.values() if n.op_type == "DequantizeLinear" and n not in on_path]
    if off_path:
        spell_out_dequantising(model.graph, off_path)
    to_be_lifted = lowered.single_row_only and len(model.graph) != before
    copy = with_model(lowered, model) if to_be_lifted else replace(lowered, model=model)
    choice = replace(choice, nodes=tuple(nodes)) if nodes else choice
    return replace(selection, lowered=copy, choice=choice), batch_leading(lowered)


def request_of(method: Method, **fields: Any) -> CompileRequest:
    """Return the compile request for a custom method with the other fields.

    Raises:
        InvalidOptionError: if `method` is no `Method`, or a field is invalid.
    """
    if not isinstance(method, Method):
        raise InvalidOptionError(
            f"the method is of type {type(method).__name__}, and is not a Method: give one such as "
            "DeepShap(references); CONTRIBUTING.md shows how to write one."
        )
    name, options = method.name, dict(method.options)
    if options.pop("times_input", False):
        name = "input-x-gradient"
    if rules := options.pop("rules", None):
        options["rule"] = ["=".join(rule) for rule in rules]
    references = method.reference_set
    open_count = references.count if isinstance(references, OpenReferences) else None
    try:
        return CompileRequest(method=name, options=options, open_references=open_count, **fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidOptionError(
            f"{'.'.join(map(str, fault['loc']))} {fault['input']!r}: {fault['msg'].lower()}."
        ) from error
