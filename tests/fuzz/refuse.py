"""A process of its own that compiles the files it is told of: `python -m tests.fuzz.refuse`.

Reads a path a line, answers with a line of JSON: what the compiler said, and whether that is as it should be.
Its address space is limited, so that a model that asks for more memory than there is fails here.
"""

import json
import resource
import sys
import traceback

from rationale import DeepShap, compile_model
from rationale.errors import RationaleError
from rationale.references.reference_set import Baseline

ROOM = 3 << 30  # bytes of address space beyond what the imports take


def answer(path: str) -> dict[str, str]:
    try:
        compile_model(path, DeepShap(Baseline(0.25)))
    except RationaleError as error:
        return {"verdict": type(error).__name__, "text": str(error)}
    except BaseException:
        return {"verdict": "crash", "text": traceback.format_exc()}
    return {"verdict": "compiled", "text": ""}


def limit_memory() -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))


if __name__ == "__main__":
    limit_memory()
    for line in sys.stdin:
        print(json.dumps(answer(line.rstrip("\n"))), flush=True)
