"""Centroids stand for a reference set and hold no one's row."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from compiler import DeepShap, compile_model
from compiler.centroids import centroids
from compiler.errors import InvalidReferencesError
from compiler.local import open_entry
from compiler.tables import read_rows
from service.cli import app
from tests.compiler.models import NAMES, mlp, rows

LEAST = 5


def mixed(count: int = 300, seed: int = 0) -> np.ndarray:
    """An income, an age in years, a one-hot job of three, a flag."""
    random = np.random.default_rng(seed)
    job = np.eye(3)[random.integers(0, 3, count)]
    income, age = random.gamma(2, 20_000, count), random.integers(18, 90, count)
    return np.column_stack([income, age, job, random.random(count) < 0.2]).astype(np.float64)


def equal_rows(candidates: np.ndarray, among: np.ndarray) -> np.ndarray:
    """How many rows equal each candidate."""
    return (candidates[:, None].astype(np.float32) == among[None].astype(np.float32)).all(axis=2).sum(axis=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whole", [True, False])
def test_no_centroid_is_the_row_of_few(seed: int, whole: bool) -> None:
    given = mixed(seed=seed)
    made = centroids({None: given}, 20, least=LEAST, seed=seed, whole=whole)
    alike = equal_rows(made.arrays[None], given)
    assert ((alike == 0) | (alike >= LEAST)).all()
    assert made.smallest >= LEAST
    assert 10 < len(made.weights) <= 20


def test_where_all_is_categories_rounding_would_copy_somebody() -> None:
    random = np.random.default_rng(0)
    given = np.concatenate([np.eye(4)[random.integers(0, 4, 60)] for _ in range(4)], axis=1)
    made = centroids({None: given}, 6, least=LEAST)
    alike = equal_rows(made.arrays[None], given)
    assert ((alike == 0) | (alike >= LEAST)).all()
    assert made.left > 0


def test_means_are_weighted_means_of_all_rows() -> None:
    given = mixed()
    made = centroids({None: given}, 20, whole=False)
    np.testing.assert_allclose(made.weights @ made.arrays[None], given.mean(axis=0), rtol=1e-12)
    assert made.weights.sum() == pytest.approx(1)
    assert made.moved < 1e-12


def test_whole_numbers_stay_whole() -> None:
    made = centroids({None: mixed()}, 20)
    table = made.arrays[None]
    assert made.rounded == 5
    if not made.left:
        assert (np.mod(table[:, 1:], 1) == 0).all()
        np.testing.assert_array_equal(table[:, 2:5].sum(axis=1), 1)


def test_small_groups_join_others() -> None:
    far = np.concatenate([mixed(100), mixed(3) + 1e7])
    made = centroids({None: far}, 10, least=LEAST)
    assert made.smallest >= LEAST


def test_the_same_seed_makes_the_same_set() -> None:
    one, two, other = (centroids({None: mixed()}, 10, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.arrays[None], two.arrays[None])
    assert (
        one.arrays[None].shape != other.arrays[None].shape or (one.arrays[None] != other.arrays[None]).any()
    )


def test_several_inputs_keep_their_shapes() -> None:
    given = {"a": rows(60, 3), "b": rows(60, 2, 4, seed=1)}
    made = centroids(given, 5)
    count = len(made.weights)
    assert {name: array.shape for name, array in made.arrays.items()} == {"a": (count, 3), "b": (count, 2, 4)}
    assert {array.dtype for array in made.arrays.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "given", [rows(9, 4), np.full((50, 4), np.nan), np.array([["a"]] * 50), np.zeros(50)]
)
def test_what_has_no_centroids(given: np.ndarray) -> None:
    with pytest.raises(InvalidReferencesError):
        centroids({None: given}, 2)


def test_one_row_over_and_over_is_nobodys() -> None:
    made = centroids({None: np.ones((50, 4))}, 2)
    np.testing.assert_array_equal(made.arrays[None], 1)


def test_the_command_and_what_the_compiler_makes_of_it(tmp_path: Path) -> None:
    references = rows(80, 5, seed=3)
    np.savetxt(tmp_path / "r.csv", references, delimiter=",", header=",".join(NAMES), comments="")
    onnx.save(mlp(), tmp_path / "m.onnx")
    out, model = str(tmp_path / "c.npz"), str(tmp_path / "m.onnx")
    made = CliRunner().invoke(
        app, ["references", str(tmp_path / "r.csv"), "--centroids", "8", "-o", out, "--model", model]
    )
    assert made.exit_code == 0, made.output
    assert "of 80 rows" in made.output
    assert "standard deviations off" in made.output
    table = read_rows(Path(out))
    assert table.columns == tuple(NAMES)
    assert table.weights is not None
    common = [
        "compile",
        model,
        "--name",
        "m",
        "--repository",
        str(tmp_path / "repository"),
        "--references",
        out,
    ]
    compiled = CliRunner().invoke(app, [*common, "--targets", "all"])
    assert compiled.exit_code == 0, compiled.output
    x = rows(3, 5, seed=9)
    answer = open_entry(tmp_path / "repository", "m").explain(x)
    expected = compile_model(mlp(), DeepShap(table.arrays[None], table.weights), targets="all").explain(x)
    np.testing.assert_allclose(answer["x_attributions"], expected["x_attributions"], rtol=1e-5, atol=1e-6)
    assert answer.manifest.explained[0].feature_names == tuple(NAMES)
    refused = CliRunner().invoke(app, [*common, "--method", "integrated-gradients"])
    assert refused.exit_code == 2
    assert "weights" in refused.stderr


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", rows(8, 5))
    base = ["references", str(tmp_path / "r.npy"), "--centroids"]
    few = CliRunner().invoke(app, [*base, "8", "-o", str(tmp_path / "c.npz")])
    assert few.exit_code == 2
    assert "need 40 rows" in few.stderr
    kind = CliRunner().invoke(app, [*base, "1", "-o", str(tmp_path / "c.csv")])
    assert kind.exit_code == 2
    assert not list(tmp_path.glob("c.*"))


def test_ids_have_no_mean_and_it_is_said(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (60, 4))
    np.savez(tmp_path / "r.npz", ids=ids, x=rows(60, 3))
    command = ["references", str(tmp_path / "r.npz"), "--centroids", "3", "-o", str(tmp_path / "c.npz")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "warning: ids: integers" in done.output
