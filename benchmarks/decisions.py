"""`:decide` beside `:explain`: the same entry and instance, over HTTP, in turn, by one caller.

    python -m benchmarks.decisions [credit trees] [--audit off,sqlite,postgresql://…] [--instances 200]

`credit` is the network of examples/credit, `trees` the XGBoost of benchmarks.trees.model; the gateway is a
process of its own, with its own trail. Each route gets each instance once: caches hold earlier instances. It
prints medians, and the median of the differences with its quartiles, in milliseconds; and the disk's time to
keep 4 KiB (fsync), in the same turns: a decision waits for that once.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx

from benchmarks.cases import parser_of, positive, reporting_errors
from benchmarks.timing import REST_S, quartiles
from benchmarks.trees.model import data, trained
from loadtests.systems.process import gateway
from rationale import DeepShap, TreeShap, compile_model
from rationale.artifact.compiled import Compiled

CREDIT = Path(__file__).parents[1] / "examples" / "credit"
WARM = 20  # pairs that are not counted
VERBS, SYNC = ("explain", "decide"), "sync"
OFF, SQLITE = "off", "sqlite"


def decided(model: Any, method: Any, names: Sequence[str], output: str) -> Compiled:
    """Compile a model with a decision profile in which every feature has a reason."""
    profile = {
        "output": output,
        "threshold": 0.3,
        "adverse": "above",
        "features": {name: {"reason": f"R{i}"} for i, name in enumerate(names)},
        "reasons": {f"R{i}": f"{name} speaks against it" for i, name in enumerate(names)},
    }
    return compile_model(model, method, feature_names=list(names), decision=profile)


def credit() -> tuple[Compiled, list[dict[str, float]]]:
    """Return the example's network, with 100 references and ten features, and slightly varied applicants."""
    references, rows = (
        np.loadtxt(CREDIT / name, delimiter=",", skiprows=1, dtype=np.float32)
        for name in ("references.csv", "applicants.csv")
    )
    names = (CREDIT / "references.csv").read_text().splitlines()[0].split(",")
    output = "default_probability"
    compiled = decided(onnx.load(CREDIT / "credit.onnx"), DeepShap(references), names, output)
    random = np.random.default_rng(0)
    moved = np.concatenate([rows * random.uniform(0.9, 1.1, rows.shape) for _ in range(5000 // len(rows))])
    return compiled, [dict(zip(names, row, strict=True)) for row in moved.tolist()]


def trees() -> tuple[Compiled, list[dict[str, float | None]]]:
    """Return 300 trees × depth 6 on 50 features with 1,000 references, and rows outside the training set."""
    names, rows = [f"f{i}" for i in range(50)], data()[2]
    compiled = decided(trained("xgboost"), TreeShap(rows[:1000]), names, "probabilities[1]")
    instances = [[None if v != v else v for v in row] for row in rows[1000:].tolist()]
    return compiled, [dict(zip(names, row, strict=True)) for row in instances]


SUBJECTS: dict[str, Callable[[], tuple[Compiled, list[Any]]]] = {"credit": credit, "trees": trees}


def paired(model: str, instances: Sequence[Mapping[str, Any]], state: Path) -> Iterator[dict[str, float]]:
    """Yield seconds of either verb for each instance, and of SYNC; the order of the verbs alternates."""
    with httpx.Client(timeout=60) as client, (state / SYNC).open("ab", buffering=0) as file:
        for i, instance in enumerate(instances):
            seconds = {}
            for verb in VERBS[:: 1 if i % 2 else -1]:
                time.sleep(REST_S)
                began = time.perf_counter()
                answer = client.post(f"{model}:{verb}", json={"instances": [instance]})
                seconds[verb] = time.perf_counter() - began
                answer.raise_for_status()
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            seconds[SYNC] = time.perf_counter() - began
            if i >= WARM:
                yield seconds


def measured(name: str, audits: Sequence[str], count: int) -> Iterator[str]:
    """Return a line for each trail."""
    compiled, instances = SUBJECTS[name]()
    requests = list(itertools.islice(itertools.cycle(instances), WARM + count))
    with tempfile.TemporaryDirectory() as repository:
        compiled.write(repository, name)
        for audit in audits:
            with tempfile.TemporaryDirectory() as state:
                trail = {} if audit == SQLITE else {"RATIONALE_AUDIT": audit}
                served = gateway(Path(repository), "--grpc-port", "off", RATIONALE_STATE=state, **trail)
                with served as server:
                    pairs = list(paired(f"http://{server.http}/v1/models/{name}", requests, Path(state)))
            times = {each: [pair[each] * 1e3 for pair in pairs] for each in (*VERBS, SYNC)}
            low, added, high = quartiles(np.subtract(times["decide"], times["explain"]).tolist())
            medians = "".join(f"{np.median(times[verb]):10.2f}" for verb in VERBS)
            spread = f"{added:10.2f} {f'[{low:.2f}, {high:.2f}]':16}{np.median(times[SYNC]):8.2f}"
            yield f"{name:10}{audit.partition(':')[0]:12}{medians}{spread}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each model and trail."""
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--audit", default=f"{OFF},{SQLITE}", help="off, sqlite, a database's URL; by commas")
    parser.add_argument("--instances", type=positive, default=200, help="of each line (200)")
    options = parser.parse_args(argv)
    print(f"{'':10}{'audit':12}{'explain':>10}{'decide':>10}{'added':>10} {'quartiles':16}{'sync':>8}  ms")
    with reporting_errors():
        for name in options.models or SUBJECTS:
            for line in measured(name, options.audit.split(","), options.instances):
                print(line, flush=True)


if __name__ == "__main__":
    main()
