"""Work in a process of its own, whose memory goes with it."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Tell = Callable[[str, int, int], None]


class ProcessDiedError(Exception):
    """It ended without an answer, for want of memory as a rule; `str` is how."""


def run_module(name: str, *arguments: str) -> str:
    """What `python -m name` prints.

    Raises:
        ProcessDiedError: it failed; `str` is what it said of that.
    """
    command = [sys.executable, "-m", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    if done.returncode:
        raise ProcessDiedError(done.stderr.strip() or f"its process ended with exit code {done.returncode}")
    return done.stdout


def in_a_process(function: Callable[..., Any], *arguments: Any, tell: Tell) -> Any:
    """`function(*arguments, tell)`, elsewhere; all must be picklable, and `tell` is called here.

    Raises:
        ProcessDiedError: no answer came.
    """
    context = multiprocessing.get_context("spawn")  # threads of this process would not survive a fork
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there, function, arguments), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            kind, content = here.recv()
            if kind == "answer":
                return content
            tell(*content)
    except EOFError:
        process.join()
        raise ProcessDiedError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        here.close()


def _serve(there: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """An exception ends the process with its traceback on stderr, as in any program."""
    answer = function(*arguments, lambda *stage: there.send(("stage", stage)))
    there.send(("answer", answer))
