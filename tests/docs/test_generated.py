"""Docs that are generated cannot go stale."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rationale.cli.compile import app
from rationale.cli.operator_table import operator_table

ROOT = Path(__file__).parents[2]


def script_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_drawing_of_the_compiler_is_its_contract() -> None:
    script = script_of("architecture")
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(), "run scripts/architecture.py"


@pytest.mark.full
def test_the_table_of_operators_is_the_registry() -> None:
    script = script_of("operators")
    assert script.TESTED.read_text(encoding="utf-8") == script.counts(), "run scripts/operators.py"
    assert script.PAGE.read_text(encoding="utf-8") == script.text(), "run scripts/operators.py"


def test_the_command_prints_the_same_table() -> None:
    result = CliRunner().invoke(app, ["operators"], env={"COLUMNS": "250"})
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for row in operator_table():
        start = " ".join(f"{row.name} {row.opsets} {row.kind} {row.methods} {row.tested}".split())
        assert any(line.startswith(start) for line in lines), row.name
