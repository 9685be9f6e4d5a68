"""Decisions by a linear model, whose attributions are w·(x − mean r): reasons by the definition."""

from typing import Any

import numpy as np

from tests.compiler.models import FEATURES, parsed, rows

N, DRAWS, SEED, THRESHOLD, MOST = 90, 3, 4, 0.6, 2
WEIGHTS = np.array([1.0, -2.0, 0.5, 1.5, -0.7], np.float32)
NEAR, EVERYBODY, X = rows(6, FEATURES), rows(11, FEATURES, seed=1) + 0.3, rows(N, FEATURES, seed=2)
SEX = np.where(np.arange(N) % 3 == 0, "a", np.where(np.arange(N) < 20, "", "b"))
BANKRUPT = np.arange(N) % 10 == 0
PAID = (X[:, 0] > 0).astype(int) + 1
MEMBERS = {"age": [0], "money": [1, 2], "years": [3], "cards": [4]}
CODES = {"age": "R1", "money": "R2", "years": "R3", "cards": "R1"}  # two features share one
PROFILE: dict[str, Any] = {
    "output": "y",
    "threshold": THRESHOLD,
    "refer": [0.5, 0.8],
    "adverse": "above",
    "max_reasons": MOST,
    "features": {name: {"reason": CODES[name]} for name in ("age", "years", "cards")},
    "groups": {"money": {"members": ["income", "debt"], "reason": "R2"}},
    "reasons": {"R1": "Age or cards", "R2": "Money", "R3": "Years", "R9": "Bankruptcy"},
    "knock_outs": [{"feature": "bankruptcies", "above": 0, "reason": "R9"}],
}
MODEL = parsed("g (float[N, 5] x) => (float[N, 1] y) { y = MatMul (x, w) }", {"w": WEIGHTS[:, None]})


def codes(x: np.ndarray, references: np.ndarray) -> list[str]:
    """The principal reasons, by the definition."""
    each = WEIGHTS * (x - references.mean(0))
    adverse: dict[str, float] = {}
    for key, members in MEMBERS.items():
        if (value := each[members].sum()) > 0:
            adverse[CODES[key]] = adverse.get(CODES[key], 0) + value
    return sorted(adverse, key=lambda code: -adverse[code])[:MOST]


SCORES = X @ WEIGHTS
REFERRED = (SCORES >= 0.5) & (SCORES <= 0.8) & ~BANKRUPT
BY_SCORE = np.flatnonzero((SCORES > 0.8) & ~BANKRUPT)
