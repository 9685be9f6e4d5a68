"""Mutation testing: small changes of the code, drawn by a seed, against the tests that run their lines.

    python scripts/mutation.py --seed 0 --mutants 200 compiler/rationale/trees service/rationale_service/state

Mutants are Cosmic Ray's, and graphs that emit another operator; or changes made by hand (--patches). They are
made in a copy of the project. At the end stands a table of those that were killed (full: by tests marked full
alone), survived, are run by no test (untested), took too long (timeout) or are no Python (invalid). It needs
pip install -e '.[test,mutation]'; see docs/testing.md.
"""

import argparse
import difflib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from pathlib import Path

import pytest
from mutants import Result, changed_lines, state_of, table, tests_beside, words_shared

try:
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.ast.ast_query import ASTQuery
    from cosmic_ray.modules import find_modules
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.operators.operator import Example, Operator
    from cosmic_ray.work_item import MutationSpec
    from coverage import CoverageData
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install -e '.[test,mutation]'") from error

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "mutation"
RESULTS = FOLDER / "results.jsonl"
OUTPUT = Path("output.txt")  # the last tests' output, in the copy
SECONDS = 300  # default limit for the tests of a mutant
FULL = "full and not slow and not gpu and not docker"
MOST_FULL = 6  # files whose tests marked full are run
OUTCOMES = {int(pytest.ExitCode.OK): "survived", int(pytest.ExitCode.NO_TESTS_COLLECTED): "untested"}
LIBRARIES = "numpy onnx onnx.reference onnxruntime onnx_ir torch scipy.stats pydantic typer"
PAIRS = [("Add", "Sub"), ("Mul", "Div"), ("Max", "Min"), ("Greater", "Less"), ("And", "Or"), ("Exp", "Log")]
SWAPPED = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
# Type annotations have |, and a dataclass or a rule without its decorator is noticed by the first import.
LEFT_OUT = ("BitOr", "RemoveDecorator", "ExceptionReplacer")


class EmitsAnother(Operator):
    """A mutation such as `op.Sub(x, y)` for `op.Add(x, y)`."""

    def mutation_positions(self, node):
        before = node.get_previous_leaf() if node.type == "name" else None
        if before is not None and before.value == "." and node.value in SWAPPED:
            yield node.start_pos, node.end_pos

    def mutate(self, node, _index):
        node.value = SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("op.Add(x, y)", "op.Sub(x, y)"),)


@dataclass(frozen=True)
class Mutant:
    """A drawn change of a module."""

    mutation: MutationSpec

    @property
    def name(self) -> str:
        path, (line, column) = self.path, self.mutation.start_pos
        return f"{path}:{line}:{column} {self.mutation.operator_name}"

    @property
    def path(self) -> Path:
        return Path(self.mutation.module_path)

    @property
    def lines(self) -> list[int]:
        return [self.mutation.start_pos[0]]

    @property
    def function(self) -> str:
        return self.mutation.definition_name or ""

    def made(self) -> AbstractContextManager[tuple[str, str]]:
        """Return a context with the change; it yields the code before and after."""
        operator = cosmic_ray.plugins.get_operator(self.mutation.operator_name)
        change: AbstractContextManager[tuple[str, str]] = use_mutation(
            self.path, operator(**self.mutation.operator_args), self.mutation.occurrence
        )
        return change


@dataclass(frozen=True)
class Patch:
    """A change made by hand: a patch of one file, as `git diff` prints it."""

    file: Path
    function = ""

    @property
    def name(self) -> str:
        return f"{self.path}: {self.file.name}"

    @property
    def path(self) -> Path:
        return changed_lines(self.file.read_text(encoding="utf-8"))[0]

    @property
    def lines(self) -> list[int]:
        return changed_lines(self.file.read_text(encoding="utf-8"))[1]

    @contextmanager
    def made(self) -> Iterator[tuple[str, str]]:
        """Return a context with the change; it yields the code before and after."""
        before = self.path.read_text(encoding="utf-8")
        subprocess.run(["git", "apply", str(self.file)], check=True)
        try:
            yield before, self.path.read_text(encoding="utf-8")
        finally:
            self.path.write_text(before, encoding="utf-8")


