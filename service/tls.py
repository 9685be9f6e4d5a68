"""TLS of the ends that callers reach, and of the connection to Triton.

Certificates that are replaced on disk are taken up while serving: the HTTP end's by `reload`, the gRPC end's
by gRPC itself, which asks before each handshake.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from compiler.errors import InvalidOptionError
from service.settings import Settings

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: the server's chain and key, and the authority that callers' certificates come from."""

    chain: Path
    key: Path
    client_authority: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.chain, self.key, *([self.client_authority] if self.client_authority else []))


class ServerTls:
    """The TLS of a gateway's own ends. Raises InvalidOptionError where the files cannot be used."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.context = self._new_context()

    def reload(self) -> None:
        """Takes up what is on disk for new connections. Raises InvalidOptionError, and all is as before."""
        self._new_context()  # a pair that does not fit must not get into the one that serves
        _load(self.context, self.certificates)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        latest = _stamp(self.certificates)

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """What changed since the last handshake; None where nothing did, or it cannot be used."""
            nonlocal latest
            try:
                found = _stamp(self.certificates)
                if found == latest:
                    return None
                self._new_context()
                latest = found
                return _grpc_configuration(self.certificates)
            except (OSError, InvalidOptionError):
                return None  # `reload` has told it to the log

        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(self.certificates),
            newer,
            require_client_authentication=self.certificates.client_authority is not None,
        )

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, self.certificates)
        if self.certificates.client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True)
class ClientTls:
    """How a Triton is known, and how it knows the gateway: files in PEM, None for gRPC's own or none."""

    authority: str | None = None
    chain: str | None = None
    key: str | None = None


def server_tls(settings: Settings) -> ServerTls | None:
    """None where the settings name no certificate. Raises InvalidOptionError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerTls(Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def triton_tls(settings: Settings) -> ClientTls | None:
    """None where Triton is asked without TLS. Raises InvalidOptionError for a file that cannot be read."""
    if not settings.triton_tls:
        return None
    files = (settings.triton_tls_ca, settings.triton_tls_cert, settings.triton_tls_key)
    for file in files:
        if file is not None and not file.is_file():
            raise InvalidOptionError(f"TLS to Triton: there is no file {file}")
    return ClientTls(*(None if file is None else str(file) for file in files))


def _load(context: ssl.SSLContext, certificates: Certificates) -> None:
    try:
        context.load_cert_chain(certificates.chain, certificates.key, password=_no_password)
        if certificates.client_authority is not None:
            context.load_verify_locations(certificates.client_authority)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(map(str, certificates.files))
        raise InvalidOptionError(f"TLS: cannot use {names}: {error.strerror or error}") from error


def _no_password() -> str:
    """Asked for where the key is encrypted. OpenSSL would ask on the terminal, where nobody sits."""
    raise InvalidOptionError("TLS: the private key is encrypted: give it without a passphrase")


def _grpc_configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    authority = certificates.client_authority
    pair = (certificates.key.read_bytes(), certificates.chain.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], authority.read_bytes() if authority else None)


def _stamp(certificates: Certificates) -> _Stamp:
    states = [file.stat() for file in certificates.files]
    return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)
