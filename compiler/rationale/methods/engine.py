"""What the compile asks of a method, and of the engine that a method names.

An engine knows what a kind of method needs of a model and how its attributions come into the graph: the walk
(DeepSHAP, gradients, LRP), trees, coalitions. A method of one's own names one of them; a package of its own
may bring another.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from pydantic import ValidationError

from rationale.errors import InvalidOptionError
from rationale.graph.memory.fit import Plan
from rationale.graph.nodes import make_room
from rationale.graph.ops import Ops
from rationale.graph.tensor import Chunks
from rationale.graph.variants import Variants
from rationale.lowering import Lowered, with_model
from rationale.lowering.rewrites.discrete import spell_out_dequantising
from rationale.methods.environment import Environment, batch_leading
from rationale.methods.leaves import Leaf
from rationale.methods.outputs import Outputs
from rationale.methods.target import Target, check_names
from rationale.references.reference_set import Baseline, OpenReferences, ReferenceSet
from rationale.references.request_time import names_of_inputs
from rationale.schema.manifest import DATATYPES, Extension, LayerRule, TensorSpec, is_float
from rationale.schema.request import CompileRequest, FeatureNames, Progress

References = npt.ArrayLike | Mapping[str, npt.ArrayLike] | Baseline | OpenReferences


class Gap(StrEnum):
    """Why explained − base − Σ attributions may differ from 0; the check judges a gap by it."""

    ROUNDING = "rounding"  # the rules add up exactly: anything larger is a wrong rule
    QUADRATURE = "quadrature"  # an integral by a few points: more of them close it
    SAMPLING = "sampling"  # a mean over draws: to be compared with its standard error
    ABSORBED = "absorbed"  # what biases and stabilisers keep, by the method's definition


class Method(Protocol):
    """A way to attribute an output to its inputs; a frozen dataclass."""

    name: ClassVar[str]
    engine: "ClassVar[Engine]"
    has_base_value: ClassVar[bool]

    @property
    def gap(self) -> Gap | None:
        """None: the method promises no sum, and the graph has no completeness gap."""

    @property
    def reference_set(self) -> References | None:
        """One array [K, *shape of the input], or one for each explained input; None without references.

        A number stands for a single row of it.
        """

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        """One weight per reference, or None for equal ones."""

    @property
    def options(self) -> dict[str, Any]:
        """What the manifest records, references aside."""


class Weighted:
    """A method whose references have weights: what Method asks of it. Its fields are the dataclass's own."""

    references: References
    weights: npt.ArrayLike | None

    has_base_value: ClassVar[bool] = True
    gap: ClassVar[Gap | None] = Gap.ROUNDING

    @property
    def reference_set(self) -> References:
        return self.references

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        return self.weights


@dataclass(frozen=True)
class Selection:
    """What was chosen in a lowered model.

    Attributes:
        method: with arrays in place of tables whose columns have names.
        feature_names: as they were given, or as those columns are called.
        part: what the method's engine chose besides: the path of a walk, an ensemble, a game.
    """

    lowered: Lowered
    target: Target
    method: Method
    feature_names: FeatureNames | None
    part: Any


@dataclass(frozen=True)
class MethodChoice:
    """A method that answers a request, and why it is taken.

    Attributes:
        is_exact: whether nothing has to be warned about: it approximates nothing that another gives exactly.
    """

    method: Method
    why: str = ""
    is_exact: bool = True


@dataclass(frozen=True)
class Canvas:
    """A copy of the lowered model, to which an engine adds an explanation.

    Attributes:
        selection: of the copy.
        flat: names of the values whose rows lie one behind the other, as lowering knows them.
        progress: called as `progress(stage, done, total)`.
        rules: which rule each operator got, to be filled in by the engine where its method takes such rules.
    """

    op: Ops
    selection: Selection
    flat: frozenset[str]
    references: ReferenceSet | None
    progress: Progress
    rules: list[LayerRule]

    def at_x(
        self, active: frozenset[str] = frozenset(), blocked: frozenset[tuple[str, int]] = frozenset()
    ) -> Environment:
        """Return the values of the model at x, with the batch bound.

        Args:
            active, blocked: see `Path`.
        """
        lowered, target = self.selection.lowered, self.selection.target
        values = Environment(self.op, lowered, self.flat, active, blocked)
        names = [str(v.name) for v in lowered.model.graph.inputs if v.name in lowered.batched]
        source = next(name for name in (*target.tensors, *names) if name in names)  # axis 0 is the batch
        self.op.bind_batch(values.at(source))
        return values


