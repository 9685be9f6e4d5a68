"""Signed heads: both ends of chains, to be kept elsewhere. A trail that was cut does not reach them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, func, select

from compiler.errors import InvalidOptionError
from service.decisions.audit.chain import GENESIS
from service.decisions.audit.database import Database
from service.decisions.audit.signatures import PrivateKey, PublicKey, signed_by_one
from service.decisions.audit.tables import checkpoints, decisions, erasures


@dataclass(frozen=True)
class SignedHead:
    """What a chain was at one moment. Its last digest stands for all rows and their keys.

    Attributes:
        first: number of its first row that is not pruned; after the last one where all are.
        before: digest of the row before the first: of what the checkpoint keeps.
        sequence, hash, time: of its last row, or of the checkpoint where all are pruned.
        erased: numbers of rows whose keys were erased.
    """

    chain: str
    first: int
    before: str
    sequence: int
    hash: str
    time: str
    erased: tuple[int, ...] = ()


def heads(database: Database) -> list[SignedHead]:
    """Of every chain, those of which all rows are pruned too. Raises StateUnavailableError."""
    table = decisions.c
    ends = select(table.chain, func.max(table.sequence).label("last")).group_by(table.chain).subquery()
    is_end = (table.chain == ends.c.chain) & (table.sequence == ends.c.last)
    query = select(table.chain, table.sequence, table.hash, table.time).join(ends, is_end)
    with database.reading() as connection:
        pruned = {one.chain: one for one in connection.execute(select(checkpoints))}
        last = {one.chain: one for one in connection.execute(query)}
        erased = _erased(connection)
    found = []
    for chain in sorted({*pruned, *last}):
        checkpoint, end = pruned.get(chain), last.get(chain) or pruned[chain]
        first, before = (1, GENESIS) if checkpoint is None else (checkpoint.sequence + 1, checkpoint.hash)
        of_chain = tuple(erased.get(chain, ()))
        found.append(SignedHead(chain, first, before, end.sequence, end.hash, end.time, of_chain))
    return found


def _erased(connection: Connection) -> dict[str, list[int]]:
    table = decisions.c
    query = select(table.chain, table.sequence).join(erasures, table.id == erasures.c.id)
    found: dict[str, list[int]] = {}
    for chain, sequence in connection.execute(query.order_by(table.sequence)):
        found.setdefault(chain, []).append(sequence)
    return found


def signed(found: Sequence[SignedHead], key: PrivateKey) -> str:
    """JSON with the heads and their signature."""
    document: dict[str, Any] = {
        "made": datetime.now(UTC).isoformat(timespec="microseconds"),
        "heads": [{**asdict(head), "erased": [*head.erased]} for head in found],
        "public_key": key.public_pem,
    }
    document["signature"] = key.sign(document)
    return json.dumps(document, indent=2) + "\n"


def read_signed(file: Path, keys: Sequence[PublicKey]) -> list[SignedHead]:
    """The heads of a file that was signed by one of the keys. Raises InvalidOptionError: it was not."""
    try:
        document = json.loads(file.read_bytes())
        members = {name: value for name, value in document.items() if name != "signature"}
        signature = str(document["signature"])
        if not signed_by_one(keys, members, signature):
            raise InvalidOptionError(f"{file} was not signed by the public key, or was altered since")
        return TypeAdapter(list[SignedHead]).validate_python(document["heads"])
    except ValidationError as error:
        raise InvalidOptionError(
            f"{file} holds no signed heads of this version: write them anew by `rationale audit heads`"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOptionError(f"{file} holds no signed heads: {error}") from error
