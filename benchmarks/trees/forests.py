"""Boosted trees of several depths beside other explainers of trees, one thread.

    python -m benchmarks.trees.forests [--shapes 300x4,300x6,100x8,100x12,100x255] [--rows 1,64,10000]
        [--references 100,1000] [--peers contributions,shap,shapiq,woodelf] [--seconds 20]

A shape is TREESxDEPTH of XGBoost; from 64 on it is TREESxLEAVES of LightGBM without a depth. There are 23
features, 2% of the values missing. Each system gets the same booster, references and rows, other rows in each
call. It prints the least CPU milliseconds of a call, since the clock counts what else the machine does, and
each peer's time over ours; `-` if a peer would take more than --seconds, by its time for the rows before.
The compile is ours, and counts once. `contributions` are the booster's own and, like shapiq's,
path-dependent: they know no references.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.cases import CONTRIBUTIONS, SHAP, SHAPIQ, WOODELF, names, numbers, positive
from benchmarks.timing import quietly
from benchmarks.trees.model import data, trained
from benchmarks.trees.peers import TREE_EXPLAINERS
from rationale import TreeShap, compile_model
from rationale.portfolios.arrow import run_rows

FEATURES, LEAVES = 23, 64
SHAPES = ["300x4", "300x6", "100x8", "100x12", "100x255"]
CALLS, CALL_S = 40, 0.5  # most calls, and seconds after which there is no other
PEERS = (CONTRIBUTIONS, SHAP, SHAPIQ, WOODELF)


def booster_of(shape: str) -> Any:
    """Train the booster of a shape."""
    trees, size = (int(number) for number in shape.split("x"))
    if size < LEAVES:
        return trained("xgboost", trees=trees, depth=size, features=FEATURES)
    return trained("lightgbm", trees=trees, depth=-1, leaves=size, features=FEATURES)


def milliseconds(explain: Callable[[np.ndarray], Any], rows: np.ndarray, count: int) -> float:
    """Return the least CPU time of calls on `count` rows."""
    parts = np.array_split(
        np.resize(rows, (max(len(rows), count), rows.shape[1])), max(len(rows) // count, 1)
    )
    times, start = list[float](), time.perf_counter()
    for part in cycle(parts):
        began = time.process_time()
        explain(part[:count])
        times.append(time.process_time() - began)
        is_late = len(times) > 1 and time.perf_counter() - start > CALL_S  # the first call may warm up
        if is_late or len(times) == CALLS:
            return 1e3 * min(times)
    raise AssertionError


def ours(booster: Any, references: np.ndarray) -> tuple[Callable[[np.ndarray], Any], float]:
    """Return the compiled graph on as many rows at once as a portfolio has, and the compile's CPU seconds."""
    began = time.process_time()
    compiled = compile_model(booster, TreeShap(references))
    seconds, run, step = time.process_time() - began, compiled.loaded(threads=1), run_rows(compiled)

    def explain(rows: np.ndarray) -> None:
        for start in range(0, len(rows), step):
            run({"x": rows[start : start + step]})

    return explain, seconds


def peer_of(name: str, booster: Any, references: np.ndarray) -> Callable[[np.ndarray], Any] | None:
    """Return a peer's function of rows; None if it is not installed or does not take the booster."""
    try:
        with quietly():
            return TREE_EXPLAINERS[name](booster, references)
    except Exception as error:  # of any library
        print(f"  {name}: {type(error).__name__}: {str(error)[:200]}")
        return None


def shapes_of(text: str) -> list[str]:
    """Return shapes by commas; raise ArgumentTypeError for anything else."""
    shapes = [shape.strip() for shape in text.split(",")]
    for shape in shapes:
        trees, _, size = shape.partition("x")
        if not (positive(trees) and positive(size)):
            raise argparse.ArgumentTypeError(f"must be TREESxDEPTH or TREESxLEAVES, not {shape!r}")
    return shapes


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each booster, K and N."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=shapes_of, default=SHAPES, help="by commas")
    parser.add_argument("--rows", type=numbers, default=[1, 64, 10_000], help="N, by commas")
    parser.add_argument("--references", type=numbers, default=[100, 1000], help="K, by commas")
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS), help="by commas")
    parser.add_argument("--seconds", type=positive, default=20, help="the most of a call of a peer")
    options = parser.parse_args(argv)
    print("trees | K | N | ours, ms | " + " | ".join(f"{name} over ours" for name in options.peers))
    known = data(FEATURES)[2]
    for shape in options.shapes:
        booster = booster_of(shape)
        for k in options.references:
            explain, compile_s = ours(booster, known[:k])
            own = {n: milliseconds(explain, known, n) for n in options.rows}
            print(f"  compiled in {compile_s:.1f} s")
            times = {
                peer: _times(peer_of(peer, booster, known[:k]), known, options.rows, options.seconds)
                for peer in options.peers
            }
            for n in options.rows:
                ratios = (f"{times[peer][n] / own[n]:.2g}" if n in times[peer] else "-" for peer in times)
                print(f"{shape} | {k} | {n} | {own[n]:.3g} | {' | '.join(ratios)}", flush=True)


def _times(
    explain: Callable[[np.ndarray], Any] | None, rows: np.ndarray, counts: Sequence[int], seconds: float
) -> dict[int, float]:
    """Return a peer's milliseconds for each number of rows that it can explain in time."""
    times, each_ms = dict[int, float](), 0.0
    for n in counts if explain else ():
        if n * each_ms <= 1e3 * seconds:
            assert explain is not None
            with quietly():
                times[n] = milliseconds(explain, rows, n)
            each_ms = times[n] / n
    return times


if __name__ == "__main__":
    main()
