"""Keys: made, read, known again."""

import datetime
import hashlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rationale.errors import InvalidOptionError
from rationale_service.cli.main import app as command
from rationale_service.errors import UnauthenticatedError
from rationale_service.security.keys import (
    ANY_KEY,
    Caller,
    Keyring,
    Scope,
    new_key,
    read_keyring,
    read_keys,
    token_of,
)
from rationale_service.settings import Settings
from tests.service.security.test_keys import ADMIN, EXPLAIN, INFER, key_file


def test_a_new_key_is_known_by_its_digest_alone(tmp_path: Path) -> None:
    token, table = new_key("scoring", [Scope.EXPLAIN, Scope.INFER, Scope.INFER], datetime.date(2999, 1, 1))
    assert re.fullmatch(r"rk_[A-Za-z0-9_-]{43}", token)
    assert token not in table
    assert hashlib.sha256(token.encode()).hexdigest() in table
    (tmp_path / "keys.toml").write_text(table)
    keyring = read_keyring(tmp_path / "keys.toml", None, admin_is_local=True)
    assert keyring.identify(token) == Caller("scoring", INFER | EXPLAIN)
    assert token not in repr(keyring)


def test_keys_of_the_environment_join_those_of_the_file(tmp_path: Path) -> None:
    tokens = key_file(tmp_path, one="infer")
    token, table = new_key("two", [Scope.ADMIN], None)
    keyring = read_keyring(
        tmp_path / "keys.toml", table + "requests_per_s = 2.5\nburst = 7\n", admin_is_local=True
    )
    assert keyring.identify(tokens["one"]).scopes == INFER
    assert keyring.identify(token) == Caller("two", ADMIN, 2.5, 7)


def test_an_expired_key() -> None:
    token, table = new_key("old", [Scope.INFER], datetime.date(2020, 1, 1))
    keyring = read_keyring(None, table, admin_is_local=True)
    with pytest.raises(UnauthenticatedError, match="key 'old' expired on 2020-01-01"):
        keyring.identify(token)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[keys", "not valid TOML"),
        ("name = 1", "only tables \\[keys.NAME\\] belong here"),
        ('[keys."a b"]\nsha256 = "0"', "'a b' is not a name"),
        ('[keys.a]\nsha256 = "0"\nscopes = ["infer"]', "key 'a': sha256: "),
        (f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = []', "key 'a': scopes: "),
        (f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["root"]', "key 'a': scopes.0: "),
        (f'[keys.a]\nsha256 = "{"0" * 64}"\nscopes = ["infer"]\nscope = 1', "key 'a': scope: "),
        (
            "".join(f'[keys.{name}]\nsha256 = "{"0" * 64}"\nscopes = ["infer"]\n' for name in "ab"),
            "key 'b' is given twice, or its token is another key's",
        ),
    ],
)
def test_broken_keys(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(InvalidOptionError, match=message):
        read_keyring(tmp_path / "keys.toml", None, admin_is_local=True)


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="key file"):
        read_keyring(tmp_path / "absent", None, admin_is_local=True)


@pytest.mark.parametrize("text", ["", "# none yet\n", "[keys]\n"])
def test_a_key_file_without_keys_does_not_open_the_gateway(text: str, tmp_path: Path) -> None:
    """As a file is that somebody else is about to write."""
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(InvalidOptionError, match=r"keys\.toml.* no keys"):
        read_keys(Settings(keys_file=tmp_path / "keys.toml"))


def test_no_key_is_compared_with_none() -> None:
    token, table = new_key("a", [Scope.INFER], None)
    keyring = read_keyring(None, table, admin_is_local=True)
    for wrong in ("", token[:-1], token + "a", "\udcff", "ü"):
        with pytest.raises(UnauthenticatedError, match="does not know this key"):
            keyring.identify(wrong)
    assert Keyring({}, Caller("", ANY_KEY)).identify(token).scopes == ANY_KEY


def test_the_command_prints_the_token_once_and_writes_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    first = CliRunner().invoke(
        command, ["keys", "new", "app", "--scope", "infer", "--scope", "explain", "--file", str(file)]
    )
    assert first.exit_code == 0, first.output
    (token,) = re.findall(r"rk_\S+", first.output)
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    second = ["keys", "new", "b", "--scope", "admin", "--file", str(file)]
    assert CliRunner().invoke(command, second).exit_code == 0
    keyring = read_keyring(file, None, admin_is_local=True)
    assert keyring.identify(token) == Caller("app", INFER | EXPLAIN)
    assert len(keyring.keys) == 2
    before = file.read_text()
    repeated = CliRunner().invoke(command, second)
    assert repeated.exit_code == 2
    assert "has a key 'b' already" in repeated.output
    wrong = CliRunner().invoke(command, ["keys", "new", "c", "--scope", "root", "--file", str(file)])
    assert wrong.exit_code == 2
    assert "--scope root: choose infer, explain, decide, recourse, review, audit, admin" in wrong.output
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("authorization", "api_key", "token"),
    [(None, None, None), (None, "k", "k"), ("Bearer t", "k", "t"), ("bearer  t ", None, "t")],
)
def test_where_a_token_stands(authorization: str | None, api_key: str | None, token: str | None) -> None:
    assert token_of(authorization, api_key) == token


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic dTpw", "t"])
def test_other_schemes(authorization: str) -> None:
    with pytest.raises(UnauthenticatedError, match="Authorization must be `Bearer KEY`"):
        token_of(authorization, "k")
