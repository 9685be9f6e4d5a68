"""Our explanation beside the plain model and other explainers: compiled, checked, and timed in turn."""

import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from benchmarks.cases import (
    BOOSTERS,
    FORWARD,
    OF_NETWORKS,
    OF_TREES,
    OPENVINO,
    OURS,
    PORTABLE,
    PREDICTION,
    BenchmarkCase,
)
from benchmarks.exact import exact
from benchmarks.peers import EXPLAINERS, misses
from benchmarks.runtime import provider, session_of
from benchmarks.subjects import (
    BenchmarkNetwork,
    best_threads,
    compile_ours,
    expected_sums,
    make_subject,
    on_device,
)
from benchmarks.timing import BLOCK_S, REST_S, System, Times, alternate, quietly
from benchmarks.trees import model as trees
from benchmarks.trees.peers import INTERVENTIONAL, TREE_EXPLAINERS
from rationale import DeepShap, Deployment, TreeShap, compile_model
from rationale.artifact.compiled import Compiled
from rationale.graph.runtime.session import Runner
from rationale.schema.probes import Probes
from rationale.terminal import progress_bar

_REASON = 160  # characters
PACKAGES = {"woodelf": "woodelf-explainer"}  # whose modules have other names


@dataclass(frozen=True)
class CaseSettings:
    """Settings of the measurement of a case.

    Attributes:
        repeats: rounds, in each of which every system runs once; threads: each system's threads.
        peers: names of the peers to measure; None for all that explain the model.
        seconds: time limit of a case; it leaves out rounds that do not fit, and the float64 values.
    """

    repeats: int = 9
    threads: int = 2
    peers: tuple[str, ...] | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class MeasuredSystem:
    """One system on one case.

    Attributes:
        times_s: each call's time, by rounds; setup_s: time until the system could answer.
        error: the largest difference of its attributions from float64's (or ours), over the largest of those.
        gap: the distance of its attributions from their due sum, over the largest of those sums.
    """

    times_s: Times
    setup_s: float
    error: float | None
    gap: float | None


@dataclass(frozen=True)
class CaseResult:
    """One case.

    Attributes:
        compile_s, model_bytes, plain_bytes: our graph's compile time and size, and the plain model's size.
        probe_difference: error of the entry's answers to its probe rows, as a share of an output's range.
        systems: measurements by system name; left_out: reasons why other systems have none.
        notes: differences between our rules and those of SHAP and captum.
    """

    case: BenchmarkCase
    compile_s: float = 0.0
    model_bytes: int = 0
    plain_bytes: int = 0
    probe_difference: float = 0.0
    systems: dict[str, MeasuredSystem] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class ComparedModel:
    """An entry and the peers that explain the same model.

    Attributes:
        rows: [M, …], N of them in each call; references: [K, …].
        peers: functions that prepare each peer, by name.
        truth: attributions [N, …] of the first rows in float64; sums: the due sum of each row's.
    """

    compiled: Compiled
    compile_s: float
    rows: np.ndarray
    references: np.ndarray
    peers: Mapping[str, Callable[[], System]]
    truth: np.ndarray | None = None
    sums: np.ndarray | None = None
    notes: Sequence[str] = ()


def compare_network(case: BenchmarkCase, settings: CaseSettings) -> ComparedModel:
    """Compile a network for DeepSHAP of the predicted output; its peers explain the same output."""
    subject = make_subject(case)
    began = time.perf_counter()
    compiled = compile_ours(subject, settings.threads)
    compile_s = time.perf_counter() - began
    truth, sums = None, expected_sums(subject)
    if settings.seconds is None:
        try:
            truth = exact(subject.network, subject.rows, subject.references)
        except NotImplementedError:  # there is no rule for a layer
            truth = None
    rows, references = on_device(subject.rows), on_device(subject.references)

    def ready(name: str) -> System:
        make = partial(EXPLAINERS[name], subject.network, references)
        run, prepare = best_threads(lambda: partial(make(), rows), subject, settings.threads)
        return System(name, run, prepare, run)

    peers = {name: partial(ready, name) for name in EXPLAINERS}
    runtimes = {name: partial(portable, name, subject) for name in (PORTABLE, OPENVINO)}
    return ComparedModel(
        compiled,
        compile_s,
        subject.rows.numpy(),
        subject.references.numpy(),
        peers | runtimes,
        truth,
        sums,
        misses(subject.network),
    )


