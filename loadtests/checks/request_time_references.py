"""What references as an input cost over the same ones baked in: CPU time of a run, one thread, one row.

python -m loadtests.checks.request_time_references
"""

import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

from compiler import Compiled, DeepShap, OpenReferences, compile_model
from compiler.open_references import for_rows
from compiler.tables import read_rows

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "credit" / "credit.onnx"
RUNS, TURNS = 400, 5


def main(counts: tuple[int, ...] = (8, 32, 100)) -> None:
    rows = np.asarray(read_rows(ROOT / "examples" / "credit" / "references.csv").arrays[None], np.float32)
    for count in counts:
        references = rows[:count]
        baked = compile_model(MODEL, DeepShap(references))
        opened = compile_model(MODEL, DeepShap(OpenReferences(count, references)))
        x = baked.fit(rows[:1] * 1.1)
        (name,) = x
        described = opened.manifest.open_references
        if described is None:
            raise TypeError("references are no input of this graph")
        fed = {**x, **for_rows(described, {name: references}, None, 1)}
        microseconds = [_cost(one, feeds) for one, feeds in ((baked, x), (opened, fed))]
        print(
            f"K = {count}: baked {microseconds[0]:.0f} µs, as an input {microseconds[1]:.0f} µs, "
            f"{microseconds[1] / microseconds[0]:.2f} times"
        )


def _cost(compiled: Compiled, feeds: dict[str, np.ndarray]) -> float:
    """Microseconds of CPU of a run: the least of some turns."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        compiled.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    turns = []
    for _ in range(TURNS):
        start = time.process_time()
        for _ in range(RUNS):
            session.run(None, feeds)
        turns.append((time.process_time() - start) / RUNS)
    return min(turns) * 1e6


if __name__ == "__main__":
    main()
