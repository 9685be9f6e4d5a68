"""Rows are chained: each holds the digest of the one before, so that none can change or go unseen.

The digest is the SHA-256 of a JSON array, without spaces, in UTF-8: of the row's place, its time, and the
digest of all else. So a checkpoint can show when a row was made that is there no more, and no more of it.
Whoever has the table can compute both without Rationale.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

GENESIS = "0" * 64  # what the first row of a chain follows
PLACED = ("chain", "sequence", "previous", "time", "content")
CONTENT = (
    *("id", "model", "version", "caller", "request_id", "latency_ms", "answer", "runtime", "kept", "inputs"),
    *("key_digest", "idempotency_key", "place"),
)


@dataclass(frozen=True)
class Head:
    """The end of a chain: the number and the digest of its last row."""

    chain: str
    sequence: int = 0
    hash: str = GENESIS

    def append(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], "Head"]:
        """The row with its place in the chain, and the chain's new end."""
        linked = {**row, "chain": self.chain, "sequence": self.sequence + 1, "previous": self.hash}
        linked["hash"] = digest(linked)
        return linked, Head(self.chain, self.sequence + 1, linked["hash"])


def new_chain() -> Head:
    return Head(secrets.token_hex(16))


def digest(row: Mapping[str, Any]) -> str:
    """Of all but its own `hash`."""
    return placed_digest({**row, "content": content_digest(row)})


def content_digest(row: Mapping[str, Any]) -> str:
    """Of what a checkpoint does not keep."""
    return _digest([row[name] for name in CONTENT])


def placed_digest(checkpoint: Mapping[str, Any]) -> str:
    """Of a row, from what a checkpoint keeps of it."""
    return _digest([checkpoint[name] for name in PLACED])


def text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _digest(columns: Sequence[Any]) -> str:
    return text_digest(json.dumps(columns, ensure_ascii=False, separators=(",", ":")))
