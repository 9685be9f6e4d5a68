"""The objects of a case: weights, rows and references, the compiled entry, and its device."""

import copy
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from benchmarks.cases import BenchmarkCase
from benchmarks.networks import Encoder, keep_signal, perceptron, vision
from benchmarks.runtime import provider
from benchmarks.timing import System, alternate, quietly
from rationale import DeepShap, Deployment, compile_model
from rationale.artifact.compiled import Compiled
from rationale.schema.machine import DEFAULT_BUDGET

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "vgg16": partial(vision, "vgg16"),
    "vgg19": partial(vision, "vgg19"),
    "resnet50": partial(vision, "resnet50"),
    "densenet169": partial(vision, "densenet169"),
    "densenet201": partial(vision, "densenet201"),
    "efficientnetb0": partial(vision, "efficientnet_b0"),
    "efficientnetb1": partial(vision, "efficientnet_b1"),
    "transformer": Encoder,
    "bert-base": partial(Encoder, blocks=12, heads=12),
    "credit": lambda inputs: perceptron([inputs, 256, 256, 2]),
    "credit-softmax": lambda inputs: nn.Sequential(*perceptron([inputs, 256, 256, 2]), nn.Softmax(-1)),
}
TRIALS = 5  # turns in which one thread is compared with all
SIGNAL_ROWS = {1: 32, 2: 16, 3: 2}  # and as many references, to scale weights on; by the axes of a row


def torch_device() -> str:
    """Return PyTorch's device, beside ONNX Runtime's: CPU if only one of them knows the GPU."""
    return "cuda" if provider() == "cuda" and torch.cuda.is_available() else "cpu"


def on_device(moved: Any) -> Any:
    """Return a module or tensor of PyTorch on that device; itself if it is there already."""
    return moved.to(torch_device())


# -- networks ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchmarkNetwork:
    """A network to explain.

    Attributes:
        network: the PyTorch module in eval mode, without gradients; model: its ONNX, with a symbolic batch.
        rows: [N, …]; references: [K, …]; float32.
    """

    network: nn.Module
    model: onnx.ModelProto
    rows: Tensor
    references: Tensor


def make_subject(case: BenchmarkCase, seed: int = 0) -> BenchmarkNetwork:
    """Return weights, rows and references from `seed`; torch's own random state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[case.model](case.shape[-1])
        count = SIGNAL_ROWS[len(case.shape)]
        keep_signal(network, torch.cat([torch.randn(count, *case.shape), _references(count, case.shape)]))
        rows, references = torch.randn(case.rows, *case.shape), _references(case.references, case.shape)
    return BenchmarkNetwork(network, export(network, rows), rows, references)


def _references(count: int, shape: Sequence[int]) -> Tensor:
    """Return references: nearer to each other than rows, and elsewhere."""
    return 0.7 * torch.randn(count, *shape) + 0.2


def export(network: nn.Module, rows: Tensor) -> onnx.ModelProto:
    """Return the network as ONNX, its input x and its output y with a symbolic batch."""
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    with tempfile.TemporaryDirectory() as folder, quietly():
        path = Path(folder) / "model.onnx"
        names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
        torch.onnx.export(network, (rows,), path, dynamo=False, **names)
        return onnx.load(path)


def compile_ours(subject: BenchmarkNetwork, threads: int, memory_budget: int | None = None) -> Compiled:
    """Compile for the device of this machine; above the budget references are walked in chunks."""
    deployment = Deployment(provider(), threads, memory_budget or DEFAULT_BUDGET)
    method = DeepShap(subject.references.numpy())
    return compile_model(subject.model, method, targets="predicted", deployment=deployment)


def best_threads(
    make: Callable[[], Callable[[], Any]], subject: BenchmarkNetwork, threads: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a system of PyTorch and how to set its threads: all, or one for tables if that is faster.

    OpenMP's barriers cost a small network more than a second thread gains.
    """
    counts = {1, threads} if subject.rows.ndim == 2 else {threads}
    tried = []
    for count in sorted(counts, reverse=True):
        torch.set_num_threads(count)
        run = make()
        times = alternate([System("trial", run)], TRIALS)["trial"] if len(counts) > 1 else [[0.0]]
        tried.append((statistics.median(t for turn in times for t in turn), count, run))
    _, count, run = min(tried, key=lambda trial: trial[0])
    return run, partial(torch.set_num_threads, count)


@torch.inference_mode()
def expected_sums(subject: BenchmarkNetwork) -> np.ndarray:
    """Return the sum that each row's attributions must have, [N], in float64.

    It is the row's largest output less the mean of the references' same one.
    """
    network = copy.deepcopy(subject.network).double()
    largest, place = network(subject.rows.double()).max(dim=1)
    missing: Tensor = largest - network(subject.references.double()).mean(0)[place]
    return missing.numpy()
