"""What the compile asks of a method, and of the engine that a method names.

An engine knows what a kind of method needs of a model and how its attributions come into the graph: the walk
(DeepSHAP, gradients, LRP), trees, coalitions. A method of one's own names one of them; a package of its own
may bring another.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from compiler.errors import InvalidOptionError
from compiler.explain.environment import Environment
from compiler.explain.leaves import Leaf
from compiler.explain.outputs import Outputs
from compiler.explain.target import Target
from compiler.graph.ops import Ops
from compiler.lowering import Lowered
from compiler.manifest import Extension, TensorSpec
from compiler.memory.fit import Progress
from compiler.references.reference_set import Baseline, OpenReferences, ReferenceSet
from compiler.request import CompileRequest, FeatureNames
from compiler.runtime.session import is_float

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
    """A method that answers a request, and why it is taken."""

    method: Method
    why: str = ""


@dataclass(frozen=True)
class Canvas:
    """A copy of the lowered model, to which an engine adds an explanation.

    Attributes:
        selection: of the copy.
        flat: names of the values whose rows lie one behind the other, as lowering knows them.
        progress: called as `progress(stage, done, total)`.
    """

    op: Ops
    selection: Selection
    flat: frozenset[str]
    references: ReferenceSet | None
    progress: Progress

    def at_x(
        self, active: frozenset[str] = frozenset(), held: frozenset[tuple[str, int]] = frozenset()
    ) -> Environment:
        """Return the values of the model at x, with the batch bound; see `Path` for `active` and `held`."""
        lowered, target = self.selection.lowered, self.selection.target
        values = Environment(self.op, lowered, self.flat, active, held)
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

    def extensions(self, method: Method) -> Sequence[Extension]:
        """Return what of a method is no part of Rationale."""
        del method
        return ()

    def answers_missing(
        self, selection: Selection, spec: TensorSpec, references: ReferenceSet | None
    ) -> bool:
        """Tell whether rows of an explained input may hold missing values: as the references do."""
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
