"""Tests for mutants, digests of the code that they ran on, and the table of results."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

KINDS = ("killed", "full", "survived", "untested", "timeout", "invalid")
# Places of a file's tests, by the longest matching beginning of its path.
TESTS = {
    "compiler": ("tests/compiler",),
    "compiler/rationale/conversion": ("tests/compiler/conversion",),
    "compiler/rationale/decisions": (
        "tests/compiler/decisions",
        "tests/compiler/artifact/decision",
        "tests/compiler/evaluate/decisions",
    ),
    "compiler/rationale/methods/coalitions": ("tests/compiler/methods/test_coalitions.py",),
    "compiler/rationale/methods/trees": ("tests/compiler/trees",),
    "compiler/rationale/export/files": ("tests/compiler/export", "tests/service/console/test_modules.py"),
    "compiler/rationale/pictures/browser": ("tests/service/console", "tests/compiler/export"),
    "compiler/rationale/profiles": (
        "tests/compiler/decisions",
        "tests/compiler/artifact/decision",
        "tests/compiler/references/test_policies.py",
    ),
    "compiler/rationale/trees": ("tests/compiler/trees",),
    "service": ("tests/service",),
    "service/rationale_service/console": ("tests/service/console",),
    "service/rationale_service/decisions": ("tests/service/decisions",),
    "service/rationale_service/decisions/audit": (
        "tests/service/decisions",
        "tests/service/cli/test_audit.py",
    ),
    "service/rationale_service/engine": ("tests/service/inference", "tests/service/api"),
    "service/rationale_service/engine/backends": ("tests/service",),
    "service/rationale_service/engine/scheduling": ("tests/service/scheduling",),
    "service/rationale_service/security": ("tests/service/security", "tests/service/cli/test_keys.py"),
}

Result = dict[str, Any]


def tests_beside(paths: Iterable[str]) -> list[str]:
    """Return the places of tests of these packages or modules; none is named twice, or within another."""
    places = set[str]()
    for path in paths:
        parts = Path(path).parts
        beginnings = ("/".join(parts[:i]) for i in range(len(parts), 0, -1))
        places.update(next(TESTS[each] for each in beginnings if each in TESTS))
    return sorted(t for t in places if not any(str(parent) in places for parent in Path(t).parents))


def changed_lines(patch: str) -> tuple[Path, list[int]]:
    """Return the file and the lines that a patch changes; for added lines, the lines around them."""
    (path,) = re.findall(r"^--- a/(.+)$", patch, re.MULTILINE)
    lines, number = set[int](), 0
    for line in patch.splitlines():
        if hunk := re.match(r"@@ -(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("-") and not line.startswith("---"):
            lines.add(number)
        elif line.startswith("+") and not line.startswith("+++"):
            lines |= {number - 1, number} if not lines else set()
        number += line.startswith((" ", "-")) and not line.startswith("---")
    return Path(path), sorted(lines)


def words_shared(*paths: str) -> int:
    """Count words that paths share, with or without an s: `trees/read.py` and `trees/test_read.py` two."""
    words = ({w.rstrip("s") for w in re.findall(r"[a-z0-9]+", path.removesuffix(".py"))} for path in paths)
    return len(set.intersection(*words))


def state_of(tests: Sequence[str], packages: Sequence[str] = ("compiler", "service")) -> str:
    """Return a digest of the code and of these tests: in another state, other tests may run a line."""
    digest = hashlib.sha256("\n".join(sorted(tests)).encode())
    for place in sorted({*tests, *packages}):
        path = Path(place.partition("::")[0])
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def table(results: list[Result]) -> str:
    """Return a table of each folder's mutants by result."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for folder in (str(Path(result["mutant"].split(":")[0]).parent), "all"):
            counts.setdefault(folder, Counter())[result["outcome"]] += 1
    rows = [
        ["", *KINDS],
        *([f, *(str(counts[f][k]) for k in KINDS)] for f in sorted(counts, key=lambda f: (f == "all", f))),
    ]
    return "\n".join(f"{r[0]:24}" + "".join(f"{n:>10}" for n in r[1:]) for r in rows)
