"""The rows of a trail: the form of a decision's inputs, and the chain.

Inputs are kept plain, as a keyed digest, or sealed with a separate key for each row. The instance and the
values in reasons hold the applicant's data; both are kept in the same form.

Each row holds the digest of the one before, so that none can change or vanish unseen. It is the SHA-256 of a
JSON array, without spaces, in UTF-8: the row's place, its time, and the digest of all else. So a checkpoint
can show the time of a deleted row, but nothing else of it. Anybody with the table can compute both digests
without Rationale.
"""

import base64
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.decisions.options.options import PERSONAL

GENESIS = "0" * 64  # predecessor's digest in a chain's first row
PLACED = ("chain", "sequence", "previous", "time", "content")
CONTENT = (
    *("id", "model", "version", "caller", "request_id", "latency_ms", "answer", "runtime", "kept", "inputs"),
    *("key_digest", "idempotency_key", "place", "kind", "application_id", "reviews", "review_by"),
)

# A written row has the columns of `audit_decisions`. A row that was read also has `wrapped`, the key of its
# sealed inputs, and the time and signature of their erasure, `erased` and `signature`; None if missing.
Row = Mapping[str, Any]

InputForm = Literal["plain", "hashed", "sealed"]
Instance = Mapping[str, Any]  # in the form of `:decide`
_TIME = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d+)?(\+00:00)?)?)?)?)?)?")
_NUMBERS = {"sequence": int, "number": int, "place": int, "status": int, "latency_ms": int | float}
_LEAST_BYTES = 32
_NONCE = 12
_OF_VALUE = ("value", "category", "shown")  # members of a reason with the applicant's value


class WrongInstanceError(InvalidOptionError):
    """An instance other than that of the decision."""


class ErasedError(InvalidOptionError):
    """Inputs whose key was deleted."""


class InputCodec:
    """Converter of inputs to their stored form and back.

    hashed: the HMAC-SHA256 of the instance. A key derived from the instance encrypts the values of reasons:
        the instance itself shows them again.
    sealed: AES-256-GCM with a random key, which the key of the file encrypts.
    """

    def __init__(self, form: InputForm = "plain", key_file: Path | None = None) -> None:
        """Read the key file, if any.

        Raises InvalidOptionError if the key is missing or too short, or its library is missing.
        """
        self.form = form
        self._key = None if key_file is None else _read(key_file)
        if form != "plain":
            _cipher(bytes(32))
            self._derive_key("check")

    def keep(self, decision: str, instance: Instance, values: list[Any]) -> tuple[str, str | None]:
        """Return the inputs in their stored form, and the wrapped key of sealed ones."""
        if self.form == "plain":
            return _json({"instance": instance, "values": values}), None
        if self.form == "hashed":
            box = _seal(self._instance_digest("values", instance), _json(values), decision)
            return _json({"hmac": self._instance_digest("hmac", instance).hex(), "values": box}), None
        key = os.urandom(32)
        box = _seal(key, _json({"instance": instance, "values": values}), decision)
        return box, _seal(self._derive_key("wrap"), base64.b64encode(key).decode(), decision)

    def show(
        self, decision: str, form: str, text: str, wrapped: str | None, instance: Instance | None = None
    ) -> tuple[Instance | None, list[Any] | None]:
        """Return the instance and the values; None if they are hashed and `instance` is None.

        Args:
            instance: instance of the decision, according to the caller.

        Raises:
            WrongInstanceError: if the decision was on another instance.
            ErasedError: if they were sealed, and their key was deleted.
            InvalidOptionError: if they need another key file.
        """
        if form == "hashed":
            if instance is None:
                return None, None
            stored = json.loads(text)
            if not hmac.compare_digest(self._instance_digest("hmac", instance).hex(), stored["hmac"]):
                raise WrongInstanceError(
                    f"decision {decision} has another instance, or another key hashed it"
                )
            return instance, json.loads(self._open("values", instance, stored["values"], decision))
        if form == "sealed":
            if wrapped is None:
                raise ErasedError(f"the inputs of decision {decision} were erased")
            key = _unseal(self._derive_key("wrap"), wrapped, decision)
            text = _unseal(base64.b64decode(key), text, decision)
        stored = json.loads(text)
        if instance is not None and canonical(instance) != canonical(stored["instance"]):
            raise WrongInstanceError(f"decision {decision} has another instance")
        return stored["instance"], stored["values"]

    def _open(self, label: str, instance: Instance, box: str, decision: str) -> str:
        return _unseal(self._instance_digest(label, instance), box, decision)

    def _instance_digest(self, label: str, instance: Instance) -> bytes:
        return hmac.digest(self._derive_key(label), canonical(instance).encode(), "sha256")

    def _derive_key(self, label: str) -> bytes:
        """Derive a key for one use, so that no key serves two."""
        if self._key is None:
            raise InvalidOptionError(
                "these inputs need a key: give its file in audit_key_file (RATIONALE_AUDIT_KEY_FILE); "
                "`openssl rand -base64 32` makes one"
            )
        return hmac.digest(self._key, b"rationale audit " + label.encode(), "sha256")


