"""Centroids stand for a reference set and hold no one's row."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import DeepShap, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import InvalidReferencesError
from rationale.references.centroids import Output, _someones, balance_weights, make_centroids, outputs_of
from rationale.tables.files import read_rows
from rationale.tables.represented import MeanOutput, shift_warnings
from rationale_service.cli.main import app
from tests.compiler.models import NAMES, mlp, parsed, rows, two_inputs

LEAST = 5
CREDIT = Path(__file__).parents[3] / "examples" / "credit"


def mixed(count: int = 300, seed: int = 0) -> np.ndarray:
    """An income, an age in years, a one-hot job of three, a flag."""
    random = np.random.default_rng(seed)
    job = np.eye(3)[random.integers(0, 3, count)]
    income, age = random.gamma(2, 20_000, count), random.integers(18, 90, count)
    return np.column_stack([income, age, job, random.random(count) < 0.2]).astype(np.float64)


def test_a_row_of_exactly_the_least_people_is_nobodys() -> None:
    copies = np.repeat([[1.0], [2.0], [-0.0]], [LEAST - 1, LEAST, LEAST - 1], axis=0)
    candidates = np.array([[1.0], [2.0], [0.0], [3.0]])
    assert _someones(candidates, copies, LEAST).tolist() == [True, False, True, False]


def equal_rows(candidates: np.ndarray, among: np.ndarray) -> np.ndarray:
    """How many rows equal each candidate."""
    return (candidates[:, None].astype(np.float32) == among[None].astype(np.float32)).all(axis=2).sum(axis=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whole", [True, False])
def test_no_centroid_is_the_row_of_few(seed: int, whole: bool) -> None:
    population = mixed(seed=seed)
    centroids = make_centroids({None: population}, 20, least=LEAST, seed=seed, whole=whole)
    equal = equal_rows(centroids.arrays[None], population)
    assert ((equal == 0) | (equal >= LEAST)).all()
    assert centroids.smallest >= LEAST
    assert 10 < len(centroids.weights) <= 20


def test_where_all_is_categories_rounding_would_copy_somebody() -> None:
    random = np.random.default_rng(0)
    population = np.concatenate([np.eye(4)[random.integers(0, 4, 60)] for _ in range(4)], axis=1)
    centroids = make_centroids({None: population}, 6, least=LEAST)
    equal = equal_rows(centroids.arrays[None], population)
    assert ((equal == 0) | (equal >= LEAST)).all()
    assert centroids.fractional > 0


def test_means_are_weighted_means_of_all_rows() -> None:
    table = mixed()
    centroids = make_centroids({None: table}, 20, whole=False)
    np.testing.assert_allclose(centroids.weights @ centroids.arrays[None], table.mean(axis=0), rtol=1e-12)
    assert centroids.weights.sum() == pytest.approx(1)
    assert centroids.moved < 1e-12


def test_whole_numbers_stay_whole() -> None:
    centroids = make_centroids({None: mixed()}, 20)
    table = centroids.arrays[None]
    assert centroids.rounded == 5
    if not centroids.fractional:
        assert (np.mod(table[:, 1:], 1) == 0).all()
        np.testing.assert_array_equal(table[:, 2:5].sum(axis=1), 1)


def test_small_groups_join_others() -> None:
    far = np.concatenate([mixed(100), mixed(3) + 1e7])
    centroids = make_centroids({None: far}, 10, least=LEAST)
    assert centroids.smallest >= LEAST


def test_the_same_seed_makes_the_same_set() -> None:
    first, second, other = (make_centroids({None: mixed()}, 10, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.arrays[None], second.arrays[None])
    assert (
        first.arrays[None].shape != other.arrays[None].shape
        or (first.arrays[None] != other.arrays[None]).any()
    )


def test_several_inputs_keep_their_shapes() -> None:
    population = {"a": rows(60, 3), "b": rows(60, 2, 4, seed=1)}
    centroids = make_centroids(population, 5)
    count = len(centroids.weights)
    assert {name: array.shape for name, array in centroids.arrays.items()} == {
        "a": (count, 3),
        "b": (count, 2, 4),
    }
    assert {array.dtype for array in centroids.arrays.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "value", [rows(9, 4), np.full((50, 4), np.nan), np.array([["a"]] * 50), np.zeros(50)]
)
def test_what_has_no_centroids(value: np.ndarray) -> None:
    with pytest.raises(InvalidReferencesError):
        make_centroids({None: value}, 2)


def test_exactly_enough_rows_and_copies_suffice() -> None:
    """Each of two rows belongs to as many as a centroid needs, which may then have it."""
    twice = np.repeat([[0.5, 1.25], [7.5, 9.25]], LEAST, axis=0)
    centroids = make_centroids({None: twice}, 2, least=LEAST)
    np.testing.assert_array_equal(np.sort(centroids.arrays[None], axis=0), twice[::LEAST])
    assert (centroids.smallest, centroids.fractional) == (LEAST, 0)
    for fewer in (twice[1:], twice[:-1]):
        with pytest.raises(InvalidReferencesError, match="need 10 rows; there are 9"):
            make_centroids({None: fewer}, 2, least=LEAST)


def test_one_row_over_and_over_is_nobodys() -> None:
    centroids = make_centroids({None: np.ones((50, 4))}, 2)
    np.testing.assert_array_equal(centroids.arrays[None], 1)


def test_the_command_and_what_the_compiler_makes_of_it(tmp_path: Path) -> None:
    references = rows(80, 5, seed=3)
    np.savetxt(tmp_path / "r.csv", references, delimiter=",", header=",".join(NAMES), comments="")
    onnx.save(mlp(), tmp_path / "m.onnx")
    out, model = str(tmp_path / "c.npz"), str(tmp_path / "m.onnx")
    result = CliRunner().invoke(
        app, ["references", str(tmp_path / "r.csv"), "--centroids", "8", "-o", out, "--model", model]
    )
    assert result.exit_code == 0, result.output
    assert "of 80 rows" in result.output
    assert "over all rows" in result.output
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
    (tmp_path / "headers.csv").write_text("a,b\n")
    empty = CliRunner().invoke(
        app, ["references", str(tmp_path / "headers.csv"), *base[2:], "1", "-o", "c.npz"]
    )
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "a header and no rows: at least one is needed" in empty.stderr
    kind = CliRunner().invoke(app, [*base, "1", "-o", str(tmp_path / "c.csv")])
    assert kind.exit_code == 2
    assert not list(tmp_path.glob("c.*"))


def test_ids_have_no_mean_and_it_is_said(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (60, 4))
    np.savez(tmp_path / "r.npz", ids=ids, x=rows(60, 3))
    command = ["references", str(tmp_path / "r.npz"), "--centroids", "3", "-o", str(tmp_path / "c.npz")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "warning: ids: integers" in result.output


# -- mean outputs --------------------------------------------------------------------------------------


def applicants(count: int = 600) -> np.ndarray:
    """Rows such as the credit example's references, and as many of higher risk: 0.03 to 0.9."""
    read = read_rows(CREDIT / "references.csv").arrays[None]
    random = np.random.default_rng(0)
    table = read[random.integers(0, len(read), count)] * random.uniform(0.7, 1.4, (count, read.shape[1]))
    table[: count // 2, 5] += random.integers(1, 6, count // 2)  # late payments
    return table


def test_weights_keep_mean_outputs() -> None:
    """They are the nearest to the shares that do: log(w/p) is an affine function of the outputs."""
    population = {None: applicants()}
    groups = make_centroids(population, 20)
    _, outputs = outputs_of(CREDIT / "credit.onnx", population, groups)
    before = {o.name: np.abs(o.shift(groups.weights)).max() for o in outputs}
    balanced_centroids = balance_weights(groups, population, outputs)
    assert {o.name for o in outputs} == {"default_probability", "score_logit"}
    assert before["default_probability"] > 0.05
    assert max(np.abs(o.shift(balanced_centroids.weights)).max() for o in outputs) < 1e-5
    assert balanced_centroids.weights.sum() == pytest.approx(1)
    assert (balanced_centroids.weights > 0).all()
    assert not np.allclose(balanced_centroids.weights, groups.weights, rtol=1e-2)
    slopes = np.column_stack([np.ones(len(groups.weights)), *(o.centroids for o in outputs)])
    tilt = np.log(balanced_centroids.weights / groups.weights)
    fitted = slopes @ np.linalg.lstsq(slopes, tilt, rcond=None)[0]
    np.testing.assert_allclose(fitted, tilt, atol=1e-6 * np.ptp(tilt))
    np.testing.assert_array_equal(balanced_centroids.arrays[None], groups.arrays[None])


def test_a_mean_that_no_weights_keep_leaves_many_centroids_of_weight() -> None:
    population = {None: mixed()}
    centroids = make_centroids(population, 12)
    random = np.random.default_rng(0)
    beyond = Output("y", np.full(3, 9.0), np.ones(3), random.standard_normal((len(centroids.weights), 3)))
    balanced_centroids = balance_weights(centroids, population, [beyond])
    assert 1 / (balanced_centroids.weights**2).sum() >= 0.5 / (centroids.weights**2).sum()
    assert np.isfinite(balanced_centroids.weights).all()


def reduced(folder: Path, *options: str, rows_: np.ndarray | None = None) -> str:
    """What `rationale references` says of 600 applicants; typical.npz is in the folder."""
    np.save(folder / "rows.npy", applicants() if rows_ is None else rows_)
    file, out = str(folder / "rows.npy"), str(folder / "typical.npz")
    result = CliRunner().invoke(app, ["references", file, "-o", out, *options])
    assert result.exit_code == 0, result.output
    return result.output


def compiled_with(folder: Path, model: Path, *more: str) -> str:
    options = ["--output", "default_probability", "--name", "c", "--repository", str(folder / "repository")]
    options += more
    result = CliRunner().invoke(
        app, ["compile", str(model), "--references", str(folder / "typical.npz"), *options]
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_the_base_value_is_the_mean_over_all_rows(tmp_path: Path) -> None:
    model = CREDIT / "credit.onnx"
    message = reduced(tmp_path, "--centroids", "20", "--model", str(model))
    assert "warning" not in message
    text = compiled_with(tmp_path, model)
    assert "warning" not in text
    base = open_entry(tmp_path / "repository", "c").manifest.references.base_value[0]
    everyone = compile_model(model, DeepShap(applicants()), output="default_probability").manifest
    assert base == pytest.approx(everyone.references.base_value[0], rel=1e-5)
    assert f"base value {base:.6g}" in text
    assert f"{base:.5g}" in message


def test_a_shift_is_named(tmp_path: Path) -> None:
    """Two centroids of 300 rows each cannot keep two means."""
    model = CREDIT / "credit.onnx"
    message = reduced(tmp_path, "--centroids", "2", "--model", str(model))
    assert "warning: the base value shifts: the mean of 'default_probability', element 0, is" in message
    text = compiled_with(tmp_path, model)
    assert "the base value shifts" in text
    assert any("600 rows" in w for w in open_entry(tmp_path / "repository", "c").manifest.warnings)


def test_weights_for_another_model_and_for_none_are_warned_of(tmp_path: Path) -> None:
    model, other = CREDIT / "credit.onnx", tmp_path / "other.onnx"
    proto = onnx.load(model)
    proto.graph.name = "another"
    onnx.save(proto, other)
    reduced(tmp_path, "--centroids", "20", "--model", str(other))
    assert "mean output of another model over the 600 rows" in compiled_with(tmp_path, model)
    assert "with --model" in reduced(tmp_path, "--centroids", "20")
    assert "from 600 rows without a model" in compiled_with(tmp_path, model)
    named = f"applicant={','.join(f'f{i}' for i in range(10))}"
    assert "from 600 rows without a model" in compiled_with(tmp_path, model, "--features", named)


def test_models_without_a_mean_output_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", rows(60, 5))
    onnx.save(
        parsed("g (float[N, 5] x) => (int64[N, 1] y) { y = ArgMax <axis = 1> (x) }"), tmp_path / "whole.onnx"
    )
    command = ["references", str(tmp_path / "r.npy"), "--centroids", "5", "-o", str(tmp_path / "c.npz")]
    for model, fault in (("whole.onnx", "no output is a float"), ("r.npy", "not an ONNX model")):
        result = CliRunner().invoke(app, [*command, "--model", str(tmp_path / model)])
        assert result.exit_code == 2
        assert fault in result.stderr
        assert not (tmp_path / "c.npz").exists()


def test_rows_of_one_of_two_inputs_are_refused(tmp_path: Path) -> None:
    onnx.save(two_inputs(), tmp_path / "m.onnx")
    np.savez(tmp_path / "r.npz", a=rows(60, 3))
    command = ["references", str(tmp_path / "r.npz"), "--centroids", "5", "-o", str(tmp_path / "c.npz")]
    result = CliRunner().invoke(app, [*command, "--model", str(tmp_path / "m.onnx")])
    assert result.exit_code == 2
    assert "the model takes ['a', 'b']" in result.stderr


@pytest.mark.parametrize(
    "member",
    [
        {"stands_for": np.array(json.dumps({"rows": "many"}))},
        {"stands_for": np.ones(3)},
        {"reference_weights": np.array(["much", "little"])},
        {"reference_weights": np.ones((5, 1))},
        {"reference_weights": np.ones(0)},
    ],
)
def test_a_damaged_member_is_refused(tmp_path: Path, member: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "r.npz", x=rows(5, 5), **member)
    with pytest.raises(InvalidReferencesError, match="damaged"):
        read_rows(tmp_path / "r.npz")


def test_references_that_are_all_equal_are_warned_of() -> None:
    compiled = compile_model(mlp(), DeepShap(np.ones((4, 5))), targets="all").manifest.warnings
    assert any("all 4 references are equal" in w for w in compiled)
    assert not compile_model(mlp(), DeepShap(np.ones((1, 5))), targets="all").manifest.warnings


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ([0.5, 20.0], None),
        ([0.5 + 0.0099, 20.0 - 0.019], None),  # as far as may be, of spreads of 1 and 2
        ([0.5 + 0.011, 20.0], "element 3, is 0.511 over the references and 0.5 over the 40 rows"),
        ([0.5 - 0.011, 20.0], "element 3, is 0.489"),
        ([0.5 + 0.011, 20.0 - 0.05], "element 5, is 19.95"),  # the farthest of its own spread, on either side
        ([0.5 - 0.03, 20.0 + 0.05], "element 3, is 0.47"),
    ],
)
def test_a_base_value_that_shifts_is_that_of_the_farthest_element(
    base: list[float], message: str | None
) -> None:
    output = MeanOutput(mean=(9, 9, 9, 0.5, 9, 20.0), spread=(9, 9, 9, 1.0, 9, 2.0))
    warnings = shift_warnings("y", [3, 5], base, output, 40)
    assert len(warnings) == (message is not None)
    assert all((message or "") in text for text in warnings)


@pytest.mark.parametrize(("away", "is_told"), [(0.0, False), (0.009, False), (0.011, True), (-5.0, True)])
def test_an_output_that_is_the_same_for_all_rows_shifts_by_its_own_unit(away: float, is_told: bool) -> None:
    output = MeanOutput(mean=(2.0,), spread=(0.0,))
    assert bool(shift_warnings("y", [0], [2.0 + away], output, 40)) is is_told
