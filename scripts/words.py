"""Check the first lines and `Args` of docstrings for riddles and fragments: `make check` runs it.

A first line names the thing, or what it does: no opening preposition or relative clause ("Of", "Which"), and
no "what" in place of a noun. An argument's text starts with a noun.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("compiler", "service", "benchmarks", "loadtests", "scripts")
PREPOSITIONS = "Of|As|By|In|To|With|Without|For|From|On|At|Than"
RELATIVES = "What|Which|Whether|That|Who|Whose|Where|How|Why|Such|Likewise|But"
FRAGMENT = re.compile(rf"({PREPOSITIONS}|{RELATIVES})\b")
RIDDLE = re.compile(r"\bwhat\b")
ARGUMENT = re.compile(
    r"^ +\*?\w+(?:, \w+)*: ((?:of|in|as|by|to|with|what|that|whose|where)\b.*)", re.MULTILINE
)


def faults(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each fault in a file's docstrings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        first = text.split("\n\n")[0].replace("\n", " ")
        line = getattr(node, "lineno", 1)
        if not is_published(node) and (FRAGMENT.match(first) or RIDDLE.search(first)):
            yield line, first
        yield from ((line, match.group().strip()) for match in ARGUMENT.finditer(text))


def is_published(node: ast.AST) -> bool:
    """Tell whether a docstring is text of the API or the command line: of a model, a route or a command."""
    decorators = [ast.unparse(expression) for expression in getattr(node, "decorator_list", ())]
    bases = [ast.unparse(expression) for expression in getattr(node, "bases", ())]
    called = any(
        re.search(r"router\.|app\.(command|callback)|\.(get|put|post|delete)\(", d) for d in decorators
    )
    return called or any(re.search(r"BaseModel|_Strict|Frozen", base) for base in bases)


def main() -> int:
    """Print every fault; return 1 if there is one."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    lines = [f"{path.relative_to(ROOT)}:{line}: {text}" for path in files for line, text in faults(path)]
    print("\n".join(lines) or f"{len(files)} files: no riddles in docstrings")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
