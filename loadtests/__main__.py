"""The load test: every system in turn, on the same cores, under the same load.

    make loadtest                          the short profile: minutes, for a first look
    make loadtest ARGS="--profile claim"   what this project says of itself beside SHAP: half an hour
    make loadtest ARGS="--profile full"    everything: hours, on an idle machine

Each system is started, warmed, measured, stopped; answers are compared with reference values while the load
is on, and a wrong one ends the run with status 1. Writes runs.csv, report.json and report.html after each
system; a report of a run that did not finish says so.
"""

import argparse
import itertools
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from compiler.bench.measure import machine
from compiler.bench.process import ProcessDiedError, run_module
from loadtests.load.measure import Bench, Result, StuckError, Tell, WrongAnswerError, measure
from loadtests.load.plan import GeneratorError
from loadtests.load.workloads import ALL_SYSTEMS, PROFILES, SCENARIOS, WORKLOADS, Profile, Workload
from loadtests.report.comparison import told, verdicts
from loadtests.report.write import About, write_report
from loadtests.systems.process import restrict


class PreparationError(Exception):
    """A workload cannot be made. The message says why."""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Ends the command where they are none, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    workloads, scenarios = ([one.name for one in table] for table in (WORKLOADS, SCENARIOS))
    parser.add_argument("--profile", choices=PROFILES, default="short")
    parser.add_argument("--workload", nargs="+", choices=workloads, help="default: those of the profile")
    parser.add_argument("--system", nargs="+", choices=ALL_SYSTEMS, help="default: those of the profile")
    parser.add_argument("--scenario", nargs="+", choices=scenarios, help="default: those of the profile")
    parser.add_argument("--cores", type=int, default=2, help="for the server and the load generator together")
    parser.add_argument("--out", type=Path, default=Path("loadtests/results"), metavar="FOLDER")
    return parser.parse_args(given)


def profile_of(asked: argparse.Namespace) -> Profile:
    """The named one, with what was asked for in place of its own."""
    profile = PROFILES[asked.profile]
    return replace(
        profile,
        workloads=tuple(asked.workload or profile.workloads),
        scenarios=tuple(asked.scenario or profile.scenarios),
        systems=tuple(asked.system or profile.systems),
    )


def prepare(workload: Workload, folder: Path, systems: Sequence[str]) -> None:
    """In a process of its own, whose memory goes with it. Raises PreparationError."""
    try:
        run_module("loadtests.load.prepare", workload.name, str(folder), ",".join(systems))
    except ProcessDiedError as error:
        raise PreparationError(f"{workload.name} cannot be prepared:\n{error}") from error


def run(profile: Profile, cores: int, tell: Tell) -> Iterator[Result]:
    """One system on one workload after the other.

    Raises:
        WrongAnswerError, GeneratorError, PreparationError, StuckError, RuntimeError: see `main`.
    """
    workloads = [workload for workload in WORKLOADS if workload.name in profile.workloads]
    number, total = itertools.count(1), len(workloads) * len(profile.systems)
    for workload in workloads:
        with tempfile.TemporaryDirectory() as name:
            tell(f"{workload.name}: weights, references and reference values")
            prepare(workload, Path(name), profile.systems)
            bench = Bench(workload, Path(name), profile, tell)
            for system in profile.systems:
                tell(f"{workload.name}, {system}: {next(number)} of {total}")
                yield measure(bench, system, cores)


def main() -> int:
    """The exit status: 1 after a wrong answer, 2 where something else went wrong."""
    asked = arguments(sys.argv[1:])
    restrict(asked.cores)
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began_s:5.0f} s] {line}", flush=True)

    results: list[Result] = []
    try:
        profile = profile_of(asked)
        command = shlex.join(["python", "-m", "loadtests", *sys.argv[1:]])
        about = About(command, profile, asked.cores, machine())
        for result in run(profile, asked.cores, tell):
            results.append(result)
            write_report(results, about, asked.out, finished=False)  # what comes next may fail
    except WrongAnswerError as error:
        print(f"wrong answers: {error}", file=sys.stderr)
        return 1
    except (GeneratorError, PreparationError, StuckError, RuntimeError) as error:
        # RuntimeError: no server came up
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in write_report(results, about, asked.out):
        tell(f"wrote {path}")
    for line in told(verdicts(results)):
        print("{:12} {:40} asked {:>3}, got {:>5}: {}".format(*line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
