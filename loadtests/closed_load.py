"""A client process that asks as fast as it is answered, over HTTP or gRPC, and decodes nothing meanwhile."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

from loadtests import wire

Arrays = dict[str, np.ndarray]
Protocol = Literal["json", "binary", "grpc"]
Ask = Callable[[], Awaitable[bytes]]
_OK = 200


@dataclass(frozen=True)
class Load:
    """One way to ask: `request` is sent over each of the connections, again as soon as it is answered."""

    protocol: Protocol
    address: str
    request: bytes
    connections: int


@dataclass(frozen=True)
class Count:
    """Answers, the seconds from the first request to the last answer, the client's own CPU, one answer."""

    answers: int
    seconds: float
    cpu_s: float
    answer: bytes

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


def request_for(protocol: Protocol, address: str, model: str, inputs: Arrays) -> bytes:
    """An explain request of `inputs` [N, …] by name; over gRPC `model` is asked by the name of its entry."""
    path = f"/v2/models/{model}/explain"
    if protocol == "json":
        return wire.json_request(address, path, inputs)
    if protocol == "binary":
        return wire.binary_request(address, path, inputs)
    message = service_pb2.ModelInferRequest(model_name=f"{model}_explain")
    for name, x in inputs.items():
        message.inputs.add(name=name, datatype="FP32", shape=x.shape)
        message.raw_input_contents.append(np.ascontiguousarray(x).tobytes())
    return bytes(message.SerializeToString())


def count(load: Load, seconds: float) -> Count:
    """Runs in the client's process. Raises RuntimeError where an answer is none."""
    return asyncio.run((_count_grpc if load.protocol == "grpc" else _count_http)(load, seconds))


async def _count_http(load: Load, seconds: float) -> Count:
    connections = [await wire.connect(load.address) for _ in range(load.connections)]

    def asking(connection: wire.Connection) -> Ask:
        async def ask() -> bytes:
            reply = await connection.ask(load.request)
            if reply.status != _OK:
                raise RuntimeError(f"{reply.status}: {reply.body[:300]!r}")
            return reply.body

        return ask

    try:
        return await _count([asking(connection) for connection in connections], seconds)
    finally:
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)  # they close in the loop's next turn


async def _count_grpc(load: Load, seconds: float) -> Count:
    """The messages stay bytes: what a client makes of them is not measured."""
    async with grpc.aio.insecure_channel(load.address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        async def ask() -> bytes:
            try:
                return bytes(await infer(load.request))
            except grpc.RpcError as error:
                raise RuntimeError(str(error)) from error

        return await _count([ask] * load.connections, seconds)


async def _count(asks: list[Ask], seconds: float) -> Count:
    answer, answers = await asks[0](), 0

    async def go_on(ask: Ask) -> None:
        nonlocal answers
        while time.perf_counter() < end_s:
            await ask()
            answers += 1

    used_s, began_s = time.process_time(), time.perf_counter()
    end_s = began_s + seconds
    await asyncio.gather(*(go_on(ask) for ask in asks))
    return Count(answers, time.perf_counter() - began_s, time.process_time() - used_s, answer)


def decoded(protocol: str, answer: bytes) -> Arrays:
    """The tensors of an OIP answer."""
    if protocol == "grpc":
        message = service_pb2.ModelInferResponse.FromString(answer)
        return {
            output.name: np.frombuffer(raw, np.float32).reshape(output.shape)
            for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
        }
    head, at = json.JSONDecoder().raw_decode(answer.decode("latin-1"))
    arrays = {}
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        data = output["data"] if size is None else np.frombuffer(answer[at : at + size], np.float32)
        arrays[output["name"]] = np.asarray(data, np.float32).reshape(output["shape"])
        at += size or 0
    return arrays
