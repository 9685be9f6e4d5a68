"""Comparison of the principal reasons of declines with those that Shapley values give."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.decisions.decide import outcome_of, principal_reasons
from rationale.decisions.rows import attribution_keys, explained_rows, profile_of
from rationale.evaluate.explained_model import slices
from rationale.evaluate.shapley import Reasons, Sampled


def compare_reasons(
    compiled: Compiled, inputs: Mapping[str, np.ndarray], sampled: Sequence[Sampled]
) -> Reasons:
    """Compare reason codes, in order and in any order, on the rows that the score declines.

    Args:
        inputs: the model's inputs, [N, …] each.
        sampled: the Shapley values of each row.
    """
    manifest = compiled.manifest
    profile, keys = profile_of(manifest).profile, attribution_keys(manifest)
    pairs = []
    for part in slices(len(sampled), manifest.measured.max_batch):
        answer = compiled.run({tensor: rows[part] for tensor, rows in inputs.items()})
        for row, due in zip(explained_rows(manifest, answer), sampled[part], strict=True):
            if outcome_of(profile, row.score) == "decline":
                other = replace(row, attributions=dict(zip(keys, due.values[0].tolist(), strict=True)))
                codes = (
                    [reason.code for reason in principal_reasons(profile, one, {})] for one in (row, other)
                )
                pairs.append(tuple(codes))
    if not pairs:
        return Reasons(0, None, None)
    return Reasons(
        declines=len(pairs),
        same_list=float(np.mean([ours == due for ours, due in pairs])),
        same_set=float(np.mean([{*ours} == {*due} for ours, due in pairs])),
    )
