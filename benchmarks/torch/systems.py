"""The PyTorch baseline as systems that `rationale bench` times, and as float64 values to compare with."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.torch.baseline import baseline
from compiler.bench.cases import COMPILED, TORCH
from compiler.bench.device import on_device
from compiler.bench.peers import quietly
from compiler.bench.subjects import Made, Subject, best_threads, in_torch


def _eager(subject: Subject, threads: int) -> Made:
    given = in_torch(subject)

    def make() -> Callable[[], Any]:
        walk = baseline(*given)

        @torch.inference_mode()
        def run() -> Tensor:
            attributions: Tensor = walk(on_device(subject.rows))[1]
            return attributions.cpu()

        return run

    run, prepare = best_threads(make, subject, threads)
    return run, lambda: run().numpy(), prepare


def _compiled(subject: Subject, threads: int) -> Made:
    torch.set_num_threads(threads)
    torch.compiler.reset()
    walk = baseline(*in_torch(subject), portable=True)
    fast = torch.compile(walk.eval(), fullgraph=True, dynamic=False, options={"freezing": True})

    @torch.no_grad()
    def run() -> Tensor:
        attributions: Tensor = fast(on_device(subject.rows))[1]
        return attributions.cpu()

    with quietly():
        run()
    return run, lambda: run().numpy(), partial(torch.set_num_threads, threads)


@torch.inference_mode()
def truth(subject: Subject) -> np.ndarray:
    """The attributions [N, …] in float64, by the PyTorch baseline's rules.

    Raises:
        NotImplementedError: it has none for a layer.
    """
    network = copy.deepcopy(subject.network).double()
    walk = baseline(network, subject.rows.double(), subject.references.double(), portable=True)
    attributions: Tensor = walk(subject.rows.double())[1]
    return attributions.numpy()


SYSTEMS: dict[str, Callable[[Subject, int], Made]] = {TORCH: _eager, COMPILED: _compiled}
