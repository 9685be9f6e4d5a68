"""The web service around an explainer, with the gateway's requests and answers."""

from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response

from loadtests.load.questions import Arrays

Ask = Callable[[str, np.ndarray], Awaitable[Arrays]]


def create_app(ask: Ask, paths: Mapping[str, str]) -> FastAPI:
    """Create the app, with a path for each verb; `ask(verb, x)` returns the outputs.

    Bodies are read by orjson, unchecked: that is as fast as it goes.
    """
    app = FastAPI()
    for verb, path in paths.items():
        app.post(path)(_route(ask, verb))
    return app


def _route(ask: Ask, verb: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        (tensor,) = orjson.loads(await request.body())["inputs"]
        x = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        outputs = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": array.shape,
                "data": np.ascontiguousarray(array).ravel(),
            }
            for name, array in (await ask(verb, x)).items()
        ]
        body = orjson.dumps({"outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return answer