def possible(folders: list[str]) -> Iterator[MutationSpec]:
    """Yield every mutant: those of `cosmic-ray init`, whose walks and database take minutes more."""
    names = [
        n for n in cosmic_ray.plugins.operator_names() if not any(excluded in n for excluded in LEFT_OUT)
    ]
    operators = {name: cosmic_ray.plugins.get_operator(name) for name in names}
    for path in find_modules([Path(folder) for folder in folders]):
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for name, operator in operators.items():
            if operator.arguments():  # useless without
                continue
            positions = ((node, *places) for node in nodes for places in operator().mutation_positions(node))
            for occurrence, (node, start, end) in enumerate(positions):
                definition = ASTQuery(node).get_definition_name()
                yield MutationSpec(path, name, occurrence, start, end, definition_name=definition)


def drawn(folders: list[str], count: int) -> list[MutationSpec]:
    """Draw places, and one mutant at each."""
    places: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = {}
    every = possible(folders)
    for m in sorted(every, key=lambda m: (str(m.module_path), m.start_pos, m.operator_name, m.occurrence)):
        places.setdefault((str(m.module_path), m.start_pos), []).append(m)
    chosen = random.sample(list(places.values()), min(count, len(places)))
    return [random.choice(mutants) for mutants in chosen]  # noqa: S311  # no secrets


def tests_of(data: CoverageData, mutant: Mutant | Patch, most: int, places: Sequence[str]) -> list[str]:
    """Return ids of tests that run a mutant's line, from many functions; those of its file, if at import.

    Every other function is the next of those whose file's name is most like the mutant's. Lines of JavaScript
    are not measured: return `places`, or the tests beside it.
    """
    if mutant.path.suffix != ".py":
        return [*places] or tests_beside([str(mutant.path)])
    file = next((f for f in data.measured_files() if f.endswith(str(mutant.path))), "")
    contexts = {n: set(names) - {""} for n, names in data.contexts_by_lineno(file).items()}
    of_lines = set().union(*(contexts.get(line, ()) for line in mutant.lines))
    tests = sorted({context.rpartition("|")[0] for context in of_lines or set().union(*contexts.values())})
    random.shuffle(tests)
    functions: dict[str, list[str]] = {}
    for test in tests:
        functions.setdefault(test.partition("[")[0], []).append(test)
    like = sorted(functions, key=lambda f: -words_shared(str(mutant.path), f.partition("::")[0]))
    names = dict.fromkeys(name for pair in zip(like, functions, strict=True) for name in pair)
    turns = zip_longest(*(functions[name] for name in names))
    return [t for turn in turns for t in turn if t is not None][:most]


