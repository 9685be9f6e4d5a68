"""Every setting of the gateway, in one place. To add one: a field here, with its meaning below it.

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
    """The settings. The manual's reference is made from these fields and the texts below them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    repository: Path | str = Path("model_repository")
    """Folder with the compiled entries. Or a URL of an object storage that holds them, such as
    `s3://BUCKET/FOLDER` (`pip install '.[s3]'`), `gs://…`, `abfs://…` or `file:///FOLDER`; the gateway
    keeps a copy of it in the state folder ([replicas](../replicas.md)). No URL with `RATIONALE_TRITON`."""
    strict: bool = False
    """Do not start if an entry is broken. Otherwise the gateway lists it and serves the others."""
    watch_s: float | None = Field(default=None, gt=0)
    """Interval at which the gateway picks up added, changed and removed entries of the repository. Without
    it, the gateway does so only on SIGHUP or by the admin API."""
    allow_custom_ops: bool = False
    """Load the kernel libraries that entries contain for custom operators. This process runs their code
    ([security](../security.md)). Otherwise it does not serve such an entry."""
    allow_drift: bool = False
    """Serve entries whose files have changed since the compile, or whose answers to their probe rows differ
    by more than is allowed. Every answer and decision then names the difference as `drift`
    ([entries](../operations/entries.md#broken-entries)). Otherwise the gateway lists such an entry as
    broken. `rationale explain` and `rationale.load` read it too."""
    state: SecretStr | None = None
    """Place for explainers and reference sets that are made over the API. Either a folder,
    which the gateways of one machine share, or a database `postgresql://USER:PASSWORD@HOST/DATABASE`, which
    those of many machines share (`pip install '.[postgres]'`, [replicas](../replicas.md)). Without it:
    `REPOSITORY.state`, next to the repository, or in the working folder if the repository is a URL."""
    artifacts: str | None = None
    """URL of the storage in which machines share compiled explainers and reference sets:
    `s3://BUCKET/FOLDER` (`pip install '.[s3]'`), `gs://…`, `abfs://…`, `file:///FOLDER`, or another that
    fsspec knows. Required if `RATIONALE_STATE` is a database. Without it they are in the state folder and
    the repository."""

    host: str = "127.0.0.1"
    """Address to listen on. `0.0.0.0` opens the gateway to the network."""
    port: int = Field(default=8080, ge=0, le=_LARGEST_PORT)
    """HTTP port. `0` takes a free one and prints it."""
    grpc_port: int | Literal["off"] = 8081
    """gRPC port, on the same address. `0` takes a free one and prints it; `off` disables gRPC. Default if the
    HTTP port is `0`: `0`."""
    admin_port: int | None = Field(default=None, ge=0, le=_LARGEST_PORT)
    """Separate port for the admin API and `/metrics`, which the HTTP port then does not have. `0` takes a
    free one. Without it they are on the HTTP port."""
    admin_host: str = "127.0.0.1"
    """Address that the admin port listens on."""
    workers: int = Field(default=1, ge=1, le=_MOST_WORKERS)
    """Processes that serve on the same ports. Each loads all models and uses its share of the cores; all
    answer the admin API and `/metrics`. Limits of queues, bytes and caches apply to each worker, and so do
    rates unless a Redis counts them."""
    drain_timeout_s: float = Field(default=30.0, gt=0)
    """Time that running requests have to finish after SIGTERM or Ctrl-C."""
    shutdown_delay_s: float = Field(default=0.0, ge=0)
    """Time after SIGTERM in which the gateway still answers but reports that it is not ready, so that load
    balancers stop sending requests."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which this process runs models. `auto` follows the `instance_group` of each model."""
    cpu_fallback: bool = False
    """Run a model that asks for an unusable GPU on the CPU, with a warning. Otherwise the gateway does not
    serve it."""
    triton: str | None = None
    """`host:port` of Triton's gRPC port. Without it the models run in this process."""
    triton_wait_s: float = Field(default=60.0, gt=0)
    """Time to wait at the start until Triton serves every entry."""
    triton_tls: bool = False
    """Connect to Triton over TLS."""
    triton_tls_ca: Path | None = None
    """Authority that signed Triton's certificate (PEM). Without it: gRPC's default authorities."""
    triton_tls_cert: Path | None = None
    """The gateway's own certificate chain for Triton."""
    triton_tls_key: Path | None = None
    """Private key of that certificate."""

    request_timeout_s: float = Field(default=30.0, gt=0)
    """Time until the gateway answers 504 (`DEADLINE_EXCEEDED`). A request can ask for less with the header
    `x-request-timeout-ms` (milliseconds from its arrival), the OIP parameter `timeout` (microseconds) or
    its gRPC deadline; the shortest counts."""
    max_body_bytes: int = Field(default=64 * MEBIBYTE, gt=0)
    """Largest request body, after decompression. The gateway answers a larger one with 413 and does not
    keep it."""
    max_json_bytes: int = Field(default=16 * MEBIBYTE, gt=0)
    """Largest JSON of a request, without the raw tensors after it; 413 if it is larger. A JSON above 1 MiB
    may contain one value per 8 of these bytes, one member of an object per 16, and one list or object per 32.
    An answer in JSON may have twice as many bytes of tensors, and a gRPC message a quarter as many outside
    `raw_input_contents`."""
    max_grpc_message_bytes: int = Field(default=16 * MEBIBYTE, gt=0)
    """Largest gRPC message, after decompression; `RESOURCE_EXHAUSTED` if it is larger. gRPC inflates and
    copies a message on the event loop, and needs up to three times its size in memory."""
    max_queue_size: int = Field(default=256, gt=0)
    """Requests that may wait for an entry before 429, if its `config.pbtxt` names no `max_queue_size`."""
    max_queue_bytes: int = Field(default=256 * MEBIBYTE, gt=0)
    """Inputs and answers of all requests that wait or run, over all entries, before 429. They include HTTP
    bodies in transfer and gRPC answers that callers have not read yet. A quarter is reserved for requests of
    at most 1 MiB. A single request may exceed the limit."""
    max_answer_bytes: int = Field(default=256 * MEBIBYTE, gt=0)
    """Largest tensors of one answer, known by rows and outputs before it is computed; 413
    (`RESOURCE_EXHAUSTED`) if they are larger. As JSON they take about three times as much."""
    answer_cache_bytes: int = Field(default=0, ge=0)
    """Size of the cache of explanations for equal requests; the least recently used leave first; `0`: none.
    Deleting an explainer or a reference set clears the cache."""

    max_loaded_explainers: int = Field(default=16, gt=0)
    """Explainers made over the API that are loaded at the same time. The gateway unloads the least recently
    used first, and loads it again for a request. Explainers of `rationale compile` stay loaded and do not
    count."""
    max_artifact_bytes: int = Field(default=10 << 30, ge=0)
    """Total size of explainers that the gateway compiles for requests (for a named reference set, or with
    open references). It deletes the least recently used first, and compiles it again for a request."""
    max_compiles: int = Field(default=1, gt=0)
    """Compiles that run at the same time, each in a separate process."""
    max_queued_compiles: int = Field(default=16, gt=0)
    """Explainers that may wait for their compile before 429."""
    compile_timeout_s: float = Field(default=600.0, gt=0)
    """Time after which the gateway ends a compile and marks the explainer as failed."""
    compile_memory_bytes: int = Field(default=8 << 30, ge=64 * MEBIBYTE)
    """Memory a compile may take before the gateway ends it and marks the explainer as failed."""
    max_reference_bytes: int = Field(default=64 * MEBIBYTE, gt=0)
    """Largest uploaded reference set, as a file and as numbers (JSON: a 32nd of it). The references of an
    explain request count once for each of its rows."""
    open_references: int = Field(default=32, ge=1, le=10_000)
    """References that an explain request may bring. The graph always computes with this number, so fewer
    references do not cost less."""
    bake_references_after: int = Field(default=0, ge=0)
    """Number of explain requests with the same references after which the gateway stores these references and
    compiles an entry for them; `0`: never."""
    max_unnamed_reference_sets: int = Field(default=32, ge=0)
    """Reference sets that the gateway stores because requests repeat them. It deletes the oldest first, with
    the explainers compiled from them."""

    tls_cert: Path | None = None
    """Certificate chain of the gateway in PEM, for HTTP and gRPC. With it both accept only TLS (1.2 or
    newer). The gateway picks up a replaced file within seconds."""
    tls_key: Path | None = None
    """Private key of the certificate, without a passphrase."""
    tls_client_ca: Path | None = None
    """Mutual TLS: callers need a certificate signed by this authority (PEM)."""
    keys_file: Path | None = None
    """TOML file of the keys that callers may use. `rationale keys new` writes into it; it holds only their
    SHA-256 ([security](../security.md))."""
    keys: SecretStr | None = None
    """The text of such a file, for a gateway without files."""
    jwt_issuer: str | None = None
    """Identity provider whose JSON Web Tokens are valid: their claim `iss` ([security](../security.md)).
    Needs `pip install '.[jwt]'`, `RATIONALE_JWT_AUDIENCE` and `RATIONALE_JWT_KEYS`."""
    jwt_audience: str | None = None
    """This gateway's name at the provider: the claim `aud` must hold it."""
    jwt_keys: str | None = Field(default=None, pattern="^https?://")
    """URL of the provider's public keys, a JSON Web Key Set (its `jwks_uri`)."""
    jwt_algorithms: Annotated[tuple[str, ...], NoDecode] = ("RS256", "ES256")
    """Algorithms of valid signatures, separated by commas; only those of public keys."""
    jwt_scope_claim: str = "scope"
    """Claim with the scopes: words in a text, or a list; `explain` or `rationale:explain`."""
    jwt_leeway_s: float = Field(default=30.0, ge=0, le=600)
    """Accepted difference between the clocks of gateway and provider."""
    rate_limit_per_s: float | None = Field(default=None, ge=LEAST_RATE, le=MOST_RATE)
    """Rate of each key, above which the gateway answers 429 with `Retry-After`. A key may have its own
    `requests_per_s`. Callers without a key share one limit."""
    rate_limit_burst: int | None = Field(default=None, ge=1)
    """Requests that a key may send at once. The rate is then counted over as many whole seconds as it needs
    for this number. Without it, or if it is smaller: the number that the key may send in a second."""
    rate_limit_storage: str = Field(default="memory://", pattern="^(memory|(redis|rediss)://.+)")
    """URL of a Redis that counts requests for all gateways, `redis://HOST:6379` (`rediss://` over TLS); needs
    `pip install '.[redis]'`. Without it each process counts alone, as it does while Redis does not
    answer: it logs this and tries Redis again every five seconds."""

    console: bool = True
    """Serve the [console](../console.md), a page that shows explanations, at `/console`."""
    cors_origins: Annotated[tuple[str, ...] | None, NoDecode] = None
    """Origins of web pages that may send requests and read answers, such as `https://app.example.com`,
    separated by commas; `*` for all. They may not use the admin API's PUT and DELETE."""
    hosts: Annotated[tuple[str, ...] | None, NoDecode] = None
    """Accepted host names (the `Host` header without its port), separated by commas: `scores.example.com`,
    `*.example.com`, `*` for any. Without it, a port on loopback accepts `localhost`, `127.0.0.1` and `[::1]`,
    and any other port accepts every name."""

    log_level: str = Field(default="warning", pattern="^(critical|error|warning|info|debug)$")
    """`info` writes a line for each request."""
    log_format: Literal["auto", "json", "plain"] = "auto"
    """`auto` is plain on a terminal and JSON elsewhere."""
    metrics_scope: Literal["none", "infer", "explain", "decide", "admin"] = "none"
    """Scope that `GET /metrics` needs."""
    metrics_endpoint: str | None = Field(default=None, pattern="^https?://[^/]+$")
    """`http://HOST:4317` of an OpenTelemetry collector (OTLP over gRPC; `https://` with TLS) that receives
    what `/metrics` shows. Needs `pip install '.[tracing]'`."""
    metrics_interval_s: float = Field(default=60.0, ge=0.1, le=86_400)
    """Interval between two messages of metrics to the collector."""
    trace_endpoint: str | None = Field(default=None, pattern="^https?://[^/]+$")
    """`http://HOST:4317` of an OpenTelemetry collector (OTLP over gRPC). Needs `pip install '.[tracing]'`.
    Without it the gateway makes no traces, but still passes a caller's `traceparent` on to Triton."""
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the traces that begin here and are sent. A caller's sampling decision overrides it."""

    audit: SecretStr | None = None
    """Database in which the gateway records each decision before it answers:
    `postgresql://USER:PASSWORD@HOST/DATABASE` or `sqlite:////FILE`; `off`: nowhere. Without it: the
    database of `RATIONALE_STATE`, or `audit.sqlite3` in the state folder, made at the start if a model
    decides ([audit](../audit.md))."""
    audit_inputs: Literal["plain", "hashed", "sealed"] = "plain"
    """Form in which the trail keeps callers' inputs. `hashed`: as a keyed digest. `sealed`: encrypted, with
    a key for each decision that can be deleted."""
    audit_key_file: Path | None = None
    """File with the key of hashed and sealed inputs, at least 32 bytes."""
    audit_retention_months: int = Field(default=25, ge=0, le=1200)
    """Age at which decisions are deleted; `0`: never."""

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
                "state is a database that several machines share, so they also need shared files: give "
                "artifacts too, such as s3://BUCKET/FOLDER"
            )
        if self.triton is not None and self.repository_url is not None:
            raise ValueError(
                "repository is a URL, but triton reads a folder: give both the same folder, where the "
                "gateway also writes explainers made over the API"
            )
        if self.triton is not None and self.device != "auto":
            raise ValueError(
                "device applies to models that run in this process; with triton, set instance_group in "
                "their config.pbtxt"
            )
        triton_files = (self.triton_tls_ca, self.triton_tls_cert)
        if not self.triton_tls and any(file is not None for file in triton_files):
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
                f"choose from {', '.join(sorted(_SIGNATURES))}: only algorithms with public keys"
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
            raise ValueError(f"'{address}' must be host:port of Triton's gRPC port, such as localhost:8001")
        return address
