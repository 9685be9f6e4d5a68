"""The age at which decisions are pruned, and the erasure of inputs, which leaves a signed record."""

import calendar
from datetime import UTC, datetime
from typing import Any

from rationale_service.decisions.audit.evidence.signatures import PrivateKey
from rationale_service.decisions.audit.ledger import row_of
from rationale_service.decisions.audit.rows import Row, text_digest, time_text
from rationale_service.decisions.audit.stores.store import AuditStore
from rationale_service.errors import ConflictError


def months_ago(months: int, now: datetime | None = None) -> str:
    """Return the time `months` ago in the form of `RecordedDecision.time`; a short month's last day."""
    now = now or datetime.now(UTC)
    years, month = divmod(now.month - 1 - months, 12)
    year = max(now.year + years, datetime.min.year)
    day = min(now.day, calendar.monthrange(year, month + 1)[1])
    return time_text(now.replace(year=year, month=month + 1, day=day))


def erase(store: AuditStore, decision: str, key: PrivateKey) -> None:
    """Delete the keys of a decision's sealed inputs and of its contests and reviews; the rows stay.

    Args:
        key: key that signs the record of the erasure.

    Raises:
        UnknownResourceError: if there is no such decision.
        ConflictError: if its inputs are not sealed, or their key is missing or another decision's.
        StateUnavailableError: if the trail cannot be written.
    """
    row = row_of(store, decision)
    if row["kept"] != "sealed":
        raise ConflictError(
            f"the inputs of decision {decision} are kept {row['kept']}: only sealed inputs can be erased; "
            "deleting others would break the chain"
        )
    if row["wrapped"] is not None and text_digest(row["wrapped"]) != row["key_digest"]:
        raise ConflictError(
            f"decision {decision} has the key of another decision, so deleting it would erase nothing: see "
            "`rationale audit verify`"
        )
    for other in store.case(decision):  # the words of contests, and corrected inputs
        if other["id"] != decision and other["wrapped"] is not None:
            _erase_one(store, other, key)
    if _erase_one(store, row, key):
        return
    if row_of(store, decision)["erased"] is None:
        raise ConflictError(
            f"the key of decision {decision} is missing, but the trail records no erasure: see `rationale "
            "audit verify`"
        )
    raise ConflictError(f"the inputs of decision {decision} are erased already")


def _erase_one(store: AuditStore, row: Row, key: PrivateKey) -> bool:
    time = time_text()
    return store.erase(row["id"], time, key.sign(erasure_of(row, time)))


def erasure_of(row: Row, time: str) -> dict[str, Any]:
    """Return the signed content of an erasure, for this row alone."""
    return {"erased": {name: row[name] for name in ("chain", "sequence", "hash", "id")}, "time": time}
