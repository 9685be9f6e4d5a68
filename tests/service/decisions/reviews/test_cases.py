"""Cases by their rows alone: what holds, what waits, what a receipt tells, and which keys repeat."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from rationale_service.decisions.audit.trail import Case, RecordedDecision, check_repeated
from rationale_service.decisions.records.cases import describe_case, link_faults
from rationale_service.decisions.records.review import Reviews
from rationale_service.errors import ConflictError
from tests.service.decisions.audit.conftest import decision

# kind and outcome of each row, oldest first; a row that waits has a date
ROWS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "approve": ("decision", {"decision": "approve"}, None),
    "decline": ("decision", {"decision": "decline"}, None),
    "refer": ("decision", {"decision": "refer"}, "2026-12-01"),
    "contest": ("contest", {}, "2026-12-02"),
    "later contest": ("contest", {}, "2026-12-03"),
    "judged": ("judgment", {"decision": "decline", "reviewer": "M. Officer"}, None),
    "corrected": ("decision", {"decision": "approve", "reviewer": "M. Officer"}, None),
    "corrected to refer": ("decision", {"decision": "refer", "reviewer": "M. Officer"}, "2026-12-04"),
}


def case_of(*names: str) -> Case:
    rows = list[RecordedDecision]()
    for i, name in enumerate(names):
        kind, answer, review_by = ROWS[name]
        link = {"reviews": rows[0].id} if rows else {}
        answer = {"id": f"{i:032x}", **answer, **link}
        rows.append(decision(i, kind=kind, answer=answer, review_by=review_by))
    return Case(rows)


@pytest.mark.parametrize(
    ("names", "standing", "state", "waiting", "review_by"),
    [
        (["decline"], 0, "decided", [], None),
        (["refer"], 0, "referred", [0], "2026-12-01"),
        (["decline", "contest"], 0, "contested", [1], "2026-12-02"),
        (["decline", "contest", "later contest"], 0, "contested", [1, 2], "2026-12-02"),
        (["refer", "contest"], 0, "contested", [0, 1], "2026-12-01"),
        (["refer", "judged"], 1, "reviewed", [], None),
        (["refer", "corrected to refer"], 1, "referred", [1], "2026-12-04"),
        (["decline", "contest", "judged"], 2, "reviewed", [], None),
        (["decline", "judged", "contest"], 1, "contested", [2], "2026-12-02"),
        (["decline", "contest", "judged", "later contest"], 2, "contested", [3], "2026-12-03"),
        (["decline", "contest", "corrected", "judged"], 3, "reviewed", [], None),
    ],
)
def test_what_holds_and_what_waits(
    names: Sequence[str], standing: int, state: str, waiting: list[int], review_by: str | None
) -> None:
    case = case_of(*names)
    assert (case.standing, case.state, case.review_by) == (case.events[standing], state, review_by)
    assert list(case.waiting) == [case.events[i] for i in waiting]


@pytest.mark.parametrize(
    ("names", "since"),
    [
        (["refer"], 0),
        (["refer", "contest"], 0),
        (["decline", "contest"], 1),
        (["decline", "contest", "later contest"], 1),
        (["decline", "contest", "judged", "later contest"], 3),
        (["refer", "corrected to refer"], 1),
        (["decline"], None),  # nobody waited
    ],
)
def test_a_wait_begins_with_the_first_event_that_waits(names: list[str], since: int | None) -> None:
    waits = list[tuple[str, float]]()
    metrics: Any = SimpleNamespace(
        audit=SimpleNamespace(review_s=lambda model, wait_s: waits.append((model, wait_s)))
    )
    nothing: Any = None
    case = case_of(*names)
    Reviews(nothing, nothing, nothing, nothing, metrics)._reviewed(case, decision(30).time)
    due_s = [] if since is None else [30 * 1.000001 - since * 1.000001]
    assert waits == [("credit", pytest.approx(wait_s, abs=1e-6)) for wait_s in due_s]


@pytest.mark.parametrize("names", [["decline"], ["decline", "contest"], ["refer", "contest", "judged"]])
def test_an_event_is_behind_all_others_whatever_the_clocks_say(names: list[str]) -> None:
    case = case_of(*names)
    ahead = datetime.now(UTC) + timedelta(hours=1)
    last = [
        decision(90 + i, time=(ahead + timedelta(minutes=i)).isoformat(timespec="microseconds"))
        for i in range(len(names))
    ]
    assert Case(last).time_after() == (ahead + timedelta(minutes=len(names) - 1, microseconds=1)).isoformat(
        timespec="microseconds"
    )
    before = datetime.now(UTC).isoformat(timespec="microseconds")
    assert before <= case.time_after() <= datetime.now(UTC).isoformat(timespec="microseconds")


@pytest.mark.parametrize(
    ("names", "place", "sentences"),
    [
        (["decline"], 0, []),
        (["decline", "contest"], 0, ["contested the decision once."]),
        (["decline", "contest", "later contest"], 0, ["contested the decision 2 times."]),
        (["refer", "judged"], 0, ["It was reviewed by a person (M. Officer)"]),  # nobody contested it
        (["refer", "judged"], 1, ["It is a review by a person (M. Officer)"]),
        (
            ["decline", "contest", "judged"],
            0,
            ["contested the decision once.", "It was reviewed by a person (M. Officer)"],
        ),
        (
            ["decline", "contest", "corrected"],
            2,
            ["It is a review on corrected inputs (M. Officer)", "contested the decision once."],
        ),
        (["decline", "corrected", "judged"], 1, ["It is a review on", "It was reviewed by a person"]),
    ],
)
def test_what_a_receipt_tells_of_a_case(names: list[str], place: int, sentences: list[str]) -> None:
    case = case_of(*names)
    text = describe_case(case, case.events[place])
    assert text.count(". ") + text.endswith(".") == len(sentences) + text.count("(M. Officer")
    places = [text.index(sentence) for sentence in sentences]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("seconds", "faults"), [(1, []), (0, ["is not earlier"]), (-1, ["is not earlier"])], ids=str
)
def test_a_review_is_later_than_the_first_decision(seconds: int, faults: list[str]) -> None:
    first, judged = case_of("decline", "judged").events
    time = (datetime.fromisoformat(first.time) + timedelta(seconds=seconds)).isoformat(
        timespec="microseconds"
    )
    later = decision(1, kind=judged.kind, answer=judged.answer, time=time)
    found = list(link_faults(later, first))
    assert [fault.endswith(due) for fault, due in zip(found, faults, strict=True)] == [True] * len(faults)


@pytest.mark.parametrize(
    ("ids", "reviews", "asked_ids", "asked_reviews", "is_same"),
    [
        ([None], None, (), None, True),
        (["a"], None, ("a",), None, True),
        (["a"], None, ("b",), None, False),
        (["a"], None, (), None, False),
        ([None, "b"], None, (None, "b"), None, True),
        ([None, "b"], None, ("b", None), None, False),
        ([None], "first", (), "first", True),
        ([None], "first", (), "another", False),  # the same words in another case
        ([None], "first", (), None, False),
        ([None], None, (), "first", False),
    ],
)
def test_a_key_repeats_a_request_about_the_same_applications_and_case(
    ids: list[str | None],
    reviews: str | None,
    asked_ids: tuple[str | None, ...],
    asked_reviews: str | None,
    is_same: bool,
) -> None:
    recorded = [
        decision(i, "key", answer={"id": f"{i:032x}", "application_id": own, "reviews": reviews})
        for i, own in enumerate(ids)
    ]
    if is_same:
        check_repeated(recorded, asked_ids, asked_reviews)
    else:
        with pytest.raises(ConflictError, match="use a new key"):
            check_repeated(recorded, asked_ids, asked_reviews)
