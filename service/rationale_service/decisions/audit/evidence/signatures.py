"""Ed25519 signatures of heads and erasures, by a key that the gateway does not have."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rationale.distribution import install
from rationale.errors import InvalidOptionError


class PrivateKey:
    """Key that signs."""

    def __init__(self, file: Path) -> None:
        """Read the key file. Raises InvalidOptionError if it has no such key or the library is missing."""
        self._serialization, ed25519 = _cryptography()
        try:
            key = self._serialization.load_pem_private_key(file.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidOptionError(f"cannot read the private key {file}: {error}") from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise InvalidOptionError(
                f"{file} is not an Ed25519 key: make one with `openssl genpkey -algorithm ed25519 -out "
                f"{file}`"
            )
        self._key = key

    @property
    def public_pem(self) -> str:
        """Public key that verifies its signatures."""
        s = self._serialization
        pem: bytes = self._key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        return pem.decode()

    def sign(self, members: Mapping[str, Any]) -> str:
        """Return the signature in base64."""
        return base64.b64encode(self._key.sign(_message(members))).decode()


class PublicKey:
    """Key that verifies signatures."""

    def __init__(self, file: Path) -> None:
        """Read the key file. Raises InvalidOptionError if it has no such key or the library is missing."""
        serialization, ed25519 = _cryptography()
        try:
            key = serialization.load_pem_public_key(file.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidOptionError(f"cannot read the public key {file}: {error}") from error
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise InvalidOptionError(f"{file} is not an Ed25519 key")
        self._key = key

    def has_signed(self, members: Mapping[str, Any], signature: str) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(base64.b64decode(signature), _message(members))
        except (InvalidSignature, ValueError):
            return False
        return True


def signed_by_one(keys: Sequence[PublicKey], members: Mapping[str, Any], signature: str) -> bool:
    return any(key.has_signed(members, signature) for key in keys)


def _message(members: Mapping[str, Any]) -> bytes:
    """Return the message to sign: JSON with sorted names and without spaces."""
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InvalidOptionError(f"signatures need the library cryptography: {install('audit')}") from error
    return serialization, ed25519
