"""No body keeps the event loop from its turns, by the seconds that the gateway computes, not by the clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.checks import stalls
from loadtests.checks.stalls import MOST_MS, StallCase, WatchedGateway, longest
from rationale_service.app import create_app, create_backend
from rationale_service.settings import Settings

WORST = {
    ("PUT /v2/models/{model}/canary", "80,000 members"),
    ("POST /v1/decisions/{decision}:notice", "80,000 members"),
    ("PUT /v2/models/{model}/explainers/{name}", "80,000 members"),
    ("POST /v1/models/{model}:explain", '900,000 members behind {"instances": ['),
    ("POST /v1/models/{model}:explain", '2 million texts behind {"instances": '),
    ("POST /v2/models/{model}/infer", "900,000 members"),
    ("gRPC ModelInfer", "4 million typed values"),
    ("gRPC ModelInfer", "many inputs (1 MB)"),
}


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[WatchedGateway, list[StallCase]]]:
    with stalls.credit_gateway() as actual:
        yield actual


def test_the_worst_bodies_stall_nobody(started: tuple[WatchedGateway, list[StallCase]]) -> None:
    gateway, cases = started
    chosen = [case for case in cases if (case.route, case.label) in WORST]
    assert len(chosen) == len(WORST)
    actual = {f"{case.route}: {case.label}": longest(gateway, case, MOST_MS) for case in chosen}
    assert {label: stall_ms for label, stall_ms in actual.items() if stall_ms > MOST_MS} == {}


@pytest.mark.slow
def test_no_body_stalls(started: tuple[WatchedGateway, list[StallCase]]) -> None:
    gateway, cases = started
    actual = {f"{case.route}: {case.label}": longest(gateway, case, MOST_MS) for case in cases}
    assert {label: stall_ms for label, stall_ms in actual.items() if stall_ms > MOST_MS} == {}


def test_each_documented_body_is_sent(started: tuple[WatchedGateway, list[StallCase]]) -> None:
    settings = Settings(repository=Path(__file__).parents[2] / "model_repository")
    documented = stalls.documented(create_app(settings, create_backend(settings)))
    assert len(documented) > 10
    assert {f"{method} {path}" for path, method in documented} <= {case.route for case in started[1]}
