"""NVIDIA's perf_analyzer against a gateway: by HTTP, by gRPC and by gRPC's streams, one after the other.

    python -m loadtests.checks.perf_analyzer [--model credit_explain] [-- --concurrency-range 1:4]

What follows `--` is handed on. Needs perf_analyzer on the path or in Triton's environment (`make triton`); it
comes with wheels of tritonclient up to 2.51. Without --http and --grpc a gateway is started on
`model_repository`. Ends with 1 where a run of it failed.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtests.systems.process import gateway

FETCHED = Path(".triton/venv")
LIBRARIES = ("libb64", "libcudart")  # it wants them by short names, and a wheel has them under longer ones
WAYS = {"HTTP": ["-i", "http"], "gRPC": ["-i", "grpc"], "gRPC, streams": ["-i", "grpc", "--streaming"]}
MEASURED = ["--measurement-interval", "2000", "--max-trials", "5", "--stability-percentage", "100"]


@contextlib.contextmanager
def libraries() -> Iterator[str]:
    """A folder with the libraries by the names that it wants: `libb64.so.0d` for `libb64-98cb6333.so.0d`."""
    with tempfile.TemporaryDirectory() as folder:
        for path in FETCHED.glob("lib/python3*/site-packages/*.libs/*.so.*"):
            stem, _, rest = path.name.partition(".so.")
            if stem.partition("-")[0] in LIBRARIES:
                version = rest if "b64" in stem else rest.partition(".")[0]
                (Path(folder) / f"{stem.partition('-')[0]}.so.{version}").symlink_to(path.resolve())
        yield folder


def run(program: str, model: str, addresses: dict[str, str], more: list[str]) -> bool:
    """Whether every way came to its end; what it prints passes through."""
    done = True
    with libraries() as folder:
        for way, arguments in WAYS.items():
            print(f"--- {way}", flush=True)
            command = [program, "-m", model, "-u", addresses[arguments[1]], *arguments, *(more or MEASURED)]
            environment = {**os.environ, "LD_LIBRARY_PATH": folder}
            done &= subprocess.run(command, env=environment, check=False).returncode == 0  # noqa: S603 (our own arguments)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="credit_explain", help="an entry")
    parser.add_argument("--http", metavar="HOST:PORT")
    parser.add_argument("--grpc", metavar="HOST:PORT")
    parser.add_argument("more", nargs="*", help="for perf_analyzer, after --")
    given = parser.parse_args()
    program = shutil.which("perf_analyzer") or shutil.which("perf_analyzer", path=FETCHED / "bin")
    if program is None:
        print(
            "there is no perf_analyzer on the path, nor in .triton: make triton fetches it", file=sys.stderr
        )
        return 2
    with contextlib.ExitStack() as stack:
        if given.http is None or given.grpc is None:
            ours = stack.enter_context(gateway(Path("model_repository")))
            given.http, given.grpc = ours.http, ours.grpc
        done = run(program, given.model, {"http": given.http, "grpc": given.grpc}, given.more)
    print("every run came to its end" if done else "failed")
    return int(not done)


if __name__ == "__main__":
    sys.exit(main())
