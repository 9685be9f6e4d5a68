"""Bytes that are held at one time are bounded, and given back."""

import numpy as np
import pytest

from rationale_service.engine.large_requests import SMALL, MemoryLimit
from rationale_service.errors import QueueFullError

ROWS = {"x": np.zeros((5, 4), np.float32)}  # 80 bytes
TEXTS = {"t": np.array([b"a" * 100, b"b" * 60], dtype=np.object_)}


def test_the_sum_is_bounded_and_given_back() -> None:
    budget = MemoryLimit(200)
    with budget.reserve(ROWS), budget.reserve(ROWS):
        with pytest.raises(QueueFullError, match="160 bytes are waiting, of 200"), budget.reserve(ROWS):
            pass
        budget.check(40)
    with budget.reserve(ROWS), budget.reserve(ROWS):
        pass


def test_one_large_request_alone_is_let_in() -> None:
    budget = MemoryLimit(10)
    with budget.reserve(ROWS), pytest.raises(QueueFullError):
        budget.check(1)
    budget.check(1)


def test_texts_count_with_their_length() -> None:
    budget = MemoryLimit(160)
    with budget.reserve(TEXTS), pytest.raises(QueueFullError):
        budget.check(0)


def test_a_quarter_is_kept_for_small_requests() -> None:
    budget = MemoryLimit(8 * SMALL)
    with budget.growing() as one, budget.growing() as another, budget.growing() as small:
        one(3 * SMALL)
        another(3 * SMALL)
        with pytest.raises(QueueFullError, match=f"{6 * SMALL} bytes are waiting, of {6 * SMALL}"):
            one(1)
        small(SMALL)
        with budget.reserve(ROWS):
            pass
        with pytest.raises(QueueFullError):
            small(1)  # no longer a small one
