"""Groups of raw inputs as players of trees behind preprocessing, against every coalition of the groups."""

import warnings

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier

from rationale import TreeShap, UnsupportedModelError, compile_model
from rationale.trees.groups import FeatureBounds
from tests.compiler.trees.test_pipelines import (
    NEAR,
    REFERENCES,
    SMALL,
    SPLIT,
    K,
    N,
    X,
    behind,
    coalitions,
    exported,
    pipeline,
)
from tests.references import trees as forest


def test_columns_of_a_table() -> None:
    """Numbers with missing values and text, one-hot: two inputs are a player, and the others stay alone."""
    fitted = pipeline(GradientBoostingClassifier(**SMALL))
    groups = {"person": ["housing", "age"]}
    compiled = compile_model(exported(fitted), TreeShap(REFERENCES), groups=groups)
    answer = compiled.explain(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unknown category
        expected = coalitions(fitted.decision_function, player_of=[0, 1, 0, 2])
    assert [(p.name, p.features, p.kind) for p in compiled.manifest.players] == [
        ("person", ("housing", "age"), "player")
    ]
    np.testing.assert_allclose(answer["group_attributions"], expected[:, :, :1], atol=NEAR)
    np.testing.assert_allclose(answer["amount_attributions"][:, :, 0], expected[:, :, 1], atol=NEAR)
    np.testing.assert_allclose(answer["job_attributions"][:, :, 0], expected[:, :, 2], atol=NEAR)
    assert np.abs(expected[:, :, 0]).min() > 1e-3
    assert np.abs(answer["completeness_gap"]).max() < NEAR


def test_what_is_made_of_several_elements_of_one_player() -> None:
    """A product of two elements is no player's among single ones; in a group with both it is."""
    text = "t = Gather <axis = 1> (x, turned) p = Mul (t, x) f = Gather <axis = 1> (x, first) "
    turned = np.array([0, 2, 1, 3])
    model = behind(text + "z = Concat <axis = 1> (p, f)", turned=turned, first=np.array([0]))
    random = np.random.default_rng(3)
    x, references = (random.normal(size=(n, 4)).astype(np.float32) for n in (N, K))
    method = TreeShap({"x": references, "u": np.zeros((K, 2), np.int64)})
    for groups in ({}, {"apart": ["x[1]", "x[3]"]}):
        with pytest.raises(UnsupportedModelError, match=r": 'x\[1\]', 'x\[2\]' .*--group"):
            compile_model(model, method, groups=groups)
    compiled = compile_model(model, method, groups={"pair": ["x[2]", "x[1]"]})
    answer = compiled.explain({"x": x, "u": np.zeros((N, 2), np.int64)})

    def score(rows: np.ndarray) -> np.ndarray:
        products = rows[:, turned].astype(np.float32) * rows.astype(np.float32)
        return forest.scores(SPLIT, np.concatenate([products, rows[:, :1]], axis=1))

    expected = forest.shapley(score, x, references, player_of=[1, 0, 0, 2])
    assert [p.name for p in compiled.manifest.players] == ["pair", "x[0]", "x[3]"]
    np.testing.assert_allclose(answer["group_attributions"], expected, atol=1e-6)
    assert not answer["u_attributions"].any()


@pytest.mark.parametrize(
    ("bounds", "pieces"),
    [
        ([(1.0, False)], [0, 1, 1, 2]),  # a number that is the bound reaches it
        ([(1.0, True)], [0, 0, 1, 2]),  # here it must be larger
        ([(1.0, False), (1.0, True)], [0, 1, 2, 3]),  # and is a piece of its own
        ([(0.0, True), (1.0, False)], [1, 2, 2, 3]),
        ([], [0, 0, 0, 1]),
    ],
    ids=str,
)
def test_the_piece_of_a_number_at_a_bound(bounds: list[tuple[float, bool]], pieces: list[int]) -> None:
    """Below it, at it, above it, and of a missing one."""
    own = FeatureBounds(np.array([b for b, _ in bounds]), np.array([strict for _, strict in bounds], bool))
    x = np.array([np.nextafter(1.0, 0.0), 1.0, np.nextafter(1.0, 2.0), np.nan])
    assert own.pieces(x).tolist() == pieces
