"""TLS of the gateway's servers and of the connection to Triton.

`reload` adopts certificates that were replaced on disk while serving.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from rationale.errors import InvalidOptionError
from rationale_service.settings import Settings


@dataclass(frozen=True)
class Certificates:
    """PEM files: the server's chain and key, and the authority of callers' certificates."""

    chain: Path
    key: Path
    client_authority: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.chain, self.key, *([self.client_authority] if self.client_authority else []))


class ServerTls:
    """The TLS of a gateway's own servers. Raises InvalidOptionError if the files cannot be used."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.context = self._new_context()
        self._for_grpc = _grpc_configuration(certificates)

    def reload(self) -> None:
        """Read the files again for new connections. Raises InvalidOptionError and then changes nothing."""
        self._new_context()  # test first: a pair that does not fit must not be served
        _load(self.context, self.certificates)
        self._for_grpc = _grpc_configuration(self.certificates)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a server that checks for changes before each handshake."""
        current = self._for_grpc

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal current
            latest = self._for_grpc
            if latest is current:
                return None
            current = latest
            return latest

        return grpc.dynamic_ssl_server_credentials(
            current,
            changed,
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
    """PEM files for TLS to Triton: its authority (None: gRPC's own), and the gateway's chain and key."""

    authority: str | None = None
    chain: str | None = None
    key: str | None = None


def server_tls(settings: Settings) -> ServerTls | None:
    """Return the TLS of the settings, or None. Raises InvalidOptionError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerTls(Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def triton_tls(settings: Settings) -> ClientTls | None:
    """Return the files for TLS to Triton; None without TLS. Raises InvalidOptionError if one is missing."""
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
    except OSError as error:
        raise _unusable(certificates, error) from error


def _grpc_configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    authority = certificates.client_authority
    try:
        pair = (certificates.key.read_bytes(), certificates.chain.read_bytes())
        root = None if authority is None else authority.read_bytes()
    except OSError as error:
        raise _unusable(certificates, error) from error
    return grpc.ssl_server_certificate_configuration([pair], root)


def _unusable(certificates: Certificates, error: OSError) -> InvalidOptionError:
    names = ", ".join(map(str, certificates.files))
    return InvalidOptionError(f"TLS: cannot use {names}: {error.strerror or error}")


def _no_password() -> str:
    """Refuse an encrypted key. OpenSSL would ask for its password on a terminal that nobody watches."""
    raise InvalidOptionError("TLS: the private key is encrypted: give it without a passphrase")