def portable(name: str, subject: BenchmarkNetwork) -> System:
    """Return the explanation compiled for OpenVINO, in OpenVINO or in ONNX Runtime, with their defaults."""
    from rationale.graph.runtime.openvino import OpenVinoRunner

    method, deployment = DeepShap(subject.references.numpy()), Deployment(runtime="openvino")
    graph = compile_model(subject.model, method, targets="predicted", deployment=deployment).model
    run = partial((OpenVinoRunner if name == OPENVINO else Runner)(graph), {"x": subject.rows.numpy()})
    return System(name, run, explain=lambda: run()["x_attributions"][:, 0])


def compare_trees(case: BenchmarkCase, settings: CaseSettings) -> ComparedModel:
    """Compile boosted trees for TreeSHAP; each call gets other rows: caches would answer the same again."""
    booster = trees.trained(case.model, settings.threads)
    rows = trees.data()[2]
    references, batches = rows[: case.references], _batches(rows, case.rows)
    began = time.perf_counter()
    deployment = Deployment(provider(), settings.threads)
    compiled = compile_model(booster, TreeShap(references), deployment=deployment)

    def ready(name: str) -> System:
        with quietly():
            explain, turns = TREE_EXPLAINERS[name](booster, references), itertools.cycle(batches)
            explain(references[:2])
        first = (lambda: explain(batches[0])) if name in INTERVENTIONAL else None
        return System(name, lambda: explain(next(turns)), explain=first)

    peers = {name: partial(ready, name) for name in TREE_EXPLAINERS}
    return ComparedModel(compiled, time.perf_counter() - began, rows, references, peers)


def _batches(rows: np.ndarray, count: int) -> list[np.ndarray]:
    return [rows[i : i + count] for i in range(0, len(rows) - count + 1, count)]


# -- an entry and its runtime ----------------------------------------------------------------------------


def binding_run(session: ort.InferenceSession, batches: Sequence[np.ndarray]) -> Callable[[], Any]:
    """Return a call that answers the next of `batches` on the device, and copies the outputs back."""
    place, bound = (provider(), 0), []
    (graph_input,) = session.get_inputs()
    for batch in batches:
        value, binding = ort.OrtValue.ortvalue_from_numpy(batch, *place), session.io_binding()
        binding.bind_ortvalue_input(graph_input.name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, *place)
        bound.append((value, binding))  # on the CPU, the value owns the memory
    turns = itertools.cycle(bound)

    def run() -> Any:
        _, binding = next(turns)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    return run


def probe_difference(entry: Path, session: ort.InferenceSession) -> float:
    """Return how far a session's answers to the entry's probe rows are from those that are due.

    It is a share of an output's range: above 1e-3, no gateway would serve the entry on this device.
    """
    probes = Probes.read(entry / "1", promised=True)
    assert probes is not None
    names = [output.name for output in session.get_outputs()]
    answers = session.run(names, probes.feeds)
    return probes.compare(dict(zip(names, answers, strict=True))).value


def systems_of(entry: Path, compared: ComparedModel, count: int, threads: int) -> tuple[list[System], float]:
    """Return ours and the plain model's passes, and how far the probe rows are off."""
    explain, plain = (session_of(p / "1" / "model.onnx", threads) for p in (entry, entry.with_name("model")))
    place = [output.name for output in explain.get_outputs()].index("x_attributions")
    batches = _batches(compared.rows, count)
    ours, first = binding_run(explain, batches), binding_run(explain, batches[:1])
    every = np.concatenate([batches[0], *[compared.references] * count])
    systems = [
        System(OURS, ours, explain=lambda: np.asarray(first()[place])[:, 0]),
        System(FORWARD, binding_run(plain, [every])),
        System(PREDICTION, binding_run(plain, batches)),
    ]
    return systems, probe_difference(entry, explain)