def covered(tests: list[str], file: Path | None) -> CoverageData:
    """Return coverage by test: a file's; else measured once for these tests as they are, and kept."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = file or FOLDER / f"coverage-{state_of(tests)}"
    if not file.exists():
        how = ["--cov=compiler", "--cov=service", "--cov-context=test", "--cov-report="]
        how += ["-n", "2", "--dist", "loadfile", "-q"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *how, *tests], env={**os.environ, "COVERAGE_FILE": str(file)}
        )
    data = CoverageData(str(file))
    data.read()
    return data


def run(tests: list[str], options: list[str]) -> None:
    """Run tests and end this process, which is forked from one with the libraries and without the project."""
    os.setsid()
    with OUTPUT.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os._exit(pytest.main(["-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider", *options, *tests]))


def verdict(tests: list[str], seconds: float, *options: str) -> str:
    process = multiprocessing.get_context("fork").Process(target=run, args=(tests, options))
    process.start()
    process.join(seconds)
    late = process.exitcode is None
    if process.pid is not None:
        with suppress(ProcessLookupError):  # processes of its tests, too
            os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return "timeout" if late else OUTCOMES.get(process.exitcode or 0, "killed")


def failed() -> list[str]:
    """Return the failed tests; none if not even their files could be imported."""
    lines = OUTPUT.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("FAILED ").split(" - ")[0] for line in lines if line.startswith("FAILED ")]


def judged(
    mutant: Mutant | Patch, tests: list[str], sound: set[str], seconds: float, *, full: bool
) -> Result:
    """Return a mutant's result, and its description.

    Args:
        sound: tests that are known to pass without any change; those that notice one are added.
        full: whether tests marked full are run if no other notices it.
    """
    result = tried(mutant, tests, seconds, full=full)
    while new := set(result["by"]) - sound:
        if verdict(sorted(new), seconds, *result["options"]) == "survived":
            sound |= new
        else:
            tests = [test for test in tests if test not in new]
            result = tried(mutant, tests, seconds, [f"--deselect={test}" for test in new], full=full)
    return result


def tried(
    mutant: Mutant | Patch, tests: list[str], seconds: float, more: Sequence[str] = (), *, full: bool
) -> Result:
    options: list[str] = []
    with mutant.made() as (before, after):
        try:
            if mutant.path.suffix == ".py":
                compile(after, str(mutant.path), "exec")
            outcome = verdict(tests, seconds, "-x", *more) if tests else "untested"
            if outcome == "survived" and full:
                options, files = ["-m", FULL], list(dict.fromkeys(test.partition("::")[0] for test in tests))
                outcome = verdict(files[:MOST_FULL], seconds, "-x", *more, *options)
                outcome = {"killed": "full", "untested": "survived"}.get(outcome, outcome)
        except SyntaxError:
            outcome = "invalid"
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return {
        "outcome": outcome,
        "mutant": mutant.name,
        "function": mutant.function,
        "tests": len(tests),
        "by": failed() if outcome in ("killed", "full") else [],
        "options": options,
        "change": "\n".join(list(lines)[2:]),
    }


def prepare(copy: str, tests: Sequence[str]) -> None:
    """Copy the project with its bytecode: each mutant is one file that is compiled anew."""
    shutil.copytree(
        ROOT, copy, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__")
    )
    os.chdir(copy)
    places = [copy, f"{copy}/compiler", f"{copy}/service"]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    sys.path[:0] = places
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *tests],
        stdout=subprocess.DEVNULL,
    )
    sys.dont_write_bytecode = True
    for library in LIBRARIES.split():
        import_module(library)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="*", help="packages or modules to change, such as compiler/rationale/trees"
    )
    parser.add_argument(
        "--patches", type=Path, help="a folder of changes made by hand, each a patch of one file (*.patch)"
    )
    parser.add_argument(
        "--full", action="store_true", help="also run tests marked full if no other test notices a mutant"
    )
    parser.add_argument("--coverage", type=Path, help="reuse this coverage by test")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw of mutants and tests (0)")
    parser.add_argument("--mutants", type=int, default=200, help="number of mutants to draw (200)")
    parser.add_argument("--most", type=int, default=60, help="most tests per mutant (60)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"seconds per mutant ({SECONDS})")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="only drawn mutants whose path begins with this"
    )
    parser.add_argument(
        "--tests", nargs="+", help="folders of tests (default: the tests of the changed folders)"
    )
    options = parser.parse_args()
    os.chdir(ROOT)
    mutants: list[Mutant | Patch] = []
    if options.patches is not None:
        mutants += [Patch(file) for file in sorted(options.patches.resolve().glob("*.patch"))]
    random.seed(options.seed)
    mutants += [Mutant(m) for m in drawn(options.folders, options.mutants)]
    tests_there = options.tests or tests_beside([str(mutant.path) for mutant in mutants] or options.folders)
    data = covered(tests_there, options.coverage)
    before = (
        [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        if RESULTS.exists()
        else []
    )
    state = state_of(tests_there)
    names = {mutant.name for mutant in mutants}
    results = [r for r in before if r["mutant"] in names and r.get("state") == state]
    names_done = {r["mutant"] for r in results}
    with tempfile.TemporaryDirectory() as copy:
        prepare(copy, tests_there)
        chosen = [(mutant, tests_of(data, mutant, options.most, options.tests or ())) for mutant in mutants]
        sound: set[str] = set()
        for mutant, tests in chosen:
            if mutant.name in names_done or not mutant.name.startswith(tuple(options.only)):
                continue
            results.append(
                {**judged(mutant, tests, sound, options.seconds, full=options.full), "state": state}
            )
            print(f"{results[-1]['outcome']}: {mutant.name}, {len(tests)} tests", flush=True)
            if results[-1]["outcome"] not in ("killed", "full"):
                print(results[-1]["change"], flush=True)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[-1]) + "\n")
    print(table(results))


if __name__ == "__main__":
    cosmic_ray.plugins.OPERATOR_PROVIDERS["emitted"] = {"EmitsAnother": EmitsAnother}
    main()
