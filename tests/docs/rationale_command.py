"""`rationale` as a reader's shell has it, but that `serve` gives the prompt back when it is ready."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

READY, SECONDS = "ready on ", 120
SERVED = Path(os.environ["SERVED"])  # the id of the process that serves
REAL = [str(Path(sys.executable).parent / "rationale"), *sys.argv[1:]]


def stop() -> None:
    """Ends what serves, and waits until its ports are free."""
    if not SERVED.exists():
        return
    served = int(SERVED.read_text())
    SERVED.unlink()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(served)
        process.terminate()
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)


def serve() -> int:
    log = SERVED.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(REAL, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    SERVED.write_text(str(process.pid))
    for _ in range(SECONDS * 20):
        if READY in log.read_text():
            return 0
        if process.poll() is not None:
            break
        time.sleep(0.05)
    print(log.read_text())
    return process.returncode or 1


if REAL[1:] == ["--stop"]:
    stop()
elif REAL[1:2] == ["serve"] and "--help" not in REAL:
    stop()
    sys.exit(serve())
else:
    sys.exit(subprocess.run(REAL, check=False).returncode)
