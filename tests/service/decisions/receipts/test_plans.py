"""Receipts of decisions with recourse: check.py computes each plan."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rationale_service.app import create_app, create_backend
from rationale_service.decisions.audit.ledger import Ledger, open_ledger
from rationale_service.decisions.records.receipt import write_receipt
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.service.conftest import serving
from tests.service.decisions.notices.test_languages import ROWS as MORE_ROWS
from tests.service.decisions.notices.test_languages import decline, write_languages
from tests.service.decisions.receipts.test_receipt import check
from tests.service.decisions.recourse.test_recourse import ROWS, decide, write_all

PLANS = ["net", "once", "trees", "words"]
OTHERS = ["home", "group", "double"]  # with groups, in float64, and of two languages


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("receipts") / "models"
    write_all(folder)
    write_languages(folder)
    return Settings(repository=folder, request_timeout_s=60)


@pytest.fixture(scope="module")
def answers(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    with serving(create_app(settings, create_backend(settings))) as address:
        url = f"http://{address}"
        found = {name: decide(url, name, recourse=True) for name in PLANS}
        return found | {name: [decline(url, name, recourse=True)] for name in OTHERS}


@pytest.fixture(scope="module")
def store(settings: Settings, answers: dict[str, Any]) -> Iterator[Ledger]:
    assert answers
    ledger = open_ledger(settings)
    yield ledger
    ledger.close()


Write = Callable[[str, Path], Path]


@pytest.fixture(scope="module")
def write(settings: Settings, store: Ledger) -> Write:
    replayer = Replayer(settings)

    def written(decision_id: str, folder: Path) -> Path:
        decision = store.read(decision_id)
        write_receipt(decision, replayer.entry(decision), folder)
        return folder

    return written


@pytest.mark.parametrize("name", [*PLANS, *OTHERS])
def test_each_plan_is_computed(answers: dict[str, Any], write: Write, tmp_path: Path, name: str) -> None:
    assert name in {*ROWS, *MORE_ROWS}
    plans = [answer["recourse"]["plans"] for answer in answers[name]]
    folders = [write(answer["id"], tmp_path / answer["id"]) for answer in answers[name]]
    assert any(plans)
    for (code, told), own in zip(check(*folders), plans, strict=True):
        assert code == 0, told
        assert told.count(": decision: answered approve, computed approve") == len(own)
        assert told.count(": not actionable: answered , computed \n") == len(own)
        assert told.count(": out of its region: answered , computed \n") == len(own)


ALTERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "decision": lambda plan: plan | {"decision": "refer"},
    "score": lambda plan: plan | {"score": plan["score"] + 0.01},
    "changes": lambda plan: plan | {"changes": dict.fromkeys(plan["changes"], 0.123)},
    "not actionable": lambda plan: plan | {"changes": {**plan["changes"], "bankruptcies": 0}},
    "out of its region": lambda plan: plan | {"regions": {name: [5e8, None] for name in plan["regions"]}},
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_plan_that_does_not_hold_shows(
    answers: dict[str, Any], write: Write, tmp_path: Path, what: str
) -> None:
    answer = next(each for each in answers["net"] if each["recourse"]["plans"])
    folder = write(answer["id"], tmp_path / "receipt")
    first, *others = answer["recourse"]["plans"]
    altered = {**answer["recourse"], "plans": [ALTERED[what](first), *others]}
    (folder / "answer.json").write_text(json.dumps({**answer, "recourse": altered}))
    ((code, told),) = check(folder)
    assert code == 1
    assert f"! plan 1: {'score' if what == 'changes' else what}" in told, told


def test_erased_recourse_is_no_fault(answers: dict[str, Any], write: Write, tmp_path: Path) -> None:
    answer = answers["net"][0]
    folder = write(answer["id"], tmp_path / "receipt")
    (folder / "answer.json").write_text(json.dumps({**answer, "recourse": None}))
    assert check(folder)[0][0] == 0
