"""A workload in its folder, and what must be answered: compared while the load is on."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from loadtests.load.plan import Plan
from loadtests.load.questions import EXPLAIN, PREDICT, ROUTES, SUFFIX, Arrays, Question, WrongAnswerError

INPUT, OUTPUT, ATTRIBUTIONS = "x", "y", "x_attributions"
BASE, EXPLAINED = "base_value", "explained_value"
MODEL = "network"
REPOSITORY, NETWORK = "repository", "network.pt"
ROWS, REFERENCES, EXPECTED = "rows.npy", "references.npy", "expected.npz"
PATHS = {verb: f"/v2/models/{MODEL}/{route}" for verb, route in ROUTES.items()}
ENTRIES = {PREDICT: MODEL, EXPLAIN: MODEL + SUFFIX}


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
        if self.label == EXPLAIN and ATTRIBUTIONS not in self.due:
            base, added, explained = (_given(output, name) for name in (BASE, ATTRIBUTIONS, EXPLAINED))
            total = base + added.sum(axis=tuple(range(2, added.ndim)))
            if not np.abs(total - explained).max() <= self.tolerance[OUTPUT]:
                raise WrongAnswerError(f"{ATTRIBUTIONS} do not add up")


def _given(output: Callable[[str], np.ndarray | None], name: str) -> np.ndarray:
    given = output(name)
    if given is None:
        raise WrongAnswerError(f"{name} is missing")
    return given


def compared(plan: Plan, verb: str) -> list[Compared]:
    """A question about as many rows as the plan says from each row on, around the end."""
    rows = np.load(plan.folder / ROWS)
    with np.load(plan.folder / plan.expected) as file:
        wanted = {name: file[name] for name in file.files if verb == EXPLAIN or name == OUTPUT}
    wanted = {name: wanted[name] for name in (OUTPUT, ATTRIBUTIONS) if name in wanted}
    tolerance = {name: plan.tolerance * float(np.abs(values).max()) for name, values in wanted.items()}
    found = []
    for first in range(len(rows)):
        at = (first + np.arange(plan.rows)) % len(rows)
        due = {name: values[at] for name, values in wanted.items()}
        found.append(Compared(verb, PATHS[verb], ENTRIES[verb], {INPUT: rows[at]}, (), due, tolerance))
    return found
