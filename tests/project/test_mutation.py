"""The script that tests the tests: where it looks for them, what it keeps, what it prints."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_place_is_there(mutants: ModuleType) -> None:
    for path, tests in mutants.TESTS.items():
        assert all((ROOT / place).exists() for place in (path, *tests))
    for package in ("compiler", "service"):
        for file in (ROOT / package).rglob("*.py"):
            assert mutants.tests_beside([str(file.relative_to(ROOT))])


@pytest.mark.parametrize(
    ("paths", "tests"),
    [
        (["compiler/rationale/trees/read.py"], ["tests/compiler/trees"]),
        (["compiler/rationale/methods/propagation"], ["tests/compiler"]),
        (["compiler/rationale/trees", "compiler"], ["tests/compiler"]),
        (["service/rationale_service/protocols/grpc/turns.py"], ["tests/service"]),
        (
            ["service/rationale_service/decisions/audit"],
            ["tests/service/cli/test_audit.py", "tests/service/decisions"],
        ),
        (["compiler/rationale/conversion", "service/"], ["tests/compiler/conversion", "tests/service"]),
    ],
)
def test_tests_are_looked_for_beside_the_code(
    mutants: ModuleType, paths: list[str], tests: list[str]
) -> None:
    assert mutants.tests_beside(paths) == tests


@pytest.mark.parametrize(
    ("module", "test", "count"),
    [
        (
            "service/rationale_service/decisions/audit/ledger.py",
            "tests/service/decisions/audit/test_ledger.py",
            4,
        ),
        (
            "service/rationale_service/decisions/audit/ledger.py",
            "tests/service/decisions/replays/test_replay.py",
            2,
        ),
        ("compiler/rationale/profiles/fitting.py", "tests/compiler/artifact/decision/test_decision.py", 1),
        ("compiler/rationale/lowering/rewrites/moving.py", "tests/compiler/lowering/test_rewrites.py", 3),
    ],
)
def test_files_of_tests_are_called_like_what_they_test(
    mutants: ModuleType, module: str, test: str, count: int
) -> None:
    assert mutants.words_shared(module, test) == count


def test_what_is_kept_is_of_the_code_and_the_tests_as_they_are(
    mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("compiler/a.py", "tests/a.py", "tests/b.py", "other/c.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")

    def state(*tests: str) -> str:
        return str(mutants.state_of(tests, ["compiler"]))

    first = state("tests/a.py")
    assert state("tests/b.py") != first != state("tests")
    (tmp_path / "other/c.py").write_text("1")
    assert state("tests/a.py") == first
    for name in ("compiler/a.py", "tests/a.py"):
        (tmp_path / name).write_text("1")
        assert state("tests/a.py") != first
        (tmp_path / name).write_text("")
    assert state("tests/a.py::test_one") != first


PATCH = """diff --git a/one.py b/one.py
--- a/one.py
+++ b/one.py
@@ -10,4 +10,4 @@ def f():
 a
-b
+c
 d
@@ -30,3 +30,4 @@
 e
{more} f
"""


@pytest.mark.parametrize(
    ("more", "lines"),
    [("+added\n", [11]), ("-gone\n-too\n", [11, 31, 32]), ("", [11])],
    ids=["adds", "removes", "no"],
)
def test_a_patch_changes_the_lines_that_it_replaces(mutants: ModuleType, more: str, lines: list[int]) -> None:
    assert mutants.changed_lines(PATCH.format(more=more)) == (Path("one.py"), lines)


def test_a_patch_that_only_adds_changes_the_lines_about_it(mutants: ModuleType) -> None:
    patch = "--- a/one.py\n+++ b/one.py\n@@ -5,2 +5,3 @@\n a\n+b\n c\n"
    assert mutants.changed_lines(patch) == (Path("one.py"), [5, 6])


def test_the_table(mutants: ModuleType) -> None:
    outcomes = ["killed", "killed", "survived", "timeout", "untested", "invalid", "full"]
    results = [{"mutant": f"a/{i % 2}/f.py:{i}:0 Operator", "outcome": o} for i, o in enumerate(outcomes)]
    lines = [line.split() for line in mutants.table(results).splitlines()]
    assert lines == [
        [*mutants.KINDS],
        ["a/0", "1", "1", "1", "1", "0", "0"],
        ["a/1", "1", "0", "0", "0", "1", "1"],
        ["all", "2", "1", "1", "1", "1", "1"],
    ]
