"""The process that compiles one explainer: `python -m rationale_service.models.explainers.worker`.

It reads one line from its input, the order, and writes lines to its output: `{"stage", "done", "total"}` on
the way, and at the end `{"written": bytes}` or `{"error": text}`. It ends at once when its input closes,
which also happens when the gateway dies.
"""

import json
import os
import resource
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rationale.errors import RationaleError
from rationale.from_files import compile_files
from rationale.schema.manifest import Parity
from rationale.schema.request import CompileRequest

_NICENESS = 10
_SHOWN = 4000  # characters of an error
_MARGIN_BYTES = 512 << 20  # beyond the gateway's limit: threads' stacks and one step's memory
_ORPHANED = 3


@dataclass(frozen=True)
class CompileOrder:
    """An order to compile.

    Attributes:
        model: path of the ONNX file; `name` is its entry's name.
        entry: path of the folder to create.
        request: `CompileRequest`, as a dictionary.
        references: path of a file of rows.
        memory_bytes: memory limit of the process.
        parity: `Parity` of the model with its fitted original, as a dictionary.
    """

    model: str
    name: str
    entry: str
    request: dict[str, Any]
    references: str | None
    memory_bytes: int
    parity: dict[str, Any] | None = None

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    channel = _own_output()
    order = CompileOrder(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_the_gateway, daemon=True).start()
    _take_a_back_seat(order.memory_bytes)
    try:
        size = run(order, channel)
    except RationaleError as error:
        cause = error.__cause__
        gone = isinstance(cause, FileNotFoundError) and str(cause.filename) == order.references
        _say(channel, error=_without_paths(str(error), order)[:_SHOWN], references_gone=gone)
    except MemoryError:
        _say(channel, error=f"it takes more memory than the {order.memory_bytes >> 20} MB that it may have")
    else:
        _say(channel, written=size)


def run(order: CompileOrder, channel: TextIO) -> int:
    """Compile, check, write and sync the entry; return its size in bytes. Raises RationaleError."""
    request = CompileRequest.model_validate(order.request)
    references = None if order.references is None else Path(order.references)

    def progress(stage: str, done: int, total: int) -> None:
        _say(channel, stage=stage, done=done, total=total)

    parity = None if order.parity is None else Parity.model_validate(order.parity)
    compiled = compile_files(request, Path(order.model), references, progress, parity)
    progress("writing", 0, 1)
    compiled.write_explainer(Path(order.entry), order.name)
    return sync_folder(Path(order.entry))


def sync_folder(folder: Path) -> int:
    """Flush every file and folder below to the disk; return the sum of the files' sizes."""
    size = 0
    for path in (*folder.rglob("*"), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            size += os.fstat(handle).st_size if path.is_file() else 0
        finally:
            os.close(handle)
    return size


def _without_paths(text: str, order: CompileOrder) -> str:
    """Replace the server's private file paths in a text by names."""
    places = {order.entry: "the entry", order.model: order.name, order.references: "the reference set"}
    for place, name in places.items():
        if place is not None:
            text = text.replace(place, name)
    return text


def _say(channel: TextIO, **message: Any) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


def _own_output() -> TextIO:
    """Return the channel to the gateway.

    All other output, also that of C++ libraries, goes to stderr.
    """
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _end_with_the_gateway() -> None:
    while sys.stdin.read(1):
        pass
    os._exit(_ORPHANED)


def _take_a_back_seat(memory_bytes: int) -> None:
    """Give this process low CPU priority, a memory limit, and the first place to be killed without memory."""
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere RLIMIT_DATA does not cover mmap
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory_bytes + _MARGIN_BYTES
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
