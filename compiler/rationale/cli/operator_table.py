"""The table of operators, generated from the registry."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import onnx

from rationale.graph.shapes import is_custom_domain
from rationale.lowering.bodies import has_body
from rationale.lowering.rewrites.engine import rewritten_operators
from rationale.rules.rule import Kind, Rule, Trait, all_rules, package_of

ALL = "all"
UNROLLED = {
    "If": "The branch of a constant condition; for another condition both branches, and a Where.",
    "Loop": "The body for each iteration; if the condition depends on data, finished rows keep their values.",
    "Scan": "The body for each element of the axis.",
}
EMPTY = frozenset({"Bernoulli", "Range"})  # defined by others, and no float's value passes
OLDEST = 7  # opset of ai.onnx; older ones are converted


@dataclass(frozen=True)
class OperatorRow:
    """One operator.

    Attributes:
        opsets: the opsets of its domain that it may belong to.
        kind: the kind of its rule, or the way to operators that have one: rewritten, inlined or unrolled.
        methods: the methods that support it: all, or their names.
        tested: the number of its samples that pass every test of the harness, and the number of ONNX's own
            node tests that are compiled and compared with finite differences; see
            tests/compiler/rules/test_rules.py and tests/conformance.
        how: the formula that it computes.
        package: the package of its rule, if that is not Rationale.
    """

    name: str
    opsets: str
    kind: str
    methods: str
    tested: str
    how: str
    package: str = ""


def operator_table() -> list[OperatorRow]:
    """Return one row for each operator that has a rule or becomes operators that have one."""
    rules = {(rule.domain, rule.op_type): rule for rule in all_rules()}
    rows = [_rule_row(key, rule) for key, rule in rules.items()]
    rows += [
        _row(key, "rewritten", "as its definition", function)
        for key, function in rewritten_operators().items()
        if key not in rules
    ]
    named = {row.name for row in rows} | set(UNROLLED)
    rows += [
        _operator_row(("", name), "inlined", "as its definition", "The operators by which ONNX defines it.")
        for name in sorted(_composed_operators() - named)
    ]
    rows += [_operator_row(("", name), "unrolled", ALL, how) for name, how in UNROLLED.items()]
    return sorted(rows, key=lambda row: row.name)


def _composed_operators() -> set[str]:
    """Return operators of ai.onnx that ONNX defines by others, in their newest version."""
    version = onnx.defs.onnx_opset_version()
    names = {schema.name for schema in _schemas() if not schema.domain} - EMPTY
    return {name for name in names if has_body(name, version) and _takes_floats(name, version)}


def _takes_floats(name: str, version: int) -> bool:
    schema = onnx.defs.get_schema(name, version, "")
    return not schema.deprecated and any("tensor(float)" in kinds.types for kinds in schema.inputs)


def _rule_row(key: tuple[str, str], rule: Rule) -> OperatorRow:
    row, package = _row(key, str(rule.kind), _methods(rule), rule.forward), package_of(rule)
    return row if package is None else replace(row, tested="", package=f"{package.package} {package.version}")


def _row(key: tuple[str, str], kind: str, methods: str, function: Callable[..., Any]) -> OperatorRow:
    return _operator_row(key, kind, methods, _first_line(function.__doc__))


def _operator_row(key: tuple[str, str], kind: str, methods: str, how: str) -> OperatorRow:
    name = full_name(*key)
    return OperatorRow(name, _opsets(*key), kind, methods, _test_counts(name), how)


def full_name(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


def _opsets(domain: str, op_type: str) -> str:
    history = [s for s in _schemas() if (s.domain, s.name) == (domain, op_type)]
    if not history:
        return ""
    newest = max(history, key=lambda s: s.since_version)
    first = min(s.since_version for s in history)
    first = first if domain else max(first, OLDEST)
    return f"{first}–{newest.since_version - 1}" if newest.deprecated else f"{first}+"


@cache
def _schemas() -> list[onnx.defs.OpSchema]:
    return [s for s in onnx.defs.get_all_schemas_with_history() if not is_custom_domain(s.domain)]


def _methods(rule: Rule) -> str:
    """Return the names of the methods that a rule supports.

    DeepSHAP needs a complete form, LRP one that hands relevance back.
    """
    local = rule.kind is Kind.LOCAL
    linear = Trait.LINEAR_IN_FIRST in rule.traits
    served = {
        "gradients": True,
        "DeepSHAP": not local or rule.deeplift_form is not None,
        "LRP": not local or linear or Trait.CONSERVING in rule.traits,
        "AttnLRP": not local or linear or rule.has_relevance,
    }
    return ALL if all(served.values()) else ", ".join(name for name, yes in served.items() if yes)


def _test_counts(name: str) -> str:
    """Return the numbers that scripts/operators.py counted."""
    samples, cases = _counts().get(name, (0, 0))
    parts = ((samples, "sample"), (cases, "node test"))
    return ", ".join(f"{count} {unit}{'s' * (count > 1)}" for count, unit in parts if count)


@cache
def _counts() -> dict[str, tuple[int, int]]:
    text = files("rationale").joinpath("tested.json").read_text(encoding="utf-8")
    return {name: (counts[0], counts[1]) for name, counts in json.loads(text).items()}


def _first_line(doc: str | None) -> str:
    """Return the formula of a rule, if it has one."""
    return (doc or "").strip().splitlines()[0].removeprefix("Compute ") if doc else ""
