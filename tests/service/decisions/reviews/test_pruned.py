"""If retention removed a case's first decision, its later ones can be read and replayed, but not reviewed."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rationale_service.app import create_app, create_backend
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.settings import Settings
from tests.service import patient
from tests.service.conftest import serving
from tests.service.decisions.decided import Decided
from tests.service.decisions.reviews.test_reviews import BETTER, DECLINE, VARIABLES, answered, ask, decide

REVIEWS: dict[str, dict[str, Any]] = {
    "judgment": DECLINE,
    "corrected": {"reviewer": "M. Officer", "instance": {**BETTER, "age": 0.2}},
}


@pytest.fixture(scope="module")
def reviews(
    decided: Decided, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    """The gateway's address, and the id of each kind of review; the first decisions are gone."""
    state: Path = tmp_path_factory.mktemp("state")
    settings = Settings(repository=decided.settings.repository, state=state, request_timeout_s=60)
    with serving(create_app(settings, create_backend(settings))) as address:
        url = f"http://{address}"
        firsts = {kind: decide(url)["id"] for kind in REVIEWS}
        ids = {kind: answered(ask(url, firsts[kind], "review", REVIEWS[kind]))["id"] for kind in REVIEWS}
        with closing(open_ledger(settings)) as ledger:
            assert ledger.store.prune(ledger.read(ids["judgment"]).time) == len(firsts)
        yield url, ids


@pytest.mark.parametrize("kind", REVIEWS)
def test_a_review_is_replayed_without_the_decision_that_it_reviews(
    reviews: tuple[str, dict[str, str]], kind: str
) -> None:
    url, ids = reviews
    replayed = answered(ask(url, ids[kind], "replay"))
    assert (replayed["same"], replayed["differences"]) == (True, [])
    assert "reviews" in replayed["passed_over"]


@pytest.mark.parametrize("kind", REVIEWS)
@pytest.mark.parametrize(
    ("verb", "body"),
    [("contest", {"reason": "It is wrong"}), ("review", DECLINE), ("history", None)],
    ids=["contest", "review", "history"],
)
def test_such_a_case_is_neither_told_nor_moved(
    reviews: tuple[str, dict[str, str]], kind: str, verb: str, body: Any
) -> None:
    url, ids = reviews
    refused = ask(url, ids[kind], verb, body) if body else _history(url, ids[kind])
    assert refused.status_code == 409
    assert "was deleted" in refused.text


def _history(url: str, decision: str) -> Any:
    return patient.get(f"{url}/v1/decisions/{decision}:history")


def test_its_notice_is_of_the_review_alone(reviews: tuple[str, dict[str, str]]) -> None:
    url, ids = reviews
    text = answered(ask(url, ids["judgment"], "notice", {"variables": VARIABLES}))["text"]
    assert "- It is confirmed\n" in text
