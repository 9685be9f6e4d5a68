"""Every setting of the gateway, in one place. To add one: a field here, a row in docs/settings.md.

`configuration.py` reads the values; a field that should have a flag gets it in `cli/`.
"""

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX = "RATIONALE_"  # prefix of a setting's name in the environment
MEBIBYTE = 1 << 20
OFF: Literal["off"] = "off"
LEAST_RATE, MOST_RATE = 1e-5, 1e9  # requests a second: one a day; more than anybody sends
_LARGEST_PORT = 65535
_MOST_WORKERS = 64
_SIGNATURES = {*(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)), "EdDSA"}


def _items(value: Any) -> tuple[str, ...]:
    """Return the items of a list or of a comma-separated text."""
    return tuple(each.strip() for each in value.split(",")) if isinstance(value, str) else tuple(value)


class Settings(BaseSettings):
    """The settings. `docs/settings.md` describes each; a test fails if one is missing there."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    repository: Path | str = Path("model_repository")  # a str is a URL
    state: SecretStr | None = None
    artifacts: str | None = None
    strict: bool = False
    watch_s: float | None = Field(default=None, gt=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cpu_fallback: bool = False
    allow_custom_ops: bool = False
    allow_drift: bool = False
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=_LARGEST_PORT)
    grpc_port: int | Literal["off"] = 8081
    workers: int = Field(default=1, ge=1, le=_MOST_WORKERS)
    triton: str | None = None
    triton_wait_s: float = Field(default=60.0, gt=0)
    max_body_bytes: int = Field(default=64 * MEBIBYTE, gt=0)
    max_json_bytes: int = Field(default=16 * MEBIBYTE, gt=0)
    max_grpc_message_bytes: int = Field(default=16 * MEBIBYTE, gt=0)
    request_timeout_s: float = Field(default=30.0, gt=0)
    max_queue_size: int = Field(default=256, gt=0)
    max_answer_bytes: int = Field(default=256 * MEBIBYTE, gt=0)
    max_queue_bytes: int = Field(default=256 * MEBIBYTE, gt=0)
    answer_cache_bytes: int = Field(default=0, ge=0)
    max_reference_bytes: int = Field(default=64 * MEBIBYTE, gt=0)
    open_references: int = Field(default=32, ge=1, le=10_000)
    bake_references_after: int = Field(default=0, ge=0)
    max_unnamed_reference_sets: int = Field(default=32, ge=0)
    max_loaded_explainers: int = Field(default=16, gt=0)
    max_artifact_bytes: int = Field(default=10 << 30, ge=0)
    max_compiles: int = Field(default=1, gt=0)
    max_queued_compiles: int = Field(default=16, gt=0)
    compile_timeout_s: float = Field(default=600.0, gt=0)
    compile_memory_bytes: int = Field(default=8 << 30, ge=64 * MEBIBYTE)
    drain_timeout_s: float = Field(default=30.0, gt=0)
    shutdown_delay_s: float = Field(default=0.0, ge=0)
    admin_port: int | None = Field(default=None, ge=0, le=_LARGEST_PORT)
    admin_host: str = "127.0.0.1"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    triton_tls: bool = False
    triton_tls_ca: Path | None = None
    triton_tls_cert: Path | None = None
    triton_tls_key: Path | None = None
    keys_file: Path | None = None
    keys: SecretStr | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_keys: str | None = Field(default=None, pattern="^https?://")
    jwt_algorithms: Annotated[tuple[str, ...], NoDecode] = ("RS256", "ES256")
    jwt_scope_claim: str = "scope"
    jwt_leeway_s: float = Field(default=30.0, ge=0, le=600)
    rate_limit_per_s: float | None = Field(default=None, ge=LEAST_RATE, le=MOST_RATE)
    rate_limit_burst: int | None = Field(default=None, ge=1)
    rate_limit_storage: str = Field(default="memory://", pattern="^(memory|(redis|rediss)://.+)")
    console: bool = True
    cors_origins: Annotated[tuple[str, ...] | None, NoDecode] = None
    hosts: Annotated[tuple[str, ...] | None, NoDecode] = None
    metrics_scope: Literal["none", "infer", "explain", "decide", "admin"] = "none"
    log_level: str = Field(default="warning", pattern="^(critical|error|warning|info|debug)$")
    log_format: Literal["auto", "json", "plain"] = "auto"
    audit: SecretStr | None = None
    audit_inputs: Literal["plain", "hashed", "sealed"] = "plain"
    audit_key_file: Path | None = None
    audit_retention_months: int = Field(default=25, ge=0, le=1200)
    metrics_endpoint: str | None = Field(default=None, pattern="^https?://[^/]+$")
    metrics_interval_s: float = Field(default=60.0, ge=0.1, le=86_400)
    trace_endpoint: str | None = Field(default=None, pattern="^https?://[^/]+$")
    trace_ratio: float = Field(default=1.0, ge=0, le=1)

    @property
    def state_url(self) -> str | None:
        """URL of the database that machines share for their state; None for a local folder."""
        state = "" if self.state is None else self.state.get_secret_value()
        return state if "://" in state else None

    @property
    def state_folder(self) -> Path:
        """Folder of everything that must survive a restart, by default beside the repository.

        If machines share a database, it only holds copies and lies in the folder for temporary files.
        """
        url = self.repository_url
        repository = os.path.abspath(self.repository) if url is None else url
        if self.state is None:
            return Path(f"{repository if url is None else url.rpartition('/')[2]}.state")
        if self.state_url is None:
            return Path(self.state.get_secret_value())
        digest = hashlib.sha256(repository.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"rationale-{digest}"

    @property
    def repository_url(self) -> str | None:
        """URL of the storage that holds the repository; None for a folder."""
        return self.repository if isinstance(self.repository, str) else None

    @property
    def repository_copy(self) -> Path:
        """Folder for the copy of a repository at a URL: inside the state, so that it survives a restart."""
        digest = hashlib.sha256(str(self.repository).encode()).hexdigest()[:16]
        return self.state_folder / f"repository-{digest}"

    @property
    def grpc_end(self) -> int | None:
        """The gRPC port: 0 for a free one, None if gRPC is off.

        If the gateway chooses its HTTP port and the user sets no gRPC port, it chooses that one too: such
        gateways do not collide.
        """
        if self.grpc_port == OFF:
            return None
        if self.port == 0 and "grpc_port" not in self.model_fields_set:
            return 0
        return self.grpc_port

    @property
    def ends(self) -> dict[str, tuple[str, int | None]]:
        """Host and port of each server, by the flag of its port; the port is None if that server is off."""
        return {
            "--port": (self.host, self.port),
            "--admin-port": (self.admin_host, self.admin_port),
            "--grpc-port": (self.host, self.grpc_end),
        }

    @property
    def admin_end(self) -> str:
        """The host that the admin API listens on."""
        return self.host if self.admin_port is None else self.admin_host

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        for pair in (("tls_cert", "tls_key"), ("triton_tls_cert", "triton_tls_key")):
            if len({getattr(self, name) is None for name in pair}) == 2:
                raise ValueError(f"{pair[0]} and {pair[1]} go together: give both or none")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        tokens = ("jwt_issuer", "jwt_audience", "jwt_keys")
        if len({getattr(self, name) is None for name in tokens}) == 2:
            raise ValueError(f"{', '.join(tokens)} go together: give all or none")
        if self.state_url is not None and not self.state_url.startswith("sqlite") and self.artifacts is None:
            raise ValueError(
                "state is a database that machines share: give artifacts too, where they share files, such "
                "as s3://BUCKET/FOLDER"
            )
        if self.triton is not None and self.repository_url is not None:
            raise ValueError(
                "repository is a URL, and triton serves one of its own: give both the same folder, in which "
                "explainers made over the API are put too"
            )
        if self.triton is not None and self.device != "auto":
            raise ValueError("device is of models that run here; in Triton their instance_group says where")
        of_triton = (self.triton_tls_ca, self.triton_tls_cert)
        if not self.triton_tls and any(file is not None for file in of_triton):
            raise ValueError("triton_tls_ca, triton_tls_cert and triton_tls_key need triton_tls = true")
        return self

    @field_validator("repository", mode="before")
    @classmethod
    def _parse_repository(cls, value: Any) -> Any:
        if not isinstance(value, str) or "://" not in value:
            return Path(value) if isinstance(value, str) else value
        if not re.fullmatch(r"[a-z0-9+]+://\S*[^\s/]\S*", value):
            raise ValueError("it must be a folder, or a URL such as s3://BUCKET/FOLDER or file:///FOLDER")
        return value.rstrip("/")

    @field_validator("state", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("artifacts")
    @classmethod
    def _is_a_storage(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"[a-z0-9+]+://\S+", url):
            raise ValueError(f"'{url[:80]}' must be a URL such as s3://BUCKET/FOLDER or file:///FOLDER")
        return url

    @field_validator("grpc_port", mode="before")
    @classmethod
    def _is_a_port(cls, value: Any) -> int | str:
        text = str(value).strip().lower()
        if text == OFF:
            return OFF
        if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > _LARGEST_PORT:
            raise ValueError(f"'{text[:20]}' must be a port, 0 for a free one, or {OFF}")
        return int(text)

    @field_validator("jwt_algorithms", mode="before")
    @classmethod
    def _are_signatures(cls, value: Any) -> tuple[str, ...]:
        names = _items(value)
        if not names or not _SIGNATURES.issuperset(names):
            raise ValueError(
                f"choose among {', '.join(sorted(_SIGNATURES))}: what public keys verify, and no secret"
            )
        return names

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _are_origins(cls, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        origins = _items(value)
        for origin in origins:
            if not re.fullmatch(r"\*|https?://[^\s/,]+", str(origin)):
                raise ValueError(
                    f"'{str(origin)[:80]}' must be an origin such as https://app.example.com, without a "
                    "path, or * for all; several are separated by commas"
                )
        return origins

    @field_validator("hosts", mode="before")
    @classmethod
    def _are_hosts(cls, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        hosts = _items(value)
        for host in hosts:
            if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|\[[\da-fA-F:.]+\]", str(host)):
                raise ValueError(
                    f"'{str(host)[:80]}' must be a name such as scores.example.com, without scheme and port, "
                    "*.example.com, or * for any; several are separated by commas"
                )
        return hosts

    @field_validator("triton")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is not None and not re.fullmatch(r"[^\s/]+:\d{1,5}", address):
            raise ValueError(f"'{address}' must be host:port of Triton's gRPC end, such as localhost:8001")
        return address
