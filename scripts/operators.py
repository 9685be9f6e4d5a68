"""Writes docs/operators.md from the registry: python3 scripts/operators.py"""

from pathlib import Path

from compiler.operators import operator_table

HEAD = """# Operators

Generated from the registry by `python scripts/operators.py`; a test fails when it is stale. Kinds are
explained in [methods.md](methods.md). *rewritten* operators are explained through their definition.

| operator | kind | how |
|---|---|---|
"""


def text() -> str:
    """The whole page."""
    rows = ((row.name, row.kind, row.how.replace("|", r"\|")) for row in operator_table())
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    Path(__file__).parent.parent.joinpath("docs/operators.md").write_text(text(), encoding="utf-8")
