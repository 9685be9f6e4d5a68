"""A backend on ONNX Runtime, inside this process."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort

from rationale.errors import RationaleError, RepositoryError
from rationale.graph.runtime.kernels import installed_kernels, kernels_version, load_kernels
from rationale.schema.locales import locale_advice
from rationale.schema.machine import LARGE_BLOCKS, processor
from rationale.schema.manifest import DATATYPES, EXPLAIN, PLANNED_NODES, TensorSpec
from rationale_service.engine.backends.base import add_gate, run_failure
from rationale_service.engine.backends.devices import CPU, CUDA_PROVIDER, Devices, NoGpuError, providers
from rationale_service.engine.backends.proof import ProbeCheck, proof_of
from rationale_service.engine.scheduling.batch import Joined, LatencyModel, check_rows
from rationale_service.engine.scheduling.batch_queue import BatchQueue, Compose
from rationale_service.engine.scheduling.cpu_slots import CpuSlots
from rationale_service.errors import InvalidInputError, NotReadyError
from rationale_service.observability.logs import without_values
from rationale_service.observability.metrics import EntryMetrics, Metrics
from rationale_service.repository.entry import Entry, Warmup, agree, demand_kernels_allowed
from rationale_service.tensors import DTYPES, Array, Tensors, encode_texts, from_binary

log = logging.getLogger(__name__)

_ORT_TYPES = {f"tensor({kind.lower()})": name for kind, name in DATATYPES.items()}
# ONNX Runtime's Python exceptions share no base but Exception. These mean that a node refused its input.
_ORT_REFUSED = (ort.capi.onnxruntime_pybind11_state.InvalidArgument,)
_LONG_WARMUP_S = 0.25  # warmup stops after a batch that takes longer
_HOP_S = 0.0002  # CPU time of a thread switch and back; shorter runs are cheaper on the event loop
_INSTANT_S = 0.0005  # longest run on the event loop for a request that comes alone
_QUIET = 4  # ONNX Runtime's log on stderr: fatal only, since every failure is raised and logged here


@dataclass(frozen=True)
class Sessions:
    """Sessions of a stored entry: one for each device, which all its instances there share."""

    by_device: Mapping[str, ort.InferenceSession]
    devices: tuple[str, ...]  # device of each instance

    @property
    def on_gpus(self) -> bool:
        return CPU not in self.devices


@dataclass(frozen=True)
class ReadyEntry:
    """A loaded and warm entry that has answered its probe rows.

    Attributes:
        timed: (rows, seconds) of warm runs.
        drift: distance of its answers to its probe rows from the recorded ones; None within the tolerance.
    """

    sessions: Sessions
    timed: Sequence[tuple[int, float]]
    drift: float | None = None


class OnnxRuntimeBackend:
    """Backend with one session per stored entry and device. Its instances there share the weights.

    The sides of a one-shot entry share it too, but each has its own queue and threads: a prediction neither
    waits for an explanation nor shares a batch with one.
    """

    name = "onnxruntime"

    def __init__(
        self, max_queue_size: int, metrics: Metrics | None = None, devices: Devices | None = None
    ) -> None:
        self._max_queue_size = max_queue_size
        self._devices = devices or Devices()
        self._loaded: dict[Entry, _RunningEntry] = {}
        self._metrics = metrics or Metrics()
        self._budget = CpuSlots(self._devices.cores)

    async def start(self, entries: Iterable[Entry]) -> dict[Entry, str]:
        failed = {}
        for entry in entries:
            try:
                await self.load(entry)
            except RepositoryError as error:
                failed[entry] = str(error)
        return failed

    async def load(self, entry: Entry) -> None:
        began_s = time.monotonic()
        warmed = await asyncio.to_thread(load_warmed, entry, self._sessions_of(entry), self._devices)
        size = entry.max_queue_size or self._max_queue_size
        self._loaded[entry] = _RunningEntry(entry, warmed, self._metrics.of(entry), size, self._budget)
        self._metrics.time_load(entry, time.monotonic() - began_s)

    async def unload(self, entry: Entry) -> None:
        loaded = self._loaded.pop(entry, None)
        if loaded is not None:
            await loaded.close()

    def devices(self, entry: Entry | None = None) -> tuple[str, ...]:
        loaded = list(self._loaded.values()) if entry is None else [self._loaded.get(entry)]
        devices = {
            device
            for loaded_entry in loaded
            if loaded_entry is not None
            for device in loaded_entry.sessions.devices
        }
        return tuple(sorted(devices))

    def runtime(self, entry: Entry) -> dict[str, Any]:
        loaded = self._loaded.get(entry)
        return runtime(entry, self._devices.cores, ()) if loaded is None else loaded.runtime

    def drift(self, entry: Entry) -> float | None:
        loaded = self._loaded.get(entry)
        return None if loaded is None else loaded.drift

    async def ready(self, entry: Entry | None = None) -> bool:
        return bool(self._loaded) if entry is None else entry in self._loaded

    def admit(self, entry: Entry, deadline_s: float = math.inf) -> None:
        loaded = self._loaded.get(entry)
        if loaded is not None:  # an unloaded entry may be loaded for this request
            loaded.queue.admit(deadline_s)

    async def infer(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf
    ) -> Tensors:
        loaded = self._loaded.get(entry)
        if loaded is None:
            raise NotReadyError(f"model '{entry.name}' is not loaded")
        return await loaded.queue.submit(inputs, outputs, deadline_s)

    async def stop(self) -> None:
        await asyncio.gather(*(self.unload(entry) for entry in list(self._loaded)))

    def _sessions_of(self, entry: Entry) -> Sessions | None:
        """Return the sessions of the entry's other side, if it is loaded."""
        if entry.stored is None:
            return None
        sides = (loaded.sessions for other, loaded in self._loaded.items() if other.stored is entry.stored)
        return next(sides, None)


