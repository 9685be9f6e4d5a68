"""The base of methods that propagate from the output back to the inputs, operator by operator."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Gap, Method
from rationale.methods.environment import Call
from rationale.methods.propagation.backward import Carried, Pull
from rationale.references.reference_set import ReferenceSet


@dataclass(frozen=True)
class Point:
    """Where rules are called instead of at x: `at`, on a path that comes from `start` (if it has one)."""

    at: Tensor
    start: Tensor | None


class PropagationMethod(Method):
    """A method that hands multipliers, or relevance, back from the output.

    A subclass gives `pull` and `attribute`. The defaults call rules at x, read every operator as it is, and
    have no standard error.
    """

    explains_scores: ClassVar[bool] = False
    """Whether it starts from scores rather than from the probabilities that are made of them."""

    averages: ClassVar[str] = ""
    """The axis, K or S, along which the draws lie whose mean an attribution is; empty if there are none."""

    each_reference: ClassVar[bool] = True
    """Whether every reference has S points of its own."""

    @property
    def standard_error(self) -> bool:
        """Whether the graph returns the standard error of each attribution."""
        return False

    @property
    def has_gap_error(self) -> bool:
        """Whether the gap has a standard error: always if it is a sampling error.

        Without it, nobody could tell the gap from a fault.
        """
        return self.gap is Gap.SAMPLING

    @property
    def open_faults(self) -> Sequence[str]:
        drawn = bool(self.points) and not self.each_reference
        faults = [f"{self.name} draws from the references when the graph is made"] if drawn else []
        return faults + ["a standard error"] * self.standard_error

    def axes(self, references: ReferenceSet | None) -> dict[str, int]:
        """Return the axes that can be computed in chunks, with their lengths; of paired ones the longer."""
        counts = {"K": references.count} if references and not references.is_open else {}
        if not self.points:
            return counts
        if not self.each_reference:  # the references are met by the base value alone
            return {**counts, "S": self.points}
        return {"S": self.points} if "K" not in counts or self.points > counts["K"] else counts

    def rows_per_target(self, references: int) -> int:
        return (self.points or 1) * (references if self.each_reference else 1)

    def plan(self, op: Ops, calls: Sequence[Call], kept: Collection[str] = ()) -> tuple[Sequence[Call], Pull]:
        """Return the operators that the walk reads, in topological order, and how each is pulled back.

        A method overrides it to join operators into layers, or to treat a layer by its place.

        Args:
            kept: names of values whose multipliers are requested. Operators that are joined to save time
                leave these values; those that the method's definition joins have none.
        """
        del op, kept
        return calls, self.pull

    def point(self, op: Ops, name: str, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> Point:
        """Return the points of an explained input: S, and K too with `each_reference`, among their axes."""
        raise NotImplementedError(f"{self.name} has points, and says not where")

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        """Return the attributions of an input by each draw; no other axis of draws is left."""
        raise NotImplementedError(f"{self.name} averages, and says not what")

    @abstractmethod
    def pull(self, op: Ops, call: Call, m: Any) -> Sequence[Carried | None]:
        """Return the multiplier of each input of `call`, given the multiplier(s) of its output(s)."""

    @abstractmethod
    def attribute(self, op: Ops, m: Any, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> Tensor:
        """Return the attributions of an input from its multiplier: neither K nor S among the result's axes.

        Args:
            r: the references, or where `point` lets the path start.
        """
