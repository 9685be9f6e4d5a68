"""A day in ten minutes: mixed load while explainers are published and dropped.

    python -m loadtests.soak [--minutes 10] [--out loadtests/results/soak]

Predictions and explanations, as JSON, binary and over gRPC, at a fixed rate from a process of their own;
every few seconds a reference set is uploaded, baked, asked and deleted with all that was made of it. Every
answer is checked. The gateway's memory is read each second. Writes soak.json and soak.png; ends with 1 where
an answer was wrong, a request got no answer, or the memory of the last third lies above that of the middle
one.
"""

import argparse
import asyncio
import contextlib
import functools
import io
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from loadtests.models import FEATURES, Load, explain_entry, network, write_network
from loadtests.processes import Server, gateway
from loadtests.wire import Connection, binary_request, connect, json_request

MODEL, WIDTH, REFERENCES = "network", 128, 50
RATE_HZ = 60.0
SHARES = {"predict json": 6, "predict binary": 2, "explain json": 1, "explain grpc": 1}  # of ten requests
KEPT = 2  # explainers beside the compiled one; more are dropped again
BETWEEN_S = 5.0
TOLERANCE = 2e-4  # of a float32 explanation that is added up, and of one computed in another batch
GROWTH = 0.03  # of the memory in the last third over that in the middle one


@dataclass
class Tally:
    """What the clients saw: answers by kind and status, the wrong ones, seconds by kind."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    took_s: dict[str, list[float]] = field(default_factory=dict)

    def note(self, kind: str, status: int, took_s: float, fault: str | None) -> None:
        self.answers[f"{kind} {status}"] += 1
        self.took_s.setdefault(kind, []).append(took_s)
        if fault is not None:
            self.wrong.append(f"{kind}: {fault}")


@dataclass(frozen=True)
class Report:
    """What a soak saw; `growth` is of the memory in the last third over that in the middle one."""

    minutes: float
    requests: int
    answers: dict[str, int]
    wrong: list[str]
    published: int
    admin_faults: list[str]
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    memory_mb: list[float]
    growth: float

    @property
    def failed(self) -> bool:
        """A wrong answer, a lost one, a failed publication, or memory that grows."""
        lost = [kind for kind in self.answers if not kind.endswith(" 200")]
        return bool(self.wrong or self.admin_faults or lost) or self.growth > GROWTH


# --- the load, in a process of its own ----------------------------------------------------------------


def predicted(load: Load) -> np.ndarray:
    """The model's own answer, from ONNX Runtime alone."""
    session = ort.InferenceSession(network(WIDTH).SerializeToString())
    (answer,) = session.run(["p"], load.inputs)
    return np.asarray(answer)


def fault_of(tensors: dict[str, np.ndarray], want: np.ndarray) -> str | None:
    """Why these tensors are no right answer; the explainer may have been any of those published."""
    if not np.allclose(tensors["p"], want, rtol=0, atol=TOLERANCE):
        return f"predicts {tensors['p']}, not {want}"
    if "x_attributions" not in tensors:
        return None
    total = tensors["base_value"] + tensors["x_attributions"].sum(axis=-1)
    if not np.allclose(total, tensors["explained_value"], rtol=0, atol=TOLERANCE):
        return f"attributions end at {total}, not at {tensors['explained_value']}"
    return None


def decoded(body: bytes) -> dict[str, np.ndarray]:
    """The tensors of an OIP answer in JSON."""
    outputs = json.loads(body)["outputs"]
    return {o["name"]: np.reshape(o["data"], o["shape"]) for o in outputs}


async def ask_http(connection: Connection, request: bytes, kind: str, want: np.ndarray, tally: Tally) -> None:
    reply = await connection.ask(request)
    fault = None
    if reply.status == httpx.codes.OK and kind.endswith("json"):
        fault = fault_of(decoded(reply.body), want)
    tally.note(kind, reply.status, reply.took_s, fault)


