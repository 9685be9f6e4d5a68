"""A page's blocks need what the page itself says to install, and nothing else."""

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rationale.distribution import NAME
from tests.docs.commands import commands
from tests.docs.pages import PAGES, ROOT, Block, Page, read
from tests.docs.test_harness import PAGE, fenced

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Which extras a command needs, by how it begins or what stands in it. Python's imports are looked up.
COMMANDS = {
    r"^rationale ": "",
    r"^rationale (serve|demo|keys|audit|decide|replay|receipt|notice|backup|kserve) ": "serve",
    r"^rationale audit (heads|erase) |--public-key ": "audit",
    r"\.parquet\b": "parquet",
    r"\.xlsx\b": "excel",
    r"^python -m (benchmarks|pyperf)\b": "bench",
    r"^python -m benchmarks\.decisions |^python -m loadtests\b|^locust ": "loadtest",
    r"^python -m tests\b|^pytest ": "test",
    r"^python scripts/mutation\.py ": "mutation",
    r"^rationale triton ": "docker",
    r"--by medoids ": "medoids",
    r"--runtime openvino |^python -m benchmarks .*openvino": "openvino",
    r"\bs3://": "s3",
    r"\bpostgresql://": "postgres",
}
_INSTALL = re.compile(r"pip install ([^`\n&]*)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEREDOC = re.compile(r"python - <<'END'\n(.*?)^END$", re.DOTALL | re.MULTILINE)


def installed(page: Page) -> set[str]:
    """The distributions that a page's lines install, with those that they need."""
    found: set[str] = set()
    for line in _INSTALL.findall(_COMMENT.sub("", page.text)):
        for word in shlex.split(line, comments=True):
            project = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
            with suppress(InvalidRequirement):  # a flag, a folder
                found |= closure(word if project is None else f"{NAME}[{project[1] or ''}]")
    return found


@cache
def closure(requirement: str) -> frozenset[str]:
    parsed = Requirement(requirement)
    found: set[str] = {canonicalize_name(parsed.name)}
    for text in of_distribution(parsed.name):
        inner = Requirement(text)
        if inner.marker is None or any(
            inner.marker.evaluate({"extra": extra}) for extra in ("", *parsed.extras)
        ):
            inner.marker = None
            found |= closure(str(inner))
    return frozenset(found)


def of_distribution(name: str) -> list[str]:
    if name == NAME:
        extras = [
            f"{text}; extra == '{extra}'"
            for extra, texts in EXTRAS.items()
            for text in texts
            if ";" not in text
        ]
        return PROJECT["dependencies"] + extras
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # not in this environment
        return []


def lacks(page: Page) -> list[str]:
    there = installed(page)
    return [f"{block}: {fault}" for block in page.blocks for fault in _lacks(block, there)]


def _lacks(block: Block, there: set[str]) -> Iterator[str]:
    if block.language == "python":
        yield from _unknown_imports(block.text, there)
    if block.language == "sh":
        for script in _HEREDOC.findall(block.text):
            yield from _unknown_imports(script, there)
        for words in commands(_HEREDOC.sub("", block.text)):
            text = f"{' '.join(words)} "
            wanted = [extra for pattern, extra in COMMANDS.items() if re.search(pattern, text)]
            yield from (f"{text}needs pip install '.[{extra}]'" for extra in wanted if not _has(extra, there))


def _unknown_imports(source: str, there: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            top, _, inner = name.partition(".")
            if top == "rationale":
                known = _has(inner if inner in EXTRAS else "", there)
            else:
                providers = {top, *map(canonicalize_name, _distributions().get(top, ()))}
                known = top in sys.stdlib_module_names or bool(providers & there)
            if not known:
                yield f"import {name}"


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the distributions by the packages that they bring: this reads every file list."""
    return metadata.packages_distributions()


def _has(extra: str, there: set[str]) -> bool:
    return closure(f"{NAME}[{extra}]") <= there


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_says_what_its_blocks_need(path: Path) -> None:
    assert lacks(read(path)) == []


@pytest.mark.parametrize(
    ("said", "block"),
    [
        ("", fenced("python", "import rationale")),
        ("pip install .", fenced("python", "import pandas")),
        ("<!-- pip install '.[serve]' -->", fenced("sh", "rationale serve")),
        ("pip install '.[serve]'", fenced("sh", "rationale audit heads --key k")),
        ("pip install .", fenced("sh", "rationale explain a --input b.csv --save c.parquet")),
        ("pip install .", fenced("sh", "python - <<'END'", "import pandas", "END")),
        ("pip install '.[dask]'", fenced("python", "from rationale.spark import explain")),
    ],
)
def test_what_a_page_does_not_say_is_found(said: str, block: str) -> None:
    assert lacks(Page(PAGE, f"{said}\n\n{block}")) != []


@pytest.mark.parametrize(
    ("said", "block"),
    [
        ("Say `pip install .`.", fenced("python", "import numpy, rationale")),
        ("(`pip install '.[sklearn]' pandas`)", fenced("python", "import pandas, sklearn")),
        ("pip install '.[serve,parquet]' xgboost", fenced("sh", "rationale audit export a.parquet")),
    ],
)
def test_what_a_page_says_suffices(said: str, block: str) -> None:
    assert lacks(Page(PAGE, f"{said}\n\n{block}")) == []
