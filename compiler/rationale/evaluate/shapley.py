"""Distance of attributions from Shapley values that are computed from the model itself.

v(S) = Σ_k w_k·f(x_S, r_k elsewhere) over references r_k (Lundberg and Lee, 2017, section 4). For few
players the model answers every coalition S, and the values are exact. For more they are sampled. A round
draws a permutation of the features for each reference and takes it forwards and backwards, an antithetic pair
(Mitchell, Cooper, Frank and Holmes, "Sampling Permutations for Shapley Value Estimation", 2022). The values
of a round add up to f(x) − Σ_k w_k·f(r_k), and are exact if f is a sum of terms in at most two features.

F features, K references, t targets of a row, P pairs of a row and a target. A player is a feature, or all
features of a group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.evaluate.explained_model import ExplainedModel, GivenReferences, Pairs, rows_at_once, slices
from rationale.evaluate.faithfulness import counter, rank_players
from rationale.evaluate.randomise import spearmans
from rationale.methods.coalitions.shapley import MOST_ENUMERATED, ExactShap
from rationale.schema.request import Progress

LEAST_ROUNDS, MOST_ROUNDS = 5, 10_000  # fewer give no standard error
PRECISE = 0.01  # ratio of the norms of standard errors and values at which a row is done
LARGEST = 4  # the number of reasons that a lender gives for a decision

Answer = Callable[[np.ndarray], np.ndarray]  # rows of features [M, F] → [M, t]


@dataclass(frozen=True)
class ShapleySample:
    """Shapley values [t, players] of one row, the mean over independent rounds, and their standard errors.

    Values from every coalition have 0 rounds and errors of 0.
    """

    values: np.ndarray
    errors: np.ndarray
    rounds: int

    @property
    def is_precise(self) -> bool:
        errors, lengths = (np.linalg.norm(a, axis=1) for a in (self.errors, self.values))
        return self.rounds >= LEAST_ROUNDS and bool((errors <= PRECISE * lengths).all())


@dataclass(frozen=True)
class ReasonAgreement:
    """Agreement of declines' principal reasons with those that Shapley values give, by code.

    Attributes:
        declines: rows that the score declines; knock-outs are left out.
        same_list, same_set: the share of declines with the same reasons, in order and in any order; None
            without declines.
    """

    declines: int
    same_list: float | None
    same_set: float | None


@dataclass(frozen=True)
class ShapleyComparison:
    """Attributions compared with Shapley values, without pairs whose Shapley values are all 0.

    Attributes:
        distances: per pair, ‖attributions − Shapley values‖₂/‖Shapley values‖₂.
        errors: per pair, ‖standard errors of the Shapley values‖₂/‖Shapley values‖₂.
        correlations: Spearman's, for each pair that has one.
        first, largest: the share of pairs with the same largest feature, and the same LARGEST ones; None if
            there are no more than LARGEST players.
        players: features, or groups of them.
        rounds: the most that a row took; 0 if every coalition was computed.
        evaluations: rows that the model answered.
        reasons: agreement of the principal reasons; None if the entry does not decide.
    """

    distances: tuple[float, ...]
    errors: tuple[float, ...]
    correlations: tuple[float, ...]
    first: float
    largest: float | None
    players: int
    rounds: int
    evaluations: int
    reasons: ReasonAgreement | None = None


def compare(
    subject: ExplainedModel,
    pairs: Pairs,
    references: GivenReferences,
    most: int,
    seed: int,
    progress: Progress,
) -> tuple[ShapleyComparison, list[ShapleySample]]:
    """Compute or sample each row's Shapley values, within `most` answers of the model, and compare.

    Returns:
        The comparison, and the Shapley values of each row.

    Raises:
        InvalidOptionError: if `most` is too small for LEAST_ROUNDS.
    """
    background, weights = subject.flat(references.arrays), references.shares
    rows, players = len(subject.features), pairs.attributions.shape[1]
    rounds = rounds_within(most, rows, players, len(background))
    count = counter(progress, "Shapley values", rows)
    values = []
    for i, x in enumerate(subject.features):
        answer = _answer_for_row(subject, i, pairs.elements[pairs.rows == i])
        random = np.random.default_rng([seed, 5, i])
        if rounds:
            values.append(sample(answer, x, background, weights, rounds, random, subject.owner))
        else:
            values.append(enumerate_coalitions(answer, x, background, weights, subject.owner))
        count(1)
    evaluations = sum(_answers(players, len(background), row.rounds) for row in values)
    return _compare(pairs.attributions, values, evaluations), values


def _answers(players: int, references: int, rounds: int) -> int:
    """Return the number of model answers that a row takes."""
    if not rounds:
        return int(references * 2**players)
    return 1 + references + rounds * 2 * references * max(players - 1, 1)


def rounds_within(most: int, rows: int, players: int, references: int) -> int:
    """Return the number of rounds per row that `most` answers of the model allow.

    0 if they allow every coalition of few players, which is exact.

    Raises:
        InvalidOptionError: if they allow fewer than LEAST_ROUNDS.
    """
    enumerated = rows * _answers(players, references, 0) if players <= MOST_ENUMERATED else math.inf
    if enumerated <= most:
        return 0
    sampled = rows * _answers(players, references, LEAST_ROUNDS)
    if sampled > most:
        least = min(sampled, enumerated)
        raise InvalidOptionError(
            f"--shapley: {rows} rows of {players} features against {references} references need at least "
            f"{least} answers of the model, more than --evaluations {most}. Lower --rows, or raise "
            "--evaluations."
        )
    fixed = rows * (1 + references)
    return min(MOST_ROUNDS, (most - fixed) // (rows * 2 * references * max(players - 1, 1)))


def _answer_for_row(subject: ExplainedModel, row: int, elements: np.ndarray) -> Answer:
    return lambda x: subject.answer(x, np.full(len(x), row))[:, elements]


def _compare(attributions: np.ndarray, rows: Sequence[ShapleySample], evaluations: int) -> ShapleyComparison:
    """Compare attributions [P, F] with the Shapley values of each row."""
    values, errors = np.concatenate([f.values for f in rows]), np.concatenate([f.errors for f in rows])
    lengths = np.linalg.norm(values, axis=1)
    nonzero = lengths > 0
    attributions, values, errors, lengths = (
        attributions[nonzero],
        values[nonzero],
        errors[nonzero],
        lengths[nonzero],
    )
    return ShapleyComparison(
        distances=tuple((np.linalg.norm(attributions - values, axis=1) / lengths).tolist()),
        errors=tuple((np.linalg.norm(errors, axis=1) / lengths).tolist()),
        correlations=tuple(c for c in spearmans(attributions, values) if c is not None),
        first=_same_largest(attributions, values, 1),
        largest=_same_largest(attributions, values, LARGEST) if attributions.shape[1] > LARGEST else None,
        players=attributions.shape[1],
        rounds=max(f.rounds for f in rows),
        evaluations=evaluations,
    )


def _same_largest(a: np.ndarray, b: np.ndarray, most: int) -> float:
    """Return the share of rows whose `most` largest features, by absolute value, are the same."""
    largest = (np.sort(np.argsort(-np.abs(s), axis=1, kind="stable")[:, :most], axis=1) for s in (a, b))
    return float(np.equal(*largest).all(axis=1).mean()) if len(a) else 1.0


# -- every coalition -----------------------------------------------------------------------------------


def enumerate_coalitions(
    answer: Answer, x: np.ndarray, references: np.ndarray, weights: np.ndarray, owner: np.ndarray
) -> ShapleySample:
    """Return exact Shapley values from every coalition of the players.

    Args:
        x, references, weights, owner: see `sample`.
    """
    game = ExactShap(references).coalitions(int(owner.max()) + 1)
    masks, k = game.masks[:, owner], len(references)
    values = np.concatenate(
        [
            answer(np.where(masks[numbers // k], x, references[numbers % k]))
            for batch in slices(len(masks) * k, rows_at_once(len(x)))
            for numbers in [np.arange(batch.start, batch.stop)]
        ]
    )
    values = np.tensordot(weights, values.reshape(len(masks), k, -1), axes=(0, 1))
    gains = values[game.joined] - values[game.before]  # [2^(P − 1), P, t]
    shapley = (game.weights[:, :, None] * gains).sum(axis=0).T
    return ShapleySample(shapley, np.zeros_like(shapley), 0)


# -- sampling ------------------------------------------------------------------------------------------


def sample(
    answer: Answer,
    x: np.ndarray,
    references: np.ndarray,
    weights: np.ndarray,
    rounds: int,
    random: np.random.Generator,
    owner: np.ndarray | None = None,
) -> ShapleySample:
    """Sample Shapley values in at most `rounds` rounds, until they are precise.

    Args:
        x: [F]; references: [K, F]; weights: [K], their sum is 1.
        owner: [F], the player of each feature; None if each feature is a player.
    """
    owner = np.arange(len(x)) if owner is None else owner
    players = int(owner.max()) + 1
    ends = answer(references), answer(x[None])
    mean = squares = np.zeros((ends[1].shape[1], players))  # Welford's sums
    for n in range(1, rounds + 1):
        ranks = rank_players(np.zeros((len(references), players)), random)
        pair = [_gains_in_order(answer, x, references, ends, r, owner) for r in (ranks, players - 1 - ranks)]
        round_values = np.tensordot(weights, (pair[0] + pair[1]) / 2, axes=1).T
        before, mean = mean, mean + (round_values - mean) / n
        squares = squares + (round_values - before) * (round_values - mean)
        sampled = ShapleySample(mean, np.sqrt(squares / (n * max(n - 1, 1))), n)
        if sampled.is_precise:
            break
    return sampled


def _gains_in_order(
    answer: Answer,
    x: np.ndarray,
    references: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    ranks: np.ndarray,
    owner: np.ndarray,
) -> np.ndarray:
    """Return the gain [K, players, t] as each player, by its rank, switches from a reference to x."""
    k, players = ranks.shape
    values = np.empty((k, players + 1, ends[0].shape[1]))
    values[:, 0], values[:, -1] = ends
    steps = np.stack(np.divmod(np.arange(k * (players - 1)), max(players - 1, 1)))
    for batch in slices(steps.shape[1], rows_at_once(len(x))):
        which, step = steps[:, batch]
        mixed = np.where((ranks[which] <= step[:, None])[:, owner], x, references[which])
        values[which, step + 1] = answer(mixed)
    return np.take_along_axis(np.diff(values, axis=1), ranks[:, :, None], axis=1)
