"""TLS and mutual TLS, of the gateway's own ends and of its connection to a Triton."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from rationale.errors import InvalidOptionError
from rationale_service.security.tls import Certificates, ServerTls, server_tls
from rationale_service.security.watch import watch, watched_files
from rationale_service.settings import Settings
from tests.service import handmade, patient
from tests.service.child import grpc_address, ready_line, serve
from tests.service.conftest import gateway
from tests.service.explaining import until

SECONDS = 30
ROWS = {"instances": handmade.X.tolist()}


class Files:
    """An authority, the server's certificate of it, and a caller's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.renew()
        self.client_cert, self.client_key = self._issue(self.authority, "client", "caller@bank")

    def renew(self) -> None:
        self.cert, self.key = self._issue(self.authority, "server", "localhost", "127.0.0.1")

    def stranger(self) -> tuple[Path, Path]:
        return self._issue(trustme.CA(), "stranger", "caller@bank")

    def _issue(self, authority: trustme.CA, name: str, *identities: str) -> tuple[Path, Path]:
        made_of = authority.issue_cert(*identities)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        made_of.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(blob.bytes() for blob in made_of.cert_chain_pems))
        return cert, key

    def context(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def channel(self, address: str, pair: tuple[Path, Path] | None = None) -> grpc.Channel:
        cert, key = (None, None) if pair is None else (pair[0].read_bytes(), pair[1].read_bytes())
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.ca.read_bytes(), key, cert))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[tuple[str, str]]:
    """`rationale serve`: the URL and the gRPC address."""
    with serve("--port", "0", *arguments) as child:
        url, lines = ready_line(child)
        yield url, grpc_address(lines)


def live(channel: grpc.Channel) -> bool:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    return stub.ServerLive(pb.ServerLiveRequest(), timeout=SECONDS).live


def chosen_protocol(address: str, context: ssl.SSLContext) -> str | None:
    """Of those that a caller offers by ALPN."""
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.selected_alpn_protocol()


def test_tls_on_both_ends(repository: Path, files: Files) -> None:
    tls = ("--tls-cert", str(files.cert), "--tls-key", str(files.key))
    with running("--repository", str(repository), *tls) as (url, address):
        assert url.startswith("https://127.0.0.1:")
        answer = patient.post(f"{url}/v1/models/score:predict", json=ROWS, verify=files.context())
        assert answer.status_code == 200
        with pytest.raises(httpx.ConnectError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify"):
            patient.get(f"{url}/v2/health/live")
        with pytest.raises(httpx.TransportError):
            patient.get(url.replace("https", "http") + "/v2/health/live")
        with files.channel(address) as channel:
            assert live(channel)
        for end, spoken in ((url.removeprefix("https://"), "http/1.1"), (address, "h2")):
            assert chosen_protocol(end, files.context()) == spoken
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            live(channel)


def test_mutual_tls_on_both_ends(repository: Path, files: Files) -> None:
    arguments = ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-client-ca", str(files.ca))
    client_files = (files.client_cert, files.client_key)
    with running("--repository", str(repository), *arguments) as (url, address):
        live_url = f"{url}/v2/health/live"
        assert patient.get(live_url, verify=files.context(client_files)).status_code == 200
        with files.channel(address, client_files) as channel:
            assert live(channel)
        for pair in (None, files.stranger()):
            with pytest.raises(httpx.TransportError):
                patient.get(live_url, verify=files.context(pair))
            with files.channel(address, pair) as channel, pytest.raises(grpc.RpcError):
                live(channel)


@pytest.mark.full
def test_mutual_tls_to_triton(repository: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another gateway stands for the Triton: it speaks its protocol."""
    arguments = ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-client-ca", str(files.ca))
    with running("--repository", str(repository), *arguments) as (_, address):
        for name, value in {
            "TLS": "true",
            "TLS_CA": files.ca,
            "TLS_CERT": files.client_cert,
            "TLS_KEY": files.client_key,
        }.items():
            monkeypatch.setenv(f"RATIONALE_TRITON_{name}", str(value))
        state = str(files.folder / "state")
        monkeypatch.setenv("RATIONALE_STATE", state)
        with running("--repository", str(repository), "--triton", address) as (url, _):
            answer = patient.post(f"{url}/v1/models/score:explain", json=ROWS)
            assert answer.status_code == 200
            assert len(answer.json()["explanations"]) == len(handmade.X)


@pytest.mark.asyncio
async def test_replaced_certificates_are_taken_up(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    tls = ServerTls(Certificates(files.cert, files.key, None))
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", tls.grpc_credentials())
    await server.start()
    plain = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context)
    ends = [("127.0.0.1", end) for end in (port, plain.sockets[0].getsockname()[1])]

    async def seen() -> list[str]:
        return [await asyncio.to_thread(ssl.get_server_certificate, end) for end in ends]

    watched = replace(watched_files(tls.certificates.files, tls.reload), interval_s=0.02)
    watching = asyncio.create_task(watch(watched))
    try:
        first = await seen()
        assert first[0] == first[1]
        files.renew()
        os.utime(files.cert, ns=(1, 1))
        async with asyncio.timeout(SECONDS):
            while not (second := await seen())[0] == second[1] != first[0]:
                await asyncio.sleep(0.02)
        caplog.clear()
        files.key.write_text("no key")
        await until(lambda: "changed files are not used: TLS: cannot use" in caplog.text)
        assert await seen() == second
    finally:
        watching.cancel()
        plain.close()
        await server.stop(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_cert": "a"}, "tls_cert and tls_key go together"),
        ({"tls_client_ca": "a"}, "tls_client_ca needs tls_cert"),
        ({"triton_tls_ca": "a"}, "need triton_tls = true"),
        ({"triton_tls": True, "triton_tls_key": "a"}, "triton_tls_cert and triton_tls_key go together"),
    ],
)
def test_what_belongs_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def test_files_that_do_not_fit(files: Files) -> None:
    for cert, key in (
        (files.cert, files.client_key),
        (files.cert, files.folder / "absent"),
        (files.key, files.key),
    ):
        with pytest.raises(InvalidOptionError, match="TLS: cannot use"):
            server_tls(Settings(tls_cert=cert, tls_key=key))


@pytest.mark.asyncio
async def test_a_missing_file_for_triton(repository: Path) -> None:
    settings = Settings(repository=repository, triton="localhost:1", triton_tls=True, triton_tls_ca="/absent")
    with pytest.raises(InvalidOptionError, match="/absent"):
        async with gateway(settings):
            pass
