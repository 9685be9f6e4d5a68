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
class Compared(Question):
    """A question with the answers that are due, and by how much each may differ.

    Where no attributions are due, because explainers change, they must add up to the explained value.
    """

    due: Arrays = field(default_factory=dict)
    tolerance: dict[str, float] = field(default_factory=dict)

    def check(self, output: Callable[[str], np.ndarray | None]) -> None:
        for name, due in self.due.items():
            given = _given(output, name)
            if given.shape != due.shape:
                raise WrongAnswerError(f"{name} has another shape")
            if not np.abs(given - due).max() <= self.tolerance[name]:
                raise WrongAnswerError(f"{name} differs")
        if self.label.startswith(EXPLAIN) and ATTRIBUTIONS not in self.due:
            base, added, explained = (_given(output, name) for name in (BASE, ATTRIBUTIONS, EXPLAINED))
            total = base + added.sum(axis=tuple(range(2, added.ndim)))
            if not np.abs(total - explained).max() <= self.tolerance[OUTPUT]:
                raise WrongAnswerError(f"{ATTRIBUTIONS} do not add up")


def _given(output: Callable[[str], np.ndarray | None], name: str) -> np.ndarray:
    given = output(name)
    if given is None:
        raise WrongAnswerError(f"{name} is missing")
    return given


def write_expected(path: Path, rows: np.ndarray, due: Arrays, tolerance: float) -> None:
    """Write rows and the answers that are due to them; `tolerance` is a share of the largest value."""
    arrays: dict[str, Any] = {INPUT: rows, TOLERANCE: np.float64(tolerance), **due}
    np.savez(path, **arrays)


def compared(path: str | Path, model: str, rows: int) -> dict[str, list[Question]]:
    """Return questions by verb: one from each row of the file on, about `rows` rows, wrapping at the end.

    `write_expected` writes the file: rows, answers, and the tolerance as a share of the largest answer.
    """
    with np.load(path) as file:
        inputs, due = file[INPUT], {name: file[name] for name in (OUTPUT, ATTRIBUTIONS) if name in file}
        tolerance = {name: float(file[TOLERANCE] * np.abs(values).max()) for name, values in due.items()}
    found: dict[str, list[Question]] = {PREDICT: [], EXPLAIN: []}
    for first in range(len(inputs)):
        at = (first + np.arange(rows)) % len(inputs)
        for verb, entry, names in ((PREDICT, model, {OUTPUT}), (EXPLAIN, model + SUFFIX, due.keys())):
            own = {name: due[name][at] for name in due if name in names}
            path_ = f"/v2/models/{model}/{ROUTES[verb]}"
            found[verb].append(
                Compared(f"{verb} {model}", path_, entry, {INPUT: inputs[at]}, (), own, tolerance)
            )
    return found