class Engine(ABC):
    """How methods of one kind get their attributions, from what is chosen in a model to the graph.

    A new engine says what would be explained, selects, names its outputs and emits; the rest has defaults.
    """

    players: ClassVar[Literal["player", "sum"]] = "player"
    """What the attribution of a group is: that of one player, or the sum of its features'."""

    takes_missing: ClassVar[bool] = True
    """Whether references may hold missing values."""

    @abstractmethod
    def leaves(self, lowered: Lowered, method: Method, inputs: Sequence[str] | None) -> tuple[Leaf, ...]:
        """Return the tensors that would get attributions, before an output is chosen."""

    @abstractmethod
    def select(self, lowered: Lowered, method: Method, request: CompileRequest) -> Selection:
        """Choose what is explained, and what the engine needs for it.

        Raises:
            InvalidOptionError: an output, target, input, layer or feature name that does not exist, or
                options that do not go together.
            UnsupportedModelError: a model that the engine cannot explain; the text says why.
            InvalidReferencesError: references that are missing, or whose columns do not fit.
        """

    def choices(self, lowered: Lowered, method: Method, request: CompileRequest) -> "list[MethodChoice]":
        """Return the methods to try for one that is requested, in their order: itself alone."""
        del lowered, request
        return [MethodChoice(method)]

    @abstractmethod
    def outputs(self, selection: Selection) -> Outputs:
        """Return the names of what the graph will answer beside the model's own outputs."""

    @abstractmethod
    def emit(self, canvas: Canvas) -> None:
        """Add the explanation to the graph.

        Raises:
            UnsupportedModelError, InvalidReferencesError, InvalidOptionError: what shows only here.
        """

    def axes(self, method: Method, references: ReferenceSet | None) -> dict[str, int]:
        """Return the axes that can be computed in chunks, with the number of their rows."""
        del method, references
        return {}

    def sizes(self, selection: Selection) -> dict[str, int]:
        """Return the lengths of the graph's axes beside N, T and K."""
        del selection
        return {}

    def points(self, method: Method, references: int) -> int:
        """Return how many points are computed for one row and target, of so many references."""
        del method
        return references

    def on(self, selection: Selection, nodes: Mapping[ir.Node, ir.Node]) -> Selection:
        """Return the selection in a copy of the model, whose nodes stand for those of the original."""
        del nodes
        return selection

    def flat(self, selection: Selection) -> frozenset[str]:
        """Return names of values that are taken as the model holds them, beside those that lowering knows."""
        del selection
        return frozenset()

    def path(self, selection: Selection) -> Collection[ir.Node]:
        """Return the nodes whose rules are called."""
        del selection
        return ()

    def carries_all(self, selection: Selection, layer: str) -> bool:
        """Tell whether the attributions of an inner tensor add up to the output's difference."""
        del selection, layer
        return False

    def options(self, selection: Selection) -> dict[str, Any]:
        """Return what the digest of the options holds beside the method's own."""
        del selection
        return {}

    def splits(self, selection: Selection) -> Mapping[str, Sequence[Sequence[float]]]:
        """Return by input, for each element of its row, the numbers from which on answers may be others.

        An input about which nothing is known is absent.
        """
        del selection
        return {}

    def extensions(self, method: Method) -> Sequence[Extension]:
        """Return what of a method is no part of Rationale."""
        del method
        return ()

    def answers_missing(
        self, selection: Selection, spec: TensorSpec, references: ReferenceSet | None
    ) -> bool:
        """Tell whether rows of an explained input may hold missing values: as the references do.

        A text may always be empty.
        """
        if spec.datatype == DATATYPES["STRING"]:
            return True
        array = references.arrays.get(spec.name) if references and self.takes_missing else None
        return array is not None and is_float(array.dtype) and bool(np.isnan(array).any())

    def in_space(self, method: Method, space: str, transform: str) -> Method:
        """Return the method for a score, or its margin, that trees make of theirs by a transform.

        Args:
            space: of a decision profile, "output" or "margin".
            transform: LOGISTIC …; empty where no trees make the score.

        Raises:
            InvalidOptionError: another method explains that; the text says which.
        """
        if space == "margin" and transform:
            raise InvalidOptionError(
                f"space 'margin', of trees, is explained by treeshap, not by {method.name}"
            )
        return method

    def open_faults(self, method: Method) -> list[str]:
        """Return what of a method needs its references when the graph is made."""
        del method
        return []


