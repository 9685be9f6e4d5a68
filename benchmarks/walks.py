"""What references in chunks cost: time against K, baked and recomputed, each number in a process of its own.

    python -m benchmarks.walks resnet50 --size 112 [--references 10,20,40] [--many 1000] [--budget 2GB]

Compiles a network of `rationale bench` with each number of references under ample memory, all of them baked,
then with many under a budget that does not hold them. Prints milliseconds of a run, per reference, and peak
memory above that after imports, as `benchmarks.alone` does.
"""

import itertools
import statistics
import time
from collections.abc import Sequence

from benchmarks.arguments import numbers, parser_of, positive
from benchmarks.one_system import peak_bytes, written
from rationale.bench.cases import CASES, OURS, Case
from rationale.bench.process import in_a_process
from rationale.bench.subjects import compile_ours, make_subject, ready
from rationale.bench.timing import alternate
from rationale.schema.machine import in_words, parse_bytes
from rationale.terminal import reporting_errors

AMPLE = 1 << 40  # bytes
ROUNDS = 5


def walked(case: Case, threads: int, budget: int) -> str:
    """Compile, time and weigh; return a line."""
    subject = make_subject(case, 0)
    begun = time.perf_counter()
    compiled = compile_ours(subject, threads, budget)
    compile_s = time.perf_counter() - begun
    (rounds,) = alternate([ready(OURS, subject, compiled, threads)], ROUNDS).values()
    run_ms = 1e3 * statistics.median(itertools.chain(*rounds))
    with written(subject, compiled) as folder:
        peak = in_words(peak_bytes(OURS, folder, threads))
    memory = compiled.manifest.memory
    how = f"{memory.chunks} chunks, {memory.recomputed:.0%} recomputed" if memory.chunks > 1 else "at once"
    return (
        f"K = {case.references:5}: {run_ms:8.0f} ms, {run_ms / case.references:7.2f} ms a reference; "
        f"peak {peak}, {in_words(memory.needed)} estimated; {how}; compiled in {compile_s:.1f} s"
    )


def main(given: Sequence[str] | None = None) -> None:
    """Print a line for each number."""
    parser = parser_of(__doc__, [case.model for case in CASES if len(case.shape) == 3])
    parser.add_argument("--size", type=positive, default=112, help="pixels of an edge (112)")
    parser.add_argument(
        "--references", type=numbers, default=[10, 20, 40], help="K with all baked (10,20,40)"
    )
    parser.add_argument("--many", type=positive, default=1000, help="K under the budget (1000)")
    parser.add_argument("--budget", default="2GB", help="of memory, for many references (2GB)")
    asked = parser.parse_args(given)
    with reporting_errors():
        budget = parse_bytes(asked.budget)
        for count, bytes_ in (*((count, AMPLE) for count in asked.references), (asked.many, budget)):
            case = Case(asked.model, (3, asked.size, asked.size), count)
            print(in_a_process(walked, case, asked.threads, bytes_), flush=True)


if __name__ == "__main__":
    main()
