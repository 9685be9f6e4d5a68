"""Signed heads: the ends of chains, to be kept elsewhere. A trail that was cut does not reach them."""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, select

from compiler.errors import InvalidOptionError
from service.decisions.audit.database import Database
from service.decisions.audit.tables import decisions


@dataclass(frozen=True)
class SignedHead:
    """
    Attributes:
        count: rows of the chain in the trail, those that were pruned not counted.
        time: of the last row.
    """

    chain: str
    sequence: int
    hash: str
    count: int
    time: str


def heads(database: Database) -> list[SignedHead]:
    """Of every chain that has rows. Raises StateUnavailableError."""
    table = decisions.c
    by_chain = select(
        table.chain, func.max(table.sequence).label("sequence"), func.count().label("count")
    ).group_by(table.chain)
    ends = by_chain.subquery()
    is_end = (table.chain == ends.c.chain) & (table.sequence == ends.c.sequence)
    query = select(table.chain, table.sequence, table.hash, ends.c.count, table.time).join(ends, is_end)
    with database.reading() as connection:
        return [SignedHead(*row) for row in connection.execute(query.order_by(table.chain))]


def signed(found: Sequence[SignedHead], key_file: Path) -> str:
    """JSON with the heads and their Ed25519 signature. Raises InvalidOptionError."""
    serialization, ed25519 = _cryptography()
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidOptionError(f"cannot read the private key {key_file}: {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InvalidOptionError(
            f"{key_file} is no Ed25519 key: `openssl genpkey -algorithm ed25519 -out {key_file}` makes one"
        )
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    document = {
        "made": datetime.now(UTC).isoformat(timespec="microseconds"),
        "heads": [asdict(head) for head in found],
        "public_key": pem.decode(),
    }
    document["signature"] = base64.b64encode(key.sign(_message(document))).decode()
    return json.dumps(document, indent=2) + "\n"


def read_signed(file: Path, public_key: Path) -> list[SignedHead]:
    """The heads of a file that was signed by the key. Raises InvalidOptionError: it was not."""
    serialization, ed25519 = _cryptography()
    try:
        key = serialization.load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"cannot read the public key {public_key}: {error}") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InvalidOptionError(f"{public_key} is no Ed25519 key")
    try:
        document = json.loads(file.read_bytes())
        key.verify(base64.b64decode(document["signature"]), _message(document))
        return TypeAdapter(list[SignedHead]).validate_python(document["heads"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise InvalidOptionError(f"{file} holds no signed heads: {error}") from error
    except _invalid_signature() as error:
        raise InvalidOptionError(f"{file} was not signed by {public_key}, or altered since") from error


def _message(document: dict[str, Any]) -> bytes:
    """What is signed: all but the signature, with sorted names and without spaces."""
    members = {name: value for name, value in document.items() if name != "signature"}
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InvalidOptionError(
            "signed heads need the library cryptography: pip install 'rationale[audit]'"
        ) from error
    return serialization, ed25519


def _invalid_signature() -> type[Exception]:
    from cryptography.exceptions import InvalidSignature

    return InvalidSignature
