"""The interface of coalition methods."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rationale.methods.engine import EngineChoice, WeightedMethod
from rationale.methods.outputs import STANDARD_ERROR
from rationale.methods.players import CoalitionGame


@dataclass(frozen=True, eq=False)
class Coalitions:
    """Coalitions of P players; their values v [C] give φ = Σ_d weights · (v[joined] − v[before]).

    Attributes:
        masks: bool [C, P], the members: nobody in the first coalition, everybody in the last.
        joined, before: [D, P] coalition numbers with and without the player; the other members are the same.
        weights: [D, P], whose sum is 1 for each player.
    """

    masks: np.ndarray
    joined: np.ndarray
    before: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Game(EngineChoice):
    """The game whose value is the explained output."""

    game: CoalitionGame


class CoalitionMethod(WeightedMethod):
    """A method that needs no walk and no rules.

    It calls the unchanged model, with the features of a coalition from the row and all others from a
    reference.
    """

    @property
    @abstractmethod
    def standard_error(self) -> bool:
        """True if the graph returns the standard error, computed over the `pairs`."""

    @property
    def further_outputs(self) -> Sequence[str]:
        return [STANDARD_ERROR] if self.standard_error else []

    @property
    @abstractmethod
    def pairs(self) -> int:
        """The number of independent draws; each has an equal, contiguous share of the gains [D, P]."""

    @abstractmethod
    def coalitions(self, players: int) -> Coalitions:
        """Return the coalitions of `players` players; raise InvalidOptionError if there are too many."""
