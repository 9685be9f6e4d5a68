"""Runs the repository in NVIDIA Triton, over tritonclient's asyncio gRPC."""

import asyncio
import contextlib
import logging
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from compiler.errors import RepositoryError
from service.backends.base import fed, run_failure
from service.backends.breaker import CircuitBreaker
from service.entries import Entry
from service.errors import (
    DeadlineError,
    InvalidInputError,
    ModelFailedError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    UnknownModelError,
)
from service.exchange import forwarded, note_run
from service.logs import without_values
from service.metrics import Metrics
from service.tensors import DTYPES, Array, Tensors, datatype_of
from service.tls import ClientTls

log = logging.getLogger(__name__)

_POLL_S = 0.25
_LOAD_S, _UNLOAD_S = 300.0, 10.0  # a Triton that hangs is not waited for beyond these
_PROBE_S = 5.0  # a health question that takes longer counts as a no
_ORT_REFUSED = re.compile(r"onnx runtime error 2\b")  # ONNX Runtime's INVALID_ARGUMENT, through Triton
# What gRPC itself says of a connection; Triton's own refusals share the status UNAVAILABLE.
_LOST = re.compile(
    r"connect|socket closed|broken pipe|reset by peer|goaway|rst_stream|stream removed|end of file|transport"
)
_REFUSED = re.compile(r"maximum queue size|timeout expired|unknown model|no available versions")
_PAUSES_S = (0.05, 0.2, 0.8)  # before each further try
_SILENCE_S = 1.0  # a call that has no answer after that long counts against Triton when its time is over
_CHANNEL = {
    "grpc.max_send_message_length": -1,
    "grpc.max_receive_message_length": -1,
    "grpc.primary_user_agent": "rationale",
    # gRPC waits up to two minutes before it connects again; a Triton restarts in seconds.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
}
_BROKEN_OFF = (InferenceServerException, asyncio.TimeoutError, OSError)


