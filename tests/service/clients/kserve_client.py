"""Asks a gateway by KServe's own Python client, v1 and v2, REST and gRPC; prints what it said, as JSON.

Runs in an environment with `kserve`: python kserve_client.py HTTP_ADDRESS GRPC_ADDRESS ROWS
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

BINARY = {False: "json", True: "binary"}


def request(model: str, x: np.ndarray, binary: bool) -> InferRequest:
    tensor = InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return InferRequest(model, [tensor], request_id="r1")


def array(answer: Any, name: str) -> list[Any]:
    assert answer.id == "r1"
    (output,) = (each for each in answer.outputs if each.name == name)
    return np.asarray(output.as_numpy()).reshape(output.shape).tolist()


async def ask_v1(url: str, x: np.ndarray, message: dict[str, Any]) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v1"))
    message["health"]["v1 live"] = await client.is_server_live(url)
    message["health"]["v1 model"] = await client.is_model_ready(url, "score")
    body = {"instances": x.tolist()}
    message["predictions"]["v1"] = (await client.infer(url, body, model_name="score"))["predictions"]
    explanations = (await client.explain(url, "score", body))["explanations"]
    message["attributions"]["v1"] = [
        [list(target["attributions"].values()) for target in each["targets"]] for each in explanations
    ]


async def ask_v2(url: str, x: np.ndarray, message: dict[str, Any]) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    message["health"]["v2 live"] = await client.is_server_live(url)
    message["health"]["v2 ready"] = await client.is_server_ready(url)
    message["health"]["v2 model"] = await client.is_model_ready(url, "score")
    message["health"]["v2 absent"] = await client.is_model_ready(url, "absent")
    for binary, name in BINARY.items():
        for model, output, place in (
            ("score", "y", "predictions"),
            ("score_explain", "x_attributions", "attributions"),
        ):
            answer = await client.infer(url, request(model, x, binary), model_name=model)
            message[place][f"v2 {name}"] = array(answer, output)


async def ask_grpc(address: str, x: np.ndarray, message: dict[str, Any]) -> None:
    client = InferenceGRPCClient(address)
    message["health"]["grpc live"] = await client.is_server_live()
    message["health"]["grpc ready"] = await client.is_server_ready()
    message["health"]["grpc model"] = await client.is_model_ready("score")
    message["health"]["grpc absent"] = await client.is_model_ready("absent")
    for binary, name in BINARY.items():
        answer = await client.infer(request("score_explain", x, binary))
        message["predictions"][f"grpc explain {name}"] = array(answer, "y")
        message["attributions"][f"grpc {name}"] = array(answer, "x_attributions")
    message["predictions"]["grpc"] = array(await client.infer(request("score", x, False)), "y")
    await client.close()


async def main(http: str, grpc: str, rows: str) -> None:
    x = np.array(json.loads(rows), np.float32)
    answers: dict[str, Any] = {"health": {}, "predictions": {}, "attributions": {}}
    await ask_v1(f"http://{http}", x, answers)
    await ask_v2(f"http://{http}", x, answers)
    await ask_grpc(grpc, x, answers)
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