async def ask_grpc(client: InferenceServerClient, load: Load, want: np.ndarray, tally: Tally) -> None:
    tensor = InferInput("x", list(load.inputs["x"].shape), "FP32")
    tensor.set_data_from_numpy(load.inputs["x"])
    started_s = time.perf_counter()
    answer = await client.infer(explain_entry(load), [tensor])
    names = ("p", "x_attributions", "base_value", "explained_value")
    fault = fault_of({name: answer.as_numpy(name) for name in names}, want)
    tally.note("explain grpc", httpx.codes.OK, time.perf_counter() - started_s, fault)


async def offered(http: str, grpc: str, load: Load, end_s: float) -> Tally:
    """Requests at RATE_HZ until `end_s` of the monotonic clock: 80% predictions."""
    tally, want = Tally(), predicted(load)
    predict, explain = f"/v2/models/{MODEL}/infer", f"/v2/models/{MODEL}/explain"
    client = InferenceServerClient(grpc)
    connections = [await connect(http) for _ in range(3)]
    requests = {
        "predict json": json_request(http, predict, load.inputs),
        "predict binary": binary_request(http, predict, load.inputs),
        "explain json": json_request(http, explain, load.inputs),
    }
    asked: dict[str, Callable[[], Awaitable[None]]] = {
        kind: functools.partial(ask_http, connection, request, kind, want, tally)
        for connection, (kind, request) in zip(connections, requests.items(), strict=True)
    }
    asked["explain grpc"] = functools.partial(ask_grpc, client, load, want, tally)
    turns = [asked[kind] for kind, count in SHARES.items() for _ in range(count)]
    due_s, turn = time.monotonic(), 0
    while due_s < end_s:
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        await turns[turn % len(turns)]()
        due_s, turn = due_s + 1 / RATE_HZ, turn + 1
    for connection in connections:
        connection.close()
    await client.close()
    return tally


def client_process(pipe: Pipe, http: str, grpc: str, load: Load, end_s: float) -> None:
    pipe.send(asyncio.run(offered(http, grpc, load, end_s)))


# --- explainers that come and go ----------------------------------------------------------------------


def reference_file(seed: int) -> bytes:
    """An .npz as it is uploaded."""
    rows = np.random.default_rng(seed).normal(size=(REFERENCES, FEATURES)).astype(np.float32)
    file = io.BytesIO()
    np.savez(file, x=rows)
    return file.getvalue()


class Publisher:
    """Uploads a set, bakes it, asks it, and drops the oldest with its set: over and over."""

    def __init__(self, http: str, load: Load) -> None:
        self._client = httpx.Client(base_url=f"http://{http}", timeout=60)
        self._load = load
        self._names: list[str] = []
        self.published = 0
        self.faults: list[str] = []

    def run(self, end_s: float) -> None:
        """Until `end_s` of the monotonic clock."""
        number = 0
        while time.monotonic() < end_s:
            self._turn(number)
            number += 1
            time.sleep(max(min(BETWEEN_S, end_s - time.monotonic()), 0))

    def close(self) -> None:
        self._client.close()

    def _turn(self, number: int) -> None:
        name = f"soak-{number}"
        try:
            self._publish(name, number)
            if len(self._names) > KEPT:
                oldest = self._names.pop(0)
                self._told(self._client.delete(f"/v2/models/{MODEL}/explainers/{oldest}"))
                self._told(self._client.delete(f"/v2/reference-sets/{oldest}"))
        except (httpx.HTTPError, RuntimeError) as error:
            self.faults.append(f"{name}: {error!r}"[:300])

    def _publish(self, name: str, number: int) -> None:
        path, headers = f"/v2/reference-sets/{name}?model={MODEL}", {"Content-Type": "application/x-npz"}
        self._told(self._client.put(path, content=reference_file(number), headers=headers))
        spec = {"method": "deepshap", "reference_set": name, "default": number % 2 == 0}
        path = f"/v2/models/{MODEL}/explainers/{name}"
        self._told(self._client.put(path, json=spec))
        while (state := self._told(self._client.get(path))["state"]) not in ("ready", "failed"):
            time.sleep(0.1)
        if state == "failed":
            raise RuntimeError(str(self._client.get(path).json()["error"]))
        self._names.append(name)
        self.published += 1
        x = self._load.inputs["x"]
        body = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
        asked = {"inputs": [body], "parameters": {"explainer": name}}
        answer = self._client.post(f"/v2/models/{MODEL}/explain", json=asked)
        self._told(answer)
        fault = fault_of(decoded(answer.content), predicted(self._load))
        if fault is not None:
            raise RuntimeError(fault)

    def _told(self, response: httpx.Response) -> Any:
        if response.status_code >= httpx.codes.BAD_REQUEST:
            raise RuntimeError(
                f"{response.request.method} {response.request.url.path}: {response.text[:200]}"
            )
        return response.json() if response.content else None


