"""httpx's calls, by a client that waits for a busy machine: httpx itself gives up after five seconds."""

import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import numpy as np

SECONDS = 60
COMPILE_SECONDS = 120
_CONTEXT = ssl.create_default_context()  # each call would read the certificates of all authorities again


# The one place that may name them: the rule sends everyone else here.
_CALLS: list[Callable[..., httpx.Response]] = [httpx.get, httpx.post, httpx.put, httpx.delete]  # noqa: TID251
get, post, put, delete = (partial(call, timeout=SECONDS, verify=_CONTEXT) for call in _CALLS)


def settled(explainer: str) -> dict[str, Any]:
    """The status at an explainer's address when nothing is being done for it any more."""
    end_s = time.monotonic() + COMPILE_SECONDS
    while True:
        status: dict[str, Any] = get(explainer).json()
        if status["state"] in ("ready", "failed"):
            return status
        assert time.monotonic() < end_s, status
        time.sleep(0.1)


def explain(model: str, x: np.ndarray, **parameters: str) -> dict[str, np.ndarray]:
    """What the model at an address answers for float rows of its input x, by name."""
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    answer = post(f"{model}/explain", json={"inputs": [tensor], "parameters": parameters}).json()
    return {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in answer["outputs"]}
