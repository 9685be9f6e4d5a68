"""What references in chunks cost: time against K, baked and recomputed, each number in a process of its own.

    python -m benchmarks.walks resnet50 --size 112 [--references 10,20,40] [--many 1000] [--budget 2GB]

Compiles a network of `rationale bench` with each number of references under ample memory, all of them baked,
then with many under a budget that does not hold them. Prints milliseconds of a run, per reference, and peak
memory above that after imports, as `benchmarks.alone` does.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.arguments import parser_of, positive
from benchmarks.one_system import start, written
from compiler.bench.cases import CASES, OURS, Case, parse_references
from compiler.bench.process import in_a_process
from compiler.bench.subjects import compile_ours, make_subject, ready
from compiler.bench.timing import alternate
from compiler.machine import in_words, parse_bytes
from compiler.terminal import reporting_errors

AMPLE = 1 << 40  # bytes
ROUNDS = 5


@dataclass(frozen=True)
class Walk:
    """Of one number of references.

    Attributes:
        run_s: median of a run; needed, chunks, recomputed: what the compiler says of it, see `Memory` in a
            manifest.
    """

    references: int
    compile_s: float
    run_s: float
    peak_bytes: int
    needed_bytes: int
    chunks: int
    recomputed: float

    @property
    def each_ms(self) -> float:
        """Milliseconds for each reference."""
        return 1e3 * self.run_s / self.references


def walked(case: Case, threads: int, budget: int) -> Walk:
    """Compiles, times and weighs."""
    subject = make_subject(case, 0)
    begun = time.perf_counter()
    compiled = compile_ours(subject, threads, budget)
    compile_s = time.perf_counter() - begun
    system = ready(OURS, subject, compiled, threads)
    (rounds,) = alternate([system], ROUNDS).values()
    memory = compiled.manifest.memory
    with written(subject, compiled) as folder:
        held = start(OURS, folder, threads).peak_bytes
    run_s = statistics.median(itertools.chain(*rounds))
    return Walk(case.references, compile_s, run_s, held, memory.needed, memory.chunks, memory.recomputed)


def show(walk: Walk) -> str:
    """One line."""
    how = f"{walk.chunks} chunks, {walk.recomputed:.0%} recomputed" if walk.chunks > 1 else "at once, baked"
    return (
        f"K = {walk.references:5}: {1e3 * walk.run_s:8.0f} ms, {walk.each_ms:7.2f} ms a reference; peak "
        f"{in_words(walk.peak_bytes)}, {in_words(walk.needed_bytes)} estimated; {how}; "
        f"compiled in {walk.compile_s:.1f} s"
    )


def main(given: Sequence[str] | None = None) -> None:
    """Prints a line for each number, and how the last ones compare."""
    parser = parser_of(__doc__, [case.model for case in CASES if len(case.shape) == 3])
    parser.add_argument("--size", type=positive, default=112, help="pixels of an edge (112)")
    parser.add_argument("--references", default="10,20,40", help="K with all baked, by commas (10,20,40)")
    parser.add_argument("--many", type=positive, default=1000, help="K under the budget (1000)")
    parser.add_argument("--budget", default="2GB", help="of memory, for many references (2GB)")
    arguments = parser.parse_args(given)
    with reporting_errors():
        _compare(
            partial(measured, arguments.model, arguments.size, arguments.threads),
            parse_references(arguments.references),
            arguments.many,
            parse_bytes(arguments.budget),
        )


def measured(model: str, size: int, threads: int, references: int, budget: int) -> Walk:
    """In a process of its own; prints a line."""
    walk = in_a_process(walked, Case(model, (3, size, size), references), threads, budget)
    print(show(walk), flush=True)
    return walk


def _compare(measure: Callable[[int, int], Walk], counts: Sequence[int], many: int, budget: int) -> None:
    baked = [measure(count, AMPLE) for count in counts]
    chunked = measure(many, budget)
    first, last = baked[0], baked[-1]
    unit = f"of K = {first.references}'s"
    if len(baked) > 1:
        more = 1e3 * (last.run_s - first.run_s) / (last.references - first.references)
        print(f"each reference more, all baked: {more:.2f} ms, {more / first.each_ms:.2f} {unit}")
    print(f"a reference of many: {chunked.each_ms / first.each_ms:.2f} {unit}")


if __name__ == "__main__":
    main()
