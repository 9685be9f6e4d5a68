"""Weights of a table's rows, however small: what counts as equal, and where draws take them."""

from collections.abc import Sequence

import numpy as np
import pytest

from rationale.references.draws import bootstrap_samples
from rationale.references.reference_set import prepare
from rationale.references.request_time import pair_references, repeat_references
from rationale.schema.manifest import OpenReferenceInputs, TensorSpec
from rationale.tables.files import Table

ROWS = np.arange(4.0)[:, None]


@pytest.mark.parametrize(
    ("weights", "are_equal"),
    [
        (None, True),
        ([1, 1, 1, 1], True),
        ([0.25] * 4, True),
        ([1e-9] * 4, True),
        ([2, 1, 1, 1], False),
        ([2e-4, 1e-4, 1e-4, 1e-4], False),  # shares of ten thousand rows
        ([2e-12, 1e-12, 1e-12, 1e-12], False),
        ([0, 0, 0, 1], False),
    ],
)
def test_weights_are_equal_whatever_their_size(weights: Sequence[float] | None, are_equal: bool) -> None:
    table = Table({None: ROWS}, weights=None if weights is None else np.array(weights, np.float64))
    unequal = table.unequal_weights
    assert (unequal is None) is are_equal
    if unequal is not None:
        assert unequal.tolist() == weights


@pytest.mark.parametrize(
    ("weights", "possible"),
    [
        (None, {0, 1, 2, 3}),
        ([1, 1, 1, 1], {0, 1, 2, 3}),
        ([0, 2, 0, 1], {1, 3}),
        ([0, 0, 1e-9, 0], {2}),
    ],
)
def test_draws_are_of_the_rows_that_have_weight(weights: Sequence[float] | None, possible: set[int]) -> None:
    drawn = bootstrap_samples(ROWS, weights, 200, 0)
    assert {int(row) for sample in drawn for row in sample[:, 0]} == possible
    assert all(len(sample) == len(ROWS) for sample in drawn)


def test_draws_are_in_proportion_to_weights() -> None:
    drawn = np.concatenate(bootstrap_samples(ROWS, [4, 3, 2, 1], 2000, 1))[:, 0]
    shares = np.bincount(drawn.astype(int)) / len(drawn)
    assert shares == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.03)  # six standard errors


def _spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, datatype="FP32", shape=shape)


SPEC = OpenReferenceInputs(
    count=3, inputs={"x": _spec("x_references", 3, 2)}, weights=_spec("reference_weights", 3)
)


@pytest.mark.parametrize(
    ("count", "weights", "shares"),
    [
        (1, None, [1, 0, 0]),
        (2, None, [0.5, 0.5, 0]),
        (2, [3, 1], [0.75, 0.25, 0]),
        (2, [0, 1], [0, 1, 0]),
        (3, None, [1 / 3] * 3),
        (3, [0, 1, 3], [0, 0.25, 0.75]),
    ],
)
def test_copies_that_fill_a_reference_set_up_have_no_weight(
    count: int, weights: Sequence[float] | None, shares: Sequence[float]
) -> None:
    given = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    fed = repeat_references(SPEC, {"x": given}, None if weights is None else np.array(weights), 4)
    assert fed["reference_weights"] == pytest.approx(np.array([shares] * 4))
    rows = fed["x_references"]
    assert rows.shape == (4, 3, 2)
    for row in rows:
        assert (row[:count] == given).all()
        assert (row[count:] == given[-1]).all()


def test_each_row_has_its_only_reference_first() -> None:
    given = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    fed = pair_references(SPEC, {"x": given})
    assert fed["reference_weights"].tolist() == [[1, 0, 0]] * 4
    assert (fed["x_references"] == given[:, None]).all()


def test_other_rows_or_weights_have_another_digest() -> None:
    """The digest is the key of cached explanations, and distinguishes entries."""
    given: list[tuple[str, np.ndarray, type, list[float] | None]] = [
        ("x", ROWS, np.float32, None),
        ("x", ROWS, np.float32, [1, 1, 1, 2]),
        ("x", ROWS, np.float32, [2, 1, 1, 1]),
        ("x", ROWS[::-1], np.float32, None),
        ("x", ROWS[:3], np.float32, None),
        ("x", ROWS + 1e-6, np.float32, None),
        ("x", ROWS, np.float64, None),
        ("x", ROWS, np.int64, None),
        ("y", ROWS, np.float32, None),
    ]
    digests = [
        prepare({name: rows}, weights, {name: ((1, 1), np.dtype(dtype))}).digest
        for name, rows, dtype, weights in given
    ]
    assert len(set(digests)) == len(given)
    scaled = prepare(ROWS, [0.5, 0.5, 0.5, 1], {"x": ((1, 1), np.dtype(np.float32))})
    assert scaled.digest == digests[1]  # the same shares


@pytest.mark.parametrize(
    ("weights", "worth"),
    [
        (None, 4.0),
        ([1, 1, 1, 1], 4.0),
        ([2, 1, 1, 0], 16 / 6),
        ([0, 0, 5, 0], 1.0),
        ([0.5, 0.3, 0.1, 0.1], 1 / 0.36),
    ],
)
def test_rows_are_worth_fewer_of_equal_weight(weights: list[float] | None, worth: float) -> None:
    prepared = prepare(np.array([[0.0], [1.0], [1.0], [2.0]]), weights, {"x": ((1, 1), np.dtype(np.float32))})
    assert prepared.effective == pytest.approx(worth)  # of the rows as given, though equal ones are merged
    assert prepared.given_rows == 4
    assert prepared.count <= 3
