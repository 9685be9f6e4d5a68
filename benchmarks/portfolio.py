"""A portfolio of rows in parquet files, explained by `rationale explain` and by a bare ONNX Runtime loop.

    python -m benchmarks.portfolio [credit trees] [--rows 1000000] [--turns 3] [--bare-rows 500]

`credit` is the network of examples/credit, `trees` XGBoost as in benchmarks.trees. The bare loop reads the
same files, runs the same graph on so many rows at a time in a thread on each core, and keeps nothing;
`rationale explain` also checks the rows, and writes a file for each. Rows per second of either, in turn; the
median of their ratios; and by how much the memory of the process grew from a tenth of the rows (in whole
batches: ONNX Runtime keeps what the largest took) to all, before any loop ran.
"""

import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.arguments import parser_of, positive
from benchmarks.decisions import SUBJECTS
from compiler.artefact.compiled import Compiled
from compiler.bench.timing import REST_S
from compiler.explanations.arrow import ROWS
from compiler.explanations.portfolio import explain_portfolio
from compiler.machine import available_cores
from compiler.terminal import reporting_errors

FILES = 10


def write_rows(folder: Path, names: list[str], known: np.ndarray, rows: int) -> None:
    """Write rows drawn from known ones, and moved a little, as files."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(FILES):
        x = known[random.integers(0, len(known), rows // FILES)]
        x = (x * random.uniform(0.9, 1.1, x.shape)).astype(np.float32)
        table = pa.table({"id": np.arange(len(x)) + i * len(x), **dict(zip(names, x.T, strict=True))})
        parquet.write_table(table, folder / f"part-{i}.parquet")


def known_rows(instances: Sequence[Mapping[str, float | None]]) -> np.ndarray:
    """Return [rows, features], NaN for what is missing."""
    return np.array([[np.nan if v is None else v for v in row.values()] for row in instances], np.float32)


def bare(compiled: Compiled, folder: Path, names: list[str], at_once: int) -> None:
    """Run the graph on every row, by a session of one core in a thread on each, so many rows at once."""
    from pyarrow import parquet

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    model = compiled.model.SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def run(batch: Any) -> None:
        x = np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1)
        session.run(None, {given.name: x})

    with ThreadPoolExecutor(available_cores()) as pool:
        for file in sorted(folder.glob("*.parquet")):
            for _ in pool.map(run, parquet.ParquetFile(file).iter_batches(at_once, columns=names)):
                pass


def seconds_of(run: Callable[[], object]) -> float:
    """Return how long it takes, after a rest."""
    time.sleep(REST_S)
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measured(name: str, rows: int, turns: int, bare_rows: int) -> str:
    """Return a line about a model."""
    compiled, instances = SUBJECTS[name]()
    names = list(instances[0])
    known = known_rows(instances)
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        entry = compiled.write(folder / "models", name).parent / name
        write_rows(folder / "few", names, known, max(rows // 10, FILES * ROWS))
        write_rows(folder / "all", names, known, rows)

        def explained(what: str, to: str) -> None:
            explain_portfolio(entry, str(folder / what), str(folder / to), ["id"])

        explained("few", "warm")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        explained("all", "warm")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        ratios, ours, theirs = [], [], []
        for i in range(turns):
            theirs.append(seconds_of(partial(bare, compiled, folder / "all", names, bare_rows)))
            ours.append(seconds_of(partial(explained, "all", f"answers-{i}")))
            ratios.append(theirs[-1] / ours[-1])
    speeds = [rows / float(np.median(times)) for times in (theirs, ours)]
    return f"{name:8}{speeds[0]:14,.0f}{speeds[1]:14,.0f}{np.median(ratios):10.2f}{grown:12.0f} MB"


def main(given: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of each model (1,000,000)")
    parser.add_argument("--turns", type=positive, default=3, help="of either way (3)")
    parser.add_argument("--bare-rows", type=positive, default=ROWS, help=f"of the bare loop's runs ({ROWS})")
    asked = parser.parse_args(given)
    with reporting_errors():
        print(f"{'rows/s':8}{'bare':>14}{'rationale':>14}{'ratio':>10}{'memory +':>15}")
        for name in asked.models or SUBJECTS:
            print(measured(name, asked.rows, asked.turns, asked.bare_rows), flush=True)


if __name__ == "__main__":
    main()
