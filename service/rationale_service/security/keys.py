"""Callers and their rights: keys with scopes, and the scopes that routes and methods declare.

A key is a random token of 256 bits that its caller sends as `Authorization: Bearer TOKEN` or as
`X-API-Key: TOKEN`, over gRPC as metadata. The gateway knows only its SHA-256, from a file or the
environment: a token of that entropy needs no slow hash. Without keys everybody may infer, explain and decide;
if only this machine reaches the gateway, callers may also administer it, and read and review old decisions.
"""

import datetime
import enum
import hashlib
import hmac
import ipaddress
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rationale.errors import InvalidOptionError, RationaleError
from rationale.schema.manifest import EXPLAIN_SUFFIX
from rationale_service.errors import ForbiddenError, UnauthenticatedError
from rationale_service.repository.entry import Entry
from rationale_service.settings import LEAST_RATE, MOST_RATE, Settings

TOKEN_PREFIX = "rk_"  # noqa: S105  # lets scanners find committed tokens
_TOKEN_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}")


class Scope(enum.StrEnum):
    INFER = "infer"
    EXPLAIN = "explain"
    DECIDE = "decide"
    RECOURSE = "recourse"
    REVIEW = "review"
    AUDIT = "audit"
    ADMIN = "admin"


Scopes = frozenset[Scope]
NOBODY_NEEDS: Scopes = frozenset()  # open: no key is checked
ANY_KEY: Scopes = frozenset(Scope)
INFER: Scopes = frozenset({Scope.INFER})
EXPLAIN: Scopes = frozenset({Scope.EXPLAIN})
DECIDE: Scopes = frozenset({Scope.DECIDE})
RECOURSE: Scopes = frozenset({Scope.RECOURSE})
REVIEW: Scopes = frozenset({Scope.REVIEW})
AUDIT: Scopes = frozenset({Scope.AUDIT})
ADMIN: Scopes = frozenset({Scope.ADMIN})


def scopes_of(name: str) -> Scopes:
    """Convert a setting's text → scopes: the name of a scope, or none."""
    return NOBODY_NEEDS if name == "none" else frozenset({Scope(name)})


@dataclass(frozen=True)
class Caller:
    """The sender of a request; `name` is the key's, empty if no keys are needed."""

    name: str
    scopes: Scopes
    requests_per_s: float | None = None  # None: the settings' rate
    burst: int | None = None
    models: frozenset[str] | None = None  # models that it may use; None: all

    def require(self, needed: Scopes) -> None:
        """Raise ForbiddenError unless the caller has one of the scopes `needed`."""
        if needed and self.scopes.isdisjoint(needed):
            text = " or ".join(sorted(needed))
            if not self.name:
                raise ForbiddenError(
                    f"this request needs a key with the scope {text}, but the gateway has no keys: make "
                    "one with `rationale keys new` and restart it, or serve on a loopback address"
                )
            raise ForbiddenError(f"key '{self.name}' lacks the scope {text}", scope=" ".join(sorted(needed)))

    def require_model(self, model: str) -> None:
        """Raise ForbiddenError unless the caller may use this model."""
        if self.models is not None and model not in self.models:
            raise ForbiddenError(f"'{self.name}' may not use the model '{model}'")


