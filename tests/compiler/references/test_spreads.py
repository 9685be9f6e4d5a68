"""How the features of a reference set are spread: held to whole rows, repeated by their weights."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rationale import DeepShap, Lrp, Manifest, TreeShap, compile_model
from rationale.references.reference_set import OpenReferences, spreads
from tests.compiler.models import NAMES, mlp, rows
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model


def test_quantiles_are_values_of_the_rows_by_their_weights() -> None:
    values = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    counts = np.array([1, 5, 2, 1, 1, 7, 6])
    (first, second) = spreads({"x": values}, {"x": ("a", "b")}, counts / counts.sum())
    whole = np.repeat(values, counts, axis=0)
    for spread, column in ((first, whole[:, 0]), (second, whole[:, 1])):
        expected = np.quantile(column, np.linspace(0, 1, 21), method="inverted_cdf")
        np.testing.assert_allclose(spread.quantiles, expected, rtol=1e-6)
        assert not spread.whole
    assert [first.feature, second.feature] == ["a", "b"]


@pytest.mark.parametrize("seed", range(5))
def test_the_size_of_a_change_is_that_of_the_repeated_rows(seed: int) -> None:
    """The median distance from the median; of mostly equal values, quartiles or the range."""
    random = np.random.default_rng(seed)
    values = random.choice([0.0, 1.0, 2.5, 7.0, -3.0], (6, 1)) + random.normal(size=(6, 1)) * (seed % 2)
    counts = random.integers(1, 9, 6)
    (weighted,) = spreads({"x": values}, {"x": ("a",)}, counts / counts.sum())
    (repeated,) = spreads({"x": np.repeat(values, counts, axis=0)}, {"x": ("a",)}, None)
    assert weighted.scale == repeated.scale
    if seed % 2:
        whole = np.repeat(values[:, 0], counts)
        median = np.quantile(whole, 0.5, method="inverted_cdf")
        deviation = np.quantile(np.abs(whole - median), 0.5, method="inverted_cdf")
        assert deviation == 0 or weighted.scale == pytest.approx(deviation, rel=1e-6)


def test_whole_numbers_stay_as_they_are() -> None:
    values = np.array([[123456789.0], [3.0], [-7.0]])
    (spread,) = spreads({"x": values}, {"x": ("id",)}, None)
    assert spread.whole
    assert (spread.quantiles[0], spread.quantiles[10], spread.quantiles[-1]) == (-7, 3, 123456789)


def test_missing_values_are_a_share_and_no_quantile() -> None:
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan], [np.nan, np.nan]], np.float32)
    half, none = spreads({"x": values}, {"x": ("half", "none")}, np.array([0.1, 0.2, 0.3, 0.4]))
    assert half.quantiles[0] == 1
    assert half.quantiles[-1] == 3
    np.testing.assert_allclose(half.missing, 0.6)
    assert none.quantiles == ()
    np.testing.assert_allclose(none.missing, 1)


def test_words_are_categories_with_their_shares() -> None:
    words = np.array([["own"], ["rent"], ["own"], ["x" * 201]])
    (spread,) = spreads({"housing": words}, {"housing": ("housing",)}, np.array([0.1, 0.5, 0.2, 0.2]))
    assert [item.value for item in spread.categories] == ["rent", "own"]  # a text of 201 is no category
    np.testing.assert_allclose([entry.share for entry in spread.categories], [0.5, 0.3])


def test_what_has_no_names_or_too_many_has_none() -> None:
    images = np.zeros((3, 2, 4, 4), np.float32)
    assert spreads({"x": images}, {"x": None}, None) == ()
    wide = np.zeros((2, 513), np.float32)
    assert spreads({"x": wide}, {"x": tuple(f"x[{i}]" for i in range(513))}, None) == ()


def test_the_manifest_has_them_after_a_compile(tmp_path: Path) -> None:
    table = pd.DataFrame(rows(7, 5, seed=2), columns=NAMES)
    compile_model(mlp((5, 8, 1)), DeepShap(table)).write(tmp_path, "net")
    message = Manifest.read(tmp_path / "net_explain" / "explanation.json").references
    assert [item.feature for item in message.spreads] == list(NAMES)
    np.testing.assert_allclose([entry.quantiles[0] for entry in message.spreads], table.min(), rtol=1e-6)
    words = pd.DataFrame({"age": AGE, "housing": HOUSING, "code": CODE})
    message = compile_model(model(), TreeShap(words)).manifest.references
    assert {each.feature: len(each.categories) for each in message.spreads} == {
        "age": 0,
        "housing": 4,
        "code": 3,
    }


def test_examples_of_open_references_are_not_kept() -> None:
    compiled = compile_model(mlp((5, 8, 1)), DeepShap(OpenReferences(4, rows(7, 5))))
    assert compiled.manifest.references is None
    assert compile_model(mlp((5, 8, 1)), Lrp()).manifest.references is None
