"""Stability of principal reasons if the same model is explained by other references."""

from collections.abc import Mapping, Sequence

from rationale.decisions.decide import NoReasonsError, principal_reasons
from rationale.decisions.rows import ExplainedRow
from rationale.schema.manifest import Comparison, EmbeddedProfile, Manifest

DRAWS = "draws"  # their common name
Codes = tuple[str, ...]


def with_profile(manifest: Manifest, embedded: EmbeddedProfile) -> Manifest:
    """Return a comparison's manifest with the deciding entry's profile: its own entry has none."""
    return manifest.model_copy(update={"decision": embedded})


def reason_codes(embedded: EmbeddedProfile, row: ExplainedRow, name: str) -> Codes:
    """Return the codes of the principal reasons that an explained row would have, largest first.

    Raises:
        NoReasonsError: if its attributions do not add up.
    """
    if row.gap is not None and not abs(row.gap) <= embedded.tolerance:
        raise NoReasonsError(
            f"the stability of the reasons is unknown: the attributions of {name} miss the score by "
            f"{row.gap:.2g}, more than the decision profile's tolerance of {embedded.tolerance:.2g}"
        )
    return tuple(reason.code for reason in principal_reasons(embedded.profile, row, {}))


def reason_survival(code: str, reasons_by: Sequence[tuple[Comparison, Codes]]) -> Mapping[str, bool | float]:
    """Return the other baselines by which a code is (or is no) principal reason, and its share of draws."""
    stays: dict[str, bool | float] = {
        comparison.name: code in codes for comparison, codes in reasons_by if comparison.kind == "baseline"
    }
    drawn = [code in codes for comparison, codes in reasons_by if comparison.kind == "draw"]
    return stays | ({DRAWS: sum(drawn) / len(drawn)} if drawn else {})
