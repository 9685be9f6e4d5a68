"""Every setting of the gateway, in one place: environment variables `RATIONALE_…`, overridden by flags."""

from pathlib import Path

from pydantic import Field
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
