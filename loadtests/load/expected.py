"""A workload's folder and its expected answers, which are compared during the load."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.load.questions import EXPLAIN, PREDICT, ROUTES, SUFFIX, Arrays, Question, WrongAnswerError

INPUT, OUTPUT, ATTRIBUTIONS = "x", "y", "x_attributions"
BASE, EXPLAINED = "base_value", "explained_value"
TOLERANCE = "tolerance"
MODEL = "network"
PATHS = {verb: f"/v2/models/{MODEL}/{route}" for verb, route in ROUTES.items()}
REPOSITORY, NETWORK = "repository", "network.pt"
REFERENCES, EXPECTED = "references.npy", "expected.npz"


@dataclass(frozen=True)
class ComparedQuestion(Question):
    """A question with its expected answers and their tolerances.

    Where no attributions are due, because explainers change, they must add up to the explained value.
    """

    expected: Arrays = field(default_factory=dict)
    tolerance: dict[str, float] = field(default_factory=dict)

    def check(self, output: Callable[[str], np.ndarray | None]) -> None:
        for name, expected in self.expected.items():
            actual = _output_of(output, name)
            if actual.shape != expected.shape:
                raise WrongAnswerError(f"{name} has another shape")
            if not np.abs(actual - expected).max() <= self.tolerance[name]:
                raise WrongAnswerError(f"{name} differs")
        if self.label.startswith(EXPLAIN) and ATTRIBUTIONS not in self.expected:
            base, added, explained = (_output_of(output, name) for name in (BASE, ATTRIBUTIONS, EXPLAINED))
            total = base + added.sum(axis=tuple(range(2, added.ndim)))
            if not np.abs(total - explained).max() <= self.tolerance[OUTPUT]:
                raise WrongAnswerError(f"{ATTRIBUTIONS} do not add up")


def _output_of(output: Callable[[str], np.ndarray | None], name: str) -> np.ndarray:
    array = output(name)
    if array is None:
        raise WrongAnswerError(f"{name} is missing")
    return array


def write_expected(path: Path, rows: np.ndarray, outputs: Arrays, tolerance: float) -> None:
    """Write rows and their expected answers; `tolerance` is a share of the largest value."""
    arrays: dict[str, Any] = {INPUT: rows, TOLERANCE: np.float64(tolerance), **outputs}
    np.savez(path, **arrays)


def compared(path: str | Path, model: str, rows: int) -> dict[str, list[Question]]:
    """Return questions by verb: one from each row of the file on, about `rows` rows, wrapping at the end.

    `write_expected` writes the file: rows, answers, and the tolerance as a share of the largest answer.
    """
    with np.load(path) as file:
        inputs, outputs = file[INPUT], {name: file[name] for name in (OUTPUT, ATTRIBUTIONS) if name in file}
        tolerance = {name: float(file[TOLERANCE] * np.abs(values).max()) for name, values in outputs.items()}
    questions: dict[str, list[Question]] = {PREDICT: [], EXPLAIN: []}
    for first in range(len(inputs)):
        row_numbers = (first + np.arange(rows)) % len(inputs)
        for verb, entry, names in ((PREDICT, model, {OUTPUT}), (EXPLAIN, model + SUFFIX, outputs.keys())):
            expected = {name: outputs[name][row_numbers] for name in outputs if name in names}
            path_ = f"/v2/models/{model}/{ROUTES[verb]}"
            questions[verb].append(
                ComparedQuestion(
                    f"{verb} {model}", path_, entry, {INPUT: inputs[row_numbers]}, (), expected, tolerance
                )
            )
    return questions
