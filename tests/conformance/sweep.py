"""All cases, in as many processes as there are cores."""

import gc
import logging
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.conformance.cases import ConformanceCase
from tests.conformance.evaluate import CaseOutcome, evaluate


def sweep(cases: Sequence[ConformanceCase]) -> list[CaseOutcome]:
    """Each case on its own: see `evaluate`."""
    longest_first = sorted(cases, key=lambda c: c.model.ByteSize(), reverse=True)
    workers = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet) as pool:
        return sorted(pool.map(evaluate, longest_first, chunksize=4), key=lambda o: o.case)


def _quiet() -> None:
    """A crash of one case is its outcome; what libraries tell on the way is not looked at."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # libraries stay; graphs are let go of in fewer, larger rounds
    gc.set_threshold(50_000, 20, 50)
