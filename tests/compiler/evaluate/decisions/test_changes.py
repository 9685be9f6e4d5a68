"""Changes of attributions between two entries, whose features or groups may be others."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from rationale.evaluate.decisions.difference import FeatureChange, _base_change, _changes


def rows(attributions: Mapping[str, list[float]], count: int = 2, base: float | None = None) -> list[Any]:
    return [
        SimpleNamespace(
            explained=SimpleNamespace(
                attributions={name: values[i] for name, values in attributions.items()}, base_value=base
            )
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, {"a": (0, 0)}),
        ({"a": [1, 2]}, {"a": [2, 1]}, {"a": (0, 1)}),
        # what one of them lacks counts as 0 there
        ({"a": [1, 2], "b": [3, -1]}, {"a": [1, 2]}, {"b": (-1, 2), "a": (0, 0)}),
        ({"a": [1, 2]}, {"a": [1, 2], "b": [3, -1]}, {"b": (1, 2), "a": (0, 0)}),
        ({"a": [4, 4]}, {"b": [1, 1]}, {"a": (-4, 4), "b": (1, 1)}),
        # the largest first, whatever its sign; ties in the order of the old entry, then of the new one
        ({"a": [0, 0], "b": [0, 0]}, {"b": [-3, -3], "a": [2, 2]}, {"b": (-3, 3), "a": (2, 2)}),
        ({"a": [1, 1], "b": [1, 1]}, {"b": [0, 0], "a": [2, 2]}, {"a": (1, 1), "b": (-1, 1)}),
    ],
)
def test_a_feature_that_one_entry_lacks_is_compared(
    old: dict[str, list[float]], new: dict[str, list[float]], changes: dict[str, tuple[float, float]]
) -> None:
    pairs = list(zip(rows(old), rows(new), strict=True))
    assert _changes(pairs) == [FeatureChange(name, *numbers) for name, numbers in changes.items()]


@pytest.mark.parametrize(
    ("old", "new", "change"), [(1, 3, 2), (3, 1, -2), (0, 0, 0), (None, 1, None), (1, None, None)]
)
def test_base_values_are_compared_if_both_have_one(
    old: float | None, new: float | None, change: float | None
) -> None:
    pairs = list(zip(rows({}, base=old), rows({}, base=new), strict=True))
    assert _base_change(pairs) == change
