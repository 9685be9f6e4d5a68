"""Deletion and insertion: faithfulness of attributions to the model (Petsiuk et al., "RISE", 2018).

P pairs of a row and a target, F features, S steps, D draws; docs/evaluation.md explains
the numbers. If features form groups, the features of a player are replaced together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rationale.evaluate.explained_model import ExplainedModel, Pairs, slices
from rationale.schema.machine import MAX_BATCH
from rationale.schema.request import Progress


@dataclass(frozen=True)
class Curve:
    """The mean explained output while features are replaced (deletion) or put back (insertion).

    Attributes:
        fractions: [S + 1], shares of the players, 0 to 1.
        values: [S + 1], in units of the explained output.
        control: [D, S + 1], values in random orders.
    """

    fractions: np.ndarray
    values: np.ndarray
    control: np.ndarray

    @property
    def area(self) -> float:
        return float(_area(self.fractions, self.values))

    @property
    def control_areas(self) -> np.ndarray:
        """Areas of the control curves, [D]."""
        return np.asarray(_area(self.fractions, self.control))


def _area(fractions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Integrate by trapezoids, over the last axis."""
    return np.asarray(((values[..., 1:] + values[..., :-1]) / 2 * np.diff(fractions)).sum(axis=-1))


# -- deletion and insertion ----------------------------------------------------------------------------


def rank_players(scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return ranks [P, players]: 0 for the largest score of each row; ties in random order."""
    order = np.lexsort((random.random(scores.shape), -scores), axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[1])[None], axis=1)
    return ranks


def cut_counts(players: int, steps: int) -> np.ndarray:
    """Return the number of replaced players after each step [S + 1], 0 to all; one by one if they fit."""
    return np.unique(np.linspace(0, players, min(steps, players) + 1).round().astype(np.int64))


def replacement_curve(
    subject: ExplainedModel,
    pairs: Pairs,
    ranks: np.ndarray,
    cuts: np.ndarray,
    baseline: np.ndarray,
    count: Callable[[int], None],
) -> np.ndarray:
    """Return the mean explained output [S + 1] with players of rank < cut at their baseline."""
    total = np.zeros(len(cuts))
    for batch in slices(len(ranks), MAX_BATCH):
        rows, elements = pairs.rows[batch], pairs.elements[batch]
        x = subject.features[rows]
        for i, cut in enumerate(cuts):
            mixed = np.where((ranks[batch] < cut)[:, subject.owner], baseline, x)
            total[i] += subject.answer(mixed, rows)[np.arange(len(rows)), elements].sum()
            count(len(rows))
    return total / len(ranks)


def random_orders(
    subject: ExplainedModel,
    pairs: Pairs,
    cuts: np.ndarray,
    baseline: np.ndarray,
    draws: int,
    seed: int,
    progress: Progress,
) -> np.ndarray:
    """Return deletion curves [D, S + 1] in random orders, a new order for each pair and draw."""
    random = np.random.default_rng([seed, 1])
    count = counter(progress, "random order", draws * len(cuts) * len(pairs.rows))
    curves = []
    for _ in range(draws):
        ranks = rank_players(np.zeros(pairs.attributions.shape), random)
        curves.append(replacement_curve(subject, pairs, ranks, cuts, baseline, count))
    return np.stack(curves)


def deletion_and_insertion(
    subject: ExplainedModel,
    pairs: Pairs,
    cuts: np.ndarray,
    baseline: np.ndarray,
    control: np.ndarray,
    seed: int,
    progress: Progress,
) -> tuple[Curve, Curve]:
    """Return both curves, with the most relevant features first, by signed attribution.

    Insertion from the most relevant on equals deletion from the least relevant on, read backwards. A
    reversed random order is as random, so both curves share a control.
    """
    ranks = rank_players(pairs.attributions, np.random.default_rng([seed, 2]))
    count = counter(progress, "deletion and insertion", 2 * len(cuts) * len(ranks))
    deleted = replacement_curve(subject, pairs, ranks, cuts, baseline, count)
    last = ranks.shape[1] - 1
    inserted = replacement_curve(subject, pairs, last - ranks, cuts, baseline, count)
    fractions = cuts / cuts[-1]
    return (
        Curve(fractions, deleted, control),
        Curve(1 - fractions[::-1], inserted[::-1], control[:, ::-1]),
    )


def counter(progress: Progress, stage: str, total: int) -> Callable[[int], None]:
    """Return a function that adds to a count and reports progress."""
    counted = 0

    def count(step: int) -> None:
        nonlocal counted
        counted += step
        progress(stage, counted, total)

    return count