@dataclass(frozen=True)
class _FinishedRun:
    """A run: its answer, its number of rows, and its seconds by the clock and of its thread's CPU."""

    answer: Tensors
    rows: int
    wall_s: float
    cpu_s: float


class _RunningEntry:
    """A running entry: its queue and the threads for its batches.

    Each instance has a thread; the event loop's own thread runs a batch that takes less time than the
    way to another thread and back.
    """

    def __init__(
        self,
        entry: Entry,
        warmed: ReadyEntry,
        metrics: EntryMetrics,
        queue_size: int,
        budget: CpuSlots,
    ) -> None:
        sessions = warmed.sessions
        self.sessions = sessions
        self.drift = warmed.drift
        self.runtime = runtime(entry, budget.cores, sorted(set(sessions.devices)))
        self._entry = entry
        self._metrics = metrics
        # Times are the calling thread's CPU seconds, which a busy machine does not prolong. On a GPU: the
        # clock's.
        self._times = LatencyModel()
        self._own = threading.local()
        self._unclaimed = list(sessions.devices)
        instances = len(sessions.devices)
        self._threads = ThreadPoolExecutor(
            instances, thread_name_prefix=f"run-{entry.name}", initializer=self._claim
        )
        cores = 1 if sessions.on_gpus else _intra_op_threads(entry, budget.cores)
        self.queue = BatchQueue(
            replace(entry, instances=instances),
            self._run_batch,
            queue_size,
            turn=partial(budget.turn, cores, prediction=entry.manifest is None),
            run_here=self._run_here,
            ahead=budget.has_nobody_waiting,
            waited=metrics.queue_s,
        )
        for times in (self._times, self.queue.times):
            times.learn(warmed.timed)

    async def close(self) -> None:
        """Finish accepted requests, then release the sessions."""
        await self.queue.close()
        self._threads.shutdown(wait=False)
        del self.sessions  # the queue refers to this object, and the garbage collector finds that late

    def _claim(self) -> None:
        """Claim an instance for this thread, which then runs on its device."""
        self._own.device = self._unclaimed.pop()

    async def _run_batch(self, rows: int, compose: Compose) -> Tensors | None:
        """Run the batch that `compose` returns, about `rows` rows; return None if it returns none."""
        if self._is_briefer(_HOP_S, rows):
            return self._note_run(self._compose_and_run(compose))
        loop = asyncio.get_running_loop()
        return self._note_run(await loop.run_in_executor(self._threads, self._compose_and_run, compose))

    def _run_here(self, inputs: Tensors, outputs: Sequence[str]) -> Tensors | None:
        """Return the answer at once; None if the run may be too long for the event loop."""
        if not self._is_briefer(_INSTANT_S, _rows(inputs)):
            return None
        return self._note_run(self._run((inputs, outputs)))

    def _is_briefer(self, limit_s: float, rows: int) -> bool:
        return self._times.has_measurements and self._times.estimate(rows) < limit_s

    def _compose_and_run(self, compose: Compose) -> _FinishedRun | None:
        joined = compose()
        return None if joined is None else self._run(joined)

    def _run(self, joined: Joined) -> _FinishedRun:
        inputs, outputs = joined
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        device = getattr(self._own, "device", self.sessions.devices[0])
        answer = run(self._entry, self.sessions.by_device[device], inputs, outputs)
        return _FinishedRun(answer, _rows(inputs), time.perf_counter() - wall_s, time.thread_time() - cpu_s)

    def _note_run(self, ran: _FinishedRun | None) -> Tensors | None:
        if ran is None:
            return None
        self._times.observe(ran.rows, ran.wall_s if self.sessions.on_gpus else ran.cpu_s)
        self._metrics.compute_s(ran.wall_s)
        self._metrics.batch_rows(ran.rows)
        return ran.answer


