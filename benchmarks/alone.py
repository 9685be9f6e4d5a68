"""The peak memory of an explanation, each system in a process that does nothing else.

    python -m benchmarks.alone resnet50 [--references 20] [--peers shap,captum] [--threads 2]

It is that of three runs, above what the process held after its imports.
"""

from collections.abc import Sequence

from benchmarks.arguments import case_of, parser_of, positive
from benchmarks.one_system import LIBRARIES, peak_bytes, written
from rationale.bench.cases import OURS, choose_peers
from rationale.bench.subjects import compile_ours, make_subject
from rationale.schema.machine import in_words
from rationale.terminal import reporting_errors


def main(given: Sequence[str] | None = None) -> None:
    """Print a line for each system."""
    parser = parser_of(__doc__)
    parser.add_argument("--references", type=positive, help="K; by default as in `rationale bench`")
    parser.add_argument("--peers", help="with whom to compare, by commas; by default all")
    asked = parser.parse_args(given)
    with reporting_errors():
        case = case_of(asked)
        systems = [OURS, *(peer for peer in choose_peers(asked.peers) if peer in LIBRARIES)]
        subject = make_subject(case, 0)
        print(case.label)
        with written(subject, compile_ours(subject, asked.threads)) as folder:
            for name in systems:
                print(f"{name:16}{in_words(peak_bytes(name, folder, asked.threads))}", flush=True)


if __name__ == "__main__":
    main()
