"""The table of operators, generated from the registry."""

from dataclasses import dataclass

from compiler.lowering.rewrites import rewritten_operators
from compiler.rule import all_rules


@dataclass(frozen=True)
class OperatorRow:
    name: str
    kind: str
    how: str


def operator_table() -> list[OperatorRow]:
    """One row for each operator that has a rule or is rewritten into operators that have one."""
    rows = [
        OperatorRow(
            f"{rule.domain}.{rule.op_type}" if rule.domain else rule.op_type,
            str(rule.kind),
            _first_line(rule.forward.__doc__),
        )
        for rule in all_rules()
    ]
    rows += [
        OperatorRow(name, "rewritten", _first_line(function.__doc__))
        for name, function in rewritten_operators().items()
        if name not in {r.name for r in rows}
    ]
    return sorted(rows, key=lambda row: row.name)


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0] if doc else ""