def _rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def load(entry: Entry) -> ort.InferenceSession:
    """Return a warmed session on the CPU. Raises as `load_warmed`."""
    return load_warmed(entry, devices=Devices("cpu")).sessions.by_device[CPU]


def load_warmed(entry: Entry, loaded: Sessions | None = None, devices: Devices | None = None) -> ReadyEntry:
    """Return warmed sessions that have answered the entry's probe rows.

    The config's samples run as they are; then the first one runs with every power of two rows, up to the
    largest: ONNX Runtime allocates memory at the first run of a size. Large models stop after a long run.

    Args:
        loaded: sessions of the entry's other side, if that is loaded already.

    Raises:
        RepositoryError: if ONNX Runtime refuses the model, its tensors differ from the config's, a warmup
            sample fails, its required GPU cannot be used, its files differ from the compiled ones, or its
            answers to its probe rows differ from the recorded ones.
    """
    devices = devices or Devices()
    proof = proof_of(entry, is_allowed=devices.allow_drift)
    sessions = loaded or _new_sessions(entry, devices)
    timed: list[tuple[int, float]] = []
    drifts = []
    for device, session in sessions.by_device.items():
        _check_tensors(entry, "input", entry.inputs, session.get_inputs())
        _check_tensors(entry, "output", entry.outputs, session.get_outputs())
        for sample in entry.warmups:
            _warm(entry, session, sample)
        warm = {sample.rows for sample in entry.warmups}
        for rows in _batch_sizes(entry) if warm else ():
            count = 1 if rows in warm else 2
            took_s = _warm(entry, session, replace(entry.warmups[0], rows=rows, count=count))
            timed.append((rows, took_s))
            if took_s > _LONG_WARMUP_S:
                break
        drifts.append(None if proof is None else _prove(proof, session, device))
    return ReadyEntry(sessions, timed, max((drift for drift in drifts if drift is not None), default=None))


def _prove(proof: ProbeCheck, session: ort.InferenceSession, device: str) -> float | None:
    """Send the probe rows to a session and return its drift. Raises RepositoryError."""
    try:
        answers = [run(proof.entry, session, rows, proof.outputs) for rows in proof.requests()]
    except RationaleError as error:
        cause = error.__cause__ or error
        raise RepositoryError(f"{proof.entry.name}: its probe rows fail: {cause}") from error
    where = processor() if device == CPU else device
    return proof.drift(answers, f"ONNX Runtime {ort.__version__} on {where}")


