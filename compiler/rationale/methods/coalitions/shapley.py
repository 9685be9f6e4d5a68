"""Shapley values of any model from the values of coalitions: all of them, or those of random orders."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rationale.errors import InvalidOptionError
from rationale.methods.coalitions.engine import COALITIONS
from rationale.methods.coalitions.method import CoalitionMethod, Coalitions
from rationale.methods.engine import References
from rationale.schema.request import whole_number

MOST_PLAYERS, MOST_ENUMERATED = 512, 12
MOST_PERMUTATIONS = 10_000


@dataclass(frozen=True, eq=False)
class ExactShap(CoalitionMethod):
    """Shapley values of any model, computed from every coalition of its players.

    Each of the 2^players values is the mean of the model's output over the references. Shapley, "A value for
    n-person games", 1953.

    Players in the coalition come from the row, all others from a reference. A row costs 2^players · K rows of
    the model.

    Args:
        references: one array [K, …], or one for each explained input; NaN for a missing value.
        weights: K weights of the references (they are normalised); None for equal weights.
    """

    references: References
    weights: npt.ArrayLike | None = None

    name: ClassVar[str] = "exactshap"
    engine = COALITIONS
    standard_error: ClassVar[bool] = False
    pairs: ClassVar[int] = 1

    def coalitions(self, players: int) -> Coalitions:
        """Return every coalition, numbered by its bits.

        φ_i = Σ_S |S|! (P − |S| − 1)! / P! · (v(S ∪ i) − v(S)).

        Raises:
            InvalidOptionError: if there are more than 12 players.
        """
        if players > MOST_ENUMERATED:
            raise InvalidOptionError(
                f"exactshap computes 2^players coalitions, so at most {MOST_ENUMERATED} players, not "
                f"{players}: join features to groups (groups=, --group), or choose permutationshap."
            )
        numbers = np.arange(2**players)
        bits = 1 << np.arange(players)
        without = np.stack([numbers[(numbers & bit) == 0] for bit in bits], axis=1)  # [2^(P − 1), P]
        masks = (numbers[:, None] & bits) > 0
        size = masks.sum(axis=1)[without]
        chances = [1 / (players * math.comb(players - 1, s)) for s in range(players)]
        return Coalitions(masks, without + bits, without, np.asarray(chances)[size])


@dataclass(frozen=True, eq=False)
class PermutationShap(CoalitionMethod):
    """Shapley values of any model, estimated from pairs of orders in which its players join a coalition.

    Castro et al., "Polynomial calculation of the Shapley value based on sampling", 2009; each order is
    followed by its reverse (antithetic): Mitchell et al., "Sampling permutations for Shapley value
    estimation", 2022, as in shap's PermutationExplainer. The gains along an order add up to the difference of
    the ends, so that attributions are complete for any number of orders. They are exact if no more than two
    players interact at a time.

    Args:
        references: one array [K, …], or one for each explained input; NaN for a missing value.
        permutations: pairs of orders. A row costs up to 2 · players · permutations · K rows of the model.
        seed: seed of the random orders. The graph contains them, so its answers do not vary.
        weights: K weights of the references (they are normalised); None for equal weights.
        standard_error: whether the graph also returns each attribution's standard error over the pairs.

    Raises:
        InvalidOptionError: if permutations are outside 1 to 10,000 (2 with a standard error), or the seed is
            negative.
    """

    references: References
    permutations: int = 10
    seed: int = 0
    weights: npt.ArrayLike | None = None
    standard_error: bool = False

    name: ClassVar[str] = "permutationshap"
    engine = COALITIONS

    def __post_init__(self) -> None:
        whole_number("permutations", self.permutations, 1 + self.standard_error, MOST_PERMUTATIONS)
        whole_number("seed", self.seed, 0)

    @property
    def options(self) -> dict[str, Any]:
        draws = {"permutations": int(self.permutations), "seed": int(self.seed)}
        return {**draws, "standard_error": self.standard_error}

    @property
    def pairs(self) -> int:
        return self.permutations

    def coalitions(self, players: int) -> Coalitions:
        """Return the coalitions that occur along the orders, each once.

        Raises:
            InvalidOptionError: if there are more than 512 players.
        """
        if players > MOST_PLAYERS:
            raise InvalidOptionError(
                f"permutationshap takes up to {MOST_PLAYERS} players, not {players}: join features to "
                "groups (groups=, --group), or choose a method with rules for operators (deepshap)."
            )
        random = np.random.default_rng(self.seed)
        forward_orders = [random.permutation(players) for _ in range(self.permutations)]
        orders = np.asarray(
            [order for permutation in forward_orders for order in (permutation, permutation[::-1])]
        )
        positions = np.argsort(orders, axis=1)  # [2 · pairs, P]: when a player joins
        steps = positions[:, None] < np.arange(players + 1)[:, None]  # [2 · pairs, P + 1, P]: who has joined
        packed = np.packbits(steps.reshape(-1, players), axis=1)
        _, first_occurrence, numbers = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(
            steps.sum(axis=2).reshape(-1)[first_occurrence], kind="stable"
        )  # by size: nobody first
        numbers = np.argsort(order)[numbers.reshape(-1)].reshape(steps.shape[:2])
        masks = steps.reshape(-1, players)[first_occurrence[order]]
        joined, before = (np.take_along_axis(numbers, positions + by, axis=1) for by in (1, 0))
        return Coalitions(masks, joined, before, np.full(joined.shape, 1 / len(orders)))
