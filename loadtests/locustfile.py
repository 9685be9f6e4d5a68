"""Load on any gateway and any of its models, by locust.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080                 its page is at :8089
    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080 --headless -u 8 -t 30s JsonUser

Users list the server's models, make random rows that fit, and check every answer. Refusals, tensors that are
missing or have another shape, and numbers that are not finite count as failures. GrpcUser needs --grpc.
`--tags predict` or `--tags explain` chooses one kind of request, the name of a class one kind of user.

Load is closed by default: a user waits for its answer and asks again. With `--rate` it is open: requests are
sent when they are due, whatever has been answered, so that a queue can grow as it does with real callers, and
times count from when a request was due, or a slow server would slow down its own measurement.
"""

import functools
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import gevent
import gevent.pool
import grpc
import grpc.experimental.gevent
import locust.stats
from locust import FastHttpUser, User, events, tag, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopTest, StopUser
from tritonclient.grpc import InferResult, service_pb2_grpc
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from loadtests.load.arrivals import arrivals
from loadtests.load.expected import compared
from loadtests.load.questions import (
    EXPLAIN,
    HEADER_LENGTH,
    PREDICT,
    ROUTES,
    SUFFIX,
    ModelTensor,
    Question,
    WrongAnswerError,
)

CONNECTIONS = 1024  # open load beyond it waits in the client, and that counts
_OK = 200


class RefusedError(Exception):
    """A status that is no success."""


@functools.cache
def questions(host: str, models: str, rows: int, api_key: str) -> dict[str, list[Question]]:
    """Return questions by verb, about these models or all, from the server's own metadata.

    Raises:
        StopTest: if the server does not answer, or has no such model.
    """
    url = urlsplit(host)
    server = InferenceServerClient(url.netloc, ssl=url.scheme == "https", network_timeout=30.0)
    headers = {"x-api-key": api_key} if api_key else {}
    try:
        explains = EXPLAIN in server.get_server_metadata(headers)["extensions"]
        index = server.get_model_repository_index(headers)
        entries = {entry["name"] for entry in index if entry.get("state") == "READY"}
        explained = {name for name in entries if explains and name + SUFFIX in entries}
        chosen = _chosen(models, entries - {name + SUFFIX for name in explained})

        def question(verb: str, model: str, entry: str) -> Question:
            about = server.get_model_metadata(entry, headers=headers)
            inputs = {tensor.name: tensor.drawn(rows) for tensor in _tensors(about["inputs"])}
            path = f"/v2/models/{model}/{ROUTES[verb]}"
            return Question(f"{verb} {model}", path, entry, inputs, _tensors(about["outputs"]))

        return {
            PREDICT: [question(PREDICT, model, model) for model in chosen],
            EXPLAIN: [question(EXPLAIN, m, m + SUFFIX) for m in chosen if m in explained],
        }
    except (InferenceServerException, OSError) as error:
        raise StopTest(f"{host} does not say which models it has: {error}") from None


def _chosen(models: str, ready: set[str]) -> list[str]:
    named = {name for name in re.split(r"[,\s]+", models) if name}
    if unknown := named - ready:
        raise StopTest(
            f"no model {', '.join(sorted(unknown))} is ready; those are: {', '.join(sorted(ready))}"
        )
    if not ready:
        raise StopTest("no model is ready")
    return sorted(named or ready)


def _tensors(described: list[dict[str, Any]]) -> tuple[ModelTensor, ...]:
    return tuple(ModelTensor(each["name"], each["datatype"], tuple(each["shape"])) for each in described)


@functools.cache
def open_load(rate: str, seconds: int | None, _begun_at: float) -> Iterator[float]:
    """Return the due times of requests, on `time.perf_counter`; all users of a run share them.

    Args:
        rate: requests a second, such as "20"; several rates, such as "20,80,20", share `seconds` evenly.
        seconds: total time of all rates.

    Raises:
        StopTest: if `rate` is no rate, or there is no time.
    """
    try:
        rates = [float(each) for each in rate.split(",")]
    except ValueError:
        rates = [0.0]
    if min(rates) <= 0 or not seconds:
        raise StopTest(f"--rate takes requests a second, as in 20 or 20,80,20, and --run-time: {rate!r}")
    return arrivals(rates, seconds / len(rates))


