"""What the walk asks of its methods."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from compiler.errors import UnsupportedModelError
from compiler.explain.call import At, Call
from compiler.explain.engine import Method
from compiler.explain.walk.backward import Pull
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.manifest import Extension


@runtime_checkable
class Walked(Method, Protocol):
    """A method that walks back from the output, operator by operator."""

    def pull(self, op: Ops, call: Call, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """Return the multiplier of each input of `call`, given the multiplier(s) of its output(s)."""

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        """Return the attributions of an input from its multiplier: neither K nor S among the result's axes.

        Args:
            r: the references, or where `OnPaths.point` lets the path start.
        """


@runtime_checkable
class Planned(Protocol):
    """A method that joins operators into layers, or treats a layer by its place among the others."""

    def plan(self, op: Ops, calls: Sequence[Call], kept: Collection[str] = ()) -> tuple[Sequence[Call], Pull]:
        """Return the operators that the walk reads, in topological order, and how each is pulled back.

        Without it the walk reads every operator as it is, one by one.

        Args:
            kept: names of values whose multipliers are requested: what is joined for the sake of time alone
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
        """Return the points of an explained input: S, and K too with `each_reference`, among their axes."""


@runtime_checkable
class Averaged(Protocol):
    """A method whose attributions are a mean over independent draws, and so have a standard error."""

    averages: ClassVar[str]  # the axis, K or S, along which the draws lie

    @property
    def standard_error(self) -> bool:
        """Whether the graph shall return it."""

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        """Return what is averaged: the attributions of an input by each draw.

        No other axis of draws is left.
        """


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
    """Return every varying input's pullback at a point.

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
