"""Tokens of an identity provider: taken and refused as RFC 7519 and RFC 8725 say, over HTTP and gRPC."""

import asyncio
import base64
import hmac
import itertools
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import ValidationError

from rationale_service.errors import NotReadyError, UnauthenticatedError
from rationale_service.security import tokens
from rationale_service.security.keys import Scope, new_key
from rationale_service.security.tokens import TokenIssuer
from rationale_service.settings import LEAST_RATE, MOST_RATE, Settings
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.grpc_end import grpc_end
from tests.service.messages import GOOD, request
from tests.service.security.test_keys import code

SESSION = pytest.mark.asyncio(loop_scope="session")
ISSUER, AUDIENCE = "https://id.lender.example", "rationale"
ROWS = {"instances": handmade.X.tolist()}


@dataclass
class Provider:
    """An identity provider: keys that sign, those that it gives out, and how often it was asked."""

    url: str = ""
    signing: dict[str, Any] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    fetches: int = 0
    answers: bool = True
    uses: dict[str, str | None] = field(
        default_factory=dict
    )  # of a key, where that is not to sign; None: not told

    def add(self, kid: str, key: Any) -> None:
        self.signing[kid] = key
        self.published.append(kid)

    def page(self) -> bytes:
        collected = []
        for kid in self.published:
            public = self.signing[kid].public_key()
            is_rsa = isinstance(public, rsa.RSAPublicKey)
            kind = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
            use = self.uses.get(kid, "sig")
            told = {} if use is None else {"use": use}
            collected.append({**json.loads(kind.to_jwk(public)), "kid": kid, **told})
        return json.dumps({"keys": collected}).encode()

    def token(self, kid: str = "a", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token that is good but for the claims given; None leaves one out."""
        now = int(time.time())
        expected = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "scoring",
            "scope": "explain infer",
            "exp": now + 60,
        }
        claims_given = {name: value for name, value in {**expected, **claims}.items() if value is not None}
        algorithm = "RS256" if isinstance(self.signing[kid], rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(claims_given, self.signing[kid], algorithm, {"kid": kid, **(headers or {})})


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Yield a provider that is asked over HTTP."""
    new_provider = Provider()

    class ProviderHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            new_provider.fetches += 1
            self.send_response(200 if new_provider.answers else 503)
            self.end_headers()
            self.wfile.write(new_provider.page())

        def log_message(self, *_: Any) -> None:
            pass

    new_provider.add("a", rsa.generate_private_key(65537, 2048))
    with ThreadingHTTPServer(("127.0.0.1", 0), ProviderHandler) as server:
        new_provider.url = f"http://127.0.0.1:{server.server_port}/keys"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield new_provider
        server.shutdown()


def settings(provider: Provider, **more: Any) -> Settings:
    return Settings(jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_keys=provider.url, audit="off", **more)


def unsigned(provider: Provider) -> str:
    return jwt.encode(jwt.decode(provider.token(), options={"verify_signature": False}), None, "none")


def by_public_key(provider: Provider) -> str:
    """Return a token signed with the public key as if it were a secret (RFC 8725, 2.1)."""
    public = provider.signing["a"].public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _, claims, _ = provider.token().split(".")
    head = encoded(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "a"}).encode())
    return f"{head}.{claims}.{encoded(hmac.digest(secret, f'{head}.{claims}'.encode(), 'sha256'))}"


def encoded(piece: bytes) -> str:
    return base64.urlsafe_b64encode(piece).rstrip(b"=").decode()


def forged(_: Provider) -> str:
    other = Provider(signing={"a": rsa.generate_private_key(65537, 2048)})
    return other.token()