class TritonBackend:
    """Speaks to one Triton; the entries must be loaded there under the same names."""

    name = "triton"

    def __init__(
        self,
        address: str,
        wait_s: float,
        max_in_flight: int = 256,
        tls: ClientTls | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """
        Args:
            wait_s: for Triton to serve every entry at the start.
            max_in_flight: requests of an entry at one time, where its config names no `max_queue_size`.
        """
        self._address = address
        self._tls = tls
        self._metrics = metrics or Metrics()
        self._wait_s = wait_s
        self._max_in_flight = max_in_flight
        self._in_flight: Counter[Entry] = Counter()
        self._breaker = CircuitBreaker()
        self._client: InferenceServerClient | None = None

    @property
    def client(self) -> InferenceServerClient:
        """Raises NotReadyError before `start` and after `stop`."""
        if self._client is None:
            raise NotReadyError("the connection to Triton is not open")
        return self._client

    async def start(self, entries: Iterable[Entry]) -> None:
        """Waits until Triton serves every entry, at most `wait_s` seconds."""
        self._client = _connect(self._address, self._tls)
        missing = list(entries)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._wait_s
        while missing:
            missing = [entry for entry in missing if not await self.ready(entry)]
            if missing and loop.time() > end_s:
                raise NotReadyError(await self._absence(missing))
            if missing:
                await asyncio.sleep(_POLL_S)

    async def load(self, entry: Entry) -> None:
        """Needs a Triton that runs with `--model-control-mode=explicit`, or loaded the entry by itself."""
        try:
            await self.client.load_model(entry.model, client_timeout=_LOAD_S)
        except InferenceServerException as error:
            if _never_by_request(error) and await self.ready(entry):
                return
            raise _not_loaded(entry, error) from error

    async def unload(self, entry: Entry) -> None:
        with contextlib.suppress(*_BROKEN_OFF):
            await self.client.unload_model(entry.model, client_timeout=_UNLOAD_S)

    async def ready(self, entry: Entry | None = None) -> bool:
        probe = (
            self.client.is_server_ready(client_timeout=_PROBE_S)
            if entry is None
            else self.client.is_model_ready(entry.model, entry.version, client_timeout=_PROBE_S)
        )
        with contextlib.suppress(*_BROKEN_OFF):
            return bool(await probe)
        return False

    def admit(self, entry: Entry, deadline_s: float = math.inf) -> None:
        if deadline_s <= asyncio.get_running_loop().time():
            raise DeadlineError(f"the deadline of this request for '{entry.name}' is past")
        if self._breaker.is_open:
            raise self._unreachable()
        if self._in_flight[entry] >= (entry.max_queue_size or self._max_in_flight):
            raise QueueFullError(
                f"{self._in_flight[entry]} requests for '{entry.name}' are with Triton: try again later"
            )

    async def infer(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf
    ) -> Tensors:
        self.admit(entry, deadline_s)
        tensors = [_to_triton(name, array) for name, array in fed(entry, inputs).items()]
        began_s = time.monotonic()
        self._in_flight[entry] += 1
        try:
            result = await self._asked_until(deadline_s, entry, tensors, outputs)
        except InferenceServerException as error:
            raise translate(entry, error) from error
        finally:
            self._in_flight[entry] -= 1
            ended_s = time.monotonic()
            note_run(began_s, began_s, ended_s)  # what waits does so in Triton
        of = self._metrics.of(entry)
        of.compute_s(ended_s - began_s)
        of.batch_rows(len(next(iter(inputs.values()))))
        return {name: _from_triton(entry, name, result.as_numpy(name)) for name in outputs}

    async def _asked_until(
        self, deadline_s: float, entry: Entry, tensors: Sequence[InferInput], outputs: Sequence[str]
    ) -> InferResult:
        """Asks again where the connection broke: to compute twice harms nobody. Not after the deadline.

        Raises:
            InferenceServerException: Triton's own answer, or the connection's last failure.
            NotReadyError: Triton has not answered others either.
        """
        for pause_s in (*_PAUSES_S, None):
            if not self._breaker.try_pass():
                raise self._unreachable()
            try:
                return await self._asked(deadline_s, entry, tensors, outputs)
            except InferenceServerException as error:
                left_s = _left_s(deadline_s)
                if pause_s is None or not is_lost(error) or (left_s is not None and left_s < pause_s):
                    raise
                log.warning("triton: model %s: the connection broke; asking again", entry.name)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 (so that not all come at once)
        raise AssertionError("the last round returns or raises")

    async def _asked(
        self, deadline_s: float, entry: Entry, tensors: Sequence[InferInput], outputs: Sequence[str]
    ) -> InferResult:
        """One call; the breaker is told how it went."""
        left_s = _left_s(deadline_s)
        began_s = time.monotonic()
        try:
            result = await self.client.infer(
                entry.model,
                tensors,
                model_version=entry.version,
                outputs=[InferRequestedOutput(name) for name in outputs],
                client_timeout=left_s,
                timeout=None if left_s is None else max(int(left_s * 1e6), 1),
                headers=forwarded(),
            )
        except InferenceServerException as error:
            silent = "DEADLINE_EXCEEDED" in str(error.status()) and time.monotonic() - began_s > _SILENCE_S
            if is_lost(error) or silent:
                self._breaker.failed()
            else:
                self._breaker.succeeded()
            raise
        except BaseException:  # cancelled: the deadline is over, or the caller left
            if time.monotonic() - began_s > _SILENCE_S:
                self._breaker.failed()
            else:
                self._breaker.left()
            raise
        self._breaker.succeeded()
        return result

    def _unreachable(self) -> NotReadyError:
        error = NotReadyError("Triton does not answer: try again later")
        error.retry_after_s = max(math.ceil(self._breaker.retry_after_s), 1)
        return error

    async def stop(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _absence(self, missing: Sequence[Entry]) -> str:
        waited = f"within {self._wait_s:g} s"
        if not await self.ready():
            return (
                f"no Triton answered at {self._address} {waited}. Is that its gRPC port (8001 by default), "
                "and has it started?"
            )
        names = ", ".join(dict.fromkeys(entry.model for entry in missing))
        return (
            f"the Triton at {self._address} did not load {names} {waited}. "
            "Does it serve the same model repository? Its log says why an entry was refused."
        )


def is_lost(error: InferenceServerException) -> bool:
    """Whether it was the connection that failed, rather than Triton that refused."""
    text = str(error.message() or "").lower()
    return bool(_LOST.search(text)) and not _REFUSED.search(text)


def _connect(address: str, tls: ClientTls | None) -> InferenceServerClient:
    if tls is None:
        return InferenceServerClient(address, channel_args=list(_CHANNEL.items()))
    return InferenceServerClient(
        address,
        channel_args=list(_CHANNEL.items()),
        ssl=True,
        root_certificates=tls.authority,
        private_key=tls.key,
        certificate_chain=tls.chain,
    )


def _left_s(deadline_s: float) -> float | None:
    """Seconds until `deadline_s`; None where it never comes."""
    left_s = deadline_s - asyncio.get_running_loop().time()
    return max(left_s, 0.0) if math.isfinite(left_s) else None


def _never_by_request(error: InferenceServerException) -> bool:
    return "UNAVAILABLE" in str(error.status()) and "explicit" in str(error.message()).lower()


def _not_loaded(entry: Entry, error: InferenceServerException) -> RepositoryError | NotReadyError:
    text = str(error.message() or "")
    if _never_by_request(error):
        return NotReadyError(
            f"Triton does not load models by request: start it with --model-control-mode=explicit ({text})"
        )
    if "UNAVAILABLE" in str(error.status()):
        return NotReadyError(f"Triton does not answer: {text}")
    return RepositoryError(f"Triton cannot load '{entry.model}': {text}")


def translate(entry: Entry, error: InferenceServerException) -> ServiceError:
    """Triton's gRPC status → ours. Texts of Triton's own faults go to the log, not to the caller."""
    status = str(error.status()).removeprefix("StatusCode.")
    text = str(error.message() or "")
    log.warning("triton: model %s: %s: %s", entry.name, status, without_values(text))
    if "maximum queue size" in text.lower() or status == "RESOURCE_EXHAUSTED":
        return QueueFullError(f"Triton's queue for '{entry.name}' is full: try again later")
    if "timeout expired" in text.lower() or status == "DEADLINE_EXCEEDED":
        return DeadlineError(f"model '{entry.name}' did not answer before Triton's deadline")
    if _ORT_REFUSED.search(text):
        return run_failure(entry, refused=True)
    match status:
        case "INVALID_ARGUMENT":
            return InvalidInputError(f"Triton refused the input of '{entry.name}': {text}")
        case "NOT_FOUND":
            return UnknownModelError(f"Triton has no model '{entry.name}', version {entry.version}")
        case "UNAVAILABLE":
            return NotReadyError(f"Triton cannot serve '{entry.name}' now: try again later")
    return run_failure(entry, refused=False)


def _to_triton(name: str, array: Array) -> InferInput:
    tensor = InferInput(name, list(array.shape), datatype_of(array))
    tensor.set_data_from_numpy(array)
    return tensor


def _from_triton(entry: Entry, name: str, array: Array | None) -> Array:
    if array is None:
        raise ModelFailedError(f"Triton did not return output '{name}' of '{entry.name}'")
    if array.dtype.kind in "OS":
        return np.array(array, dtype=np.object_)
    return array.astype(DTYPES[datatype_of(array)], copy=False)
