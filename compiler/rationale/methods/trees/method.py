"""What the trees ask of their methods."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Method
from rationale.methods.outputs import INTERACTIONS
from rationale.references.reference_set import ReferenceSet
from rationale.trees.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Margins:
    """An ensemble's scores with all that the model adds to them.

    They are [1, columns] of the row and [K, columns] of the references.
    """

    at_x: Tensor
    at_references: np.ndarray


class TreeMethod(Method):
    """A method that needs no walk: it knows the attributions of a tree ensemble from its trees."""

    @property
    @abstractmethod
    def probability(self) -> bool:
        """Whether to explain the probabilities that the ensemble makes of its scores."""

    @property
    @abstractmethod
    def interactions(self) -> bool:
        """Whether the graph shall return the interactions of each two players."""

    @property
    def further_outputs(self) -> Sequence[str]:
        return [INTERACTIONS] if self.interactions else []

    @abstractmethod
    def attributions(
        self,
        op: Ops,
        ensemble: Ensemble,
        target_matrix: np.ndarray,
        x: Tensor,
        references: ReferenceSet | None,
        player_of: np.ndarray,
        margins: Margins | None = None,
    ) -> Tensor:
        """Return the attributions of one row, row shape [1, targets · players].

        Args:
            target_matrix: [columns, targets] how much of each of the ensemble's scores a target is.
            x: what the ensemble reads, row shape [1, features].
            references: the rows of `reference_set`.
            player_of: [features] the player of each.
            margins: where probabilities are explained.
        """

    @abstractmethod
    def interaction_values(
        self,
        op: Ops,
        ensemble: Ensemble,
        target_matrix: np.ndarray,
        x: Tensor,
        references: ReferenceSet | None,
        attributions: Tensor,
        player_of: np.ndarray,
    ) -> Tensor:
        """Return the interactions of each two players of one row, row shape [1, targets · players · players].

        The sum over one of them is the other's attribution.

        Args:
            attributions: row shape [1, targets · players].
        """
