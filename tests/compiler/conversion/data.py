"""Made data: loans as numbers with gaps, as a DataFrame, and classes that depend on them."""

import numpy as np
import pandas as pd

from rationale.schema.manifest import Parity, RowKind

FEATURES = ["age", "income now", "debt", "years", "rate"]
ROWS, K, N = 300, 23, 7


def _loans() -> pd.DataFrame:
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(ROWS, len(FEATURES))), columns=FEATURES)
    table = table.astype(np.float32).astype(float)  # what a request holds
    table.iloc[::7, 1] = np.nan
    return table


LOANS = _loans()
REFERENCES, APPLICANTS = LOANS[:K], LOANS[-N:]
TWO = (LOANS["age"] + LOANS["debt"] * LOANS["years"] > 0).astype(int)
THREE = TWO + (LOANS["rate"] > 1)
AMOUNT = LOANS["age"] - LOANS["debt"].abs()


def compared_rows(parity: Parity, kind: RowKind) -> int:
    """Return how many rows of a kind were compared and are answered."""
    errors = parity.errors_on(kind)
    return 0 if errors is None else errors.rows
