"""Tests over many values, some of which are left to `make test-full`."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def grid(names: str, *axes: Collection[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by every combination: each value in every run, each combination in `make test-full`.

    Args:
        names: the arguments, one for each axis, with commas between them.
        axes: the values of each.
    """
    values = [list(axis) for axis in axes]
    in_every_run = {tuple(i % len(axis) for axis in values) for i in range(max(map(len, values)))}
    parameters = []
    for places in itertools.product(*(range(len(axis)) for axis in values)):
        chosen = [axis[i] for axis, i in zip(values, places, strict=True)]
        name = "-".join(getattr(value, "__name__", str(value)) for value in chosen)
        parameters.append(
            pytest.param(*chosen, marks=() if places in in_every_run else pytest.mark.full, id=name)
        )
    return pytest.mark.parametrize(names, parameters)


def each(name: str, values: Iterable[str], *, in_every_run: Collection[str]) -> pytest.MarkDecorator:
    """Parametrise a test by every value: some in every run, the others in `make test-full`."""
    parameters = [pytest.param(v, marks=() if v in in_every_run else pytest.mark.full) for v in values]
    return pytest.mark.parametrize(name, parameters)
