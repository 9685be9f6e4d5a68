"""A command that runs one baseline until SIGTERM, and prints `ready on http://HOST:PORT` when it is ready."""

import argparse
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn

from benchmarks.cases import MODULES
from loadtests.load.expected import PATHS
from loadtests.load.questions import EXPLAIN, PREDICT
from loadtests.systems.baselines.service import create_app
from loadtests.systems.baselines.workers import asking, explaining, load, warm_up
from rationale_service.process.listening import address_of, listen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.systems.baselines", description=__doc__)
    parser.add_argument("name", choices=MODULES)
    parser.add_argument("folder", type=Path, help="made by loadtests.load.prepare")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, in each worker")
    parser.add_argument("--workers", type=int, default=1, help="more than one are processes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # uvicorn raises it again when it has stopped
    load(options.name, options.folder, options.threads)
    explainer = explaining(options.name, options.folder, options.threads, options.workers)
    with explainer, ThreadPoolExecutor(1) as predictor:  # predictions do not wait for explanations
        warm_up(explainer, options.folder, options.workers)
        listener = listen("127.0.0.1", 0)
        print(f"ready on http://{address_of(listener)}", flush=True)
        config = uvicorn.Config(
            create_app(asking({PREDICT: predictor, EXPLAIN: explainer}), PATHS),
            log_level="warning",
            access_log=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
