"""The four clients of `tritonclient` behind one call: `await infer(end, address, model, inputs)`."""

from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import np_to_triton_dtype

SYNC = {"http": tritonclient.http, "grpc": tritonclient.grpc}
AIO = {"http aio": tritonclient.http.aio, "grpc aio": tritonclient.grpc.aio}
ENDS = (*SYNC, *AIO)
TIMEOUT_S = 60  # an answer that never comes fails the test instead of hanging it

Arrays = dict[str, np.ndarray]


def tensors(module: Any, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None) -> dict[str, Any]:
    """The `inputs` and `outputs` arguments of that module's `infer`."""
    given = []
    for name, value in inputs.items():
        each = module.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        given.append(each.set_data_from_numpy(value))
    wanted = None if outputs is None else [module.InferRequestedOutput(name) for name in outputs]
    return {"inputs": given, "outputs": wanted}


def arrays(answer: Any) -> Arrays:
    response = answer.get_response()
    listed = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [each["name"] if isinstance(each, dict) else each.name for each in listed]
    return {name: answer.as_numpy(name) for name in names}


@contextmanager
def sync_client(end: str, address: str) -> Any:
    """A client that is closed at the end: the server waits for open connections when it stops."""
    options = {"network_timeout": TIMEOUT_S} if end == "http" else {}
    client = SYNC[end].InferenceServerClient(address, **options)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def aio_client(end: str, address: str) -> Any:
    client = AIO[end].InferenceServerClient(address)
    try:
        yield client
    finally:
        await client.close()


async def infer(
    end: str,
    address: str,
    model: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
) -> Arrays:
    """One call by the client named `end`; the answer's arrays by name."""
    options = {"client_timeout": TIMEOUT_S} if end.startswith("grpc") else {}
    if end in SYNC:
        with sync_client(end, address) as client:
            return arrays(client.infer(model, **tensors(SYNC[end], inputs, outputs), **options))
    async with aio_client(end, address) as client:
        return arrays(await client.infer(model, **tensors(AIO[end], inputs, outputs), **options))
