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
