"""Stability of reasons under the compiled comparisons, computed in the same call."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rationale.decisions.decide import NoReasonsError
from rationale.decisions.rows import explained_rows, profile_of
from rationale.decisions.stability import Codes, reason_codes, reason_survival, with_profile
from rationale.portfolios.decisions import Further, FurtherColumn
from rationale.schema.manifest import Comparison, Manifest
from rationale_service.decisions.options.options import Plane
from rationale_service.errors import BrokenExplanationError, InvalidInputError, UndecidedError
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors

_AT_ONCE = 32  # rows per turn of the event loop
Decisions = Sequence[Mapping[str, Any]]


def demand(manifest: Manifest, *_: object) -> None:
    """Raise InvalidInputError if the model has no comparisons from which to compute stability."""
    if not profile_of(manifest).comparisons:
        raise InvalidInputError(
            f"stability: model '{manifest.model}' was compiled without comparisons. Compile it with "
            "--compare all_applicants=FILE or --draws 10, or leave stability out"
        )


def search(plane: Plane) -> "StabilitySearch":
    return StabilitySearch(plane)


def columns(_: Manifest) -> Further:
    return (FurtherColumn("reason_survival", False, _survivals),)


def _survivals(decision: Mapping[str, Any]) -> str | None:
    """Return the survival of each code as JSON; None if no reason has one."""
    survivals = {each["code"]: each["survival"] for each in decision["reasons"] if "survival" in each}
    return orjson.dumps(survivals).decode() if survivals else None


class StabilitySearch:
    """Search for the reasons that hold for other references too."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def add(
        self, entry: Entry, _: object, inputs: Tensors, decisions: Decisions, deadline_s: float
    ) -> list[dict[str, Any]]:
        """Return the decisions with `survival`: see `_with_survival`."""
        assert entry.manifest is not None  # noqa: S101 (it decides)
        return await _with_survival(self._plane, entry.manifest, inputs, decisions, deadline_s)

    def stop(self) -> None:
        pass


async def _with_survival(
    plane: Plane, manifest: Manifest, inputs: Tensors, decisions: Decisions, deadline_s: float
) -> list[dict[str, Any]]:
    """Return the decisions, with `survival` in each reason that has an attribution.

    Args:
        inputs: inputs of the model, [N, …] each; a row for each decision.

    Raises:
        BrokenExplanationError: if a comparison is not served.
        UndecidedError: if attributions of a comparison are not complete.
        ServiceError: if `Plane.infer` raises it.
    """
    decided = profile_of(manifest)
    attributed = [i for i, item in enumerate(decisions) if any(map(_is_attributed, item["reasons"]))]
    codes_by_row: dict[int, list[tuple[Comparison, Codes]]] = {i: [] for i in attributed}
    if attributed:
        chosen = {name: array[attributed] for name, array in inputs.items()}
        for item in decided.comparisons:
            entry, comparison_manifest = _entry_of_comparison(plane, manifest, item)
            answers = await plane.infer(entry, chosen, None, deadline_s, by_row=True)
            explained = explained_rows(with_profile(comparison_manifest, decided), answers)
            for place, (i, row) in enumerate(zip(attributed, explained, strict=True)):
                try:
                    codes_by_row[i].append((item, reason_codes(decided, row, item.name)))
                except NoReasonsError as error:
                    raise UndecidedError(f"instances[{i}]: {error}") from error
                if place % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
    return [
        {**item, "reasons": [_with(reason, codes_by_row.get(i, ())) for reason in item["reasons"]]}
        for i, item in enumerate(decisions)
    ]


def _is_attributed(reason: Mapping[str, Any]) -> bool:
    """Tell whether a reason has an attribution; a knock-out's has none and holds for any references."""
    return reason["attribution"] is not None


def _with(reason: Mapping[str, Any], comparisons: Sequence[tuple[Comparison, Codes]]) -> dict[str, Any]:
    return (
        {**reason, "survival": reason_survival(reason["code"], comparisons)}
        if _is_attributed(reason)
        else {**reason}
    )


def _entry_of_comparison(plane: Plane, manifest: Manifest, comparison: Comparison) -> tuple[Entry, Manifest]:
    entry = plane.repository.entries.get(comparison.entry)
    manifest_of_comparison = None if entry is None else entry.manifest
    if (
        entry is None
        or manifest_of_comparison is None
        or manifest_of_comparison.digests.explanation != comparison.explanation
    ):
        raise BrokenExplanationError(
            f"stability: the comparison '{comparison.name}' of model '{manifest.model}', entry "
            f"'{comparison.entry}', is not loaded: load it, or compile the model again"
        )
    return entry, manifest_of_comparison
