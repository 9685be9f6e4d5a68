"""One applicant: the rows that changes make of its row, and their scores on either side of the threshold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rationale.decisions.decide import OUTCOMES, Decision, Outcome, outcomes_of
from rationale.decisions.decided import Undecided
from rationale.decisions.rows import (
    SIGMOID_ERROR,
    Tensors,
    logit,
    margin_output,
    profile_of,
    sigmoid,
)
from rationale.recourse.levers import Values
from rationale.schema.form import feature_names
from rationale.schema.manifest import Manifest
from rationale.schema.profile import DecisionProfile

Places = Mapping[str, tuple[str, int]]
SAFE = 1e-5  # of a score or margin: a row that is nearer to the threshold depends on rounding


class Answered(Protocol):
    """The decision on a row, as far as recourse depends on it."""

    @property
    def decision(self) -> Outcome: ...

    @property
    def score(self) -> float: ...

    @property
    def explained_value(self) -> float: ...


class Entry(Protocol):
    """The functions of a compiled entry that recourse calls."""

    def scores(self, inputs: Tensors) -> np.ndarray:
        """Return the score of each row, [N] float64."""
        ...

    def decide(self, inputs: Tensors, values: Sequence[Values]) -> list[Decision | Undecided]:
        """Return the decision on each row.

        Args:
            inputs: rows by input, [N, …] each.
            values: the features of each row, and the columns that only knock-outs read.
        """
        ...


def places_of(manifest: Manifest) -> dict[str, tuple[str, int]]:
    """Return the input and the flat index of each feature of a model."""
    names = feature_names(manifest)
    return {name: (tensor, i) for tensor, own in names.items() for i, name in enumerate(own)}


def changed_rows(
    places: Places, inputs: Tensors, overrides: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Return a row of each input for each set of changed features, [len(overrides), …].

    Args:
        places: the input and the flat index of each feature; others, which only knock-outs read, are skipped.
        inputs: the row of each input, [1, …].
    """
    rows = {name: np.repeat(array, len(overrides), axis=0) for name, array in inputs.items()}
    flat = {name: array.reshape(len(overrides), -1) for name, array in rows.items()}
    for i, features in enumerate(overrides):
        for name, value in features.items():
            if name in places:
                tensor, index = places[name]
                flat[tensor][i, index] = as_element(value, flat[tensor][i, index])
    return rows


def as_element(value: Any, present: Any) -> Any:
    """Return a value in the type of an input's element: a server's tensors hold texts as bytes."""
    return value.encode() if isinstance(present, bytes) else value


@dataclass(frozen=True, eq=False)
class Applicant:
    """A row, the entry's decision on it, and the entry.

    A risk is a score, or a score times −1 if small scores are adverse: larger risks are more adverse.

    Attributes:
        places: the input and the flat index of each feature of the model; see `places_of`.
        inputs: the row of each input, [1, …].
        values: its features, and the columns that only knock-outs read; None for a missing value.
        is_logistic: whether the model answers the Sigmoid of a sum of leaves.
    """

    entry: Entry
    manifest: Manifest
    places: Places
    inputs: Tensors
    values: Values
    answer: Answered
    is_logistic: bool = False

    @cached_property
    def profile(self) -> DecisionProfile:
        return profile_of(self.manifest).profile

    @cached_property
    def sign(self) -> int:
        """The factor between a score and its risk."""
        return 1 if self.profile.adverse == "above" else -1

    @cached_property
    def bound(self) -> float:
        """The score at which approvals begin: the threshold, or the end of the band that a person decides."""
        if self.profile.refer is None:
            return self.profile.threshold
        return self.profile.refer[0 if self.sign > 0 else 1]

    @cached_property
    def has_margin(self) -> bool:
        """True if the score is the Sigmoid of a margin."""
        return self.is_logistic or margin_output(self.manifest) is not None

    @cached_property
    def total(self) -> float:
        """The margin of the score; the score itself if it has none."""
        if self.profile.space == "margin":
            return self.answer.explained_value
        return float(logit(self.answer.score)) if self.has_margin else self.answer.score

    @cached_property
    def error(self) -> float:
        """The distance that `total` may have from the margin: a score near 0 or 1 tells little of it."""
        if margin_output(self.manifest) is not None or not self.is_logistic:
            return 0.0
        variance = self.answer.score * (1 - self.answer.score)
        return SIGMOID_ERROR / variance if variance > 0 else np.inf

    def cut(self, *, of_margin: bool, is_certain: bool = True) -> float:
        """Return the largest risk of an approval, of scores or of their margins.

        Args:
            is_certain: True for a risk that is approved whatever rounding does; False for one above which
                rounding lets nothing be approved.
        """
        bound = float(logit(self.bound)) if of_margin and self.has_margin else self.bound
        distance = SAFE * max(abs(bound), float(of_margin) or abs(bound))
        return self.sign * bound + (-distance if is_certain else distance)

    def scores_of(self, totals: np.ndarray) -> np.ndarray:
        """Return the scores of margins; of scores themselves if they have none."""
        return sigmoid(totals) if self.has_margin else totals

    def rows(self, overrides: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return a row of each input for each set of changed features, [len(overrides), …]."""
        return changed_rows(self.places, self.inputs, overrides)

    def risks(self, overrides: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return the risk of the row for each set of changed features."""
        return self.sign * self.entry.scores(self.rows(overrides))

    def is_near(self, scores: np.ndarray) -> np.ndarray:
        """Tell whether scores are so near to a bound that rounding may decide on which side they are."""
        largest = float(np.abs(scores).max(initial=0.0, where=np.isfinite(scores)))
        bounds = (self.profile.threshold, *(self.profile.refer or ()))
        near = [np.abs(scores - each) <= SAFE * max(abs(each), largest) for each in bounds]
        any_near: np.ndarray = np.any(near, axis=0)
        return any_near

    def confirmed(self, overrides: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Return the outcome for each set of changed features; the entry decides on those near to a bound."""
        scores = self.entry.scores(self.rows(overrides))
        outcomes = [OUTCOMES[place] for place in outcomes_of(self.profile, scores)]
        for i in np.flatnonzero(self.is_near(scores)).tolist():
            (decision,) = self.decide([overrides[i]])
            outcomes[i] = decision.decision or self.answer.decision  # a row without a decision flips none
        return outcomes

    def decide(self, overrides: Sequence[Mapping[str, Any]]) -> list[Decision | Undecided]:
        """Return the entry's decision for each set of changed features."""
        return self.entry.decide(self.rows(overrides), [{**self.values, **each} for each in overrides])