def time_text(moment: datetime | None = None) -> str:
    """Return a moment, or now, as RFC 3339 in UTC with microseconds."""
    return (moment or datetime.now(UTC)).isoformat(timespec="microseconds")


def check_times(*times: str | None) -> None:
    """Raise InvalidOptionError for a text that is no beginning of an RFC 3339 time."""
    for time in times:
        if time is not None and not _TIME.fullmatch(time):
            raise InvalidOptionError(
                f"'{time[:80]}' is not a time: give a time in UTC, or the beginning of one, such as "
                "2026-11 or 2026-11-23T12:00"
            )


def canonical(instance: Instance) -> str:
    """Return a text that does not depend on the order of the members."""
    return json.dumps(instance, sort_keys=True, separators=(",", ":"))


def without_values(answer: Mapping[str, Any], values: list[Any]) -> dict[str, Any]:
    """Return the answer with None for the applicant's values in reasons, and for personal members.

    The values are added to `values`, in order.
    """
    reasons = answer.get("reasons", ())
    values += [reason[name] for reason in reasons for name in _OF_VALUE if name in reason]
    members = [name for name in PERSONAL if name in answer]
    values += [answer[name] for name in members]
    without = [{**reason, **_value_members(reason, repeat(None))} for reason in reasons]
    return {**answer, **({"reasons": without} if "reasons" in answer else {}), **dict.fromkeys(members)}


def with_values(answer: Mapping[str, Any], values: Iterator[Any]) -> dict[str, Any]:
    """Put the values back into an answer of `without_values`."""
    shown = [{**reason, **_value_members(reason, values)} for reason in answer.get("reasons", ())]
    personal = {name: next(values) for name in PERSONAL if name in answer}
    return {**answer, **({"reasons": shown} if "reasons" in answer else {}), **personal}


def _value_members(reason: Mapping[str, Any], values: Iterator[Any]) -> dict[str, Any]:
    return {name: next(values) for name in _OF_VALUE if name in reason}


def _json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def _read(file: Path) -> bytes:
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise InvalidOptionError(f"cannot read the audit trail's key, {file}: {error.strerror}") from error
    if len(key) < _LEAST_BYTES:
        raise InvalidOptionError(
            f"the key of the audit trail, {file}, has {len(key)} bytes, but needs at least {_LEAST_BYTES}: "
            "make one with `openssl rand -base64 32`"
        )
    return key


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidOptionError(
            f"hashed and sealed inputs need the library cryptography: {install('audit')}"
        ) from error
    return AESGCM(key)


def _seal(key: bytes, text: str, decision: str) -> str:
    """Seal a text for this decision alone: it does not open under another id."""
    nonce = os.urandom(_NONCE)
    return base64.b64encode(nonce + _cipher(key).encrypt(nonce, text.encode(), decision.encode())).decode()


def _unseal(key: bytes, box: str, decision: str) -> str:
    """Open a sealed box. Raises InvalidOptionError."""
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    raw = base64.b64decode(box)
    try:
        text: bytes = cipher.decrypt(raw[:_NONCE], raw[_NONCE:], decision.encode())
    except InvalidTag as error:
        raise InvalidOptionError(
            f"the inputs of decision {decision} cannot be decrypted: another key than that of "
            "audit_key_file sealed them, or they were altered"
        ) from error
    return text.decode()


# --- chains ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChainHead:
    """The end of a chain: the number and the digest of its last row."""

    chain: str
    sequence: int = 0
    hash: str = GENESIS

    def append(self, row: Row) -> tuple[dict[str, Any], "ChainHead"]:
        """Return the row with its place in the chain, and the chain's new end."""
        linked = {**row, "chain": self.chain, "sequence": self.sequence + 1, "previous": self.hash}
        linked["hash"] = digest(linked)
        return linked, ChainHead(self.chain, self.sequence + 1, linked["hash"])


def unreadable(row: Row) -> str:
    """Return the columns with values of types that Rationale never writes: SQLite takes any type."""
    present = {name: value for name, value in row.items() if value is not None}
    return ", ".join(
        name for name, value in present.items() if not isinstance(value, _NUMBERS.get(name, str))
    )


def new_chain() -> ChainHead:
    return ChainHead(secrets.token_hex(16))


def checkpoint_of(row: Row) -> dict[str, Any]:
    """Return a checkpoint of a row: evidence that it existed, with its time."""
    columns = ("chain", "sequence", "hash", "previous", "time")
    return {**{name: row[name] for name in columns}, "content": content_digest(row)}


def digest(row: Row) -> str:
    """Return the digest of all columns except the row's own `hash`."""
    return placed_digest({**row, "content": content_digest(row)})


def content_digest(row: Row) -> str:
    """Return the digest of the columns that a checkpoint does not keep."""
    return _digest([row[name] for name in CONTENT])


def placed_digest(checkpoint: Row) -> str:
    """Return the digest of a row from its checkpoint."""
    return _digest([checkpoint[name] for name in PLACED])


def text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _digest(columns: Sequence[Any]) -> str:
    return text_digest(json.dumps(columns, ensure_ascii=False, separators=(",", ":")))