now = time.time
WRONG = {
    "expired": lambda p: p.token(exp=int(now()) - 60),
    "not yet valid": lambda p: p.token(nbf=int(now()) + 120),
    "another audience": lambda p: p.token(aud="payroll"),
    "another issuer": lambda p: p.token(iss="https://elsewhere.example"),
    "no end": lambda p: p.token(exp=None),
    "no subject": lambda p: p.token(sub=None),
    "no audience": lambda p: p.token(aud=None),
    "alg: none": unsigned,
    "the public key as a secret": by_public_key,
    "forged": forged,
    "an unknown key": lambda p: p.token(headers={"kid": "z"}),
    "garbage": lambda _: "a.b.c",
    "a signature that is cut": lambda p: p.token()[:-8],
    "very long": lambda p: p.token(note="x" * 30_000),
    "models that are no list": lambda p: p.token(rationale_models="credit"),
    **{
        f"a subject with {sub!a}": lambda p, sub=sub: p.token(sub=sub)
        for sub in ("", "a\0", "a\nb", "\x1b[2J", "a\u2028b", "\u202eb")
    },
    "a lone surrogate": lambda p: p.token(sub="a\ud800"),
    **{
        f"a rate of {rate!r}": lambda p, rate=rate: p.token(rationale_requests_per_s=rate)
        for rate in (0, 0.0, -1, 1e-320, LEAST_RATE / 2, MOST_RATE * 2, math.inf, math.nan, True, "1", [1])
    },
}
ACCEPTED = {
    "a long subject": lambda p: p.token(sub="s" * 4000),
    "good": lambda p: p.token(),
    "a list of audiences": lambda p: p.token(aud=["payroll", AUDIENCE]),
    "expired within the leeway": lambda p: p.token(exp=int(now()) - 10),
    "a clock that is ahead": lambda p: p.token(nbf=int(now()) + 10, iat=int(now()) + 10),
    "the least rate": lambda p: p.token(rationale_requests_per_s=LEAST_RATE),
    "the largest rate": lambda p: p.token(rationale_requests_per_s=MOST_RATE),
    "scopes as a list": lambda p: p.token(scope=["rationale:explain", "openid"]),
}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@SESSION
async def test_what_is_refused(provider: Provider, repository: Path) -> None:
    tokens = {kind: token_of(provider) for kind, token_of in WRONG.items()}
    async with gateway(settings(provider, repository=repository)) as client:
        for kind, token in tokens.items():
            answer = await client.post("/v1/models/score:explain", json=ROWS, headers=bearer(token))
            assert answer.status_code == 401, (kind, answer.text)
            assert 'error="invalid_token"' in answer.headers["www-authenticate"], kind
            assert token not in answer.text, kind
    async with grpc_end(settings(provider, repository=repository)) as end:
        for kind, token in tokens.items():
            metadata = tuple(bearer(token).items())
            status = await code(end.stub.ModelInfer(request("score_explain", GOOD), metadata=metadata))
            # of metadata, before anything is looked at
            assert status == "UNAUTHENTICATED" or (kind, status) == ("very long", "RESOURCE_EXHAUSTED"), kind


@SESSION
async def test_what_is_taken(provider: Provider, repository: Path) -> None:
    tokens = {kind: token_of(provider) for kind, token_of in ACCEPTED.items()}
    async with gateway(settings(provider, repository=repository)) as client:
        assert (await client.post("/v1/models/score:explain", json=ROWS)).status_code == 401
        for kind, token in tokens.items():
            answer = await client.post("/v1/models/score:explain", json=ROWS, headers=bearer(token))
            assert answer.status_code == 200, (kind, answer.text)
    async with grpc_end(settings(provider, repository=repository)) as end:
        for kind, token in tokens.items():
            metadata = tuple(bearer(token).items())
            status = await code(end.stub.ModelInfer(request("score_explain", GOOD), metadata=metadata))
            assert status == "OK", kind


@SESSION
async def test_no_two_subjects_are_called_alike(provider: Provider) -> None:
    issuer = TokenIssuer(settings(provider))
    subjects = ["a", "s" * 128, "s" * 129, "s" * 128 + "t", "s" * 128 + "u", "Zoë"]
    names = [(await issuer.identify(provider.token(sub=subject))).name for subject in subjects]
    assert len(set(names)) == len(names)
    assert names[:2] == ["jwt:a", f"jwt:{'s' * 128}"]
    assert max(map(len, names)) <= 132


@SESSION
async def test_a_key_that_is_not_for_signing_signs_nothing(provider: Provider) -> None:
    """Whether the provider is asked for it or its keys are known."""
    provider.add("e", rsa.generate_private_key(65537, 2048))
    provider.add("any", rsa.generate_private_key(65537, 2048))
    provider.uses |= {"e": "enc", "any": None}  # a provider need not say what a key is for
    for order in itertools.permutations(["e", "a", "any"]):
        issuer = TokenIssuer(settings(provider))
        for kid in order:
            if kid != "e":
                assert (await issuer.identify(provider.token(kid))).name == "jwt:scoring"
            else:
                with pytest.raises(UnauthenticatedError, match="identity provider"):
                    await issuer.identify(provider.token("e"))


@SESSION
@pytest.mark.parametrize("use", ["sig", None])
async def test_a_known_key_is_not_fetched_again(provider: Provider, use: str | None) -> None:
    provider.uses["a"] = use
    issuer = TokenIssuer(settings(provider))
    before = provider.fetches
    for _ in range(3):
        assert (await issuer.identify(provider.token("a"))).name == "jwt:scoring"
    assert provider.fetches == before + 1


