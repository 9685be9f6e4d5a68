"""Signed heads: both ends of chains, to be kept elsewhere. They reveal a trail that was cut."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit.evidence.signatures import PrivateKey, PublicKey, signed_by_one
from rationale_service.decisions.audit.rows import GENESIS, time_text, unreadable
from rationale_service.decisions.audit.stores.store import AuditStore, ChainEnds
from rationale_service.errors import StateUnavailableError

VERSION = 1  # of the file


@dataclass(frozen=True)
class SignedHead:
    """State of a chain at one moment. Its last digest covers all rows and their keys.

    Attributes:
        first: number of its first row that is not pruned; if all are, the number after the last one.
        before: digest of the row before the first, which the checkpoint keeps.
        sequence, hash, time: values of its last row, or of the checkpoint if all rows are pruned.
        erased: numbers of rows whose keys were erased.
    """

    chain: str
    first: int
    before: str
    sequence: int
    hash: str
    time: str
    erased: tuple[int, ...] = ()


def heads(store: AuditStore) -> list[SignedHead]:
    """Return the head of every chain, even if all its rows are pruned. Raises StateUnavailableError."""
    return [_head(ends) for ends in store.ends()]


def _head(ends: ChainEnds) -> SignedHead:
    pruned, last = ends.checkpoint, ends.last or ends.checkpoint
    assert last is not None  # noqa: S101 (a chain without rows has a checkpoint)
    if any(unreadable(each) for each in ({"chain": ends.name}, pruned or {}, last)):
        raise StateUnavailableError(
            f"chain {ends.name!s} has no head to sign: its end was altered, as `rationale audit verify` shows"
        )
    first, before = (1, GENESIS) if pruned is None else (pruned["sequence"] + 1, pruned["hash"])
    return SignedHead(ends.name, first, before, last["sequence"], last["hash"], last["time"], ends.erased)


def signed(signed_heads: Sequence[SignedHead], key: PrivateKey) -> str:
    """Return JSON with the heads and their signature."""
    document: dict[str, Any] = {
        "version": VERSION,
        "made": time_text(),
        "heads": [{**asdict(head), "erased": [*head.erased]} for head in signed_heads],
        "public_key": key.public_pem,
    }
    document["signature"] = key.sign(document)
    return json.dumps(document, indent=2) + "\n"


def read_signed(file: Path, keys: Sequence[PublicKey]) -> list[SignedHead]:
    """Return the heads of a file signed by one of the keys. Raises InvalidOptionError if it is not."""
    try:
        document = json.loads(file.read_bytes())
        members = {name: value for name, value in document.items() if name != "signature"}
        signature = str(document["signature"])
        if not signed_by_one(keys, members, signature):
            raise InvalidOptionError(
                f"{file} does not match the public key: another key signed it, or it was altered"
            )
        if document.get("version", VERSION) != VERSION:
            raise InvalidOptionError(
                f"{file} has the version {document['version']}, and this Rationale reads {VERSION}: use the "
                "newer Rationale that wrote it"
            )
        return TypeAdapter(list[SignedHead]).validate_python(document["heads"])
    except ValidationError as error:
        raise InvalidOptionError(
            f"{file} contains no signed heads of this version: write them again with `rationale audit heads`"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOptionError(f"{file} contains no signed heads: {error}") from error
