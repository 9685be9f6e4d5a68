"""The load test: every system in turn, on the same cores, under the same load.

    make loadtest                          the short profile: minutes, for a first look
    make loadtest ARGS="--profile claim"   this project's claims beside SHAP: half an hour
    make loadtest ARGS="--profile full"    everything: hours, on an idle machine

Each system is started, warmed, measured by locust, stopped; every answer is compared with reference values
while the load is on, and a wrong one ends the run with status 1. Writes runs.csv, report.html
and locust's own pages after each system; a report of a run that did not finish says so.
"""

import argparse
import itertools
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import ProcessDiedError, in_a_process, machine
from loadtests.load.measure import Result, measure
from loadtests.load.prepare import prepare
from loadtests.load.questions import WrongAnswerError
from loadtests.load.workloads import ALL_SYSTEMS, PROFILES, SCENARIOS, WORKLOADS, LoadProfile
from loadtests.report import PAGES, ReportFacts, compare, write_report
from loadtests.systems.process import restrict


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the command line's arguments; invalid ones end the command, as with argparse."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    workloads, scenarios = ([row.name for row in table] for table in (WORKLOADS, SCENARIOS))
    parser.add_argument("--profile", choices=PROFILES, default="short")
    parser.add_argument("--workload", nargs="+", choices=workloads, help="default: all of the profile")
    parser.add_argument("--system", nargs="+", choices=ALL_SYSTEMS, help="default: all of the profile")
    parser.add_argument("--scenario", nargs="+", choices=scenarios, help="default: all of the profile")
    parser.add_argument(
        "--cores", type=int, default=2, help="cores for server and load generator together (default: 2)"
    )
    parser.add_argument("--out", type=Path, default=Path("loadtests/results"), metavar="FOLDER")
    return parser.parse_args(argv)


def profile_of(options: argparse.Namespace) -> LoadProfile:
    """Return the named profile, with the workloads, scenarios and systems of the command line if given."""
    profile = PROFILES[options.profile]
    return replace(
        profile,
        workloads=tuple(options.workload or profile.workloads),
        scenarios=tuple(options.scenario or profile.scenarios),
        systems=tuple(options.system or profile.systems),
    )


def run(profile: LoadProfile, cores: int, pages: Path, tell: Callable[[str], None]) -> Iterator[Result]:
    """Measure each system on each workload, one after the other.

    Raises:
        WrongAnswerError: if a server gives one. ProcessDiedError: if a workload cannot be prepared.
        RuntimeError: if a server does not start or stops answering, or locust fails.
    """
    workloads = [workload for workload in WORKLOADS if workload.name in profile.workloads]
    number, total = itertools.count(1), len(workloads) * len(profile.systems)
    for workload in workloads:
        with tempfile.TemporaryDirectory() as name:
            tell(f"{workload.name}: weights, references and reference values")
            # In a process of its own, whose memory goes with it.
            in_a_process(prepare, workload, Path(name), profile.systems)
            for system in profile.systems:
                tell(f"{workload.name}, {system}: {next(number)} of {total}")
                yield measure(workload, system, cores, profile, folder=Path(name), pages=pages, tell=tell)


def main() -> int:
    """Return the exit status: 1 after a wrong answer, 2 after another failure."""
    options = arguments(sys.argv[1:])
    restrict(options.cores)
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began_s:5.0f} s] {line}", flush=True)

    results: list[Result] = []
    try:
        profile = profile_of(options)
        command = shlex.join(["python", "-m", "loadtests", *sys.argv[1:]])
        about = ReportFacts(command, profile, options.cores, machine())
        for result in run(profile, options.cores, options.out / PAGES, tell):
            results.append(result)
            write_report(results, about, options.out, finished=False)  # what comes next may fail
    except WrongAnswerError as error:
        print(f"wrong answers: {error}", file=sys.stderr)
        return 1
    except (ProcessDiedError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in write_report(results, about, options.out):
        tell(f"wrote {path}")
    print(*compare(results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
