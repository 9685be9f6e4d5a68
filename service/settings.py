"""Every setting of the gateway, in one place: environment variables `RATIONALE_…`, overridden by flags."""

import re
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MEBIBYTE = 1 << 20


class Settings(BaseSettings):
    """`docs/settings.md` describes each; a test fails when one is missing there."""

    model_config = SettingsConfigDict(env_prefix="RATIONALE_", frozen=True, extra="ignore")

    repository: Path = Path("model_repository")
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    triton: str | None = None
    triton_wait_s: float = Field(default=60.0, gt=0)
    max_body_bytes: int = Field(default=64 * MEBIBYTE, gt=0)
    request_timeout_s: float = Field(default=30.0, gt=0)
    max_queue_size: int = Field(default=256, gt=0)
    drain_timeout_s: float = Field(default=30.0, gt=0)
    log_level: str = Field(default="warning", pattern="^(critical|error|warning|info|debug)$")

    @field_validator("triton")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is not None and not re.fullmatch(r"[^\s/]+:\d{1,5}", address):
            raise ValueError(f"'{address}' must be host:port of Triton's gRPC end, such as localhost:8001")
        return address
