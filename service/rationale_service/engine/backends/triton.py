"""A backend on NVIDIA Triton, over its gRPC API."""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tritonclient.grpc import InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from rationale.errors import RepositoryError
from rationale.schema.locales import locale_advice
from rationale_service.engine.backends.base import add_gate
from rationale_service.engine.backends.proof import proof_of
from rationale_service.engine.backends.triton_client import (
    NO_ANSWER,
    connect,
    infer_inputs,
    is_never_by_request,
    not_loaded,
    output_arrays,
    refusal,
)
from rationale_service.errors import DeadlineError, NotReadyError, QueueFullError, ServiceError
from rationale_service.observability.context import headers_to_forward, note_run
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry
from rationale_service.security.tls import ClientTls
from rationale_service.tensors import Tensors

_POLL_S = 0.25
_LOAD_S, _UNLOAD_S = 300.0, 10.0  # limits for a Triton that hangs
_PROBE_S = 5.0  # a slower health check counts as a failure


class TritonBackend:
    """Backend on one Triton, which must load the entries under the same names."""

    name = "triton"

    def __init__(
        self,
        address: str,
        wait_s: float,
        max_in_flight: int = 256,
        tls: ClientTls | None = None,
        metrics: Metrics | None = None,
        *,
        is_shared: bool = False,
        allows_drift: bool = False,
    ) -> None:
        """Take the address of Triton without connecting.

        Args:
            address: address of its gRPC server.
            wait_s: time for Triton to serve every entry at the start.
            max_in_flight: concurrent requests of an entry whose config names no `max_queue_size`.
            is_shared: True if another gateway process uses this Triton too; then this one unloads nothing.
            allows_drift: True to serve entries whose answers to their probe rows differ from the recorded
                ones.
        """
        self._address = address
        self._tls = tls
        self._metrics = metrics or Metrics()
        self._count_failure = self._metrics.dependency("triton")
        self._wait_s = wait_s
        self._max_in_flight = max_in_flight
        self._is_shared = is_shared
        self._allows_drift = allows_drift
        self._drifts: dict[Entry, float] = {}
        self._broken: set[str] = set()  # names under which Triton may serve an unproven model
        self._in_flight: Counter[Entry] = Counter()
        self._connected: InferenceServerClient | None = None
        self._latest: dict[str, Entry] = {}  # entries that Triton serves, by name

    @property
    def _client(self) -> InferenceServerClient:
        """The client. Raises NotReadyError before `start` and after `stop`."""
        if self._connected is None:
            raise NotReadyError("the connection to Triton is not open")
        return self._connected

    async def start(self, entries: Iterable[Entry]) -> dict[Entry, str]:
        """Wait until Triton serves every entry, at most `wait_s` seconds; return the missing entries."""
        self._connected = connect(self._address, self._tls)
        try:
            entries = list(entries)
            missing = await self._wait_for(entries)
            for entry in entries:
                if entry not in missing:
                    await self._prove_started(entry, missing)
        except BaseException:
            await self.stop()
            raise
        self._latest = {entry.model: entry.stored or entry for entry in entries if entry not in missing}
        return missing

    async def _prove_started(self, entry: Entry, missing: dict[Entry, str]) -> None:
        """Prove an entry; if it fails, add the reason to `missing`."""
        try:
            await self._prove(entry)
        except RepositoryError as error:
            missing[entry] = str(error)

    async def _prove(self, entry: Entry) -> None:
        """Send the entry's probe rows to Triton and judge the answers. Raises RepositoryError."""
        proof = proof_of(entry, is_allowed=self._allows_drift)
        if proof is None:
            return
        deadline_s = asyncio.get_running_loop().time() + _LOAD_S
        try:
            answers = [
                await self._ask(entry, self._graph_inputs(entry, rows), proof.outputs, deadline_s)
                for rows in proof.requests()
            ]
        except InferenceServerException as error:
            raise RepositoryError(f"{entry.name}: its probe rows fail: {refusal(entry, error)}") from error
        except ServiceError as error:
            raise RepositoryError(f"{entry.name}: its probe rows fail: {error}") from error
        drift = proof.drift(answers, f"the Triton at {self._address}")
        self._drifts.pop(entry, None)
        if drift is not None:
            self._drifts[entry] = drift

    async def _wait_for(self, missing: Sequence[Entry]) -> dict[Entry, str]:
        """Return reasons for entries that Triton does not serve. Raises NotReadyError without a Triton."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._wait_s
        late = (
            f"the Triton at {self._address} did not load it within {self._wait_s:g} s. "
            "Does it serve the same model repository? Its log says why an entry was refused."
        )
        while missing := [entry for entry in missing if not await self.ready(entry)]:
            refused = await self._refusal_reasons()
            if all(entry.model in refused for entry in missing):
                return {entry: f"Triton cannot load it: {refused[entry.model]}" for entry in missing}
            if loop.time() > end_s:
                if await self.ready():
                    return {entry: refused.get(entry.model, late) for entry in missing}
                raise NotReadyError(
                    f"no Triton answered at {self._address} within {self._wait_s:g} s. Check that this is "
                    "its gRPC port (8001 by default) and that it runs."
                )
            await asyncio.sleep(_POLL_S)
        return {}

    async def _refusal_reasons(self) -> dict[str, str]:
        """Return models that Triton failed to load, with reasons."""
        try:
            index = await self._client.get_model_repository_index(client_timeout=_PROBE_S)
        except InferenceServerException:
            return {}
        refused = {model.name: model.reason for model in index.models if model.state == "UNAVAILABLE"}
        return {name: locale_advice(reason) or reason for name, reason in refused.items() if reason}

    async def load(self, entry: Entry) -> None:
        """Load an entry if Triton has `--model-control-mode=explicit` or has loaded a new one by itself."""
        try:
            await self._client.load_model(entry.model, client_timeout=_LOAD_S)
        except InferenceServerException as error:
            is_reload = entry.model in self._latest
            if is_reload or not is_never_by_request(error) or not await self.ready(entry):
                raise not_loaded(entry, error) from error
        try:
            await self._prove(entry)
        except RepositoryError:  # Triton has already dropped its former model of this name
            self._broken.add(entry.model)
            await self._unload(entry)
            raise
        self._broken.discard(entry.model)
        self._latest[entry.model] = entry.stored or entry

    async def unload(self, entry: Entry) -> None:
        """Unload an entry, unless Triton serves another entry under the name by now."""
        stored = entry.stored or entry
        if self._latest.get(entry.model, stored) is stored and not self._is_shared:
            self._latest.pop(entry.model, None)
            await self._unload(entry)
        self._drifts.pop(entry, None)

    async def _unload(self, entry: Entry) -> None:
        with contextlib.suppress(InferenceServerException):
            await self._client.unload_model(entry.model, client_timeout=_UNLOAD_S)

    def devices(self, entry: Entry | None = None) -> tuple[str, ...]:  # noqa: ARG002 (the protocol's)
        return ()

    def runtime(self, entry: Entry) -> dict[str, str]:  # noqa: ARG002 (Triton does not tell)
        return {"backend": self.name}

    def drift(self, entry: Entry) -> float | None:
        return self._drifts.get(entry)

    async def ready(self, entry: Entry | None = None) -> bool:
        try:
            if entry is not None and entry.model in self._broken:
                return False
            if entry is None:  # live, not ready: one broken model makes Triton unready
                return bool(await self._client.is_server_live(client_timeout=_PROBE_S))
            return bool(
                await self._client.is_model_ready(entry.model, entry.version, client_timeout=_PROBE_S)
            )
        except InferenceServerException as error:
            if error.status() in NO_ANSWER:
                self._count_failure()
            return False

    def admit(self, entry: Entry, deadline_s: float = math.inf) -> None:
        if entry.model in self._broken:
            raise NotReadyError(
                f"the model that Triton loaded as '{entry.model}' differs from the compiled one"
            )
        if deadline_s <= asyncio.get_running_loop().time():
            raise DeadlineError(f"the deadline of this request for '{entry.name}' has passed")
        if self._in_flight[entry] >= (entry.max_queue_size or self._max_in_flight):
            raise QueueFullError(
                f"{self._in_flight[entry]} requests for '{entry.name}' are waiting in Triton: try again later"
            )

    async def infer(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf
    ) -> Tensors:
        self.admit(entry, deadline_s)
        began_s = time.monotonic()
        self._in_flight[entry] += 1
        try:
            answer = await self._ask(entry, self._graph_inputs(entry, inputs), outputs, deadline_s)
        except InferenceServerException as error:
            refused = refusal(entry, error)
            if isinstance(refused, NotReadyError):
                self._count_failure()
            raise refused from error
        finally:
            self._in_flight[entry] -= 1
            ended_s = time.monotonic()
            note_run(began_s, began_s, ended_s)  # requests wait in Triton
        of = self._metrics.of(entry)
        of.compute_s(ended_s - began_s)
        of.batch_rows(len(next(iter(inputs.values()))))
        return answer

    @staticmethod
    def _graph_inputs(entry: Entry, inputs: Tensors) -> Tensors:
        return inputs if entry.gate is None else add_gate(inputs, entry.gate)

    async def _ask(self, entry: Entry, inputs: Tensors, outputs: Sequence[str], deadline_s: float) -> Tensors:
        """Send a request; the time until the deadline limits the call and its wait in Triton's queue."""
        left_s = max(deadline_s - asyncio.get_running_loop().time(), 0.0)
        bounded = math.isfinite(left_s)
        result = await self._client.infer(
            entry.model,
            infer_inputs(inputs),
            entry.version,
            [InferRequestedOutput(name) for name in outputs],
            timeout=max(int(left_s * 1e6), 1) if bounded else None,
            client_timeout=left_s if bounded else None,
            headers=headers_to_forward(),
        )
        return output_arrays(entry, result, outputs)

    async def stop(self) -> None:
        if self._connected is not None:
            client, self._connected = self._connected, None
            await client.close()