# -- measuring -------------------------------------------------------------------------------------------


def measure(case: BenchmarkCase, settings: CaseSettings) -> CaseResult:
    """Measure one case."""
    began = time.monotonic()
    torch.backends.cudnn.allow_tf32 = False  # as in the gateway
    torch.backends.cudnn.benchmark = True  # ONNX Runtime tries all algorithms, too
    with progress_bar() as tell, tempfile.TemporaryDirectory() as folder:
        tell(f"{case.label}: compiling", 0, 1)
        compared = (compare_trees if case.model in BOOSTERS else compare_network)(case, settings)
        gc.collect()  # torch.fx's graphs know their modules, which know their graphs
        entry = compared.compiled.write(folder, "model")
        own_systems, probes = systems_of(entry, compared, case.rows, settings.threads)
        usual = OF_TREES if case.model in BOOSTERS else OF_NETWORKS
        chosen = usual if settings.peers is None else settings.peers
        tell(f"{case.label}: peers", 0, 1)
        peer_names = [name for name in chosen if name not in (FORWARD, PREDICTION)]
        peers, left_out = ready_peers(compared, peer_names)
        systems = [*(system for system in own_systems if system.name in (OURS, *chosen)), *peers]
        errors = _errors(systems, compared)
        rounds = settings.repeats
        if settings.seconds is not None:
            left_s = settings.seconds - (time.monotonic() - began)
            rounds = min(max(int(left_s / sum(map(_seconds, systems)) - 2), 1), rounds)
        times = alternate(systems, rounds, partial(tell, case.label))
    sizes = (compared.compiled.model.ByteSize(), compared.compiled.source.ByteSize())
    measured = {s.name: MeasuredSystem(times[s.name], s.setup_s, *errors[s.name]) for s in systems}
    return CaseResult(case, compared.compile_s, *sizes, probes, measured, left_out, compared.notes)


def ready_peers(compared: ComparedModel, names: Sequence[str]) -> tuple[list[System], dict[str, str]]:
    """Return the peers that answer, and why others do not: their errors must not end the comparison."""
    ready, left_out = [], {}
    for name in names:
        began = time.perf_counter()
        try:
            if name not in compared.peers:
                raise NotImplementedError("it does not explain this kind of model")
            system = compared.peers[name]()
            system.run()
        except Exception as error:
            left_out[name] = _reason(error)
        else:
            ready.append(replace(system, name=name, setup_s=time.perf_counter() - began))
    return ready, left_out


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"missing: pip install {PACKAGES.get(error.name or '', error.name)}"
    if isinstance(error, NotImplementedError):
        return f"none: {error}"
    message = (str(error).strip() or "no message").splitlines()[0]
    return f"failed: {type(error).__name__}: {message[:_REASON]}"


def _seconds(system: System) -> float:
    """Return about how long a turn takes."""
    began = time.perf_counter()
    system.run()
    return max(time.perf_counter() - began, BLOCK_S) + REST_S


def _errors(
    systems: Sequence[System], compared: ComparedModel
) -> dict[str, tuple[float | None, float | None]]:
    """Return each system's error and gap; without float64 values, errors are differences from ours."""
    answers = {s.name: np.asarray(s.explain()) for s in systems if s.explain is not None}
    truth, sums = compared.truth, compared.sums
    base = answers[OURS] if truth is None else truth

    def of(name: str) -> tuple[float | None, float | None]:
        if name not in answers:
            return None, None
        attributions = answers[name]
        is_checkable = truth is not None or name != OURS
        error = float(np.abs(attributions - base).max() / np.abs(base).max()) if is_checkable else None
        if sums is None:
            return error, None
        missing = attributions.reshape(len(sums), -1).sum(1, dtype=np.float64) - sums
        return error, float(np.abs(missing).max() / np.abs(sums).max())

    return {system.name: of(system.name) for system in systems}
