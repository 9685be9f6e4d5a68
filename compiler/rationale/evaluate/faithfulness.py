"""How well attributions say what the model does: deletion, insertion, infidelity, max-sensitivity.

Petsiuk et al., "RISE", 2018 (deletion and insertion); Yeh et al., "On the (In)fidelity and Sensitivity of
Explanations", 2019. P pairs of a row and a target, F features, S steps, D draws; docs/evaluation.md says how
to read the numbers. Where features are in groups, those of a player are replaced together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rationale.evaluate.explained_model import Pairs, Subject, slices
from rationale.schema.machine import MAX_BATCH
from rationale.schema.request import Progress

PERTURBATIONS = ("baseline", "gaussian")
GAUSSIAN_SIGMA = 0.2  # of each feature's spread in the file; Yeh et al. take 0.2 of standardised features
NEAR_BASELINE = 0.1  # of the spread: a share of the output over a smaller distance is no slope to speak of


@dataclass(frozen=True)
class Curve:
    """The mean explained output while features are replaced (deletion) or put back (insertion).

    Attributes:
        fractions: [S + 1] of the features, 0 to 1.
        values: [S + 1], in units of the explained output.
        control: [D, S + 1], the same in random orders.
    """

    fractions: np.ndarray
    values: np.ndarray
    control: np.ndarray

    @property
    def area(self) -> float:
        return float(_area(self.fractions, self.values))

    @property
    def control_areas(self) -> np.ndarray:
        """[D]."""
        return np.asarray(_area(self.fractions, self.control))


@dataclass(frozen=True)
class Infidelity:
    """How far attributions are from foretelling what a perturbation I does.

    `absolute` is the mean over pairs and perturbations of (I·Φ − (f(x) − f(x − I)))²; `relative` is that over
    the mean of (f(x) − f(x − I))²: 0 for attributions that foretell every change, 1 for attributions of zero,
    None where no perturbation changed the output.
    """

    absolute: float
    relative: float | None


@dataclass(frozen=True)
class Sensitivity:
    """Mean over pairs of the largest ‖Φ(y) − Φ(x)‖ for y around x, and that over the mean of ‖Φ(x)‖.

    `switched` is the share of neighbours left out because their predicted class was another one; `absolute`
    is None where all were.
    """

    absolute: float | None
    relative: float | None
    switched: float


def _area(fractions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Integrate by trapezoids, over the last axis."""
    return np.asarray(((values[..., 1:] + values[..., :-1]) / 2 * np.diff(fractions)).sum(axis=-1))


# -- deletion and insertion ----------------------------------------------------------------------------