class GatewayUser(User):
    """A user that asks again after each answer, or asks at due times."""

    abstract = True
    questions: dict[str, list[Question]]
    headers: dict[str, str]
    due_s: Iterator[float] | None  # of an open load

    def __init__(self, environment: Environment) -> None:
        """Prepare the user. Raises StopTest if there is nothing to ask."""
        super().__init__(environment)
        try:
            self.prepare(environment.parsed_options)
        except StopTest:
            environment.process_exit_code = 2
            raise

    def prepare(self, options: Any) -> None:
        """Read the questions to ask. Raises StopTest."""
        self.due_s = None
        if options.rate:
            self.due_s = open_load(options.rate, options.run_time, self.environment.stats.start_time)
        self.headers = {"x-api-key": options.api_key} if options.api_key else {}
        if options.expected:
            self.questions = compared(options.expected, options.models, options.rows)
        else:
            self.questions = questions(str(self.host), options.models, options.rows, options.api_key)
        weights = {PREDICT: 100 - options.explanations, EXPLAIN: options.explanations}
        self.tasks = [
            each
            for each in self.tasks
            for _ in range(weights[each.__name__])  # type: ignore[union-attr]
            if self.questions[each.__name__]  # type: ignore[union-attr]
        ]
        if not self.tasks:
            raise StopTest("none of these models has an explanation")

    def on_start(self) -> None:
        """Send this user's part of an open load."""
        if self.due_s is None:
            return
        requests = gevent.pool.Group()
        for due_s in self.due_s:
            gevent.sleep(max(due_s - time.perf_counter(), 0))
            verb = random.choice(self.tasks).__name__  # type: ignore[union-attr]
            requests.spawn(self.ask_anyhow, random.choice(self.questions[verb]), due_s)
        requests.join()
        raise StopUser

    def ask_anyhow(self, question: Question, due_s: float) -> None:
        """Ask, record any failure and go on: no request may vanish from the figures."""
        try:
            self.ask(question, due_s)
        except Exception as error:
            self.tell("?", question, 1e3 * (time.perf_counter() - due_s), 0, error)

    @tag(PREDICT)
    @task
    def predict(self) -> None:
        self.ask(random.choice(self.questions[PREDICT]), time.perf_counter())

    @tag(EXPLAIN)
    @task
    def explain(self) -> None:
        self.ask(random.choice(self.questions[EXPLAIN]), time.perf_counter())

    def ask(self, question: Question, due_s: float) -> None:
        """Send one request, and report its result to locust; `due_s` is a time of `time.perf_counter`."""
        raise NotImplementedError

    def tell(self, form: str, question: Question, took_ms: float, size: int, fault: Exception | None) -> None:
        """Report a request to locust."""
        self.environment.events.request.fire(
            request_type=form,
            name=question.label,
            response_time=took_ms,
            response_length=size,
            context={},
            exception=fault,
        )


def fault_of(question: Question, answer: Callable[[], Any]) -> WrongAnswerError | None:
    """Return the answer's fault, if any; `answer` returns tritonclient's result."""
    try:
        question.check(answer().as_numpy)
    except WrongAnswerError as error:
        return error
    except (ValueError, TypeError, LookupError, AttributeError, InferenceServerException):
        return WrongAnswerError("the answer cannot be read")
    return None


class HttpUser(GatewayUser, FastHttpUser):
    """A user over HTTP, whose subclass sets the form of requests."""

    abstract = True
    concurrency = CONNECTIONS
    form: ClassVar[str]

    def __init__(self, environment: Environment) -> None:
        options: Any = environment.parsed_options
        self.network_timeout = self.connection_timeout = options.timeout
        super().__init__(environment)

    def ask(self, question: Question, due_s: float) -> None:
        late_ms = 1e3 * (time.perf_counter() - due_s)
        body, headers = question.as_json if self.form == "JSON" else question.as_binary
        with self.client.post(
            question.path,
            data=body,
            headers=headers | self.headers,
            name=question.label,
            catch_response=True,
        ) as response:
            response.request_meta["request_type"] = self.form
            response.request_meta["response_time"] += late_ms
            if response.status_code == _OK:
                fault = fault_of(question, lambda: _read(response))
                response.failure(fault) if fault else response.success()
            elif response.status_code:  # 0 where the connection broke, which locust tells by itself
                response.failure(RefusedError(f"HTTP {response.status_code}"))


def _read(response: Any) -> Any:
    size = response.headers.get(HEADER_LENGTH)
    return InferenceServerClient.parse_response_body(response.content, header_length=size and int(size))


