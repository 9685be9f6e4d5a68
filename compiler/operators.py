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
    rules = {(rule.domain, rule.op_type): rule for rule in all_rules()}
    rows = [
        OperatorRow(_full_name(*key), str(rule.kind), _first_line(rule.forward.__doc__))
        for key, rule in rules.items()
    ]
    rows += [
        OperatorRow(_full_name(*key), "rewritten", _first_line(function.__doc__))
        for key, function in rewritten_operators().items()
        if key not in rules
    ]
    return sorted(rows, key=lambda row: row.name)


def _full_name(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0] if doc else ""
