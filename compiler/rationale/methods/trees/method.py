"""The interface of tree methods."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Method
from rationale.methods.outputs import INTERACTIONS
from rationale.trees.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Margins:
    """An ensemble's scores, including all constants that the model adds to them.

    They are [1, columns] for the row and [K, columns] for the references; None for those of a request.
    """

    at_x: Tensor
    at_references: np.ndarray | None


@dataclass(frozen=True, eq=False)
class OpenScores:
    """The references that come with each request, along K.

    Attributes:
        features: the ensemble's features, row shape [1, features].
        weights: the weights, of sum 1, in the rows' form: row shape [1, K].
        count: K.
        margins: the ensemble's margins, row shape [1, columns]; None if scores are explained.
    """

    features: Tensor
    weights: Tensor
    count: int
    margins: Tensor | None


@dataclass(frozen=True, eq=False)
class TreeScores:
    """The scores of an ensemble that a method explains, and the rows with which it compares them.

    Attributes:
        target_matrix: [columns, targets], the targets' coefficients of the ensemble's scores.
        x: the ensemble's features, row shape [1, features].
        rows: [K, features], the rows of `reference_set`; None without them.
        weights: [K], the weights of these rows; None for equal weights.
        player_of: [features], the player of each feature.
        margins: the margins if probabilities are explained, else None.
        open: the references if they come with each request; `rows` is None then.
    """

    ensemble: Ensemble
    target_matrix: np.ndarray
    x: Tensor
    rows: np.ndarray | None
    weights: np.ndarray | None
    player_of: np.ndarray
    margins: Margins | None
    open: OpenScores | None = None

    @property
    def leaf_values(self) -> np.ndarray:
        """A leaf's contribution to each target: [leaves, targets]."""
        return np.asarray(self.ensemble.weights @ self.target_matrix)


class TreeMethod(Method):
    """A method without a walk: it computes a tree ensemble's attributions from its trees."""

    @property
    @abstractmethod
    def probability(self) -> bool:
        """True to explain the probabilities that the ensemble makes of its scores."""

    @property
    @abstractmethod
    def interactions(self) -> bool:
        """True if the graph returns the interactions between players."""

    @property
    def further_outputs(self) -> Sequence[str]:
        return [INTERACTIONS] if self.interactions else []

    @abstractmethod
    def attributions(self, op: Ops, scores: TreeScores) -> Tensor:
        """Return the attributions of one row, row shape [1, targets · players]."""

    @abstractmethod
    def interaction_values(self, op: Ops, scores: TreeScores, attributions: Tensor) -> Tensor:
        """Return the interactions between players of one row, row shape [1, targets · players · players].

        The sum over one of the two players is the other's attribution.

        Args:
            attributions: row shape [1, targets · players].
        """
