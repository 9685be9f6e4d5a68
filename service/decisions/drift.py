"""How far decisions drift from the references: the population stability of a window, as metrics."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.decisions.drift import stability, values_by
from compiler.decisions.rows import decided_of
from compiler.manifest import Classes, Manifest
from service.observability.metrics import Metrics

WINDOW = 1000  # decisions
LEAST = 200  # figures of fewer decisions are 0: chance alone would make 9/200
REFRESH_S = 1.0  # counting a decision takes microseconds, the figures of 100 features a millisecond


class Drift:
    """Windows of the last decisions of each model, in this process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._windows: dict[str, _Window] = {}

    def observe(self, manifest: Manifest, answers: Sequence[Mapping[str, Any]]) -> None:
        """Count members of `decisions`; where another entry decides, the model's window begins anew."""
        decided, model = decided_of(manifest), manifest.model
        made_by = (manifest.digests.explanation, decided.digest)
        window = self._windows.get(model)
        if window is None or window.made_by != made_by:
            if window is not None:
                self._metrics.drifted(model, 0, dict.fromkeys(window.classes, 0.0))
            window = self._windows[model] = _Window(made_by, decided.classes)
        if not window.classes:
            return
        for answer in answers:
            window.add(answer["score"], answer["attributions"])
        now = time.monotonic()
        if now >= window.due_s:
            window.due_s = now + REFRESH_S
            self._metrics.drifted(model, len(window), window.figures())


class _Window:
    """The classes of the last decisions, and how many of them are in each."""

    def __init__(self, made_by: tuple[str, str], classes: Mapping[str, Classes]) -> None:
        self.made_by, self.classes, self.due_s = made_by, classes, 0.0
        self._keys = tuple(classes)
        most = max((len(one.bounds) for one in classes.values()), default=0)
        self._bounds = np.full((len(classes), most), np.inf)
        for row, one in zip(self._bounds, classes.values(), strict=True):
            row[: len(one.bounds)] = one.bounds
        self._counts = np.zeros((len(classes), most + 1), int)
        self._places = np.arange(len(classes))
        self._last: deque[np.ndarray] = deque()

    def __len__(self) -> int:
        return len(self._last)

    def add(self, score: float, attributions: Mapping[str, float]) -> None:
        values = np.array(values_by(self._keys, score, attributions))
        classes = (values[:, None] > self._bounds).sum(axis=1)
        self._counts[self._places, classes] += 1
        self._last.append(classes)
        if len(self._last) > WINDOW:
            self._counts[self._places, self._last.popleft()] -= 1

    def figures(self) -> dict[str, float]:
        """Return figures by the key of the classes; 0 as long as there are too few decisions."""
        if len(self) < LEAST:
            return dict.fromkeys(self.classes, 0.0)
        counted = zip(self.classes.items(), self._counts, strict=True)
        return {key: stability(one, row[: len(one.shares)]) for (key, one), row in counted}
