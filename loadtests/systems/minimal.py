"""What a route costs at the least: FastAPI, orjson and ONNX Runtime, with no checks, queues or limits.

    python -m loadtests.systems.minimal MODEL.onnx

`POST /infer` takes and gives OIP JSON of one FP32 tensor. The yardstick of `loadtests.checks.overhead`.
"""

import sys

import numpy as np
import onnxruntime as ort
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

from service.process.listening import address_of, listen


def create_app(path: str) -> FastAPI:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    app = FastAPI()

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        tensor = orjson.loads(await request.body())["inputs"][0]
        x = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        answers = session.run(names, {tensor["name"]: x})
        outputs = [
            {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.ravel()}
            for name, array in zip(names, answers, strict=True)
        ]
        body = orjson.dumps({"outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return app


def main() -> None:
    listener = listen("127.0.0.1", 0)
    print(f"ready on http://{address_of(listener)}", flush=True)
    config = uvicorn.Config(create_app(sys.argv[1]), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
