"""JSON Web Tokens of an identity provider: the caller's identity and rights (RFC 7519, RFC 8725).

Callers send them like keys, as `Authorization: Bearer TOKEN`; both may be in use. The gateway fetches the
provider's public keys when a token names an unknown one, and again after some minutes, so that it follows
rotated keys by itself.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.errors import NotReadyError, UnauthenticatedError
from rationale_service.security.circuit import Circuit
from rationale_service.security.keys import TOKEN_PREFIX, Caller, Scope
from rationale_service.settings import LEAST_RATE, MOST_RATE, Settings

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient

MODELS, RATE = "rationale_models", "rationale_requests_per_s"  # claims
_LONGEST = 16_384  # characters
_SUBJECT = 128  # longest subject that names keep unchanged
_REQUIRED = ["exp", "iss", "aud", "sub"]
_FETCH_S, _KEPT_S, _COOLDOWN_S = 5.0, 300.0, 10.0  # times for the provider's keys
_PAUSE_S = 5.0  # after a failed fetch


class TokenIssuer:
    """The identity provider whose tokens the gateway accepts."""

    def __init__(self, settings: Settings, count: Callable[[], None] = lambda: None) -> None:
        """Take the settings without fetching keys.

        Args:
            count: function that counts each failure to fetch the keys.

        Raises:
            InvalidOptionError: if PyJWT is not installed, or the address of the keys is invalid.
        """
        try:
            from jwt import PyJWKClientError
        except ImportError as error:
            raise InvalidOptionError(f"tokens need PyJWT: {install('jwt')}") from error
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        self._algorithms, self._leeway_s = settings.jwt_algorithms, settings.jwt_leeway_s
        self._scope_claim = settings.jwt_scope_claim
        try:
            self._keys = _keys_of(str(settings.jwt_keys), Circuit(_PAUSE_S, count))
        except PyJWKClientError as error:
            raise InvalidOptionError(f"RATIONALE_JWT_KEYS: {error}") from error
        self._thread = ThreadPoolExecutor(1, "token-keys")  # no other work waits for the provider

    async def identify(self, token: str) -> Caller:
        """Return the caller that a token names.

        Raises:
            UnauthenticatedError: if it is not the provider's, has expired, or is for another audience.
            NotReadyError: if the provider's keys cannot be fetched.
        """
        import jwt

        try:
            if len(token) > _LONGEST:
                raise jwt.DecodeError(f"longer than {_LONGEST} characters")
            algorithm = jwt.get_unverified_header(token).get("alg")
            if algorithm not in self._algorithms:
                raise jwt.InvalidAlgorithmError(f"its algorithm is not one of {', '.join(self._algorithms)}")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                await self._key_of(token),
                algorithms=list(self._algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={"require": _REQUIRED},
            )
            return self._caller(claims)
        except (jwt.PyJWTError, ValueError) as error:
            raise UnauthenticatedError(f"the gateway rejects the token: {error}", invalid=True) from error

    async def _key_of(self, token: str) -> "PyJWK":
        """Return the key that signed a token; fetch an unknown one in a thread."""
        import jwt

        key = self._cached_key(jwt.get_unverified_header(token).get("kid"))
        if key is not None:
            return key
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._keys.get_signing_key_from_jwt, token)
        except jwt.PyJWKClientConnectionError as error:
            raise NotReadyError("the identity provider does not return its keys: try again later") from error
        except jwt.PyJWKClientError as error:
            raise jwt.InvalidKeyError("its key is not one of the identity provider's") from error

    def _cached_key(self, kid: object) -> "PyJWK | None":
        """Return a known key, so that its callers do not wait for fetches of unknown ones; else None."""
        from jwt import PyJWKSet

        cached = None if self._keys.jwk_set_cache is None else self._keys.jwk_set_cache.get()
        keys = cached.keys if isinstance(cached, PyJWKSet) else ()
        return next((key for key in keys if key.key_id == kid and key.public_key_use in ("sig", None)), None)

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        """Return the caller that claims name. Raises ValueError for claims of a wrong type."""
        models, rate = claims.get(MODELS), claims.get(RATE)
        if models is not None and not (isinstance(models, list) and all(isinstance(m, str) for m in models)):
            raise ValueError(f"its claim {MODELS} is not a list of names")
        if rate is not None and not (
            isinstance(rate, int | float) and not isinstance(rate, bool) and LEAST_RATE <= rate <= MOST_RATE
        ):
            raise ValueError(f"its claim {RATE} is not a number from {LEAST_RATE:g} to {MOST_RATE:g}")
        scopes = frozenset(_words(claims.get(self._scope_claim))) & frozenset(map(str, Scope))
        allowed = None if models is None else frozenset(models)
        return Caller(_name(claims["sub"]), frozenset(map(Scope, scopes)), rate, models=allowed)


def _keys_of(url: str, circuit: Circuit) -> "PyJWKClient":
    """Return a client that fetches and caches keys. Raises PyJWKClientError for an invalid address."""
    from jwt import PyJWKClient, PyJWKClientConnectionError

    class Keys(PyJWKClient):
        def fetch_data(self) -> Any:
            if not circuit.lets_through():
                raise PyJWKClientConnectionError("the last fetch failed, a moment ago")
            try:
                keys = super().fetch_data()
            except BaseException:
                circuit.report_failure()
                raise
            circuit.report_answer()
            return keys

    return Keys(url, lifespan=_KEPT_S, timeout=_FETCH_S, cooldown_duration=_COOLDOWN_S)


def _name(subject: str) -> str:
    """Return a subject's unique name for records and logs.

    No key has a ":" in its name, so a subject never looks like a key. A long subject's name holds its
    SHA-256. Raises ValueError for a subject that cannot be printed.
    """
    if not subject or not subject.isprintable():
        raise ValueError("its claim sub is empty, or holds characters that cannot be printed")
    if len(subject) <= _SUBJECT:
        return f"jwt:{subject}"
    return f"jwt-sha256:{hashlib.sha256(subject.encode()).hexdigest()}"


def is_key(token: str | None) -> bool:
    """Tell whether to look for a token among the keys."""
    return token is None or token.startswith(TOKEN_PREFIX) or token.count(".") != 2


def _words(claim: Any) -> list[str]:
    """Return scopes from a list or from words in a text (RFC 8693, 4.2), without a prefix `rationale:`."""
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return [word.removeprefix("rationale:") for word in words if isinstance(word, str)]