def _new_sessions(entry: Entry, devices: Devices) -> Sessions:
    """Create the sessions of an entry. Raises RepositoryError."""
    try:
        demand_kernels_allowed(entry.custom_ops, allowed=devices.custom_ops)
    except RepositoryError as error:
        raise RepositoryError(f"{entry.model_path}: {error}") from error
    try:
        device_names = devices.of(entry)
        return Sessions(
            {device: _new_session(entry, device, devices.cores) for device in dict.fromkeys(device_names)},
            device_names,
        )
    except NoGpuError as error:
        if devices.insists(entry):
            raise NoGpuError(
                f"{entry.model_path}: {error}. Set instance_group to KIND_AUTO or KIND_CPU in its "
                "config.pbtxt, or --device cpu, or let it run on the CPU: RATIONALE_CPU_FALLBACK=true"
            ) from error
        log.warning("entry %s runs on the CPU: %s", entry.name, error)
    return Sessions({CPU: _new_session(entry, CPU, devices.cores)}, (CPU,) * entry.instances)


def _new_session(entry: Entry, device: str, cores: int) -> ort.InferenceSession:
    """Create a session on a device. Raises RepositoryError, NoGpuError."""
    try:
        session = ort.InferenceSession(
            entry.model_path,
            session_options(entry, cores, device),
            providers=providers(device),
            enable_fallback=0,
        )
    except Exception as error:  # ONNX Runtime's errors have no common base; all mean: not loadable
        reason = locale_advice(str(error)) or str(error)
        raise RepositoryError(f"{entry.model_path}: ONNX Runtime cannot load it: {reason}") from error
    if device != CPU and CUDA_PROVIDER not in session.get_providers():
        raise NoGpuError(
            f"ONNX Runtime cannot use {device}: install a release for this machine's versions of CUDA and "
            "cuDNN"
        )
    return session


def _batch_sizes(entry: Entry) -> list[int]:
    """Return 1, 2, 4 … and `max_batch_size` if requests are joined; else 1 and `max_batch_size`."""
    largest = entry.max_batch_size
    powers = [2**power for power in range((largest - 1).bit_length())] if entry.batching else [1]
    return list(dict.fromkeys([*powers, largest]))


def session_options(entry: Entry, cores: int, device: str = CPU) -> ort.SessionOptions:
    """Return options with the config's threads, or else the cores divided by the entry's instances.

    Threads sleep between two runs: with many sessions on few cores, spinning threads take the cores from each
    other and from the event loop (docs/serving-performance.md has figures).
    """
    options = ort.SessionOptions()
    nodes = entry.manifest.measured.nodes if entry.manifest is not None else 0
    options.enable_mem_reuse = nodes <= PLANNED_NODES
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = _intra_op_threads(entry, cores)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(*LARGE_BLOCKS)
    if entry.inter_op_threads is not None:
        options.inter_op_num_threads = entry.inter_op_threads
    for library in (*entry.custom_ops, *(installed_kernels(entry.custom_ops) if device == CPU else ())):
        load_kernels(options, library)
    return options


def runtime(entry: Entry, cores: int, devices: Sequence[str] = (CPU,)) -> dict[str, Any]:
    """Return the environment that determines the last bits of the entry's answers.

    The processor decides the choice of kernels, and the number of threads the division of sums.
    """
    kernels = kernels_version() if CPU in devices else None
    return {
        "backend": OnnxRuntimeBackend.name,
        "version": ort.__version__,
        "devices": list(devices),
        "threads": _intra_op_threads(entry, cores),
        "processor": processor(),
        **({} if kernels is None else {"kernels": kernels}),
    }


def _intra_op_threads(entry: Entry, cores: int) -> int:
    return entry.intra_op_threads or max(cores // entry.instances, 1)


def run(entry: Entry, session: ort.InferenceSession, inputs: Tensors, outputs: Sequence[str]) -> Tensors:
    """Run the session in the calling thread.

    Raises:
        InvalidInputError: if the model cannot compute these values, or a string is not UTF-8.
        ModelFailedError: if the run fails for another reason; the log has the cause.
    """
    fed = inputs if entry.gate is None else add_gate(inputs, entry.gate)
    feeds = {name: _to_ort(name, _reshape(array, entry.reshapes.get(name))) for name, array in fed.items()}
    try:
        arrays = _run_session(entry, session, feeds, outputs)
    except Exception as error:  # see load
        log.warning("model %s failed: %s", entry.name, without_values(error))
        raise run_failure(entry, refused=isinstance(error, _ORT_REFUSED)) from error
    shapes = {spec.name: spec.shape for spec in entry.outputs if spec.name in entry.reshapes}
    return {
        name: _reshape(encode_texts(array), shapes.get(name))
        for name, array in zip(outputs, arrays, strict=True)
    }


def _run_session(
    entry: Entry, session: ort.InferenceSession, feeds: Tensors, outputs: Sequence[str]
) -> list[Array]:
    """Run the session; on a GPU outputs stay in its memory until all are computed, except strings."""
    strings = any(spec.datatype == "BYTES" for spec in (*entry.inputs, *entry.outputs))
    if strings or session.get_providers()[0] != CUDA_PROVIDER:
        return list(session.run(list(outputs), feeds))
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array))
    number = int(session.get_provider_options()[CUDA_PROVIDER]["device_id"])
    for name in outputs:
        binding.bind_output(name, "cuda", number)
    session.run_with_iobinding(binding)
    return list(binding.copy_outputs_to_cpu())