class JsonUser(HttpUser):
    form = "JSON"


class BinaryUser(HttpUser):
    form = "binary"


class GrpcUser(GatewayUser):
    """A user over gRPC, with a connection of its own."""

    def prepare(self, options: Any) -> None:
        super().prepare(options)
        self.connect(options.grpc)

    def connect(self, address: str) -> None:
        """Connect to the server; raise StopTest if there is no address."""
        if not address:
            raise StopTest("GrpcUser needs --grpc HOST:PORT")
        grpc.experimental.gevent.init_gevent()
        unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        self.channel = grpc.insecure_channel(address, [*unlimited, ("grpc.use_local_subchannel_pool", 1)])
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def on_stop(self) -> None:
        self.channel.close()

    def ask(self, question: Question, due_s: float) -> None:
        fault: Exception | None = None
        size, timeout_s = 0, self.environment.parsed_options.timeout
        try:
            metadata = tuple(self.headers.items())
            answer = self.stub.ModelInfer(question.as_message, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            fault = RefusedError(f"gRPC {error.code().name}")
        took_ms = (time.perf_counter() - due_s) * 1e3
        if fault is None:
            size, fault = answer.ByteSize(), fault_of(question, lambda: InferResult(answer))
        self.tell("gRPC", question, took_ms, size, fault)


def three_digits(response_time: float) -> Any:
    """Round a time for the statistics to three digits; locust rounds to whole milliseconds and two digits."""
    return float(f"{response_time:.3g}")


def add_options(parser: LocustArgumentParser) -> None:
    """Add options to the command line and to locust's page."""
    add = functools.partial(parser.add_argument, default="")
    add("--models", env_var="LOADTEST_MODELS", help="models to call, by commas (default: all)")
    add("--rows", env_var="LOADTEST_ROWS", type=int, default=1, help="rows per request (default: 1)")
    add("--api-key", env_var="LOADTEST_API_KEY", is_secret=True, help="key to send with each request")
    add(
        "--grpc",
        env_var="LOADTEST_GRPC",
        metavar="HOST:PORT",
        help="gRPC address; without it no GrpcUser runs",
    )
    add(
        "--rate",
        env_var="LOADTEST_RATE",
        help="open load: requests per second of all users, such as 20,80,20 in turn",
    )
    add(
        "--explanations",
        env_var="LOADTEST_EXPLANATIONS",
        type=int,
        default=20,
        help="percentage of explain requests (default: 20)",
    )
    add(
        "--timeout",
        env_var="LOADTEST_TIMEOUT",
        type=float,
        default=30.0,
        help="seconds to wait for an answer (default: 30)",
    )
    add(
        "--expected",
        env_var="LOADTEST_EXPECTED",
        metavar="FILE",
        help="file of rows and the expected answers",
    )
    add(
        "--summary",
        env_var="LOADTEST_SUMMARY",
        metavar="FILE",
        help="write rate, times and failures to this file",
    )


def leave_out_grpc(environment: Environment, **_: Any) -> None:
    """Remove the gRPC user if there is no --grpc address and there are other users."""
    other_users = [each for each in environment.user_classes if each is not GrpcUser]
    if other_users and not getattr(environment.parsed_options, "grpc", ""):
        environment.user_classes[:] = other_users


def set_clock(**_: Any) -> None:
    """Update gevent's clock, which stood still during this file's imports: `--run-time` counts from now."""
    gevent.get_hub().loop.update_now()


def write_summary(environment: Environment, **_: Any) -> None:
    """Write the totals of all requests after the last one; locust's tables may lack the last ones."""
    options: Any = environment.parsed_options
    if not options.summary:
        return
    total, errors = environment.stats.total, Counter[str]()
    for fault in environment.stats.errors.values():
        errors[fault.parse_error(fault.error)] += fault.occurrences
    times = {f"p{q}_ms": total.get_response_time_percentile(q / 100) for q in (50, 90, 99)}
    rate = total.total_rps - total.total_fail_per_sec
    summary = {"answers_per_s": rate, "requests": total.num_requests, **times, "errors": errors}
    Path(options.summary).write_text(json.dumps(summary), encoding="utf-8")


locust.stats.bucket_response_time = three_digits
events.init_command_line_parser.add_listener(add_options)
events.test_stop.add_listener(write_summary)
events.init.add_listener(leave_out_grpc)
events.init.add_listener(set_clock)
