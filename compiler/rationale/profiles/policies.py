"""Populations that a decision profile's policy compares an applicant with, and draws from them.

The comment 9(b)(2)-5 on Regulation B, 12 CFR 1002.9, names those at or slightly above the passing score, and
all applicants. A draw is a systematic sample along the score (Madow and Madow, 1944): it has one of each K-th
part of the rows, in the order of their scores, so that deciles keep their shares, and the mean stays.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.decisions.decide import meets_condition, outcome_of
from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.schema.profile import DecisionProfile

BAND = "10%"
_BAND = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<percent>%)?")


@dataclass(frozen=True)
class Band:
    """The width of "near the threshold": a difference of scores, or a share of those who pass."""

    width: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class ScoredRows:
    """Rows of a table with a model's scores.

    Attributes:
        scores: [rows], as the decision profile takes them.
        knocked_out: [rows], whether a knock-out of the profile declines a row whatever its score.
    """

    scores: np.ndarray
    knocked_out: np.ndarray

    def outcomes(self, profile: DecisionProfile) -> np.ndarray:
        """Return [rows]: "approve", "refer" or "decline"."""
        outcomes = [outcome_of(profile, score) for score in self.scores.tolist()]
        return np.where(self.knocked_out, "decline", outcomes)


def parse_band(text: str) -> Band:
    """Parse "0.05" or "10%"; raise InvalidOptionError for anything else."""
    match = _BAND.fullmatch(text.strip())
    number = 0.0 if match is None else float(match["number"])
    if match is None or not number or (match["percent"] and number > 100):
        raise InvalidOptionError(
            f"--band {text!r}: give a difference of scores such as 0.05, or a share of the rows that pass "
            f"such as {BAND}."
        )
    return Band(share=number / 100) if match["percent"] else Band(width=number)


def population(profile: DecisionProfile, policy: str, scored: ScoredRows, band: Band) -> np.ndarray:
    """Return the rows of a policy, by their indices in the order of the scores.

    Rows that a person decides about count as near the threshold too; they are not approved.

    Raises:
        InvalidOptionError: if the policy is "custom".
        InvalidReferencesError: if none of the rows belongs to it.
    """
    if policy == "custom":
        raise InvalidOptionError(
            "the policy custom has no population to draw from: give --policy near_threshold, "
            "all_applicants or approved, or put one of them into the decision profile."
        )
    rows = np.asarray(np.argsort(scored.scores, kind="stable"))
    if policy == "all_applicants":
        return rows
    without_referral = profile.model_copy(update={"refer": None}) if policy == "near_threshold" else profile
    passed = np.asarray(rows[scored.outcomes(without_referral)[rows] == "approve"])
    if not len(passed):
        raise InvalidReferencesError(
            f"no row is {policy}: an applicant passes with a score {describe_passing(profile)}, and the "
            f"{len(rows)} rows have scores of {score_range(scored.scores)}. Give other rows, or check the "
            "profile's output, threshold and adverse side."
        )
    if policy == "approved":
        return passed
    distances = np.abs(scored.scores[passed] - profile.threshold)
    if band.share is not None:
        nearest = max(1, round(band.share * len(passed)))
        return np.asarray(passed[distances <= np.sort(distances)[nearest - 1]])
    near = np.asarray(passed[distances <= band.width])
    if not len(near):
        raise InvalidReferencesError(
            f"no row passes within {band.width:g} of the threshold: the nearest of {len(passed)} passing "
            f"rows is {distances.min():.3g} away. Give a wider --band, or a share such as {BAND}."
        )
    return near


def describe_passing(profile: DecisionProfile) -> str:
    """Describe the scores that pass."""
    side = "most" if profile.adverse == "above" else "least"
    return f"of at {side} {profile.threshold:g}"


def knocked_out(profile: DecisionProfile, count: int, values: Mapping[str, Sequence[Any]]) -> np.ndarray:
    """Return [count]: whether a knock-out of the profile fits a row.

    Args:
        values: values of rows, by feature; knock-outs of others fit none.
    """
    declined = np.zeros(count, bool)
    for rule in profile.knock_outs:
        if rule.feature in values:
            declined |= [meets_condition(rule, value) for value in values[rule.feature]]
    return declined


def draw_systematic(rows: np.ndarray, k: int, seed: int, strata: Sequence[Any] | None = None) -> np.ndarray:
    """Draw K of the rows, at even steps from a random start.

    Args:
        rows: indices in the order of the scores, K or more.
        strata: a value for every row of the table: rows with equal values stand together, so that each
            stratum has its share of the K.
    """
    if strata is not None:
        rows = np.array(sorted(rows.tolist(), key=lambda row: str(strata[row])), int)
    start = np.random.default_rng(seed).random()
    return np.asarray(rows[((np.arange(k) + start) * len(rows) / k).astype(int)])


def check_count(k: int, rows: np.ndarray, policy: str) -> None:
    """Raise InvalidReferencesError if there are fewer than K rows."""
    if k > len(rows):
        wider = " Give a wider --band," if policy == "near_threshold" else " Give"
        raise InvalidReferencesError(
            f"--count {k}: {len(rows)} rows are {policy}.{wider} more rows or a smaller count, or use all "
            "of them (--by whole)."
        )


def score_range(scores: np.ndarray) -> str:
    """Return the least and the largest score."""
    return f"{scores.min():.4g} to {scores.max():.4g}"
