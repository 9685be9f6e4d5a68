"""Docs that are generated cannot go stale."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_of_operators_is_the_registry() -> None:
    spec = importlib.util.spec_from_file_location("operators_script", ROOT / "scripts/operators.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs/operators.md").read_text(encoding="utf-8") == script.text(), (
        "run scripts/operators.py"
    )
