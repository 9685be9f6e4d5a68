"""Comparison of the principal reasons of declines with those that Shapley values give."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.decisions.decide import outcome_of, principal_reasons
from rationale.decisions.rows import attribution_keys, explained_rows, profile_of
from rationale.evaluate.explained_model import slices
from rationale.evaluate.shapley import ReasonAgreement, ShapleySample


def compare_reasons(
    compiled: Compiled, inputs: Mapping[str, np.ndarray], sampled: Sequence[ShapleySample]
) -> ReasonAgreement:
    """Compare reason codes, in order and in any order, on the rows that the score declines.

    Args:
        inputs: the model's inputs, [N, …] each.
        sampled: the Shapley values of each row.
    """
    manifest = compiled.manifest
    profile, keys = profile_of(manifest).profile, attribution_keys(manifest)
    pairs = []
    for batch in slices(len(sampled), manifest.measured.max_batch):
        answer = compiled.run({tensor: rows[batch] for tensor, rows in inputs.items()})
        for row, shapley in zip(explained_rows(manifest, answer), sampled[batch], strict=True):
            if outcome_of(profile, row.score) == "decline":
                other = replace(row, attributions=dict(zip(keys, shapley.values[0].tolist(), strict=True)))
                reasons = (principal_reasons(profile, explained, {}) for explained in (row, other))
                pairs.append(tuple([reason.code for reason in codes] for codes in reasons))
    if not pairs:
        return ReasonAgreement(0, None, None)
    return ReasonAgreement(
        declines=len(pairs),
        same_list=float(np.mean([ours == theirs for ours, theirs in pairs])),
        same_set=float(np.mean([{*ours} == {*theirs} for ours, theirs in pairs])),
    )
