"""Means and spread over many rows: of one answer or many, of several tables, of what is no table."""

import numpy as np
import pytest

from rationale import Compiled, DeepShap, Explanation, compile_model
from rationale.pictures.overview import DOTS, overviews
from tests.compiler.models import FEATURES, cnn, mlp, rows, two_inputs


@pytest.fixture(scope="module")
def table() -> Compiled:
    return compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets=[2, 0])


def parts(compiled: Compiled, x: np.ndarray, size: int) -> list[Explanation]:
    return [compiled.explain(x[i : i + size]) for i in range(0, len(x), size)]


def test_means_are_over_all_rows_and_dots_of_some(table: Compiled) -> None:
    x = rows(DOTS + 100, FEATURES, seed=9)
    (first, second) = overviews(parts(table, x, 37), len(x), 3)
    sizes = np.abs(table.explain(x)["x_attributions"].astype(np.float64)).mean(axis=0)
    for actual, expected in zip((first, second), sizes, strict=True):
        order = np.argsort(-expected)
        np.testing.assert_allclose(actual.means, [*expected[order[:3]], expected[order[3:]].sum()], rtol=1e-5)
        assert actual.labels == tuple(f"x[{k}]" for k in order[:3])
        assert (actual.rows, actual.other_features) == (len(x), FEATURES - 3)
        assert actual.attributions.shape == actual.values.shape == (3, DOTS)
    assert (first.title, second.title) == ("y[2]", "y[0]")


def test_the_first_and_the_last_row_have_a_dot_of_the_colour_of_their_value(table: Compiled) -> None:
    x = rows(DOTS + 100, FEATURES, seed=9)
    x[0], x[-1] = -10, 10
    overview = overviews([table.explain(x)], len(x), FEATURES)[0]
    assert (overview.values[:, 0] == 0).all()
    assert (overview.values[:, -1] == 1).all()
    expected = table.explain(x[[0, -1]])["x_attributions"][:, 0]
    order = [int(label[2:-1]) for label in overview.labels]
    np.testing.assert_allclose(overview.attributions[:, [0, -1]].T, expected[:, order], rtol=1e-4, atol=1e-6)


def test_one_batch_or_many(table: Compiled) -> None:
    x = rows(20, FEATURES, seed=9)
    overview, many = (overviews(parts(table, x, size), len(x), 3)[0] for size in (20, 7))
    np.testing.assert_allclose(overview.attributions, many.attributions, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(overview.values, many.values)


def test_many_features_leave_few_dots(table: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rationale.pictures.overview._MOST_NUMBERS", 4 * 2 * FEATURES)
    x = rows(50, FEATURES, seed=9)
    overview = overviews(parts(table, x, 20), 50, 3)[0]
    assert overview.attributions.shape == (3, 4)
    assert overview.rows == 50


def test_the_tables_of_several_inputs_stand_together() -> None:
    inputs = {"a": rows(6, 3), "b": rows(6, 4)}
    answer = compile_model(two_inputs(), DeepShap(inputs), targets=[0]).explain(inputs)
    (overview,) = overviews([answer], 6, 9)
    assert sorted(overview.labels) == ["a[0]", "a[1]", "a[2]", "b[0]", "b[1]", "b[2]", "b[3]"]


def test_groups_have_no_value_and_other_players_their_features() -> None:
    inputs = {"a": rows(6, 3), "b": rows(6, 4)}
    compiled = compile_model(two_inputs(), DeepShap(inputs), targets=[0], groups={"ends": ["b[0]", "b[3]"]})
    (overview,) = overviews([compiled.explain(inputs)], 6, 9)
    reference = {
        label
        for label, values in zip(overview.labels, overview.values, strict=True)
        if np.isfinite(values).all()
    }
    assert reference == {"a[0]", "a[1]", "a[2]", "b[1]", "b[2]"}
    place = overview.labels.index("b[2]")
    assert np.argmax(overview.values[place]) == np.argmax(inputs["b"][:, 2])
    assert "ends" in overview.labels


def test_images_have_no_overview() -> None:
    x = rows(3, 2, 6, 8)
    assert overviews([compile_model(cnn(), DeepShap(x), targets=[0]).explain(x)], 3, 5) == []


def test_equal_values_are_in_the_middle(table: Compiled) -> None:
    x = np.tile(rows(1, FEATURES, seed=9), (5, 1))
    assert (overviews([table.explain(x)], 5, 3)[0].values == 0.5).all()
