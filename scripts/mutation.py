"""Mutation testing: small changes of the compiler, drawn by a seed, against the tests that run their lines.

    python scripts/mutation.py --seed 0 --mutants 200 compiler/lowering compiler/methods

See docs/testing.md. Mutants are Cosmic Ray's, and graphs that emit another operator; they are made in a copy.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.commands import init
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, WorkResult
from coverage import CoverageData

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "mutation"
SECONDS = 300  # a mutant that its tests do not get done with
PAIRS = [("Add", "Sub"), ("Mul", "Div"), ("Max", "Min"), ("Greater", "Less"), ("And", "Or"), ("Exp", "Log")]
OTHERS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
# Type annotations have |, and a dataclass or a rule without its decorator is noticed by the first import.
LEFT_OUT = ("BitOr", "RemoveDecorator", "ExceptionReplacer")


class EmitsAnother(Operator):
    """`op.Add(x, y)` as `op.Sub(x, y)`, and the like."""

    def mutation_positions(self, node):
        before = node.get_previous_leaf() if node.type == "name" else None
        if before is not None and before.value == "." and node.value in OTHERS:
            yield node.start_pos, node.end_pos

    def mutate(self, node, _index):
        node.value = OTHERS[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("op.Add(x, y)", "op.Sub(x, y)"),)


def drawn(folders: list[str], count: int) -> list[MutationSpec]:
    """One mutant at each of so many places."""
    modules = list(find_modules([Path(folder) for folder in folders]))
    with use_db(":memory:") as db:
        init(modules, db, {})
        every = [item.mutations[0] for item in db.work_items]
    places: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = {}
    for m in sorted(every, key=lambda m: (str(m.module_path), m.start_pos, m.operator_name, m.occurrence)):
        if not any(name in m.operator_name for name in LEFT_OUT):
            places.setdefault((str(m.module_path), m.start_pos), []).append(m)
    chosen = random.sample(list(places.values()), min(count, len(places)))
    return [random.choice(mutants) for mutants in chosen]  # noqa: S311  # no secrets


def tests_of(data: CoverageData, mutation: MutationSpec, most: int) -> list[str]:
    """Ids of tests that run a mutant's line, of as many functions as there are; of its file, if at import."""
    file = next((f for f in data.measured_files() if f.endswith(str(mutation.module_path))), "")
    contexts = {n: set(names) - {""} for n, names in data.contexts_by_lineno(file).items()}
    found = contexts.get(mutation.start_pos[0]) or set().union(*contexts.values())
    tests = sorted({context.rpartition("|")[0] for context in found})
    random.shuffle(tests)
    functions: dict[str, list[str]] = {}
    for test in tests:
        functions.setdefault(test.partition("[")[0], []).append(test)
    return [t for turn in zip_longest(*functions.values()) for t in turn if t is not None][:most]


def covered(tests: list[str]) -> CoverageData:
    """Which tests run which lines; found once, and kept."""
    file = FOLDER / "coverage"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        how = ["--cov=compiler", "--cov-context=test", "--cov-report=", "-n", "0", "-q"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *how, *tests], env={**os.environ, "COVERAGE_FILE": str(file)}
        )
    data = CoverageData(str(file))
    data.read()
    return data


def verdict(result: WorkResult) -> str:
    """Cosmic Ray's, but for what it calls killed too: tests that took too long, or are there no more."""
    if result.output == "timeout":
        return "timeout"
    return "untested" if "no tests ran" in (result.output or "") else str(result.test_outcome.value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", help="packages or modules to change")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--most", type=int, default=60, help="tests for each mutant")
    parser.add_argument("--tests", nargs="+", default=["tests/compiler"], help="where they are looked for")
    given = parser.parse_args()
    os.chdir(ROOT)
    random.seed(given.seed)
    data, mutants = covered(given.tests), drawn(given.folders, given.mutants)
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(
            ROOT, copy, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__")
        )
        os.chdir(copy)
        os.environ["PYTHONPATH"] = copy
        counts: Counter[str] = Counter()
        for mutation in mutants:
            tests = tests_of(data, mutation, given.most)
            Path("chosen.txt").write_text("\n".join(tests), encoding="utf-8")
            run = f"{sys.executable} -m pytest -x -q -n 0 -p no:cacheprovider @chosen.txt"
            result = mutate_and_test([mutation], run if tests else "true", SECONDS)
            outcome = verdict(result) if tests else "untested"
            counts[outcome] += 1
            print(f"{outcome}: {mutation.module_path}:{mutation.start_pos[0]}, {len(tests)} tests")
            if outcome != "killed":
                print(result.diff, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    cosmic_ray.plugins.OPERATOR_PROVIDERS["emitted"] = {"EmitsAnother": EmitsAnother}
    main()