def demand_no_layers(method: Method, request: CompileRequest) -> None:
    """Raise InvalidOptionError where layers are asked for, of a method that meets none."""
    if request.layers or request.concepts:
        raise InvalidOptionError(f"{method.name} walks through no layers: leave --layers and --concepts out.")


def combine(
    selection: Selection, references: ReferenceSet | None, variants: Variants, progress: Progress
) -> Plan:
    """Plan the combined model next to the lowered one, to be built as memory allows.

    Args:
        variants: for what machine operators choose them.
        progress: called as `progress(stage, done, total)`.

    Raises:
        InvalidOptionError: names that are taken.
    """
    engine, target = selection.method.engine, selection.target
    own_inputs = names_of_inputs(target.tensors) if references and references.is_open else set()
    check_names(selection.lowered, engine.outputs(selection).names | own_inputs)

    rules: list[LayerRule] = []

    def build(chunks: Chunks) -> ir.Model:
        """Return the combined graph with nothing computed yet."""
        copy, flat = _cloned(selection)
        lowered, output = copy.lowered, copy.target.output
        graph = lowered.model.graph
        sizes = {"T": target.count, "K": references.count if references else 1, "S": 1, "C": 1}
        sizes |= engine.sizes(copy)
        dtype = lowered.specs[output][1]
        op = Ops(graph, graph.opset_imports.get("", 21), sizes, dtype, variants, chunks)
        variants.begin()
        engine.emit(Canvas(op, copy, flat, references, progress, rules))
        make_room(lowered.model, {v.name for v in (*graph.inputs, *graph.outputs)}.__contains__)
        return lowered.model

    return Plan(build, engine.axes(selection.method, references), rules)


def _cloned(selection: Selection) -> tuple[Selection, frozenset[str]]:
    """Return a copy whose graph may be changed, and the names of `batch_leading`.

    Tensors are shared. The names are as lowering knows them: what is spelled out here has inner values of
    which it knows nothing, unless they have to be lifted.
    """
    lowered, engine = selection.lowered, selection.method.engine
    model = lowered.model.clone()
    copies = dict(zip(lowered.model.graph, model.graph, strict=True))
    on_path = {copies[node] for node in engine.path(selection)}
    before = len(model.graph)
    off_path = [n for n in copies.values() if n.op_type == "DequantizeLinear" and n not in on_path]
    if off_path:
        spell_out_dequantising(model.graph, off_path)
    to_be_lifted = lowered.single_row_only and len(model.graph) != before
    copy = with_model(lowered, model) if to_be_lifted else replace(lowered, model=model)
    flat = batch_leading(lowered) | engine.flat(selection)
    return replace(engine.on(selection, copies), lowered=copy), flat


def request_of(method: Method, **fields: Any) -> CompileRequest:
    """Return what a method of one's own making, and the fields beside it, ask for.

    Raises:
        InvalidOptionError: what is no method, or a field that is not as it says.
    """
    if not isinstance(getattr(method, "engine", None), Engine):
        raise InvalidOptionError(
            f"method {method!r} names no engine: give DeepShap(references), say, or see CONTRIBUTING.md for "
            "one of your own."
        )
    name, options = method.name, dict(method.options)
    if options.pop("times_input", False):
        name = "input-x-gradient"
    if rules := options.pop("rules", None):
        options["rule"] = ["=".join(rule) for rule in rules]
    opened = method.reference_set
    k = opened.count if isinstance(opened, OpenReferences) else None
    try:
        return CompileRequest(method=name, options=options, open_references=k, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidOptionError(
            f"{'.'.join(map(str, first['loc']))} {first['input']!r}: {first['msg'].lower()}."
        ) from error
