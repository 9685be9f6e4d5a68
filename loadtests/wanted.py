"""What answers must be: compared while the load is on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from loadtests.plan import EXPLAIN, PREDICT

INPUT, OUTPUT, ATTRIBUTIONS = "x", "y", "x_attributions"
MODEL = "network"
# Files of a prepared workload.
REPOSITORY, NETWORK, TREES = "repository", "network.pt", "trees.json"
ROWS, REFERENCES, EXPECTED = "rows.npy", "references.npy", "expected.npz"
COMPARED = {PREDICT: OUTPUT, EXPLAIN: ATTRIBUTIONS}
PATHS = {PREDICT: f"/v2/models/{MODEL}/infer", EXPLAIN: f"/v2/models/{MODEL}/explain"}
ENTRIES = {PREDICT: MODEL, EXPLAIN: f"{MODEL}_explain"}  # over gRPC
# Of the largest value: float32 against float64, through the fifty layers of the deepest network here.
TOLERANCE = 1e-3

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Wanted:
    """Rows to ask about, [N, …], and what must be answered, by output: [N, …]."""

    rows: np.ndarray
    expected: Arrays

    @classmethod
    def read(cls, folder: Path, expected: str) -> "Wanted":
        """Of a prepared workload; `expected` is the name of the file with the answers due."""
        with np.load(folder / expected) as file:
            return cls(np.load(folder / ROWS), {name: file[name] for name in file.files})

    def places(self, first: int, count: int) -> np.ndarray:
        """Indices of `count` rows from `first` on, around the end."""
        return (first + np.arange(count)) % len(self.rows)

    def fits(self, verb: str, first: int, count: int, answer: Arrays) -> bool:
        """Whether `answer` to `count` rows from `first` on is right; an explanation's prediction too."""
        places = self.places(first, count)
        names = {OUTPUT, COMPARED[verb]}
        return names <= answer.keys() and all(self._equal(name, places, answer[name]) for name in names)

    def _equal(self, name: str, places: np.ndarray, given: np.ndarray) -> bool:
        expected = self.expected[name][places]
        if given.shape != expected.shape:
            return False
        return bool(np.abs(given - expected).max() <= TOLERANCE * np.abs(self.expected[name]).max())


def rest_body(x: np.ndarray) -> bytes:
    """An OIP request [N, …] as JSON, the same for every system."""
    tensor = {"name": INPUT, "datatype": "FP32", "shape": x.shape, "data": np.ascontiguousarray(x).ravel()}
    return orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)


def rest_answer(body: bytes) -> Arrays:
    """Raises KeyError, ValueError: no OIP answer."""
    return {
        tensor["name"]: np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        for tensor in orjson.loads(body)["outputs"]
    }
