"""What the coalitions ask of their methods."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rationale.methods.engine import Part, Weighted
from rationale.methods.outputs import STANDARD_ERROR
from rationale.methods.players import CoalitionGame


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


@dataclass(frozen=True, eq=False)
class Game(Part):
    """The game that the explained output is played as."""

    game: CoalitionGame


class CoalitionMethod(Weighted):
    """A method that needs no walk and no rule.

    It calls the model as it is, with the features of a coalition from the row and all others from a
    reference.
    """

    @property
    @abstractmethod
    def standard_error(self) -> bool:
        """Whether the graph shall return it; it is one over the `pairs`."""

    @property
    def further_outputs(self) -> Sequence[str]:
        return [STANDARD_ERROR] if self.standard_error else []

    @property
    @abstractmethod
    def pairs(self) -> int:
        """Independent draws, of equally many of the gains [D, P] each, one behind the other."""

    @abstractmethod
    def coalitions(self, players: int) -> Coalitions:
        """Return the coalitions of so many players; raise InvalidOptionError where they are too many."""
