"""Methods ask rules for kinds, traits and forms: see compiler/rules/rule.py."""

import ast
import inspect
from pathlib import Path

from compiler.explain import methods
from compiler.explain.walk.lrp import lrp
from compiler.explain.walk.speed import commuting
from compiler.rules.rule import all_rules

SELECTORS = "composites.py"  # a composite of LRP names the operators that its rules are for


def test_methods_name_no_operator() -> None:
    names = {rule.op_type for rule in all_rules()}
    homes = {inspect.getsourcefile(getattr(methods, name)) for name in methods.__all__ if name != "Method"}
    folders = [Path(home).parent for home in (commuting.__file__, lrp.__file__)]
    files = [*map(Path, homes), *(file for folder in folders for file in folder.glob("*.py"))]
    files = [file for file in files if file.name != SELECTORS]
    assert len(files) > 10
    for file in files:
        words = {n.value for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.Constant)}
        assert not names & words, file.name
