"""Settings: their sources, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rationale.errors import InvalidOptionError
from rationale_service.configuration import load_settings, unknown_variables
from rationale_service.server import _open_doors
from rationale_service.settings import Settings

NETWORK = "0.0.0.0"  # noqa: S104  # nothing listens


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_MAX_BODY_BYTES", "123")
    assert Settings().max_body_bytes == 123
    assert Settings(max_body_bytes=7).max_body_bytes == 7
    monkeypatch.setenv("RATIONALE_MAX_BODY_BYTES", "0")
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("options", "port"),
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
def test_the_port_of_the_grpc_end(options: dict[str, Any], port: int | None) -> None:
    assert Settings(**options).grpc_end == port


def test_the_port_of_the_grpc_end_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_GRPC_PORT", "8090")
    assert Settings(port=0).grpc_end == 8090
    monkeypatch.setenv("RATIONALE_GRPC_PORT", "off")
    assert Settings().grpc_end is None


@pytest.mark.parametrize("value", ["65536", "-1", "none", "", "8081.5", "٣", "9" * 5000])
def test_what_is_no_port(value: str) -> None:
    with pytest.raises(ValidationError, match="a port"):
        Settings(grpc_port=value)


def test_origins_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_CORS_ORIGINS", "https://a.example, http://localhost:3000")
    assert Settings().cors_origins == ("https://a.example", "http://localhost:3000")
    assert Settings(cors_origins=["*"]).cors_origins == ("*",)


@pytest.mark.parametrize(
    "value", ["", "a.example", "https://a.example/", "https://a.example,", [5], "ftp://a"]
)
def test_what_is_no_origin(value: object) -> None:
    with pytest.raises(ValidationError, match="an origin"):
        Settings(cors_origins=value)


# --- flags, environment, file ----------------------------------------------------------------------------


def toml(folder: Path, text: str) -> Path:
    (folder / "gateway.toml").write_text(text)
    return folder / "gateway.toml"


def test_flags_before_the_environment_before_the_file_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toml(tmp_path, "port = 1\nmax_body_bytes = 1\ndrain_timeout_s = 1.5")
    monkeypatch.setenv("RATIONALE_PORT", "2")
    monkeypatch.setenv("rationale_max_body_bytes", "2")
    actual = load_settings({"port": 3, "host": None}, file)
    assert (actual.port, actual.max_body_bytes, actual.drain_timeout_s) == (3, 2, 1.5)
    assert actual.host == "127.0.0.1"


def test_an_empty_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose files and charts make them of what nobody set."""
    config = tmp_path / "gateway.toml"
    config.write_text("port = 9000\n")
    for name in Settings.model_fields:
        monkeypatch.setenv(f"RATIONALE_{name.upper()}", "")
    assert load_settings({}, config) == Settings(port=9000)
    assert load_settings({"port": 7}, config).port == 7


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_CONFIG", str(toml(tmp_path, "port = 1")))
    assert load_settings({}).port == 1
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert load_settings({}, other).port == 2
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "gateway.toml: prot is not a setting \\(do you mean 'port'\\?\\)"),
        ("colour = 1", "gateway.toml: colour is not a setting; see docs/settings.md"),
        ("port = ", "gateway.toml: not valid TOML"),
        ("port = 70000", r"setting port \(RATIONALE_PORT\): Input should be less than or equal to 65535"),
        ("[port]\nhttp = 1", r"setting port \(RATIONALE_PORT\): "),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        load_settings({}, toml(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="settings file"):
        load_settings({}, tmp_path / "absent.toml")


def test_variables_that_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_PROT", "1")
    monkeypatch.setenv("RATIONALE_KERNELS", "off")  # of every command
    assert unknown_variables() == [
        "RATIONALE_PROT is not a setting (do you mean 'RATIONALE_PORT'?); see docs/settings.md"
    ]


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    actual = load_settings({}, toml(tmp_path, "keys = 'hidden'"))
    assert actual.keys is not None
    assert actual.keys.get_secret_value() == "hidden"
    assert "hidden" not in f"{actual!r} {actual} {actual.model_dump_json()}"
    with pytest.raises(InvalidOptionError) as caught:
        load_settings({}, toml(tmp_path, "keys = ['hidden']"))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "open_doors"),
    [
        ({}, 0),
        ({"host": NETWORK}, 2),
        ({"host": NETWORK, "admin_port": 8082}, 1),
        ({"host": NETWORK, "keys": f"shop {'0' * 64} infer"}, 0),
        ({"host": NETWORK, "keys_file": "keys"}, 0),
        ({"host": NETWORK, "jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": "https://i/keys"}, 0),
    ],
)
def test_a_network_without_keys_is_warned_of(given: dict[str, Any], open_doors: int) -> None:
    assert len(_open_doors(Settings(**given))) == open_doors
