"""Recourse of decisions, in the same call: a thread searches, and the data plane scores its rows."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from rationale.decisions.decide import Outcome
from rationale.decisions.decided import decide_rows
from rationale.decisions.rows import feature_values, profile_of
from rationale.portfolios.decisions import Further, recourse_columns
from rationale.recourse.applicant import changed_rows, places_of
from rationale.recourse.entry import RunEntry, recourse_finder
from rationale.recourse.recourse import RecourseFinder
from rationale.schema.manifest import Manifest
from rationale_service.decisions.options.options import Plane, Replay
from rationale_service.errors import DeadlineError, ForbiddenError
from rationale_service.repository.entry import Entry
from rationale_service.security.keys import RECOURSE, Caller
from rationale_service.tensors import Tensors

_KEPT = 8  # finders; one holds the leaves of a model's trees


@dataclass(frozen=True)
class _Answered:
    """The members of a decision that the search depends on."""

    decision: Outcome
    score: float
    explained_value: float


def demand(manifest: Manifest, caller: Caller | None, _: object = True) -> None:
    """Raise ForbiddenError if the profile says nothing of changes, and the caller may not see flip points."""
    if not profile_of(manifest).profile.actionable and caller is not None:
        try:
            caller.require(RECOURSE)
        except ForbiddenError as error:
            raise ForbiddenError(
                f"recourse: the decision profile of '{manifest.model}' does not say what an applicant can "
                f"change (actionable), and {error}",
                scope=" ".join(sorted(RECOURSE)),
            ) from error


def search(plane: Plane) -> "RecourseSearch":
    return RecourseSearch(plane)


def columns(manifest: Manifest) -> Further:
    return recourse_columns(manifest)


def differences(replay: Replay, recourse: Mapping[str, Any] | None) -> Iterator[str]:
    """Describe the plans of a decision's recourse on which the entry decides otherwise now.

    The search itself is not repeated: a plan holds if the entry still approves it, with the same score.
    """
    manifest, places = replay.manifest, places_of(replay.manifest)
    for i, plan in enumerate((recourse or {}).get("plans", ())):
        row = changed_rows(places, replay.inputs, [plan["changes"]])
        (decided,) = decide_rows(manifest, replay.run(row), [{**replay.values, **plan["changes"]}], row)
        tolerance = replay.tolerance * max(abs(plan["score"]), abs(profile_of(manifest).profile.threshold))
        is_same = decided.decision == plan["decision"] and decided.score is not None
        if not is_same or abs(decided.score - plan["score"]) > tolerance:
            yield (
                f"recourse.plans[{i}]: {plan['decision']} with score {plan['score']} was answered, "
                f"{decided.decision} with {decided.score} is computed"
            )


def recourse_of(
    finder: RecourseFinder,
    run: RunEntry,
    row: Tensors,
    values: Mapping[str, Any],
    decision: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the recourse of an answered decision, as it is answered."""
    answered = _Answered(decision["decision"], decision["score"], decision["explained_value"])
    return finder.find(run, row, values, answered).as_json()


class RecourseSearch:
    """The search for recourse of the entries that a data plane serves."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._finders = OrderedDict[Entry, RecourseFinder]()
        self._thread = ThreadPoolExecutor(1, "recourse")

    async def add(
        self,
        entry: Entry,
        rows: Sequence[Mapping[str, Any]],
        inputs: Tensors,
        decisions: Sequence[Mapping[str, Any]],
        deadline_s: float,
    ) -> list[dict[str, Any]]:
        """Return the decisions, each with its `recourse`.

        The rows take turns with those of other requests.

        Args:
            rows: the instances of the decisions.
            inputs: inputs of the model, [N, …] each; a row for each decision.

        Raises:
            DeadlineError: if the deadline passes.
            ServiceError: if `DataPlane.infer` raises it.
        """
        manifest = entry.manifest
        assert manifest is not None  # noqa: S101 (it decides)
        loop, answers = asyncio.get_running_loop(), list[dict[str, Any]]()
        plain = self._plane.repository.entries.get(manifest.model, entry)
        run = RunEntry(
            manifest,
            partial(self._run, loop, plain, deadline_s, by_row=False),
            partial(self._run, loop, entry, deadline_s, by_row=True),
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                finder = await loop.run_in_executor(self._thread, self._finder, entry, manifest)
                for i, (decision, values) in enumerate(
                    zip(decisions, feature_values(manifest, inputs, rows), strict=True)
                ):
                    row = {name: array[i : i + 1] for name, array in inputs.items()}
                    search = partial(recourse_of, finder, run, row, values, decision)
                    recourse = await loop.run_in_executor(self._thread, search)
                    answers.append({**decision, "recourse": recourse})
        except TimeoutError as error:
            raise DeadlineError(
                "the search for recourse took too long: send fewer rows, or leave recourse out"
            ) from error
        return answers

    def stop(self) -> None:
        """Begin no more searches."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _finder(self, entry: Entry, manifest: Manifest) -> RecourseFinder:
        """Return an entry's finder. Only the thread calls it.

        An entry that is read again is another one: its profile may be new where its graph is not.
        """
        if entry not in self._finders:
            self._finders[entry] = recourse_finder(
                manifest, onnx.load(entry.model_path, load_external_data=False)
            )
            while len(self._finders) > _KEPT:
                self._finders.popitem(last=False)
        self._finders.move_to_end(entry)
        return self._finders[entry]

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        entry: Entry,
        deadline_s: float,
        inputs: Mapping[str, np.ndarray],
        *,
        by_row: bool,
    ) -> Tensors:
        """Run an entry on the event loop, and wait for it in the thread."""
        running = self._plane.infer(entry, dict(inputs), None, deadline_s, by_row=by_row)
        return asyncio.run_coroutine_threadsafe(running, loop).result()
