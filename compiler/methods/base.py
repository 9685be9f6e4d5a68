"""What the compiler asks of a method."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.manifest import Extension
from compiler.references.reference_set import Baseline, OpenReferences, ReferenceSet
from compiler.trees.ensemble import Ensemble
from compiler.walk.backward import Pull
from compiler.walk.call import At, Call

References = npt.ArrayLike | Mapping[str, npt.ArrayLike] | Baseline | OpenReferences


class Gap(StrEnum):
    """Why explained − base − Σ attributions may differ from 0; the check judges a gap by it."""

    ROUNDING = "rounding"  # the rules add up exactly: anything larger is a wrong rule
    QUADRATURE = "quadrature"  # an integral by a few points: more of them close it
    SAMPLING = "sampling"  # a mean over draws: to be compared with its standard error
    ABSORBED = "absorbed"  # what biases and stabilisers keep, by the method's definition


class Method(Protocol):
    """A method asks no operator's name: it knows kinds and traits, and where to call rules."""

    name: ClassVar[str]
    has_base_value: ClassVar[bool]

    @property
    def gap(self) -> Gap | None:
        """None: the method promises no sum, and the graph has no completeness gap."""

    @property
    def reference_set(self) -> References | None:
        """One array [K, *shape of the input], or one for each explained input, or one number for a
        single row of it; None without references."""

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


@runtime_checkable
class Walked(Method, Protocol):
    """A method that walks back from the output, operator by operator."""

    def pull(self, op: Ops, call: Call, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """The multiplier of each input of `call`, given the multiplier(s) of its output(s)."""

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        """The attributions of an input from its multiplier: neither K nor S among the result's axes.

        Args:
            r: the references, or where `OnPaths.point` lets the path start.
        """


@dataclass(frozen=True, eq=False)
class Margins:
    """An ensemble's scores with all that the model adds to them: of the row [1, columns], of the references
    [K, columns]."""

    at_x: Tensor
    at_references: np.ndarray


@runtime_checkable
class OfTrees(Method, Protocol):
    """A method that needs no walk: it knows the attributions of a tree ensemble from its trees."""

    @property
    def probability(self) -> bool:
        """Whether to explain the probabilities that the ensemble makes of its scores."""

    @property
    def interactions(self) -> bool:
        """Whether the graph shall return the interactions of each two players."""

    def attributions(
        self,
        op: Ops,
        ensemble: Ensemble,
        asked: np.ndarray,
        x: Tensor,
        references: ReferenceSet | None,
        owners: np.ndarray | None = None,
        margins: Margins | None = None,
    ) -> Tensor:
        """The attributions of one row, row shape [1, targets · players].

        Args:
            asked: [columns, targets] how much of each of the ensemble's scores a target is.
            x: what the ensemble reads, row shape [1, features].
            references: the rows of `reference_set`.
            owners: [features] the player of each; None where each feature is a player.
            margins: where probabilities are explained.
        """

    def interaction_values(
        self,
        op: Ops,
        ensemble: Ensemble,
        asked: np.ndarray,
        x: Tensor,
        references: ReferenceSet | None,
        attributions: Tensor,
        owners: np.ndarray | None = None,
    ) -> Tensor:
        """The interactions of each two players of one row, row shape [1, targets · players · players]; the
        sum over one of them is the other's attribution.

        Args:
            attributions: row shape [1, targets · players].
        """


@dataclass(frozen=True, eq=False)
class Coalitions:
    """Coalitions of P players, and what their values v [C] say: φ = Σ_d weights · (v[joined] − v[before]).

    Attributes:
        masks: bool [C, P], who is in it: nobody in the first, everybody in the last.
        joined, before: [D, P] the numbers of coalitions with each player and without it, else the same.
        weights: [D, P], of sum 1 for each player.
    """

    masks: np.ndarray
    joined: np.ndarray
    before: np.ndarray
    weights: np.ndarray


@runtime_checkable
class OfCoalitions(Method, Protocol):
    """A method that needs no walk and no rule: it calls the model as it is, with the features of a coalition
    from the row and all others from a reference."""

    @property
    def standard_error(self) -> bool:
        """Whether the graph shall return it; it is one over the `pairs`."""

    @property
    def pairs(self) -> int:
        """Independent draws, of equally many of the gains [D, P] each, one behind the other."""

    def coalitions(self, players: int) -> Coalitions:
        """Of so many players; raises InvalidOptionError where they are too many."""


@runtime_checkable
class Planned(Protocol):
    """A method that joins operators into layers, or treats a layer by its place among the others."""

    def plan(self, op: Ops, calls: Sequence[Call], kept: Collection[str] = ()) -> tuple[Sequence[Call], Pull]:
        """The operators that the walk shall read, in topological order, and how each is pulled back.

        Without it the walk reads every operator as it is, one by one.

        Args:
            kept: names of values whose multipliers are asked for: what is joined for the sake of time alone
                leaves them. What the method's definition joins has no such value.
        """


@dataclass(frozen=True)
class Point:
    """Where rules are called instead of at x: `at`, on a path that comes from `start` (if it has one)."""

    at: Tensor
    start: Tensor | None


@runtime_checkable
class OnPaths(Protocol):
    """A method whose rules are called at other points than the sample: S of them."""

    each_reference: ClassVar[bool]  # whether every reference has S points of its own

    @property
    def points(self) -> int:
        """S."""

    def point(self, op: Ops, name: str, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> Point:
        """The points of an explained input: S, and K too with `each_reference`, among their axes."""


@runtime_checkable
class Averaged(Protocol):
    """A method whose attributions are a mean over independent draws, and so have a standard error."""

    averages: ClassVar[str]  # the axis, K or S, along which the draws lie

    @property
    def standard_error(self) -> bool:
        """Whether the graph shall return it."""

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        """What is averaged: the attributions of an input by each draw. No other axis of draws is left."""


@runtime_checkable
class Extended(Protocol):
    """A method that may compute with what is no part of Rationale."""

    @property
    def extensions(self) -> Sequence[Extension]:
        """What that is, each once."""


@runtime_checkable
class ExplainsScores(Protocol):
    """A method that starts from scores rather than from the probabilities that are taken of them."""

    explains_scores: ClassVar[bool]


def pull_back(at: At, call: Call, m: Any) -> list[Tensor | None]:
    """Every varying input's pullback at a point.

    Raises:
        UnsupportedModelError: an input varies for which the operator's rule has no pullback.
    """
    leaving: list[Tensor | None] = []
    for i, (varying, pullback) in enumerate(zip(call.varying, at.pullbacks, strict=True)):
        if varying and pullback is None:
            raise UnsupportedModelError(
                f"its input {i} ({call.inputs[i]!r}) depends on what is explained; its rule takes that as "
                "fixed"
            )
        leaving.append(pullback(m) if varying and pullback is not None else None)
    return leaving


def whole_number(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raises InvalidOptionError for anything else."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        span = f"{least} to {most}" if most is not None else f"{least} or more"
        raise InvalidOptionError(f"{name} must be a whole number, {span}, not {value!r}.")