# --- the story ----------------------------------------------------------------------------------------


def soak(server: Server, load: Load, minutes: float) -> Report:
    """Runs the load and the publisher side by side; the memory is read every second."""
    begun_s = time.monotonic()
    end_s = begun_s + minutes * 60
    publisher, memory = Publisher(server.http, load), [server.memory_bytes()]
    publishing = threading.Thread(target=publisher.run, args=(end_s,))
    with clients(server, load, end_s) as told:
        publishing.start()
        while (now_s := time.monotonic()) < end_s:
            memory.append(server.memory_bytes())
            say(f"\r{now_s - begun_s:5.0f} s  {memory[-1] >> 20} MiB  {publisher.published} published  ")
            time.sleep(1)
        publishing.join()
        publisher.close()
        tally: Tally = told.recv()
    say("\n")
    return report(minutes, tally, publisher, [round(value / (1 << 20), 1) for value in memory])


@contextlib.contextmanager
def clients(server: Server, load: Load, end_s: float) -> Iterator[Pipe]:
    """The load's process; what it saw comes through the pipe."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=client_process, args=(there, server.http, server.grpc, load, end_s))
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.join(10)
        process.kill()
        here.close()


def report(minutes: float, tally: Tally, publisher: Publisher, memory_mb: list[float]) -> Report:
    """All that was seen, as plain values."""
    thirds = len(memory_mb) // 3
    middle, last = (statistics.median(memory_mb[i * thirds : (i + 1) * thirds]) for i in (1, 2))
    p50, p99 = (
        {kind: round(float(np.percentile(took, q)) * 1e3, 2) for kind, took in sorted(tally.took_s.items())}
        for q in (50, 99)
    )
    return Report(
        minutes=minutes,
        requests=sum(tally.answers.values()),
        answers=dict(sorted(tally.answers.items())),
        wrong=tally.wrong[:20],
        published=publisher.published,
        admin_faults=publisher.faults[:20],
        p50_ms=p50,
        p99_ms=p99,
        memory_mb=memory_mb,
        growth=round(last / middle - 1, 4),
    )


def plot(result: Report, path: Path) -> None:
    """Memory over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    minutes = np.linspace(0, result.minutes, len(result.memory_mb))
    axes.plot(minutes, result.memory_mb, color="#1f5f8b", linewidth=1.2)
    axes.set(xlabel="minutes", ylabel="resident memory of the gateway [MiB]", ylim=(0, None))
    axes.set_title(f"{result.requests:,} requests, {result.published} explainers published", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default: 10)")
    parser.add_argument("--out", type=Path, default=Path("loadtests/results/soak"), help="folder to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "model_repository"
        load = write_network(repository, width=WIDTH, references=REFERENCES, name=MODEL)
        with gateway(repository) as server:
            result = soak(server, load, given.minutes)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "soak.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
    plot(result, given.out / "soak.png")
    shown = {name: value for name, value in asdict(result).items() if name != "memory_mb"}
    print(json.dumps(shown, indent=1))
    print(f"{'failed' if result.failed else 'passed'}; written to {given.out}")
    return int(result.failed)


if __name__ == "__main__":
    sys.exit(main())