def _check_tensors(
    entry: Entry, role: str, promised: Sequence[TensorSpec], nodes: Sequence[ort.NodeArg]
) -> None:
    types = {node.name: _ORT_TYPES.get(node.type, node.type) for node in nodes}
    for spec in promised:
        if spec.name not in types:
            raise RepositoryError(
                f"{entry.model_path}: has no {role} '{spec.name}', which config.pbtxt lists"
            )
        if types[spec.name] != spec.datatype:
            raise RepositoryError(
                f"{entry.model_path}: {role} '{spec.name}' is {types[spec.name]}, "
                f"but {spec.datatype} in config.pbtxt"
            )
        _check_shape(entry, role, spec, next(node.shape for node in nodes if node.name == spec.name))
    extra = set(types) - {spec.name for spec in promised} - ({EXPLAIN} if entry.gate is not None else set())
    if role == "input" and extra:
        raise RepositoryError(f"{entry.model_path}: config.pbtxt lacks its inputs {sorted(extra)}")


def _check_shape(entry: Entry, role: str, spec: TensorSpec, node_shape: Sequence[int | str | None]) -> None:
    if not node_shape:  # even the rank is unknown
        return
    batch, *shape = (size if isinstance(size, int) else -1 for size in node_shape)
    expected = entry.reshapes.get(spec.name, spec.shape)
    if batch != -1:
        raise RepositoryError(
            f"{entry.model_path}: {role} '{spec.name}' has a fixed batch of {batch}, so the server cannot "
            "batch rows"
        )
    if not agree(tuple(shape), expected):
        raise RepositoryError(
            f"{entry.model_path}: {role} '{spec.name}' has shape {shape} per row, but {list(expected)} "
            "in config.pbtxt"
        )


def _warm(entry: Entry, session: ort.InferenceSession, sample: Warmup) -> float:
    """Run a warmup sample and return the seconds of its last run. Raises RepositoryError."""
    inputs = {}
    for warmup_input in sample.inputs:
        spec, shape = warmup_input.spec, (1, *warmup_input.spec.shape)
        zeros = b"\0\0\0\0" if spec.datatype == "BYTES" else bytes(DTYPES[spec.datatype].itemsize)
        data = zeros * math.prod(shape) if warmup_input.data is None else warmup_input.data
        try:
            row = from_binary(spec.name, spec.datatype, shape, memoryview(data))
        except InvalidInputError as error:
            raise RepositoryError(f"{entry.name}: warmup: {error}") from error
        inputs[spec.name] = np.repeat(row, sample.rows, axis=0)
    try:
        for _ in range(sample.count):
            began_s = time.perf_counter()
            check_rows(entry, run(entry, session, inputs, [spec.name for spec in entry.outputs]), sample.rows)
    except RationaleError as error:
        cause = error.__cause__ or error
        raise RepositoryError(f"{entry.name}: its warmup sample fails: {cause}") from error
    return time.perf_counter() - began_s


def _reshape(array: Array, shape: tuple[int, ...] | None) -> Array:
    """Reshape [N, …] → [N, *shape], as Triton applies a config's `reshape`; None changes nothing."""
    return array if shape is None else array.reshape(len(array), *shape)


def _to_ort(name: str, array: Array) -> Array:
    if array.dtype.kind != "O":
        return array
    try:
        return np.array([item.decode() for item in array.reshape(-1)], dtype=np.object_).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"input '{name}' holds bytes that are not UTF-8") from error
