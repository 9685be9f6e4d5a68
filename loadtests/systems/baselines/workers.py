"""Executors for a baseline's computations: a thread, or processes."""

import asyncio
import multiprocessing
import os
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from threading import Thread

import numpy as np
import torch

from benchmarks.cases import MODULES
from loadtests.load.expected import EXPECTED, INPUT
from loadtests.load.questions import EXPLAIN, PREDICT, Arrays
from loadtests.systems.baselines.explainers import Verb, verbs
from loadtests.systems.baselines.service import Ask

# Of this process: DeepExplainer keeps state in its network and must not meet itself.
_verbs: dict[str, Verb] = {}


def load(name: str, folder: Path, threads: int) -> None:
    """Makes this process ready to answer by the explainer of that name."""
    warnings.filterwarnings("ignore")  # the libraries warn of their own hooks at every request
    torch.set_num_threads(threads)
    predict, explain = verbs(name, folder)
    _verbs.update({PREDICT: predict, EXPLAIN: explain})


def answer(verb: str, x: np.ndarray) -> Arrays:
    """Answer in the process and thread that loaded the explainer."""
    return _verbs[verb](x)


def explaining(name: str, folder: Path, threads: int, processes: int) -> Executor:
    """One thread of this process, or processes of which each is handed the next request when it is free."""
    if processes == 1:
        return ThreadPoolExecutor(1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, MODULES[name]])  # imported once, and its pages shared
    return ProcessPoolExecutor(processes, context, _load_worker, (name, folder, threads))


def _load_worker(name: str, folder: Path, threads: int) -> None:
    """Ends with the service, however that ends."""
    service = multiprocessing.parent_process()
    if service is not None:
        Thread(target=_end_with, args=(service.sentinel,), daemon=True).start()
    load(name, folder, threads)


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def asking(executors: dict[str, Executor]) -> Ask:
    """Each verb by its executor."""

    async def ask(verb: str, x: np.ndarray) -> Arrays:
        return await asyncio.get_running_loop().run_in_executor(executors[verb], answer, verb, x)

    return ask


def warm_up(executor: Executor, folder: Path, processes: int) -> None:
    """Every worker starts and answers; so many requests that none is left out."""
    x = np.load(folder / EXPECTED)[INPUT][:1]
    list(executor.map(answer, [EXPLAIN] * 4 * processes, [x] * 4 * processes))
