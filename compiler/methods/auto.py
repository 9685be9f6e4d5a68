"""The method that answers exactly where one does, chosen when the model is known."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from compiler.methods.base import References, Weighted


@dataclass(frozen=True, eq=False)
class Auto(Weighted):
    """Shapley values by what is exact for the explained output, else by what approximates them.

    TreeShap where the output is the raw score of a tree ensemble; DeepShap where every operator before it is
    linear; ExactShap up to 12 features; else DeepShap, and PermutationShap where the model has operators
    without a rule. The manifest names the method that was taken, and a warning says why. A probability that
    is made of scores is explained itself: its margin is had by name alone.

    Args:
        references: one array [K, …], or one for each explained input.
        weights: K weights of the references (they are normalised); None for equal weights.
    """

    references: References
    weights: npt.ArrayLike | None = None

    name: ClassVar[str] = "auto"

    @property
    def options(self) -> dict[str, Any]:
        return {}
