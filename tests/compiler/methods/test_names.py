"""Methods ask rules for kinds, traits and forms: see compiler/rules/rule.py."""

import ast
from pathlib import Path

import compiler.explain.methods
from compiler.rules.rule import all_rules

SELECTORS = "composites.py"  # a composite of LRP names the operators that its rules are for


def test_methods_name_no_operator() -> None:
    names = {rule.op_type for rule in all_rules()}
    files = [f for f in Path(compiler.explain.methods.__file__).parent.rglob("*.py") if f.name != SELECTORS]
    assert len(files) > 10
    for file in files:
        words = {n.value for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Constant)}
        assert not names & words, file.name
