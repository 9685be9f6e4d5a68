"""Trees against references of each row, beside tables of known ones: `python -m benchmarks.trees.pairs`."""

import time
from typing import Annotated

import numpy as np
import typer

from benchmarks.trees.model import data, trained
from rationale import Compiled, OpenReferences, TreeShap, compile_model
from rationale.references.request_time import repeat_references

KNOWN = 100  # references of the tables
CALLS = 20


def milliseconds(compiled: Compiled, rows: np.ndarray, references: np.ndarray) -> float:
    """Return the least CPU time of a call on one thread, per row."""
    run, opened, inputs = compiled.loaded(threads=1), compiled.manifest.open_references, {"x": rows}
    if opened is not None:
        fed = repeat_references(opened, {"x": references[: opened.count]}, None, len(rows))
        inputs |= {name: np.ascontiguousarray(array) for name, array in fed.items()}
    times = []
    for _ in range(CALLS):
        start = time.process_time()
        run(inputs)
        times.append(time.process_time() - start)
    return 1e3 * min(times) / len(rows)


def main(
    booster: Annotated[str, typer.Option(help="xgboost or lightgbm.")] = "xgboost",
    counts: Annotated[str, typer.Option(help="References of each row, by commas.")] = "1,8,32",
) -> None:
    """Print the time of a row alone and among 16, and the size of the graph."""
    model = trained(booster)
    rows, references = data()[0][:16], data()[2][:KNOWN]
    methods = {f"tables of {KNOWN}": TreeShap(references)}
    methods |= {f"{k} of each row": TreeShap(OpenReferences(int(k), references)) for k in counts.split(",")}
    print("references         | ms a row, alone | among 16 |  MB | compile s (CPU)")
    for name, method in methods.items():
        start = time.process_time()
        compiled = compile_model(model, method)
        seconds, size = time.process_time() - start, compiled.manifest.measured.model_bytes / 1e6
        alone, among = (milliseconds(compiled, rows[:n], references) for n in (1, len(rows)))
        print(f"{name:18} | {alone:15.2f} | {among:8.2f} | {size:3.0f} | {seconds:.1f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
