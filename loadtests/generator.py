"""The load generator: locust's runner and HTTP client, in a process of its own.

    python -m loadtests.generator PLAN.json SEEN.json

Closed load is locust's own: users that ask, wait for the answer and ask again. Open load is one user that
sends what is due when it is due, whatever has been answered, so that a queue can grow as it does with real
callers; times count from when a request was due, or a slow server would slow down its own measurement.
"""

import locust  # noqa: F401  # first: it patches the standard library for gevent

# isort: split

import gc
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol

import gevent
import gevent.pool
import grpc
import grpc.experimental.gevent
import numpy as np
from geventhttpclient import HTTPClient
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtests.arrivals import arrivals
from loadtests.plan import Answer, Plan, Seen
from loadtests.wanted import ENTRIES, INPUT, PATHS, Arrays, Wanted, rest_answer, rest_body

CONNECTIONS = 1024  # more open requests than this wait in the client, and that counts
HEADERS = {"Content-Type": "application/json"}


class RefusedError(Exception):
    """An answer that is none; `str` is its status."""


class Client(Protocol):
    """How the gateway is asked."""

    def ask(self, verb: str, first: int) -> Callable[[], Arrays]:
        """The answer about the rows from `first` on, to be decoded where it is compared."""


class RestClient:
    """geventhttpclient, which locust's FastHttpUser stands on, without what that adds to each request."""

    def __init__(self, plan: Plan, wanted: Wanted) -> None:
        host, _, port = plan.address.rpartition(":")
        self._http = HTTPClient(
            host, int(port), concurrency=CONNECTIONS, network_timeout=plan.timeout_s, headers=HEADERS
        )
        self._bodies = [
            rest_body(wanted.rows[wanted.places(first, plan.rows)]) for first in range(len(wanted.rows))
        ]

    def ask(self, verb: str, first: int) -> Callable[[], Arrays]:
        response = self._http.post(PATHS[verb], self._bodies[first])
        body = bytes(response.read())
        if response.status_code != 200:
            raise RefusedError(f"HTTP {response.status_code}")
        return lambda: rest_answer(body)


class GrpcClient:
    """tritonclient's stubs over one channel."""

    def __init__(self, plan: Plan, wanted: Wanted) -> None:
        grpc.experimental.gevent.init_gevent()
        self._timeout_s = plan.timeout_s
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(plan.address))
        inputs = [
            np.ascontiguousarray(wanted.rows[wanted.places(first, plan.rows)])
            for first in range(len(wanted.rows))
        ]
        self._requests = {verb: [_grpc_request(entry, x) for x in inputs] for verb, entry in ENTRIES.items()}

    def ask(self, verb: str, first: int) -> Callable[[], Arrays]:
        try:
            answer = self._stub.ModelInfer(self._requests[verb][first], timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise RefusedError(f"gRPC {error.code().name}") from error
        return lambda: _grpc_answer(answer)


def _grpc_request(entry: str, x: np.ndarray) -> Any:
    request = service_pb2.ModelInferRequest(model_name=entry, raw_input_contents=[x.tobytes()])
    request.inputs.add(name=INPUT, datatype="FP32", shape=x.shape)
    return request


def _grpc_answer(answer: Any) -> Arrays:
    return {
        output.name: np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


CLIENTS: dict[str, Callable[[Plan, Wanted], Client]] = {"rest": RestClient, "grpc": GrpcClient}


class Recorder:
    """Asks, times, compares; what `Seen` is made of."""

    def __init__(self, plan: Plan, client: Client, wanted: Wanted) -> None:
        self.answers: list[Answer] = []
        self.compared = 0
        self._plan, self._client, self._wanted = plan, client, wanted
        self._random = Random(plan.seed)
        self._numbers = itertools.count()
        self._verbs, self._shares = list(plan.verbs), list(plan.verbs.values())
        self._began_s = time.perf_counter()

    @property
    def now_s(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._began_s

    def ask(self, due_s: float) -> None:
        """One request. Whatever fails is recorded, and goes on: none must vanish from the figures."""
        lag_s = self.now_s - due_s
        number = next(self._numbers)
        (verb,) = self._random.choices(self._verbs, self._shares)
        first = self._random.randrange(len(self._wanted.rows))
        decode, error, wrong = None, "", False
        try:
            decode = self._client.ask(verb, first)
        except RefusedError as refusal:
            error = str(refusal)
        except Exception as failure:
            error = type(failure).__name__
        took_s = self.now_s - due_s
        if decode is not None and number % self._plan.check_every == 0:
            self.compared += 1
            wrong = not self._fits(verb, first, decode)
        self.answers.append(Answer(verb, due_s, lag_s, took_s, error, wrong))

    def _fits(self, verb: str, first: int, decode: Callable[[], Arrays]) -> bool:
        """False too where the answer cannot be read."""
        try:
            return self._wanted.fits(verb, first, self._plan.rows, decode())
        except Exception:  # whatever an answer makes of decoding it: it is none that fits
            return False


def closed_user(recorder: Recorder) -> type[User]:
    """Asks, waits for the answer, and asks again."""

    class ClosedUser(User):
        @task
        def ask(self) -> None:
            recorder.ask(recorder.now_s)

    return ClosedUser


def open_user(recorder: Recorder, plan: Plan) -> type[User]:
    """Sends each request when it is due, and waits for the answers at the end."""

    class OpenUser(User):
        @task
        def send(self) -> None:
            for due_s in arrivals(plan.phases, Random(plan.seed)):
                gevent.sleep(max(due_s - recorder.now_s, 0))
                requests.spawn(recorder.ask, due_s)
            requests.join()
            raise StopUser

    requests = gevent.pool.Group()
    return OpenUser


def run(plan: Plan) -> Seen:
    """Returns when the load is over and all is answered or has timed out."""
    wanted = Wanted.read(Path(plan.folder), plan.expected)
    client = CLIENTS[plan.protocol](plan, wanted)
    gc.collect()
    gc.freeze()  # the bodies need not be looked through again and again while times are taken
    recorder = Recorder(plan, client, wanted)
    used_s = time.process_time()
    if plan.phases[0].users is None:
        _run_open(plan, recorder)
    else:
        _run_closed(plan, recorder)
    return Seen(tuple(recorder.answers), plan.seconds, recorder.compared, time.process_time() - used_s)


def _run_open(plan: Plan, recorder: Recorder) -> None:
    runner = Environment(user_classes=[open_user(recorder, plan)]).create_local_runner()
    runner.spawn_users({"OpenUser": 1}, wait=True)
    runner.quit()


def _run_closed(plan: Plan, recorder: Recorder) -> None:
    environment = Environment(user_classes=[closed_user(recorder)], stop_timeout=plan.timeout_s)
    runner = environment.create_local_runner()
    for phase in plan.phases:
        runner.start(phase.users or 1, spawn_rate=1e6)
        gevent.sleep(phase.seconds)
    runner.quit()


def main() -> None:
    run(Plan.from_json(Path(sys.argv[1]).read_text())).write(Path(sys.argv[2]))


if __name__ == "__main__":
    main()
