"""What an explanation takes in a process that does nothing else: time to the first answer, and peak memory.

    python -m benchmarks.alone resnet50 [--references 20] [--peers shap,captum] [--starts 3] [--threads 2]
    python -m benchmarks.alone resnet50 --budget 2GB

The second finds the most references, up to 1000, that fit: every number is tried. Peak memory is that of
three runs, above what the process held after its imports. Without --peers every system explains.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, sqrt

from benchmarks.arguments import case_of, parser_of, positive
from benchmarks.one_system import KINDS, Alone, start, written
from compiler.bench.cases import OURS, Case, choose_peers
from compiler.bench.process import ProcessDiedError
from compiler.bench.subjects import compile_ours, make_subject
from compiler.errors import RationaleError
from compiler.machine import in_words, parse_bytes
from compiler.terminal import reporting_errors

MOST = 1000  # references; nobody is asked for more
STEP = 4
PRECISION = 1.1  # the next larger number that was tried and did not fit is at most so many times as large
HEADROOM = 2  # times the budget, above which a process is stopped


def starts_of(case: Case, systems: Sequence[str], threads: int, count: int) -> Iterator[str]:
    """A line for each system: medians of its starts in seconds, and the largest peak."""
    subject = make_subject(case, 0)
    yield f"{case.label}\n{'':16}{'imported':>12}{'ready':>12}{'explained':>12}{'peak':>12}"
    with written(subject, compile_ours(subject, threads)) as folder:
        for name in systems:
            try:
                yield f"{name:16}{line_of([start(name, folder, threads) for _ in range(count)])}"
            except ProcessDiedError as error:
                yield f"{name:16}{last_words(error)}"


def line_of(starts: Sequence[Alone]) -> str:
    """Their medians, and the largest peak."""
    columns = ([s.imported_s for s in starts], [s.ready_s for s in starts], [s.first_s for s in starts])
    seconds = "".join(f"{statistics.median(values):10.2f} s" for values in columns)
    return f"{seconds}{in_words(max(s.peak_bytes for s in starts)):>12}"


def limits_of(case: Case, systems: Sequence[str], threads: int, budget: int) -> Iterator[str]:
    """A line for each system: the most references whose explanation keeps within so many bytes."""
    yield f"{case.label_without_references}: references within {in_words(budget)}"
    for name in systems:
        why = None if name == OURS else why_not(name, case, threads)
        if why is None:
            count = largest(partial(fits, name, case, threads, budget))
            yield f"{name:16}{count}" + " or more" * (count == MOST)
        else:
            yield f"{name:16}{why}"


def largest(fitting: Callable[[int], bool], most: int = MOST) -> int:
    """The largest number that fits, to `PRECISION`; `most` where that does."""
    if not fitting(1):
        return 0
    if fitting(most):
        return most
    low, high = 1, most
    while low * STEP < high and fitting(low * STEP):
        low *= STEP
    high = min(high, low * STEP)
    while high - low > 1 and high > low * PRECISION:
        middle = min(max(ceil(sqrt(low * high)), low + 1), high - 1)
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low


def fits(name: str, case: Case, threads: int, budget: int, references: int) -> bool:
    """Whether so many references can be explained within so many bytes; a lack of memory says no."""
    try:
        return peak(name, replace(case, references=references), threads, budget, HEADROOM * budget) <= budget
    except RationaleError:
        return False


def why_not(name: str, case: Case, threads: int) -> str | None:
    """Why a peer cannot explain the network even with one reference and all memory; None where it can."""
    try:
        peak(name, replace(case, references=1), threads)
    except ProcessDiedError as error:
        return last_words(error)
    return None


def last_words(error: ProcessDiedError) -> str:
    """A traceback's last line says what went wrong."""
    return str(error).splitlines()[-1]


def peak(
    name: str, case: Case, threads: int, budget: int | None = None, most_bytes: int | None = None
) -> int:
    """Bytes at the most.

    Raises:
        ProcessDiedError: it ended without an answer, as where it asks for more than `most_bytes`.
        RationaleError: the compiler says that the budget cannot be kept.
    """
    subject = make_subject(case, 0)
    compiled = compile_ours(subject, threads, budget) if name == OURS else None
    with written(subject, compiled) as folder:
        return start(name, folder, threads, most_bytes).peak_bytes


def main(given: Sequence[str] | None = None) -> None:
    """Prints a line for each system."""
    parser = parser_of(__doc__)
    parser.add_argument("--references", type=positive, help="K; by default as in `rationale bench`")
    parser.add_argument("--peers", help="with whom to compare, by commas; by default all")
    parser.add_argument("--starts", type=positive, default=1, help="of each system (1)")
    parser.add_argument("--budget", help="of memory, for which the most references are sought: 2GB, 512MB")
    asked = parser.parse_args(given)
    with reporting_errors():
        case = case_of(asked)
        systems = [OURS, *(peer for peer in choose_peers(asked.peers) if peer in KINDS)]
        lines = (
            starts_of(case, systems, asked.threads, asked.starts)
            if asked.budget is None
            else limits_of(case, systems, asked.threads, parse_bytes(asked.budget))
        )
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