def ranks_of(scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return [P, players]: 0 for the largest score of each row; ties in random order."""
    order = np.lexsort((random.random(scores.shape), -scores), axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[1])[None], axis=1)
    return ranks


def cuts_of(players: int, steps: int) -> np.ndarray:
    """Return [S + 1]: how many players are replaced after each step, 0 to all; one by one where they fit."""
    return np.unique(np.linspace(0, players, min(steps, players) + 1).round().astype(np.int64))


def replaced(
    subject: Subject,
    pairs: Pairs,
    ranks: np.ndarray,
    cuts: np.ndarray,
    baseline: np.ndarray,
    count: Callable[[int], None],
) -> np.ndarray:
    """Return [S + 1]: the mean explained output with features of players of rank < cut at their baseline."""
    total = np.zeros(len(cuts))
    for part in slices(len(ranks), MAX_BATCH):
        rows, elements = pairs.rows[part], pairs.elements[part]
        x = subject.features[rows]
        for i, cut in enumerate(cuts):
            mixed = np.where((ranks[part] < cut)[:, subject.owner], baseline, x)
            total[i] += subject.answer(mixed, rows)[np.arange(len(rows)), elements].sum()
            count(len(rows))
    return total / len(ranks)


def random_orders(
    subject: Subject,
    pairs: Pairs,
    cuts: np.ndarray,
    baseline: np.ndarray,
    draws: int,
    seed: int,
    progress: Progress,
) -> np.ndarray:
    """Return [D, S + 1]: deletion in random orders, another one for each pair and draw."""
    random = np.random.default_rng([seed, 1])
    count = counter(progress, "random order", draws * len(cuts) * len(pairs.rows))
    curves = []
    for _ in range(draws):
        ranks = ranks_of(np.zeros(pairs.attributions.shape), random)
        curves.append(replaced(subject, pairs, ranks, cuts, baseline, count))
    return np.stack(curves)


def deletion_and_insertion(
    subject: Subject,
    pairs: Pairs,
    cuts: np.ndarray,
    baseline: np.ndarray,
    control: np.ndarray,
    seed: int,
    progress: Progress,
) -> tuple[Curve, Curve]:
    """Replace the most relevant features first, by signed attribution.

    Putting features back from the most relevant on is replacing them from the least relevant on, read
    backwards; of random orders the one is as random as the other, so both share a control.
    """
    ranks = ranks_of(pairs.attributions, np.random.default_rng([seed, 2]))
    count = counter(progress, "deletion and insertion", 2 * len(cuts) * len(ranks))
    deleted = replaced(subject, pairs, ranks, cuts, baseline, count)
    last = ranks.shape[1] - 1
    kept = replaced(subject, pairs, last - ranks, cuts, baseline, count)
    fractions = cuts / cuts[-1]
    return (
        Curve(fractions, deleted, control),
        Curve(1 - fractions[::-1], kept[::-1], control[:, ::-1]),
    )


def counter(progress: Progress, stage: str, total: int) -> Callable[[int], None]:
    """Return a function that adds up what is done, and reports it."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(stage, done, total)

    return count


# -- infidelity ----------------------------------------------------------------------------------------


def infidelity(
    subject: Subject,
    pairs: Pairs,
    baseline: np.ndarray,
    spread: np.ndarray,
    kind: str,
    draws: int,
    seed: int,
    progress: Progress,
) -> Infidelity:
    """Compute INFD of Yeh et al., with I = Z ⊙ (x − baseline), Z half ones, or I ~ N(0, (0.2·spread)²).

    Args:
        baseline: [F], of the attributions themselves: a share of the output is Φ = slope·(x − baseline).
        spread: [F], standard deviation of each feature in the file; 0 of what is no float.
    """
    random = np.random.default_rng([seed, 3])
    count = counter(progress, "infidelity", draws * len(pairs.rows))
    missed = changed = 0.0
    for part in slices(len(pairs.rows), MAX_BATCH):
        rows, elements, shares = pairs.rows[part], pairs.elements[part], pairs.attributions[part]
        x = subject.features[rows]
        for _ in range(draws):
            moved, foretold = _perturb(random, kind, x, baseline, spread, shares, subject)
            after = subject.answer(moved, rows)[np.arange(len(rows)), elements]
            change = pairs.answers[part] - after
            missed += ((foretold - change) ** 2).sum()
            changed += (change**2).sum()
            count(len(rows))
    total = draws * len(pairs.rows)
    return Infidelity(float(missed / total), float(missed / changed) if changed else None)


def _perturb(
    random: np.random.Generator,
    kind: str,
    x: np.ndarray,
    baseline: np.ndarray,
    spread: np.ndarray,
    attributions: np.ndarray,
    subject: Subject,
) -> tuple[np.ndarray, np.ndarray]:
    """Return x − I [M, F] for the perturbation I, and the change I·Φ [M] that attributions foretell."""
    away = x - baseline
    if kind == "baseline":
        chosen = random.random(attributions.shape) < 0.5
        shares = attributions * away if subject.is_slope else attributions
        return np.where(chosen[:, subject.owner], baseline, x), (shares * chosen).sum(axis=1)
    step = random.standard_normal(x.shape) * spread * GAUSSIAN_SIGMA
    if subject.is_slope:
        return x - step, (attributions * step).sum(axis=1)
    near = np.abs(away) <= NEAR_BASELINE * spread
    step = np.where(near, 0.0, step)
    return x - step, (attributions / np.where(near, 1.0, away) * step).sum(axis=1)


# -- max-sensitivity -----------------------------------------------------------------------------------


def max_sensitivity(
    subject: Subject,
    pairs: Pairs,
    spread: np.ndarray,
    radius: float,
    draws: int,
    seed: int,
    progress: Progress,
) -> Sensitivity:
    """Compute SENS_MAX of Yeh et al.

    Neighbours y = x + radius·spread·u are drawn, u uniform in [−1, 1]^F.

    A neighbour whose predicted class is another one has the explanation of another question: it is left out.
    """
    random = np.random.default_rng([seed, 4])
    x, every = subject.features, np.arange(len(subject.features))
    own = pairs.attributions.reshape(*pairs.positions.shape, -1)
    largest = np.full(pairs.positions.shape, -1.0)  # −1: no neighbour yet
    switched = 0
    for draw in range(draws):
        near = x + radius * spread * random.uniform(-1, 1, x.shape)
        moved = np.linalg.norm(subject.attributions(near, every, pairs.positions) - own, axis=2)
        if subject.manifest.targets == "predicted":
            other = subject.answer(near, every).argmax(axis=1) != pairs.elements
            switched += int(other.sum())
            moved[other] = -1.0
        largest = np.maximum(largest, moved)
        progress("max-sensitivity", draw + 1, draws)
    seen = largest >= 0
    share = switched / (draws * len(x))
    if not seen.any():
        return Sensitivity(None, None, share)
    change, norm = float(largest[seen].mean()), float(np.linalg.norm(own, axis=2)[seen].mean())
    return Sensitivity(change, 0.0 if change == 0 else change / norm if norm else None, share)
