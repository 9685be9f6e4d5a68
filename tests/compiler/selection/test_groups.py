"""Features in groups: sums of their attributions under a walk, players of their own where coalitions play."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import (
    AttnLrp,
    Compiled,
    DeepShap,
    Deployment,
    ExactShap,
    ExpectedGradients,
    Explanation,
    Gradient,
    IntegratedGradients,
    InvalidOptionError,
    Lrp,
    Manifest,
    OpenReferences,
    PermutationShap,
    SmoothGrad,
    TreeShap,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.graph.runtime.session import Runner
from rationale.methods.engine import Method
from rationale.schema.request import Concepts
from tests.compiler.models import FEATURES, NAMES, cnn, mlp, parsed, rows
from tests.references import trees as forest

K, N = 4, 3
WIDTHS = {"x": 5, "y": 3, "z": 2}
REFERENCES = {name: rows(K, width, seed=width) for name, width in WIDTHS.items()}
X = {name: rows(N, width, seed=10 + width) for name, width in WIDTHS.items()}
GROUPS = {"A": ["x[3]", "y[0]", "x[1]"], "B": ["y[2]", "y[1]"]}  # x[0], x[2], x[4] stand behind them
METHODS: dict[str, Method] = {
    "deepshap": DeepShap(REFERENCES, weights=[1, 2, 3, 4], standard_error=True),
    "gradient": Gradient(),
    "input times gradient": Gradient(times_input=True),
    "integrated gradients": IntegratedGradients(REFERENCES, steps=7),
    "expected gradients": ExpectedGradients(REFERENCES, samples=30, standard_error=True),
    "smoothgrad": SmoothGrad(5, 0.1, standard_error=True),
    "lrp": Lrp(),
    "attnlrp": AttnLrp(),
}


def network() -> Any:
    """out [N, 2] = tanh([x, y, z]·w)·v"""
    text = """g (float[N, 5] x, float[N, 3] y, float[N, 2] z) => (float[N, 2] out) {
        [join] h = Concat <axis = 1> (x, y, z)
        [left] a = MatMul (h, w)
        [bend] b = Tanh (a)
        [right] out = MatMul (b, v)
    }"""
    return parsed(text, {"w": rows(10, 7, seed=1), "v": rows(7, 2, seed=2)})


def summed(apart: Mapping[str, np.ndarray]) -> np.ndarray:
    """[N, T, P] from the tensors of a graph without groups."""
    x, y = (apart[f"{name}_attributions"].astype(np.float64) for name in "xy")
    groups = [x[..., 3] + y[..., 0] + x[..., 1], y[..., 2] + y[..., 1]]
    return np.stack([*groups, x[..., 0], x[..., 2], x[..., 4]], axis=-1)


@pytest.mark.parametrize("name", METHODS)
def test_sums_across_inputs(name: str) -> None:
    apart = compile_model(network(), METHODS[name], targets="all").explain(X)
    compiled = compile_model(network(), METHODS[name], targets="all", groups=GROUPS)
    answer, expected = compiled.explain(X), summed(apart)
    assert {p.name: p.features for p in compiled.manifest.players} == {
        "A": ("x[3]", "y[0]", "x[1]"),
        "B": ("y[2]", "y[1]"),
        **{f: (f,) for f in ("x[0]", "x[2]", "x[4]")},
    }
    assert {p.kind for p in compiled.manifest.players} == {"sum"}
    assert answer["group_attributions"].shape == (N, 2, 5)
    np.testing.assert_allclose(answer["group_attributions"], expected, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(answer["z_attributions"], apart["z_attributions"])
    assert not {"x_attributions", "y_attributions", "x_standard_error", "y_standard_error"} & set(answer)
    assert set(apart) - set(answer) <= {
        f"{i}_{kind}" for i in "xy" for kind in ("attributions", "standard_error")
    }
    if "completeness_gap" in apart:
        scale = np.abs(apart["explained_value"]).max()
        np.testing.assert_allclose(answer["completeness_gap"], apart["completeness_gap"], atol=1e-6 * scale)
    if "x_standard_error" in apart:  # of one feature alone that of the feature, of several not their sum
        alone = apart["x_standard_error"][..., [0, 2, 4]]
        np.testing.assert_allclose(answer["group_standard_error"][..., 2:], alone, rtol=1e-6)


def test_the_standard_error_of_a_group_is_that_of_its_sum() -> None:
    method = DeepShap(REFERENCES, standard_error=True)
    error = compile_model(network(), method, targets=[1], groups=GROUPS).explain(X)["group_standard_error"]
    each = []
    for k in range(K):
        single = DeepShap({name: a[k : k + 1] for name, a in REFERENCES.items()})
        each.append(summed(compile_model(network(), single, targets=[1]).explain(X)))
    np.testing.assert_allclose(error, np.std(each, axis=0, ddof=1) / np.sqrt(K), rtol=1e-4)


def test_a_batch_and_its_rows_alone() -> None:
    """Of a slope that is the same everywhere: the sums are all that could have other bits."""
    w = rows(40, 2, seed=1)
    model = parsed("g (float[N, 40] x) => (float[N, 2] y) { y = MatMul (x, w) }", {"w": w})
    groups = {"A": [f"x[{i}]" for i in range(11)], "B": ["x[12]", "x[11]", "x[30]"], "C": ["x[39]", "x[20]"]}
    x = rows(13, 40, seed=2)
    for method in (Gradient(times_input=True), DeepShap(rows(1, 40))):
        compiled = compile_model(model, method, targets="all", groups=groups)
        together = compiled.explain(x)["group_attributions"]
        for i in range(len(x)):
            alone = compiled.explain(x[i : i + 1])["group_attributions"]
            np.testing.assert_array_equal(alone[0], together[i])


@pytest.mark.parametrize(
    "options",
    [
        {"deployment": Deployment(one_shot=True)},
        {"deployment": Deployment(memory_budget=30_000)},
        {"deployment": Deployment(runtime="any")},
        {"targets": "predicted"},
        {"layers": "all"},
    ],
    ids=["one entry", "in chunks", "for any runtime", "predicted", "layers"],
)
def test_beside_other_options(options: dict[str, Any]) -> None:
    options = {"targets": ["1-0"], **options}
    references = {name: rows(100, width, seed=width) for name, width in WIDTHS.items()}
    method = DeepShap(references, standard_error=True)
    apart = compile_model(network(), method, **options).explain(X)
    compiled = compile_model(network(), method, **options, groups=GROUPS)
    answer, memory = compiled.explain(X), compiled.manifest.memory
    small = "deployment" in options and options["deployment"].memory_budget == 30_000
    assert memory is not None
    assert (memory.chunk is not None) == small
    np.testing.assert_allclose(answer["group_attributions"], summed(apart), atol=1e-5)
    other_outputs = {name for name in apart if not name.startswith(("x_", "y_", "completeness"))}
    for name in other_outputs:
        np.testing.assert_allclose(answer[name], apart[name], atol=1e-6, err_msg=name)


def test_references_of_the_request() -> None:
    inputs = {
        **X,
        **{f"{name}_references": np.stack([a] * N) for name, a in REFERENCES.items()},
        "reference_weights": np.full((N, K), 1 / K, np.float32),
    }
    opened = DeepShap(OpenReferences(K, REFERENCES))
    answer = compile_model(network(), opened, targets=[1], groups=GROUPS).explain(inputs)
    expected = summed(compile_model(network(), DeepShap(REFERENCES), targets=[1]).explain(X))
    np.testing.assert_allclose(answer["group_attributions"], expected, atol=1e-5)


def test_elements_of_an_image_by_their_flat_index() -> None:
    """And what each input contributes by way of a channel stays pixel by pixel."""
    x, references = rows(N, 2, 6, 8, seed=5), rows(K, 2, 6, 8, seed=6)
    left_half = [f"x[{i}]" for i in np.arange(96).reshape(2, 6, 8)[:, :, :3].ravel()]
    concepts = Concepts("r", 2)
    options = {"targets": [0, 2], "concepts": concepts}
    apart = compile_model(cnn(), DeepShap(references), **options).explain(x)
    compiled = compile_model(cnn(), DeepShap(references), **options, groups={"left": left_half})
    answer = compiled.explain(x)
    expected = apart["x_attributions"].reshape(N, 2, 2, 6, 8)
    np.testing.assert_allclose(
        answer["group_attributions"][..., 0],
        expected[..., :3].sum((2, 3, 4)),
        atol=1e-6 * np.abs(expected).max(),
    )
    np.testing.assert_array_equal(answer["group_attributions"][..., 1:], expected[..., 3:].reshape(N, 2, 60))
    np.testing.assert_array_equal(answer["x_concept_attributions"], apart["x_concept_attributions"])


def test_positions_of_tokens() -> None:
    text = """g (int64[N, 6] ids) => (float[N, 2] y) {
        e = Gather (table, ids)
        t = Tanh (e)
        m = ReduceMean <keepdims = 0> (t, axes)
        y = MatMul (m, v)
    }"""
    table, v = rows(9, 4, seed=1), rows(4, 2, seed=2)
    model = parsed(text, {"table": table, "v": v, "axes": np.array([1])})
    ids, references = np.arange(18).reshape(3, 6) % 9, np.arange(24).reshape(4, 6) * 5 % 9
    apart = compile_model(model, DeepShap(references), targets="all").explain(ids)["ids_attributions"]
    groups = {"end": ["ids[4]", "ids[5]"], "start": ["ids[0]", "ids[1]", "ids[2]"]}
    answer = compile_model(model, DeepShap(references), targets="all", groups=groups).explain(ids)
    expected = np.stack([apart[..., 4:].sum(-1), apart[..., :3].sum(-1), apart[..., 3]], axis=-1)
    np.testing.assert_allclose(answer["group_attributions"], expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_other_number_types(dtype: str) -> None:
    text = f"g ({dtype}[N, 5] x) => ({dtype}[N, 2] y) {{ a = MatMul (x, w)\n y = Tanh (a) }}"
    numbers = np.float16 if dtype == "float16" else np.float64
    model = parsed(text, {"w": rows(5, 2, seed=1).astype(numbers)})
    x, references = rows(N, 5, seed=2).astype(numbers), rows(K, 5, seed=3).astype(numbers)
    apart = compile_model(model, DeepShap(references), targets=[1]).explain(x)["x_attributions"]
    answer = compile_model(model, DeepShap(references), targets=[1], groups={"A": ["x[4]", "x[0]"]}).explain(
        x
    )
    assert answer["group_attributions"].dtype == apart.dtype
    np.testing.assert_allclose(answer["group_attributions"][..., 0], apart[..., 0] + apart[..., 4], rtol=1e-5)


# -- players -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", ["all", "predicted", ["2-0"]], ids=str)
def test_players_of_trees_against_every_coalition(targets: Any) -> None:
    trees = forest.random_trees(4, ("LEQ", "LT"), columns=3)
    references, x = forest.rows(1, 7), forest.rows(2, 9)
    groups = {"B": ["x[4]", "x[1]", "x[2]"]}
    compiled = compile_model(forest.regressor(trees), TreeShap(references), targets=targets, groups=groups)
    assert [(p.name, p.kind) for p in compiled.manifest.players] == [
        ("B", "player"),
        ("x[0]", "player"),
        ("x[3]", "player"),
    ]
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references, player_of=[1, 0, 0, 2, 0])
    answer = compiled.explain(x)
    if targets == "predicted":
        expected = np.take_along_axis(expected, answer["y"].argmax(axis=1)[:, None, None], axis=1)
    elif targets == ["2-0"]:
        expected = expected[:, [2]] - expected[:, [0]]
    np.testing.assert_allclose(answer["group_attributions"], expected, atol=1e-5)
    apart = compile_model(forest.regressor(trees), TreeShap(references), targets=targets).explain(x)
    of_sums = apart["x_attributions"][..., [4, 1, 2]].sum(-1)
    assert np.abs(answer["group_attributions"][..., 0] - of_sums).max() > 0.01  # a player is no sum
    assert np.abs(answer["completeness_gap"]).max() < 1e-5


@pytest.mark.parametrize(
    "method", [ExactShap(REFERENCES, [1, 2, 3, 4]), PermutationShap(REFERENCES, 200)], ids=str
)
@pytest.mark.parametrize("targets", ["all", "predicted"])
def test_players_of_any_model_against_every_coalition(method: Any, targets: Any) -> None:
    """Across inputs, and beside the features of one that no group touches."""
    groups = {"A": ["x[3]", "y[0]", "x[1]", "x[2]"], "B": ["y[2]", "y[1]"]}  # x[0], x[4]; z[0], z[1]
    options = {"targets": targets, "groups": groups}
    compiled = compile_model(network(), method, **options)
    answer = compiled.explain(X)
    assert {p.kind for p in compiled.manifest.players} == {"player"}
    weights = np.arange(1, 5) / 10 if isinstance(method, ExactShap) else None
    w, v = rows(10, 7, seed=1).astype(float), rows(7, 2, seed=2).astype(float)
    x, references = (np.concatenate([a[n] for n in "xyz"], axis=1) for a in (X, REFERENCES))
    player_of = [2, 0, 0, 0, 3, 0, 1, 1, 4, 5]
    expected = forest.shapley(lambda z: np.tanh(z @ w) @ v, x, references, weights, player_of)
    if targets == "predicted":
        expected = np.take_along_axis(expected, answer["out"].argmax(axis=1)[:, None, None], axis=1)
    near = 1e-5 if isinstance(method, ExactShap) else 0.05 * np.abs(expected).max()
    np.testing.assert_allclose(answer["group_attributions"], expected[..., :4], atol=near)
    np.testing.assert_allclose(answer["z_attributions"], expected[..., 4:], atol=near)
    assert np.abs(answer["completeness_gap"]).max() < 1e-5
    assert "x_attributions" not in answer


def test_the_standard_error_of_a_player() -> None:
    """Over seeds, the spread of what is found is what each answer says of itself."""
    values, errors = [], []
    for seed in range(12):
        method = PermutationShap(REFERENCES, 8, seed, standard_error=True)
        answer = compile_model(network(), method, targets=[1], groups=GROUPS).explain(X)
        values.append(answer["group_attributions"])
        errors.append(answer["group_standard_error"])
    ratio = np.sqrt(np.mean(np.square(errors))) / np.sqrt(np.mean(np.var(values, axis=0, ddof=1)))
    assert 0.8 < ratio < 1.25


def test_groups_make_an_image_small_enough_to_enumerate() -> None:
    x, references = rows(N, 2, 6, 8, seed=5), rows(K, 2, 6, 8, seed=6)
    with pytest.raises(InvalidOptionError, match="at most 12 players, not 96"):
        compile_model(cnn(), ExactShap(references), targets=[0])
    quarters = np.arange(8) // 4 + 2 * (np.arange(6) // 3)[:, None]
    player_of = np.broadcast_to(quarters, (2, 6, 8)).ravel()
    groups = {f"q{i}": [f"x[{j}]" for j in np.flatnonzero(player_of == i)] for i in range(4)}
    compiled = compile_model(cnn(), ExactShap(references), targets=[0], groups=groups)
    plain = Runner(cnn())
    expected = forest.shapley(
        lambda z: plain({"x": z.reshape(-1, 2, 6, 8).astype(np.float32)})["y"][:, :1].astype(float),
        x.reshape(N, -1),
        references.reshape(K, -1),
        player_of=player_of.tolist(),
    )
    np.testing.assert_allclose(compiled.explain(x)["group_attributions"], expected, atol=1e-5)


# -- names ---------------------------------------------------------------------------------------------


def compiled_with(groups: Any, **options: Any) -> Compiled:
    options = {"feature_names": NAMES, **options}
    return compile_model(mlp(), DeepShap(rows(K, FEATURES)), targets=[1], groups=groups, **options)


def test_names_of_columns_and_their_beginning() -> None:
    assert {p.name: p.features for p in compiled_with({"money": ["de*", "income"]}).manifest.players} == {
        "money": ("debt", "income"),
        **{name: (name,) for name in ("age", "years", "cards")},
    }


def test_no_groups_are_no_players() -> None:
    manifest = compiled_with({}).manifest
    assert (manifest.players, manifest.group_attributions) == ((), None)
    assert manifest.explained[0].attributions == "x_attributions"


def test_the_manifest_and_its_digest(tmp_path: Path) -> None:
    compiled = compiled_with({"money": ["debt", "income"]})
    manifest = compiled.manifest
    assert (manifest.group_attributions, manifest.explained[0].attributions) == ("group_attributions", None)
    assert manifest.groups == {"money": ["debt", "income"]}
    other_manifests = [
        compiled_with(g).manifest for g in ({}, {"money": ["debt"]}, {"cash": ["debt", "income"]})
    ]
    assert len({m.digests.explanation for m in (manifest, *other_manifests)}) == 4
    compiled.write(tmp_path, "m")
    assert Manifest.read(tmp_path / "m_explain" / "explanation.json").players == manifest.players
    x = rows(N, FEATURES, seed=2)
    np.testing.assert_array_equal(
        open_entry(tmp_path, "m").explain(x)["group_attributions"], compiled.explain(x)["group_attributions"]
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "no mapping": (["debt"], "give a mapping from each group's name"),
    "an unknown feature": (
        {"a": ["dept"]},
        r"no explained feature has the name 'dept' \(do you mean 'debt'\?\)",
    ),
    "nothing near": ({"a": ["qqqq"]}, "There are 'age', 'income', 'debt', 'years', 'cards'."),
    "no beginning": ({"a": ["q*"]}, r"has the name 'q\*'"),
    "no name": ({"a": [3]}, "no explained feature has the name 3"),
    "a feature in two groups": (
        {"a": ["age", "debt"], "b": ["debt"]},
        "'debt' is in the groups 'a' and 'b': leave it in one",
    ),
    "a feature twice": ({"a": ["age", "age"]}, r"group 'a' names \['age'\] twice"),
    "an empty group": ({"a": []}, "group 'a' is empty"),
    "a text": ({"a": "age"}, "give a list of the names of its features, not 'age'"),
    "a group called like a feature": ({"age": ["debt"]}, "group 'age' .*feature"),
    "a group without a name": ({" ": ["debt"]}, "a group's name must be a word"),
    "a group that is called by a number": ({3: ["debt"]}, "group 3: a group's name must be a word"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_groups_that_are_refused(name: str) -> None:
    groups, words = REFUSED[name]
    with pytest.raises(InvalidOptionError, match=words):
        compiled_with(groups)


def test_names_that_groups_need() -> None:
    text = """g (float[N, 3] group, float[N, 2] b) => (float[N, 5] y) {
        h = Concat <axis = 1> (group, b)
        y = Tanh (h)
    }"""
    references = {"group": rows(K, 3), "b": rows(K, 2)}

    def compiled(groups: Mapping[str, Sequence[str]]) -> Explanation:
        model = compile_model(parsed(text), DeepShap(references), targets=[1], groups=groups)
        return model.explain({"group": rows(N, 3), "b": rows(N, 2)})

    with pytest.raises(InvalidOptionError, match=r"'group' .*'group_attributions'"):
        compiled({"a": ["b[0]"]})
    with pytest.raises(InvalidOptionError, match=r"group 'b' .*input"):
        compiled({"b": ["group[0]"]})
    assert compiled({"b": ["b[0]", "group[1]"]})["group_attributions"].shape == (N, 1, 4)


def test_features_of_an_open_length() -> None:
    text = "g (float[N, L] x) => (float[N, 1] y) { s = ReduceSum <keepdims = 1> (x, axes)\n y = Tanh (s) }"
    model = parsed(text, {"axes": np.array([1])})
    with pytest.raises(InvalidOptionError, match=r"\(L=7\).*groups"):
        compile_model(model, Gradient(), sizes={"L": (2, 7)}, groups={"a": ["x[0]"]})
    compiled = compile_model(model, Gradient(), sizes={"L": 7}, groups={"a": ["x[0]", "x[6]"]})
    assert len(compiled.manifest.players) == 6
