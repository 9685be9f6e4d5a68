"""A setting that the documentation does not list, or lists wrongly, fails here."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings

TABLE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(RATIONALE_\w+)` \| (\S+) \|", TABLE.read_text(), re.MULTILINE))
    fields = Settings.model_fields
    assert rows.keys() == {f"RATIONALE_{name.upper()}" for name in fields}
    for name, field in fields.items():
        default = "none" if field.default is None else f"`{field.default}`".replace(".0`", "`")
        assert rows[f"RATIONALE_{name.upper()}"] in (default, f"`{field.default}`"), name


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_MAX_BODY_BYTES", "123")
    assert Settings().max_body_bytes == 123
    assert Settings(max_body_bytes=7).max_body_bytes == 7
    monkeypatch.setenv("RATIONALE_MAX_BODY_BYTES", "0")
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("given", "port"),
    [
        ({}, 8081),
        ({"port": 9000}, 8081),
        ({"port": 0}, 0),  # whoever takes a free port for HTTP gets a free one for gRPC too
        ({"port": 0, "grpc_port": 8081}, 8081),
        ({"grpc_port": "0"}, 0),
        ({"grpc_port": "9001"}, 9001),
        ({"grpc_port": "off"}, None),
        ({"grpc_port": " OFF "}, None),
        ({"port": 0, "grpc_port": "off"}, None),
    ],
)
def test_the_port_of_the_grpc_end(given: dict[str, object], port: int | None) -> None:
    assert Settings(**given).grpc_end == port


def test_the_port_of_the_grpc_end_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_GRPC_PORT", "8090")
    assert Settings(port=0).grpc_end == 8090
    monkeypatch.setenv("RATIONALE_GRPC_PORT", "off")
    assert Settings().grpc_end is None


@pytest.mark.parametrize("given", ["65536", "-1", "none", "", "8081.5", "٣", "9" * 5000])
def test_what_is_no_port(given: str) -> None:
    with pytest.raises(ValidationError, match="must be a port, 0 for a free one, or off"):
        Settings(grpc_port=given)
