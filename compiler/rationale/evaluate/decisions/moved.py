"""Test of principal reasons: scores after moving their features, or others, to references' values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.decisions.decide import outcome_of
from rationale.decisions.rows import margin_output, profile_of
from rationale.evaluate.decisions.decided import DecidedFile
from rationale.evaluate.explained_model import GivenReferences
from rationale.graph.runtime.session import kernels_of
from rationale.lowering import lower
from rationale.profiles.scores import Scorer, deciding_margin
from rationale.schema.manifest import names_of
from rationale.schema.request import Progress

MOST, EACH, DRAWS = 1000, 10, 5  # declines, references per decline, random choices of other features

Positions = Sequence[tuple[str, int]]  # tensors, and indices into their flattened rows


@dataclass(frozen=True)
class ScoreMovement:
    """Movement of scores towards approval, mean over declines, in units of the score.

    Attributes:
        declines: number of declines that were moved.
        references: number of references that each decline is moved to.
        named: movement if the features of the principal reasons are moved.
        others: movement if as many other features, at random, are moved.
        larger: share of declines that the principal reasons' features move further.
        passing, passing_others: share of these moves after which the score no longer declines.
    """

    declines: int
    references: int
    named: float
    others: float
    larger: float
    passing: float
    passing_others: float


def measure_movement(
    file: DecidedFile, references: GivenReferences, seed: int, progress: Progress
) -> ScoreMovement | str:
    """Return the principal reasons' effect on the score, or the reason why it cannot be measured."""
    manifest = file.compiled.manifest
    profile = profile_of(manifest).profile
    if any(e.at or e.tensor not in manifest.inputs for e in manifest.explained):
        return "the entry explains no input whose features could be moved"
    positions, random = positions_of(file), np.random.default_rng(seed)
    declined = [i for i, row in enumerate(file.rows) if row.by_score]
    if len(declined) > MOST:
        declined = sorted(random.choice(declined, MOST, replace=False).tolist())
    score, sign = scorer(file.compiled, file.inputs), 1 if profile.adverse == "above" else -1
    gains_of_row, passes_of_row = list[tuple[float, float]](), list[tuple[float, float]]()
    for count, i in enumerate(declined):
        progress("moving reasons", count, len(declined))
        decision = file.rows[i].decision
        assert decision is not None
        named = [key for reason in decision.reasons for key in reason.features]
        unnamed = [key for key in positions if key not in named]
        if not unnamed:
            continue
        size = min(len(named), len(unnamed))
        orders = (random.permutation(len(unnamed))[:size] for _ in range(DRAWS))
        moved_keys = [named, *([unnamed[j] for j in order] for order in orders)]
        drawn = random.choice(len(references.shares), EACH, p=references.shares)
        row = {tensor: array[i : i + 1] for tensor, array in file.inputs.items()}
        rows = [
            _move_features(row, references, drawn, [p for key in keys for p in positions[key]])
            for keys in moved_keys
        ]
        _, scores = score({tensor: np.concatenate([r[tensor] for r in rows]) for tensor in row})
        of_keys = scores.reshape(len(moved_keys), EACH)
        gains = sign * (file.rows[i].explained.score - of_keys.mean(axis=1))
        outcomes = np.reshape([outcome_of(profile, value) for value in scores.tolist()], of_keys.shape)
        passes = (outcomes != "decline").mean(axis=1)
        gains_of_row.append((float(gains[0]), float(gains[1:].mean())))
        passes_of_row.append((float(passes[0]), float(passes[1:].mean())))
    if not gains_of_row:
        return "no row that its score declines has other features to move"
    gains, passes = np.array(gains_of_row), np.array(passes_of_row)
    return ScoreMovement(
        declines=len(gains_of_row),
        references=EACH,
        named=float(gains[:, 0].mean()),
        others=float(gains[:, 1].mean()),
        larger=float((gains[:, 0] > gains[:, 1]).mean()),
        passing=float(passes[:, 0].mean()),
        passing_others=float(passes[:, 1].mean()),
    )


def positions_of(file: DecidedFile) -> dict[str, Positions]:
    """Return the positions of the features of each key, a feature or a group."""
    single: dict[str, tuple[str, int]] = {}
    for item in file.compiled.manifest.explained:
        names = names_of(item.tensor.name, item.feature_names, math.prod(item.tensor.shape))
        single |= {name: (item.tensor.name, j) for j, name in enumerate(names)}
    players = {player.name: player.features for player in file.compiled.manifest.players}
    keys = file.rows[0].explained.attributions if file.rows else {}
    return {key: [single[name] for name in players.get(key, (key,))] for key in keys}


def _move_features(
    row: Mapping[str, np.ndarray], references: GivenReferences, drawn: np.ndarray, positions: Positions
) -> dict[str, np.ndarray]:
    """Return a copy of the row per drawn reference, with the reference's values at `positions`."""
    copies = {tensor: np.repeat(array, len(drawn), axis=0) for tensor, array in row.items()}
    for tensor, position in positions:
        values = np.asarray(references.arrays[tensor])[drawn].reshape(len(drawn), -1)
        flat = copies[tensor].reshape(len(drawn), -1)
        flat[:, position] = values[:, position].astype(flat.dtype)
        copies[tensor] = flat.reshape(copies[tensor].shape)
    return copies


def scorer(compiled: Compiled, rows: Mapping[str, np.ndarray]) -> Scorer:
    """Return a scorer of rows by the plain model; its scores equal those of decisions.

    Args:
        rows: the model's inputs, [N, …] each, from which the margin is determined.
    """
    manifest = compiled.manifest
    profile = profile_of(manifest).profile
    with kernels_of(compiled.custom_ops):
        lowered = lower(compiled.source, references={name: array.shape for name, array in rows.items()})
        margin = deciding_margin(lowered, profile, rows) if margin_output(manifest) else None
        return Scorer(lowered, profile, margin)
