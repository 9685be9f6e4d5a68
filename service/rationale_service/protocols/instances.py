"""Instances: rows as JSON objects, in any protocol."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rationale_service.decisions.audit.trail import name_fault
from rationale_service.decisions.options.options import OPTIONS
from rationale_service.engine import json_pieces
from rationale_service.engine.checks import Faults
from rationale_service.engine.features import RequestRows
from rationale_service.engine.request import InferenceRequest, note_misspelt
from rationale_service.errors import MalformedError, TooLargeError

MOST_DECISIONS = 10_000  # each runs and is recorded alone
DECISION_BYTES = 2000  # approximate size of one as JSON
_MOST_FEATURES = 100_000  # per instance
CHOOSING = ("explainer", "reference_set", "references", "reference_weights", "compare_with")
_OPTIONS = ("dry_run", "application_ids", *(option.name for option in OPTIONS))
_KNOWN = frozenset(("instances", "idempotency_key", "timeout", *CHOOSING, *_OPTIONS))


def decide_request(options: Mapping[str, Any], rows: Sequence[Any], faults: Faults) -> InferenceRequest:
    """Return a request for decisions.

    Args:
        options: options beside the rows: those of `OPTIONS`, `application_ids` and `dry_run`.

    Raises:
        MalformedError: if an option has a wrong type.
    """
    for name in CHOOSING:
        if options.get(name) is not None:
            faults.note(f"'{name}' is of explanations: a decision's was chosen when the model was compiled")
    if unknown := [name for name in options if name not in _KNOWN]:
        note_misspelt(unknown, _OPTIONS, faults)
    if not isinstance(options.get("dry_run"), bool | None):
        raise MalformedError("dry_run must be true or false")
    values = {option.name: option.value_of(options) for option in OPTIONS}
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            faults.note(f"instances[{i}] must be an object of features, so that reasons have names")
    return InferenceRequest(
        instances=RequestRows([*rows]),
        faults=faults,
        application_ids=_application_ids(options.get("application_ids"), len(rows), faults),
        options={name: value for name, value in values.items() if value is not None},
        dry_run=bool(options.get("dry_run")),
    )


def _application_ids(ids: Any, rows: int, faults: Faults) -> tuple[str | None, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(isinstance(each, str | None) for each in ids):
        raise MalformedError('application_ids must be a list of texts or nulls, such as ["A-4711"]')
    if len(ids) != rows:
        raise MalformedError(f"application_ids has {len(ids)} ids for {rows} instances: give one for each")
    for i, each in enumerate(ids):
        if each is not None and (fault := name_fault(each)) is not None:
            faults.note(f"application_ids[{i}] {fault}")
    return tuple(ids)


def check_rows(name: str, rows: Sequence[Any], most: int) -> None:
    """Raise TooLargeError for too many rows or features, whose Python objects would fill the memory."""
    if len(rows) > most:
        raise TooLargeError(f"{name} has {len(rows)} rows, more than {most}: send fewer at a time")
    for i, row in enumerate(rows):
        if isinstance(row, dict) and len(row) > _MOST_FEATURES:
            raise TooLargeError(f"{name}[{i}] has {len(row)} features, more than {_MOST_FEATURES}")


def note_duplicates(
    body: bytes | bytearray, rows: Sequence[Any], faults: Faults, beside: int = 0, noun: str = "feature"
) -> None:
    """Note each member that an object names twice: most parsers keep the last, silently.

    Args:
        body: JSON of the rows, with `beside` other members around them.
        noun: noun for a member in faults.
    """
    objects = [row for row in rows if isinstance(row, dict)]
    # If there are as many colons as members, no member hides another of its name.
    if not objects or body.count(b":") == beside + sum(map(len, objects)):
        return

    def twice(name: str) -> None:
        faults.note(f"{noun} '{name[:80]}' is given twice")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in values:
                twice(name)
            values[name] = value
        return values

    try:
        json_pieces.parse(body, partial(json.loads, object_pairs_hook=members), twice)
    except (ValueError, RecursionError) as error:  # valid JSON by now, but this parser has other limits
        raise MalformedError(
            "the body is not valid JSON: a number is too long or the nesting too deep"
        ) from error
