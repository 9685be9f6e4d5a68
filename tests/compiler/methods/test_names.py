"""Methods ask rules for kinds, traits and forms: see compiler/rationale/rules/rule.py."""

import ast
from importlib.util import find_spec
from pathlib import Path

from rationale.methods.propagation import speed
from rationale.methods.propagation.lrp import lrp
from rationale.rules.rule import all_rules
from rationale.schema.methods import METHODS

SELECTORS = "composites.py"  # a composite of LRP names the operators that its rules are for


def test_methods_name_no_operator() -> None:
    names = {rule.op_type for rule in all_rules()}
    modules = {entry.path.partition(":")[0] for entry in METHODS.values()}
    files = [Path(str(home.origin)) for module in modules if (home := find_spec(module))]
    files += [Path(speed.__file__), *Path(lrp.__file__).parent.glob("*.py")]
    files = [file for file in files if file.name != SELECTORS]
    assert len(files) > 10
    for file in files:
        words = {n.value for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Constant)}
        assert not names & words, file.name
