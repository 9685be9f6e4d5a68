"""Load on any gateway and any of its models, by locust.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080                 its page is at :8089
    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080 --headless -u 8 -t 30s JsonUser

Users read which models there are, make random rows that fit, and check every answer. A refusal, a tensor
that is missing or has another shape, and a number that is not finite are failures. GrpcUser needs --grpc.
`--tags predict` or `--tags explain` chooses one kind of request, the name of a class one kind of user.
"""

import functools
import random
import re
import time
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

import gevent
import grpc
import grpc.experimental.gevent
from locust import FastHttpUser, User, events, tag, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopTest
from tritonclient.grpc import InferResult, service_pb2_grpc
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from loadtests.load.questions import (
    EXPLAIN,
    HEADER_LENGTH,
    PREDICT,
    ROUTES,
    SUFFIX,
    Question,
    Tensor,
    WrongAnswerError,
)

TIMEOUT_S = 30.0
_OK = 200


class RefusedError(Exception):
    """A status that is no success."""


@functools.cache
def questions(host: str, models: str, rows: int, api_key: str) -> dict[str, list[Question]]:
    """By verb, of these models or of all, from what the server says of itself.

    Raises:
        StopTest: it cannot be asked, or has no such model.
    """
    url = urlsplit(host)
    server = InferenceServerClient(url.netloc, ssl=url.scheme == "https", network_timeout=TIMEOUT_S)
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


def _tensors(described: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(each["name"], each["datatype"], tuple(each["shape"])) for each in described)


class GatewayUser(User):
    """Asks, waits for the answer, and asks again."""

    abstract = True
    check_every: ClassVar[int] = 1  # of so many answers one is read; the status of all is
    questions: dict[str, list[Question]]
    headers: dict[str, str]
    answered = checked = 0

    def __init__(self, environment: Environment) -> None:
        """Raises StopTest: there is nothing to ask."""
        super().__init__(environment)
        try:
            self.prepare(environment.parsed_options)
        except StopTest:
            environment.process_exit_code = 2
            raise

    def prepare(self, options: Any) -> None:
        """Reads what can be asked. Raises StopTest."""
        self.headers = {"x-api-key": options.api_key} if options.api_key else {}
        self.questions = questions(str(self.host), options.models, options.rows, options.api_key)
        self.tasks = [each for each in self.tasks if self.questions[each.__name__]]  # type: ignore[union-attr]
        if not self.tasks:
            raise StopTest("none of these models has an explanation")

    @tag(PREDICT)
    @task(4)
    def predict(self) -> None:
        self.ask(random.choice(self.questions[PREDICT]))

    @tag(EXPLAIN)
    @task(1)
    def explain(self) -> None:
        self.ask(random.choice(self.questions[EXPLAIN]))

    def ask(self, question: Question, context: dict[str, Any] | None = None) -> None:
        """One request, told to locust with `context`, whatever becomes of it."""
        raise NotImplementedError

    def fault_of(self, question: Question, answer: Callable[[], Any]) -> WrongAnswerError | None:
        """What is wrong with the answer, which `answer` gives as tritonclient's result."""
        self.answered += 1
        if self.answered % self.check_every != 1 % self.check_every:
            return None
        self.checked += 1
        try:
            question.check(answer().as_numpy)
        except WrongAnswerError as error:
            return error
        except (ValueError, TypeError, LookupError, AttributeError, InferenceServerException):
            return WrongAnswerError("the answer cannot be read")
        return None


class HttpUser(GatewayUser, FastHttpUser):
    """In the form that a subclass says."""

    abstract = True
    network_timeout = connection_timeout = TIMEOUT_S
    form: ClassVar[str]

    def ask(self, question: Question, context: dict[str, Any] | None = None) -> None:
        body, headers = question.as_json if self.form == "JSON" else question.as_binary
        with self.client.post(
            question.path,
            data=body,
            headers=headers | self.headers,
            name=question.label,
            catch_response=True,
            context=context or {},
        ) as response:
            response.request_meta["request_type"] = self.form
            if response.status_code == _OK:
                fault = self.fault_of(question, lambda: _read(response))
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
    """On a connection of its own."""

    timeout_s = TIMEOUT_S

    def prepare(self, options: Any) -> None:
        super().prepare(options)
        self.connect(options.grpc)

    def connect(self, address: str) -> None:
        """Raises StopTest: there is no address."""
        if not address:
            raise StopTest("GrpcUser needs --grpc HOST:PORT")
        grpc.experimental.gevent.init_gevent()
        unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        self.channel = grpc.insecure_channel(address, [*unlimited, ("grpc.use_local_subchannel_pool", 1)])
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def on_stop(self) -> None:
        self.channel.close()

    def ask(self, question: Question, context: dict[str, Any] | None = None) -> None:
        began, began_s, size = time.time(), time.perf_counter(), 0
        fault: Exception | None = None
        try:
            metadata = tuple(self.headers.items())
            answer = self.stub.ModelInfer(question.as_message, timeout=self.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            fault = RefusedError(f"gRPC {error.code().name}")
        took_ms = (time.perf_counter() - began_s) * 1e3
        if fault is None:
            size, fault = answer.ByteSize(), self.fault_of(question, lambda: InferResult(answer))
        self.environment.events.request.fire(
            request_type="gRPC",
            name=question.label,
            response_time=took_ms,
            response_length=size,
            context=context or {},
            exception=fault,
            start_time=began,
        )


def add_options(parser: LocustArgumentParser) -> None:
    """They stand on locust's page too."""
    add = functools.partial(parser.add_argument, default="")
    add("--models", env_var="LOADTEST_MODELS", help="names with commas between; default: all")
    add("--rows", env_var="LOADTEST_ROWS", type=int, default=1, help="of a request (default: 1)")
    add("--api-key", env_var="LOADTEST_API_KEY", is_secret=True, help="sent with each request")
    add("--grpc", env_var="LOADTEST_GRPC", metavar="HOST:PORT", help="of GrpcUser, which is left out without")


def leave_out_grpc(environment: Environment, **_: Any) -> None:
    """Where nothing says how to reach it, and other users are there."""
    others = [each for each in environment.user_classes if each is not GrpcUser]
    if others and not getattr(environment.parsed_options, "grpc", ""):
        environment.user_classes[:] = others


def set_clock(**_: Any) -> None:
    """gevent's clock stood still while this file's imports took their time: `--run-time` counts from now."""
    gevent.get_hub().loop.update_now()


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(leave_out_grpc)
events.init.add_listener(set_clock)
