"""The time that a request may take: its caller's own limit can only shorten the gateway's."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rationale_service.engine.dataplane import DataPlane


@pytest.mark.parametrize(
    ("setting_s", "asked_s", "limit_s"),
    [
        (30.0, None, 30),
        (30.0, 5.0, 5),
        (30.0, 29.9, 29.9),
        (30.0, 30.0, 30),
        (30.0, 30.1, 30),
        (30.0, 1e9, 30),  # as a client that says it has no limit
        (30.0, 0.0, 0),
        (0.5, 5.0, 0.5),
    ],
)
async def test_a_caller_waits_no_longer_than_the_gateway_allows(
    setting_s: float, asked_s: float | None, limit_s: float
) -> None:
    plane: Any = SimpleNamespace(timeout_s=setting_s)
    now_s = asyncio.get_running_loop().time()
    assert DataPlane.deadline(plane, asked_s) - now_s == pytest.approx(limit_s, abs=0.2)
