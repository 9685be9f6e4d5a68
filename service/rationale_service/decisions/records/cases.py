"""The history of a case, the notice of the decision that holds, and checks of its links."""

from collections.abc import Iterator, Mapping
from typing import Any

from rationale.decisions.notice import Notice, notice
from rationale.errors import InvalidOptionError
from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.audit.trail import Case, RecordedDecision
from rationale_service.decisions.decider import difference_of


def standing_notice(
    decision: RecordedDecision,
    case: Case,
    variables: Mapping[str, Any],
    template: str,
    *,
    person_declined: bool,
    profile: DecisionProfile | None = None,
    language: str | None = None,
) -> Notice:
    """Return the notice of the decision that holds: see `notice`.

    Raises:
        InvalidOptionError: if `notice` raises it, the decision is a contest, or a review has replaced it.
    """
    if decision.kind == "contest":
        raise InvalidOptionError(f"{decision.id} is a contest: only decisions have a notice")
    standing = case.standing
    if standing.id != decision.id:
        raise InvalidOptionError(
            f"decision {decision.id} was reviewed {_by(standing)} on {standing.time[:10]}, and decision "
            f"{standing.id} replaced it: write that decision's notice"
        )
    first = case.first.answer if decision.reviews == case.first.id else None
    return notice(
        decision.answer,
        variables,
        template,
        person_declined=person_declined,
        first=first,
        profile=profile,
        language=language,
    )


def history(case: Case) -> list[dict[str, Any]]:
    """Return the events of a case for receipts and the API, oldest first."""
    return [
        {
            "id": event.id,
            "time": event.time,
            "kind": event.kind,
            "caller": event.caller,
            "decision": event.answer.get("decision"),
            "reviewer": event.answer.get("reviewer"),
            "reasons": [
                {"code": reason["code"], "text": reason["text"]} for reason in event.answer.get("reasons", ())
            ],
            "words": (event.instance or {}).get("reason") if event.kind == "contest" else None,
            "review_by": event.review_by,
        }
        for event in case.events
    ]


def describe_case(case: Case, decision: RecordedDecision) -> str:
    """Return sentences that say how a decision was contested and reviewed; empty if it was not."""
    contests = sum(event.kind == "contest" for event in case.events)
    sentences = []
    if decision.reviews:
        sentences.append(f"It is a review {_by(decision)} and replaces decision {decision.reviews}.")
    if contests:
        times = "once" if contests == 1 else f"{contests} times"
        sentences.append(f"The applicant contested the decision {times}.")
    if case.standing.id != decision.id:
        sentences.append(
            f"It was reviewed {_by(case.standing)} on {case.standing.time[:10]}: decision "
            f"{case.standing.id} is in its place."
        )
    return " ".join(sentences)


def link_faults(decision: RecordedDecision, first: RecordedDecision) -> Iterator[str]:
    """Describe the faults of the link from a review to its first decision."""
    if first.reviews is not None or first.kind != "decision":
        yield f"reviews: {first.id} is no first decision"
        return
    for name in ("model", "application_id"):
        if getattr(first, name) != getattr(decision, name):
            yield f"reviews: the {name} of {first.id} is another"
    if first.time >= decision.time:
        yield f"reviews: {first.id} is not earlier"
    due = None if decision.kind != "decision" else difference_of(first.answer, decision.answer)
    if due is not None and due != decision.answer.get("difference"):
        yield f"difference: {decision.answer.get('difference')} was answered, {due} is computed"


def _by(decision: RecordedDecision) -> str:
    how = "by a person" if decision.kind == "judgment" else "on corrected inputs"
    return f"{how} ({decision.answer['reviewer']})"
