"""The least cost of a route: FastAPI, orjson and ONNX Runtime, with no checks, queues or limits.

    python -m loadtests.systems.minimal MODEL.onnx

`POST /infer` takes and gives OIP JSON of one FP32 tensor. The yardstick of `loadtests.checks.overhead`.
"""

import sys

import numpy as np
import uvicorn

from benchmarks.runtime import session_of
from loadtests.load.questions import Arrays
from loadtests.systems.baselines.service import create_app
from rationale_service.process.listening import address_of, listen


def main() -> None:
    session = session_of(sys.argv[1], 1, on_cpu=True)
    (graph_input,), names = session.get_inputs(), [output.name for output in session.get_outputs()]

    async def ask(_: str, x: np.ndarray) -> Arrays:
        return dict(zip(names, session.run(names, {graph_input.name: x}), strict=True))

    listener = listen("127.0.0.1", 0)
    print(f"ready on http://{address_of(listener)}", flush=True)
    config = uvicorn.Config(create_app(ask, {"": "/infer"}), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