@SESSION
async def test_claims_say_what_is_allowed(provider: Provider, repository: Path) -> None:
    async with gateway(settings(provider, repository=repository)) as client:

        async def status(verb: str, **claims: Any) -> int:
            headers = bearer(provider.token(**claims))
            return (await client.post(f"/v1/models/{verb}", json=ROWS, headers=headers)).status_code

        assert await status("score:explain", scope="infer") == 403
        assert await status("score:predict", scope="infer") == 200
        assert await status("score:predict", scope=None) == 403
        assert await status("score:explain", rationale_models=["score"]) == 200
        assert await status("score:explain", rationale_models=["other"]) == 403
        assert await status("score:predict", rationale_models=[]) == 403
        limited = [
            await status("score:predict", sub="often", rationale_requests_per_s=0.01) for _ in range(2)
        ]
        assert limited == [200, 429]
    async with grpc_end(settings(provider, repository=repository)) as end:
        for models, expected in ((["score"], "OK"), (["other"], "PERMISSION_DENIED")):
            metadata = tuple(bearer(provider.token(rationale_models=models)).items())
            assert (
                await code(end.stub.ModelInfer(request("score_explain", GOOD), metadata=metadata)) == expected
            )


@SESSION
async def test_keys_beside_tokens(provider: Provider, repository: Path, tmp_path: Path) -> None:
    key, table = new_key("scoring", [Scope.INFER], None)
    (tmp_path / "keys.toml").write_text(f'{table}models = ["other"]\n')
    with_keys_file = settings(provider, repository=repository, keys_file=tmp_path / "keys.toml")
    async with gateway(with_keys_file) as client:
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers={"x-api-key": key})
        assert answer.status_code == 403
        assert "model 'score'" in answer.json()["detail"]
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers=bearer(provider.token()))
        assert answer.status_code == 200
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers=bearer("rk_unknown"))
        assert answer.status_code == 401


@pytest.mark.asyncio
async def test_keys_are_rotated(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_COOLDOWN_S", 0.0)
    monkeypatch.setattr(tokens, "_KEPT_S", 0.2)
    issuer = TokenIssuer(settings(provider))
    old = provider.token()
    assert (await issuer.identify(old)).name == "jwt:scoring"
    provider.add("b", ec.generate_private_key(ec.SECP256R1()))
    assert (await issuer.identify(provider.token("b"))).name == "jwt:scoring"
    provider.published.remove("a")
    await asyncio.sleep(0.3)
    with pytest.raises(UnauthenticatedError, match="identity provider"):
        await issuer.identify(old)


@pytest.mark.asyncio
async def test_unknown_keys_do_not_flood_the_provider(provider: Provider) -> None:
    issuer = TokenIssuer(settings(provider))
    await issuer.identify(provider.token())
    strangers = [provider.token(headers={"kid": f"z{i}"}) for i in range(50)]
    actual = await asyncio.gather(*map(issuer.identify, strangers), return_exceptions=True)
    assert all(isinstance(error, UnauthenticatedError) for error in actual)
    assert provider.fetches <= 2


@SESSION
async def test_a_provider_that_is_down_is_503(
    provider: Provider, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_PAUSE_S", 0.0)
    provider.answers = False
    async with gateway(settings(provider, repository=repository)) as client:
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers=bearer(provider.token()))
        assert answer.status_code == 503
        provider.answers = True
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers=bearer(provider.token()))
        assert answer.status_code == 200


@pytest.mark.asyncio
async def test_a_provider_that_hangs_is_waited_for_by_one_fetch_in_a_while(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens whose key is known are taken meanwhile, and no other work waits for a thread."""
    monkeypatch.setattr(tokens, "_FETCH_S", 0.5)
    monkeypatch.setattr(tokens, "_COOLDOWN_S", 0.0)
    failures: list[float] = []
    issuer = TokenIssuer(settings(provider), lambda: failures.append(time.monotonic()))
    await issuer.identify(provider.token())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        issuer._keys.uri = "http://127.0.0.1:{1}".format(*silent.getsockname())
        began_s = time.monotonic()
        identifications = [issuer.identify(provider.token(headers={"kid": f"z{i}"})) for i in range(50)]
        unknown = asyncio.gather(*identifications, return_exceptions=True)
        await asyncio.sleep(0.1)
        await issuer.identify(provider.token())
        await asyncio.to_thread(int)
        assert time.monotonic() - began_s < 0.4
        assert all(isinstance(error, NotReadyError) for error in await unknown)
        assert time.monotonic() - began_s < 2
    assert len(failures) == 1


BAD: dict[str, dict[str, Any]] = {
    "go together": {"jwt_issuer": ISSUER},
    "only algorithms with public keys": {"jwt_algorithms": "HS256"},
    "should match pattern": {"jwt_keys": "file:///etc/passwd"},
}


@pytest.mark.parametrize("text", BAD)
def test_settings_that_make_no_sense(text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        Settings(**BAD[text])