class _Key(BaseModel):
    """A table `[keys.NAME]` of the key file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    scopes: list[Scope] = Field(min_length=1)
    expires: datetime.date | None = None
    requests_per_s: float | None = Field(default=None, ge=LEAST_RATE, le=MOST_RATE)
    burst: int | None = Field(default=None, ge=1)
    models: frozenset[str] | None = None

    @field_validator("scopes")
    @classmethod
    def _in_order(cls, scopes: list[Scope]) -> list[Scope]:
        return sorted(set(scopes))


@dataclass(frozen=True)
class Keyring:
    """The keys of a gateway by their digest. Without keys every caller is `anyone`, unless that is None."""

    keys: Mapping[bytes, tuple[Caller, datetime.date | None]]
    anyone: Caller | None

    def identify(self, token: str | None) -> Caller:
        """Return the caller of a token. Raises UnauthenticatedError.

        Every comparison takes the same time, wherever the digests differ.
        """
        if not self.keys and self.anyone is not None:
            return self.anyone
        if token is None:
            raise UnauthenticatedError(
                "send a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`, over gRPC as metadata"
            )
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        match = next((each for each in self.keys if hmac.compare_digest(each, digest)), None)
        if match is None:
            raise UnauthenticatedError("the gateway does not know this key", invalid=True)
        caller, expires = self.keys[match]
        if expires is not None and datetime.datetime.now(datetime.UTC).date() >= expires:
            raise UnauthenticatedError(f"key '{caller.name}' expired on {expires}", invalid=True)
        return caller


def read_keys(settings: Settings) -> Keyring:
    """Read the API keys. Raises InvalidOptionError.

    A key file without keys is an error too: its writer may not have finished.
    """
    inline = settings.keys.get_secret_value() if settings.keys else None
    keyring = read_keyring(
        settings.keys_file,
        inline,
        admin_is_local=is_loopback(settings.admin_end),
        is_local=is_loopback(settings.host),
    )
    if settings.keys_file is not None and not keyring.keys:
        raise InvalidOptionError(
            f"the key file {settings.keys_file} contains no keys, so it would admit everybody. Make one "
            "with `rationale keys new NAME --scope infer --file …`, or serve without a key file"
        )
    return keyring if settings.jwt_issuer is None else replace(keyring, anyone=None)


def read_keyring(
    file: Path | None, inline: str | None, *, admin_is_local: bool, is_local: bool = False
) -> Keyring:
    """Read the keys of a file and of the environment together.

    Args:
        inline: TOML in the form of the file.
        admin_is_local: True if only this machine reaches the admin API, which is then open without keys.
        is_local: True if only this machine reaches the gateway; decisions and reviews are then open without
            keys.

    Raises:
        InvalidOptionError: if the file is missing or broken, or two keys share a name or a token.
    """
    keys: dict[bytes, tuple[Caller, datetime.date | None]] = {}
    names: set[str] = set()
    for name, key in (*_read_file(file), *_parse("RATIONALE_KEYS", inline or "")):
        digest = bytes.fromhex(key.sha256)
        if name in names or digest in keys:
            raise InvalidOptionError(f"key '{name}' is given twice, or its token is another key's")
        names.add(name)
        scopes = frozenset(key.scopes)
        keys[digest] = Caller(name, scopes, key.requests_per_s, key.burst, key.models), key.expires
    closed = {
        scope
        for scope, is_open in (
            (Scope.ADMIN, admin_is_local),
            (Scope.AUDIT, is_local),
            (Scope.REVIEW, is_local),
        )
        if not is_open
    }
    return Keyring(keys, Caller("", ANY_KEY - closed))


def new_key(name: str, scopes: Iterable[Scope], expires: datetime.date | None) -> tuple[str, str]:
    """Return a new token and its table for the key file. Raises InvalidOptionError for an invalid name."""
    if not NAME.fullmatch(name):
        raise InvalidOptionError(
            f"'{name[:80]}': a key's name has letters, digits, '.', '_' and '-', 64 at most"
        )
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    lines = [
        f'[keys."{name}"]',
        f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"',
        f"scopes = [{', '.join(f'{chr(34)}{scope}{chr(34)}' for scope in sorted(set(scopes)))}]",
    ]
    if expires is not None:
        lines.append(f"expires = {expires.isoformat()}")
    return token, "\n".join(lines) + "\n"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name may mean any address
        return False


def token_of(authorization: str | None, api_key: str | None) -> str | None:
    """Return the token of either header. Raises UnauthenticatedError for a scheme other than Bearer."""
    if authorization is None:
        return api_key
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthenticatedError("Authorization must be `Bearer KEY`", invalid=True)
    return token.strip()


# --- what a request needs -------------------------------------------------------------------------------

Needs = Scopes | Callable[[str], Scopes]  # fixed, or depending on the model's name in the path
Endpoint = TypeVar("Endpoint")
_NEEDS = "needs_scopes"


class UndeclaredScopesError(RationaleError):
    """A route or a gRPC method without declared scopes, so that the gateway does not start."""


def needs(scopes: Needs) -> Callable[[Endpoint], Endpoint]:
    """Declare the scopes of a route's function, a mounted app or a gRPC method: its caller needs one of them.

    Args:
        scopes: scopes to declare; NOBODY_NEEDS opens it to everybody, ANY_KEY to every key.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NEEDS, scopes)
        return endpoint

    return declare


def declared_scopes(endpoint: object, name: str) -> Needs:
    """Return the scopes that `needs` declared. Raises UndeclaredScopesError, which names the endpoint."""
    scopes: Needs | None = getattr(endpoint, _NEEDS, None)
    if scopes is None:
        raise UndeclaredScopesError(
            f"{name} declares no scopes. Put @needs(…) of rationale_service.security.keys on its handler: "
            "@needs(ADMIN), for example, or @needs(NOBODY_NEEDS) if it is open to everybody"
        )
    return scopes


def needed_by_model(name: str) -> Scopes:
    """Return the scopes to run an entry, from its name: names of explain entries contain the suffix."""
    return EXPLAIN if EXPLAIN_SUFFIX in name else INFER


def needed_by_entry(entry: Entry) -> Scopes:
    """Return the scopes to run an entry, from its manifest: an explain entry may have any name on disk."""
    return INFER if entry.manifest is None else EXPLAIN


def _read_file(file: Path | None) -> list[tuple[str, _Key]]:
    if file is None:
        return []
    try:
        return _parse(str(file), file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"cannot read the key file {file}: {error}") from error


def _parse(where: str, text: str) -> list[tuple[str, _Key]]:
    try:
        tables: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOptionError(f"{where}: not valid TOML: {error}") from error
    keys = tables.pop("keys", {})
    if tables or not isinstance(keys, dict):
        raise InvalidOptionError(
            f"{where}: only tables [keys.NAME] belong here; `rationale keys new` writes one"
        )
    return [(name, _key(where, name, table)) for name, table in keys.items()]


def _key(where: str, name: str, table: Any) -> _Key:
    if not NAME.fullmatch(name):
        raise InvalidOptionError(
            f"{where}: '{name[:80]}' is not a name for a key: use letters, digits, '.', '_', '-'"
        )
    try:
        return _Key.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise InvalidOptionError(f"{where}: key '{name}': {place}: {first['msg']}") from error
