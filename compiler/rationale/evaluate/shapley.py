"""How far attributions are from Shapley values, which are sampled from the model itself.

v(S) = Σ_k w_k·f(x_S, r_k elsewhere) over references r_k (Lundberg and Lee, 2017, section 4). A round draws a
permutation of the features for each reference and takes it forwards and backwards, an antithetic pair
(Mitchell, Cooper, Frank and Holmes, "Sampling Permutations for Shapley Value Estimation", 2022). What a round
finds adds up to f(x) − Σ_k w_k·f(r_k), and is exact where f is a sum of terms in at most two features.

F features, K references, t targets of a row, P pairs of a row and a target. A player is a feature, or all
features of a group.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.evaluate.explained_model import GivenReferences, Pairs, Subject, rows_at_once, slices
from rationale.evaluate.faithfulness import counter, ranks_of
from rationale.evaluate.randomise import spearmans
from rationale.schema.request import Progress

LEAST_ROUNDS, MOST_ROUNDS = 5, 10_000  # fewer do not show their own error
PRECISE = 0.01  # standard error over the values, both as lengths, at which a row is done
REASONS = 4  # as many as a lender gives for a decision

Answer = Callable[[np.ndarray], np.ndarray]  # rows of features [M, F] → [M, t]


@dataclass(frozen=True)
class Sampled:
    """Shapley values [t, players] of one row, the mean over independent rounds, and their standard errors."""

    values: np.ndarray
    errors: np.ndarray
    rounds: int

    @property
    def is_precise(self) -> bool:
        errors, lengths = (np.linalg.norm(a, axis=1) for a in (self.errors, self.values))
        return self.rounds >= LEAST_ROUNDS and bool((errors <= PRECISE * lengths).all())


@dataclass(frozen=True)
class Comparison:
    """Attributions beside Shapley values; pairs whose Shapley values are all 0 are left out.

    Attributes:
        distances: of each pair, ‖attributions − Shapley values‖₂/‖Shapley values‖₂.
        errors: of each pair, ‖standard errors of the Shapley values‖₂/‖Shapley values‖₂.
        correlations: of each pair that has one, Spearman's.
        first, reasons: the share of pairs with the same largest feature, and the same REASONS largest; None
            of so few players that all of them are.
        players: features, or groups of them.
        rounds: the most that a row took.
        evaluations: rows that the model answered.
    """

    distances: tuple[float, ...]
    errors: tuple[float, ...]
    correlations: tuple[float, ...]
    first: float
    reasons: float | None
    players: int
    rounds: int
    evaluations: int


def compare(
    subject: Subject, pairs: Pairs, references: GivenReferences, most: int, seed: int, progress: Progress
) -> tuple[Comparison, list[Sampled]]:
    """Sample each row until its values are PRECISE, as far as `most` answers of the model allow.

    Returns:
        The comparison, and what was sampled of each row.

    Raises:
        InvalidOptionError: fewer answers than LEAST_ROUNDS take.
    """
    background, weights = subject.flat(references.arrays), references.shares
    rows, players = len(subject.features), pairs.attributions.shape[1]
    each = 2 * len(background) * (players - 1)
    rounds = rounds_within(most, rows, players, len(background))
    count = counter(progress, "Shapley values", rows)
    found = []
    for i, x in enumerate(subject.features):
        answer = _answer_of(subject, i, pairs.elements[pairs.rows == i])
        random = np.random.default_rng([seed, 5, i])
        found.append(sample(answer, x, background, weights, rounds, random, subject.owner))
        count(1)
    evaluations = sum(1 + len(background) + each * row.rounds for row in found)
    return _compared(pairs.attributions, found, evaluations), found


def rounds_within(most: int, rows: int, features: int, references: int) -> int:
    """Return how many rounds `most` answers of the model are enough for, on each of the rows.

    Raises:
        InvalidOptionError: fewer than LEAST_ROUNDS.
    """
    fixed, each = rows * (1 + references), rows * 2 * references * max(features - 1, 1)
    least = fixed + LEAST_ROUNDS * each
    if least > most:
        raise InvalidOptionError(
            f"--shapley: {rows} rows of {features} features against {references} references take {least} "
            f"answers of the model at least, more than --evaluations {most}. Judge fewer --rows, or allow as "
            "many."
        )
    return min(MOST_ROUNDS, (most - fixed) // each)


def _answer_of(subject: Subject, row: int, elements: np.ndarray) -> Answer:
    return lambda x: subject.answer(x, np.full(len(x), row))[:, elements]


def _compared(given: np.ndarray, found: Sequence[Sampled], evaluations: int) -> Comparison:
    """Compare attributions [P, F] with what was sampled of each row."""
    values, errors = np.concatenate([f.values for f in found]), np.concatenate([f.errors for f in found])
    lengths = np.linalg.norm(values, axis=1)
    kept = lengths > 0
    given, values, errors, lengths = given[kept], values[kept], errors[kept], lengths[kept]
    return Comparison(
        distances=tuple((np.linalg.norm(given - values, axis=1) / lengths).tolist()),
        errors=tuple((np.linalg.norm(errors, axis=1) / lengths).tolist()),
        correlations=tuple(c for c in spearmans(given, values) if c is not None),
        first=_same(given, values, 1),
        reasons=_same(given, values, REASONS) if given.shape[1] > REASONS else None,
        players=given.shape[1],
        rounds=max(f.rounds for f in found),
        evaluations=evaluations,
    )


def _same(a: np.ndarray, b: np.ndarray, most: int) -> float:
    """Return the share of rows whose `most` largest features, by absolute value, are the same."""
    largest = (np.sort(np.argsort(-np.abs(s), axis=1, kind="stable")[:, :most], axis=1) for s in (a, b))
    return float(np.equal(*largest).all(axis=1).mean()) if len(a) else 1.0


# -- sampling ------------------------------------------------------------------------------------------


def sample(
    answer: Answer,
    x: np.ndarray,
    references: np.ndarray,
    weights: np.ndarray,
    rounds: int,
    random: np.random.Generator,
    owner: np.ndarray | None = None,
) -> Sampled:
    """Sample rounds, `rounds` at most, until they are precise.

    Args:
        x: [F]; references: [K, F]; weights: [K], of sum 1.
        owner: [F], the player of each feature; None where each is one.
    """
    owner = np.arange(len(x)) if owner is None else owner
    players = int(owner.max()) + 1
    ends = answer(references), answer(x[None])
    mean = squares = np.zeros((ends[1].shape[1], players))  # Welford's sums
    for n in range(1, rounds + 1):
        ranks = ranks_of(np.zeros((len(references), players)), random)
        pair = [_walk(answer, x, references, ends, r, owner) for r in (ranks, players - 1 - ranks)]
        found = np.tensordot(weights, (pair[0] + pair[1]) / 2, axes=1).T
        before, mean = mean, mean + (found - mean) / n
        squares = squares + (found - before) * (found - mean)
        sampled = Sampled(mean, np.sqrt(squares / (n * max(n - 1, 1))), n)
        if sampled.is_precise:
            break
    return sampled


def _walk(
    answer: Answer,
    x: np.ndarray,
    references: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    ranks: np.ndarray,
    owner: np.ndarray,
) -> np.ndarray:
    """Return [K, players, t]: what each player adds, put into each reference in the order of its rank."""
    k, players = ranks.shape
    values = np.empty((k, players + 1, ends[0].shape[1]))
    values[:, 0], values[:, -1] = ends
    steps = np.stack(np.divmod(np.arange(k * (players - 1)), max(players - 1, 1)))
    for part in slices(steps.shape[1], rows_at_once(len(x))):
        which, step = steps[:, part]
        mixed = np.where((ranks[which] <= step[:, None])[:, owner], x, references[which])
        values[which, step + 1] = answer(mixed)
    return np.take_along_axis(np.diff(values, axis=1), ranks[:, :, None], axis=1)
