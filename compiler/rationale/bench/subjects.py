"""A case made real: weights, rows, references, and every system that explains them."""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from rationale.artifact.compiled import Compiled
from rationale.bench.cases import FORWARD, OURS, Case
from rationale.bench.device import on_device, provider, session_of
from rationale.bench.networks import Encoder, keep_signal, perceptron, vision
from rationale.bench.peers import EXPLAINERS, quietly
from rationale.bench.timing import System, alternate
from rationale.compile import compile_model
from rationale.methods.propagation.deepshap import DeepShap
from rationale.schema.machine import DEFAULT_BUDGET, Deployment

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "vgg16": partial(vision, "vgg16"),
    "vgg19": partial(vision, "vgg19"),
    "resnet50": partial(vision, "resnet50"),
    "densenet201": partial(vision, "densenet201"),
    "efficientnetb0": partial(vision, "efficientnet_b0"),
    "transformer": Encoder,
    "bert-base": partial(Encoder, blocks=12, heads=12),
    "credit": lambda inputs: perceptron([inputs, 256, 256, 2]),
    "credit-softmax": lambda inputs: nn.Sequential(*perceptron([inputs, 256, 256, 2]), nn.Softmax(-1)),
}
TRIALS = 5  # turns in which one thread is compared with all
SIGNAL_ROWS = {1: 32, 2: 16, 3: 2}  # and as many references, to scale weights on; by the axes of a row


@dataclass(frozen=True)
class Subject:
    """What is explained.

    Attributes:
        network: in eval mode, without gradients; model: the same as ONNX, with a symbolic batch.
        rows: [N, …]; references: [K, …]; float32.
    """

    network: nn.Module
    model: onnx.ModelProto
    rows: Tensor
    references: Tensor


def make_subject(case: Case, seed: int) -> Subject:
    """Weights, rows and references from `seed`; torch's own random state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[case.model](case.shape[-1])
        count = SIGNAL_ROWS[len(case.shape)]
        keep_signal(network, torch.cat([torch.randn(count, *case.shape), _references(count, case.shape)]))
        rows, references = torch.randn(case.rows, *case.shape), _references(case.references, case.shape)
    return Subject(network, export(network, rows), rows, references)


def _references(count: int, shape: Sequence[int]) -> Tensor:
    """Nearer to each other than rows, and elsewhere."""
    return 0.7 * torch.randn(count, *shape) + 0.2


def export(network: nn.Module, rows: Tensor) -> onnx.ModelProto:
    """Return the network as ONNX, its input x and its output y with a symbolic batch."""
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    with tempfile.TemporaryDirectory() as folder, quietly():
        path = Path(folder) / "model.onnx"
        names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
        torch.onnx.export(network, (rows,), path, dynamo=False, **names)
        return onnx.load(path)


def compile_ours(subject: Subject, threads: int, memory_budget: int | None = None) -> Compiled:
    """For the device of this machine; above the budget references are walked in chunks."""
    deployment = Deployment(provider(), threads, memory_budget or DEFAULT_BUDGET)
    method = DeepShap(subject.references.numpy())
    return compile_model(subject.model, method, targets="predicted", deployment=deployment)


def ready(name: str, subject: Subject, compiled: Compiled, threads: int) -> System:
    """Return a system by its name, with its threads set."""
    started = time.perf_counter()
    if name in (OURS, FORWARD):
        run, explain, prepare = (_ours if name == OURS else _forward)(subject, compiled, threads)
    else:
        references = on_device(subject.references)
        run, prepare = best_threads(
            lambda: partial(EXPLAINERS[name](subject.network, references), subject.rows), subject, threads
        )
        explain = run
    return System(name, run, prepare, explain, time.perf_counter() - started)


Made = tuple[Callable[[], Any], Callable[[], np.ndarray] | None, Callable[[], Any]]


def _ours(subject: Subject, compiled: Compiled, threads: int) -> Made:
    runner = session_of(compiled.model.SerializeToString(), threads)
    x = {"x": subject.rows.numpy()}
    return (
        lambda: runner.run(None, x),
        lambda: np.asarray(runner.run(["x_attributions"], x)[0])[:, 0],
        lambda: None,
    )


def _forward(subject: Subject, compiled: Compiled, threads: int) -> Made:
    """Return the plain model over N·(1 + K) rows, which is what the walk has to pass through."""
    runner = session_of(compiled.source.SerializeToString(), threads)
    repeats = (len(subject.rows), *[1] * (subject.rows.ndim - 1))
    rows = torch.cat([subject.rows, subject.references.repeat(repeats)])
    x = {"x": rows.numpy()}
    return lambda: runner.run(None, x), None, lambda: None


def best_threads(
    make: Callable[[], Callable[[], Any]], subject: Subject, threads: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return what `make` returns and how to set its threads: all, or one for tables where that is faster.

    OpenMP's barriers cost a small network more than a second thread gains.
    """
    counts = {1, threads} if subject.rows.ndim == 2 else {threads}
    tried = []
    for count in sorted(counts, reverse=True):
        torch.set_num_threads(count)
        run = make()
        times = alternate([System("trial", run)], TRIALS)["trial"] if len(counts) > 1 else [[0.0]]
        tried.append((statistics.median(t for turn in times for t in turn), count, run))
    _, count, run = min(tried, key=lambda one: one[0])
    return run, partial(torch.set_num_threads, count)


@torch.inference_mode()
def due(subject: Subject) -> np.ndarray:
    """Return what the attributions of each row must add up to, [N], in float64.

    It is the row's largest output less the mean of the references' same one.
    """
    network = copy.deepcopy(subject.network).double()
    largest, place = network(subject.rows.double()).max(dim=1)
    missing: Tensor = largest - network(subject.references.double()).mean(0)[place]
    return missing.numpy()
