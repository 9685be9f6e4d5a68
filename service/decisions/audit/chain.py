"""Rows are chained: each holds the digest of the one before, so that none can change or go unseen.

The digest is the SHA-256 of a JSON array: the row's columns but `hash`, in the order of `CHAINED`, without
spaces, in UTF-8. Whoever has the table can compute it without Rationale.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

GENESIS = "0" * 64  # what the first row of a chain follows
CHAINED = (
    *("chain", "sequence", "previous", "id", "time", "model", "version", "caller", "request_id"),
    *("latency_ms", "answer", "runtime", "kept", "inputs", "idempotency_key", "place"),
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
    columns = [row[name] for name in CHAINED]
    return sha256(json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
