"""Runs the repository in NVIDIA Triton, over its gRPC API, or its HTTP API where that is told."""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from grpc import StatusCode
from grpc.aio import AioRpcError

from service.backends.base import fed
from service.backends.breaker import CircuitBreaker
from service.backends.triton_connection import TritonConnection
from service.backends.triton_errors import is_lost, is_never_by_request, not_loaded, translate
from service.backends.triton_http import HttpInference
from service.errors import DeadlineError, NotReadyError, QueueFullError, ServiceError
from service.observability.context import forwarded, note_run
from service.observability.metrics import Metrics
from service.repository.entry import Entry
from service.security.tls import ClientTls
from service.tensors import Tensors

log = logging.getLogger(__name__)

_POLL_S = 0.25
_PAUSES_S = (0.05, 0.2, 0.8)  # before each further try
_SILENCE_S = 1.0  # a call that has no answer after that long counts against Triton when its time is over


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
        http_address: str | None = None,
    ) -> None:
        """
        Args:
            address: of its gRPC end.
            wait_s: for Triton to serve every entry at the start.
            max_in_flight: requests of an entry at one time, where its config names no `max_queue_size`.
            http_address: of the HTTP end of the same Triton, which is then asked for inference.
        """
        self._address = address
        self._http_address = http_address
        self._tls = tls
        self._metrics = metrics or Metrics()
        self._wait_s = wait_s
        self._max_in_flight = max_in_flight
        self._in_flight: Counter[Entry] = Counter()
        self._breaker = CircuitBreaker()
        self._connection: TritonConnection | None = None
        self._http: HttpInference | None = None

    @property
    def _open(self) -> TritonConnection:
        """Raises NotReadyError before `start` and after `stop`."""
        if self._connection is None:
            raise NotReadyError("the connection to Triton is not open")
        return self._connection

    async def start(self, entries: Iterable[Entry]) -> None:
        """Waits until Triton serves every entry, at most `wait_s` seconds."""
        self._connection = TritonConnection(self._address, self._tls)
        if self._http_address is not None:
            self._http = HttpInference(self._http_address, self._tls)
        try:
            await self._wait_for(list(entries))
        except BaseException:
            await self.stop()
            raise

    async def _wait_for(self, missing: Sequence[Entry]) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._wait_s
        while True:
            missing = [entry for entry in missing if not await self.ready(entry)]
            if not missing and (self._http is None or await self._http.is_ready()):
                return
            if loop.time() > end_s:
                raise NotReadyError(await self._absence(missing))
            await asyncio.sleep(_POLL_S)

    async def load(self, entry: Entry) -> None:
        """Needs a Triton that runs with `--model-control-mode=explicit`, or loaded the entry by itself."""
        try:
            await self._open.load(entry.model)
        except AioRpcError as error:
            if is_never_by_request(error) and await self.ready(entry):
                return
            raise not_loaded(entry, error) from error

    async def unload(self, entry: Entry) -> None:
        with contextlib.suppress(AioRpcError):
            await self._open.unload(entry.model)

    async def ready(self, entry: Entry | None = None) -> bool:
        try:
            return await self._open.is_ready(entry)
        except AioRpcError:
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
        fields = fed(entry, inputs)
        began_s = time.monotonic()
        self._in_flight[entry] += 1
        try:
            answer = await self._asked_until(deadline_s, entry, fields, outputs)
        except AioRpcError as error:
            raise translate(entry, error) from error
        finally:
            self._in_flight[entry] -= 1
            ended_s = time.monotonic()
            note_run(began_s, began_s, ended_s)  # what waits does so in Triton
        of = self._metrics.of(entry)
        of.compute_s(ended_s - began_s)
        of.batch_rows(len(next(iter(inputs.values()))))
        return answer

    async def _asked_until(
        self, deadline_s: float, entry: Entry, inputs: Tensors, outputs: Sequence[str]
    ) -> Tensors:
        """Asks again where the connection broke: to compute twice harms nobody. Not after the deadline.

        Raises:
            AioRpcError: Triton's own answer, or the connection's last failure.
            ModelFailedError: the answer is not what was asked for.
            NotReadyError: Triton has not answered others either.
        """
        for pause_s in (*_PAUSES_S, None):
            left_s = _left_s(deadline_s)
            if not self._breaker.try_pass():
                raise self._unreachable()
            try:
                return await self._asked(entry, inputs, outputs, left_s)
            except AioRpcError as error:
                left_s = _left_s(deadline_s)
                if pause_s is None or not is_lost(error) or (left_s is not None and left_s < pause_s):
                    raise
                log.warning("triton: model %s: the connection broke; asking again", entry.name)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 (so that not all come at once)
        raise AssertionError("the last round returns or raises")

    async def _asked(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], timeout_s: float | None
    ) -> Tensors:
        """One call; the breaker is told how it went."""
        began_s = time.monotonic()
        way = self._http or self._open
        try:
            answer = await way.infer(entry, inputs, outputs, timeout_s, forwarded())
        except AioRpcError as error:
            silent = error.code() is StatusCode.DEADLINE_EXCEEDED and time.monotonic() - began_s > _SILENCE_S
            if is_lost(error) or silent:
                self._breaker.failed()
            else:
                self._breaker.succeeded()
            raise
        except ServiceError:  # it answered
            self._breaker.succeeded()
            raise
        except BaseException:  # cancelled: the deadline is over, or the caller left
            if time.monotonic() - began_s > _SILENCE_S:
                self._breaker.failed()
            else:
                self._breaker.left()
            raise
        self._breaker.succeeded()
        return answer

    def _unreachable(self) -> NotReadyError:
        error = NotReadyError("Triton does not answer: try again later")
        error.retry_after_s = max(math.ceil(self._breaker.retry_after_s), 1)
        return error

    async def stop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
        if self._http is not None:
            http, self._http = self._http, None
            http.close()

    async def _absence(self, missing: Sequence[Entry]) -> str:
        waited = f"within {self._wait_s:g} s"
        if not await self.ready():
            return (
                f"no Triton answered at {self._address} {waited}. Is that its gRPC port (8001 by default), "
                "and has it started?"
            )
        if not missing:
            return (
                f"no Triton answered by HTTP at {self._http_address} {waited}. "
                "Is that its HTTP port (8000 by default)?"
            )
        names = ", ".join(dict.fromkeys(entry.model for entry in missing))
        return (
            f"the Triton at {self._address} did not load {names} {waited}. "
            "Does it serve the same model repository? Its log says why an entry was refused."
        )


def _left_s(deadline_s: float) -> float | None:
    """Seconds until `deadline_s`; None where it never comes."""
    left_s = deadline_s - asyncio.get_running_loop().time()
    return max(left_s, 0.0) if math.isfinite(left_s) else None
