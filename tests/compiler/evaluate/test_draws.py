"""How much explanations move from one set of references to another."""

import itertools

import numpy as np
import pytest

from rationale import Compiled, DeepShap, compile_model
from rationale.evaluate.draws import explain_rows, mean_distance, mean_distance_of_draws
from tests.compiler.models import NAMES, mlp, rows

X = rows(6, 5, seed=9)
PROFILE = {
    "output": "y[1]",
    "threshold": 0.5,
    "adverse": "above",
    "max_reasons": 2,
    "features": {name: {"reason": "R1" if name in ("age", "cards") else f"R{name}"} for name in NAMES},
    "reasons": {code: code for code in ["R1", "Rincome", "Rdebt", "Ryears"]},
}


def compiled(seed: int) -> Compiled:
    method = DeepShap(rows(4, 5, seed=seed))
    return compile_model(mlp((5, 7, 2)), method, feature_names=NAMES, decision=PROFILE)


def test_beside_every_pair_of_explanations() -> None:
    drawn = [explain_rows(compiled(seed), {"x": X}) for seed in range(3)]
    distance = mean_distance_of_draws(drawn)
    answers = [compiled(seed).explain(X) for seed in range(3)]
    a = np.stack([answer["x_attributions"][:, 0] for answer in answers]).astype(float)  # [draw, row, feature]
    by_code = np.stack(
        [a[..., 0] * (a[..., 0] > 0) + a[..., 4] * (a[..., 4] > 0), *np.moveaxis(a, 2, 0)[1:4]], 2
    )
    ranked = np.argsort(-by_code, axis=2)[..., :2]
    reasons = [
        [[c for c in row if sizes[c] > 0] for row, sizes in zip(*draw, strict=True)]
        for draw in zip(ranked, by_code, strict=True)
    ]
    pairs = list(itertools.combinations(range(3), 2))
    moved = [np.abs(a[i] - a[j]).max(axis=1) / np.abs(a[i]).max(axis=1) for i, j in pairs]
    assert distance.mean == pytest.approx(np.mean(moved), rel=1e-6)
    assert distance.largest == pytest.approx(np.max(moved), rel=1e-6)
    code_pairs = [(reasons[i][n], reasons[j][n]) for i, j in pairs for n in range(len(X))]
    assert distance.differ == np.mean([{*codes} != {*other} for codes, other in code_pairs])
    assert [a.base_value for a in drawn] == pytest.approx([answer["base_value"][0, 0] for answer in answers])
    assert 0 < distance.differ < 1
    assert mean_distance([(drawn[0], drawn[1])]).mean == pytest.approx(np.mean(moved[0]), rel=1e-6)


def test_the_same_references_move_nothing() -> None:
    distance = mean_distance_of_draws([explain_rows(compiled(7), {"x": X}) for _ in range(2)])
    assert (distance.mean, distance.largest, distance.differ) == (0, 0, 0)
