"""Probe rows: nobody's, in every type, with answers that are due and a limit that fits the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from sklearn.ensemble import RandomForestClassifier

from rationale import DeepShap, Gradient, RepositoryError, TreeShap, compile_model, convert
from rationale.artifact.checks import expected
from rationale.artifact.checks.probes import synthetic_rows
from rationale.graph.runtime.session import Runner
from rationale.schema.manifest import DATATYPES
from rationale.schema.probes import BROKEN, MOST_ELEMENTS, ProbeInput, ProbeOutput, Probes, values
from tests.compiler.models import cnn, mlp, parsed, rows
from tests.references import trees as of

RANDOM = np.random.default_rng(3)
COUNTS = RANDOM.integers(0, 50, (200, 3)).astype(np.float32)
AMOUNTS = np.exp(RANDOM.standard_normal((200, 4))).astype(np.float32)
GAPS = np.where(RANDOM.random((200, 2)) < [0.5, 0.0], np.nan, AMOUNTS[:, :2]).astype(np.float32)
WORDS = np.array([["own", "red"], ["rent", "blue"], ["free", "green"], ["own", "blue"]], object)


@pytest.mark.parametrize("known_rows", [COUNTS, AMOUNTS, AMOUNTS.astype(np.float64), AMOUNTS[:2]])
def test_a_row_is_nobodys_and_within_what_is_known(known_rows: np.ndarray) -> None:
    drawn = synthetic_rows(known_rows, 20)
    assert drawn.dtype == known_rows.dtype
    assert not {row.tobytes() for row in drawn} & {row.tobytes() for row in known_rows}
    assert (drawn >= known_rows.min(axis=0)).all()
    assert (drawn <= known_rows.max(axis=0)).all()
    assert (drawn.std(axis=0) > 0).all()


def test_whole_numbers_stay_whole_and_gaps_come_as_often() -> None:
    assert (synthetic_rows(COUNTS, 50) % 1 == 0).all()
    drawn = synthetic_rows(GAPS, 400)
    assert 0.3 < np.isnan(drawn[:, 0]).mean() < 0.7
    assert not np.isnan(drawn[:, 1]).any()


def test_words_and_ids_come_from_several_rows() -> None:
    drawn = synthetic_rows(WORDS, 30)
    assert {*drawn[:, 0]} == {"own", "rent", "free"}
    assert {tuple(row) for row in drawn} - {tuple(row) for row in WORDS}
    ids = np.arange(12).reshape(4, 3)
    assert all(value in ids[:, i] for row in synthetic_rows(ids, 10) for i, value in enumerate(row))


@pytest.mark.parametrize("only", [0.0, 5.0])
def test_one_known_row_is_moved_in_every_feature(only: float) -> None:
    assert (synthetic_rows(np.full((1, 3), only, np.float32), 5) != only).all()


ARRAYS = {
    "FP32": np.array([[0.1, -3e38], [1e-45, np.nan]], np.float32),
    "FP64": np.array([[0.1, 1 / 3], [2**53 + 2, np.nan]]),
    "FP16": np.array([[0.1, 65504.0]], np.float16),
    "BF16": np.array([[0.1, 3e38]], ml_dtypes.bfloat16),
    "INT64": np.array([[2**63 - 1, -(2**63)]]),
    "UINT64": np.array([[2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "BOOL": np.array([[True, False]]),
    "BYTES": np.array([["ärmer", ""]], object),
}


@pytest.mark.parametrize("datatype", ARRAYS)
def test_a_file_holds_every_type_as_it_is(datatype: str, tmp_path: Path) -> None:
    array = ARRAYS[datatype]
    assert datatype in DATATYPES.values()
    tensor = ProbeInput(name="x", datatype=datatype, shape=array.shape, data=values(array))
    Probes(source="runtime", runtime="here", inputs=(tensor,), outputs=()).write(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    feeds = Probes.read(tmp_path).feeds["x"]
    assert feeds.dtype == array.dtype
    np.testing.assert_array_equal(feeds, array)


def test_the_output_s_range_is_the_unit_of_all_that_adds_up_to_it() -> None:
    """The gap takes it too, because its own range is only rounding. Other outputs have their own ranges."""
    answers = {"y": [5.0, 5.0], "explained_value": [[1.0], [3.0]], "base_value": [[0.5], [0.5]]}
    answers |= {"completeness_gap": [[0.0], [1e-7]], "x_attributions": [[0.5], [-1.5]]}
    arrays = {name: np.asarray(value, np.float32) for name, value in answers.items()}
    scales = {output.name: output.scale for output in expected._outputs(arrays)}
    values = ("explained_value", "base_value", "completeness_gap")
    assert scales == {"y": 5.0, "x_attributions": 2.0, **dict.fromkeys(values, 2.5)}


def probe_output(
    *data: Any, datatype: str = "FP32", scale: float = 1.0, positions: Any = None
) -> ProbeOutput:
    return ProbeOutput(name="y", datatype=datatype, scale=scale, data=list(data), positions=positions)


@pytest.mark.parametrize(
    ("output", "answer", "expected"),
    [
        (probe_output(0.0, 1.0), [[0.0], [1.0]], 0.0),
        (probe_output(0.0, 1.0), [[0.0], [1.5]], 0.5),
        (probe_output(0.0, 1.0, scale=10.0), [[0.0], [1.5]], 0.05),
        (probe_output(0.0, 1e6), [[0.0], [1e6 + 0.5]], 0.0),  # four steps of float32
        (probe_output(0.0, 1e6, datatype="FP64"), [[0.0], [1e6 + 0.5]], 0.5),
        (probe_output(0.0, 1.0), [[0.0], [np.nan]], np.inf),
        (probe_output(0.0, None), [[0.0], [np.nan]], 0.0),
        (probe_output(0.0, None), [[0.0], [0.0]], np.inf),
        (probe_output(0.0, 1.0), [[0.0, 0.0], [1.0, 0.0]], np.inf),
        (probe_output(0.0, 1.0), 0.5, np.inf),
        (probe_output(2.0, 4.0, positions=(1,)), [[9.0, 2.0], [9.0, 4.5]], 0.5),
        (probe_output(2.0, 4.0, positions=(2,)), [[9.0, 2.0], [9.0, 4.5]], np.inf),
        (probe_output(1, 2, 3, 4, datatype="INT64"), [[1, 2], [3, 5]], 0.25),
        (probe_output("a", "b", datatype="BYTES"), [[b"a"], [b"c"]], 0.5),
        (probe_output(True, False, datatype="BOOL"), [[True], [False]], 0.0),
    ],
)
def test_a_difference_is_of_the_range_and_less_rounding(
    output: ProbeOutput, answer: Any, expected: float
) -> None:
    difference = output.difference(np.asarray(answer))
    assert difference == pytest.approx(expected, rel=1e-5)


def test_the_worst_output_is_named_and_those_not_asked_are_left_out() -> None:
    outputs = (probe_output(1.0), probe_output(1.0).model_copy(update={"name": "z"}))
    probes = Probes(source="runtime", runtime="then", inputs=(), outputs=outputs)
    difference = probes.compare({"y": np.array([[1.001]]), "z": np.array([[1.1]])})
    assert (difference.output, difference.is_broken, difference.is_notable) == ("z", True, True)
    text = difference.describe("now", "then")
    assert all(word in text for word in ("now", "then", "'z'", "0.1"))
    difference = probes.compare({"y": np.array([[1.0001]])})
    assert (difference.output, difference.is_broken, difference.is_notable) == ("y", False, True)
    assert not probes.compare({"y": np.array([[1.000001]])}).is_notable


def forest() -> tuple[RandomForestClassifier, np.ndarray]:
    x = RANDOM.standard_normal((120, 4)).astype(np.float32)
    return RandomForestClassifier(10, max_depth=4, random_state=0).fit(x, x[:, 0] > x[:, 1]), x


def test_a_fitted_model_says_what_is_due() -> None:
    model, x = forest()
    probes = compile_model(model, TreeShap(x[:20])).probes
    assert probes.source == "fitted model"
    (proba,) = (o for o in probes.outputs if o.name == "probabilities")
    np.testing.assert_allclose(
        np.reshape(proba.data, (-1, 2)), model.predict_proba(probes.feeds["x"]), atol=1e-6
    )


def test_of_a_file_the_reference_evaluator_does() -> None:
    assert compile_model(mlp(), DeepShap(rows(5, 5))).probes.source == "reference evaluator"
    model, x = forest()
    compiled = compile_model(convert(model, x).model, TreeShap(x[:20]))
    assert compiled.probes.source == "reference evaluator"


def test_a_runtime_that_is_wrong_about_the_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release 1.26.0 took the probability of class 1 from that of class 0 in binary forests."""
    model, x = forest()
    converted = convert(model, x).model
    evaluated = expected._reference_answers

    def shifted(*arguments: Any) -> dict[str, np.ndarray]:
        return {n: a - 0.3 if n == "probabilities" else a for n, a in evaluated(*arguments).items()}

    assert compile_model(converted, TreeShap(x[:20])).manifest.warnings == ()
    monkeypatch.setattr(expected, "_reference_answers", shifted)
    compiled = compile_model(converted, TreeShap(x[:20]))
    assert "'probabilities' differs by" in compiled.manifest.warnings[0]
    assert compiled.probes.source == "runtime"


QUANTISED = """g (float[N, 200] x) => (float[N, 200] y) {
    q = QuantizeLinear (x, s, o)  d = DequantizeLinear (q, s, o)  m = Mul (d, d)
    p = QuantizeLinear (m, s, o)  y = DequantizeLinear (p, s, o)
}"""


def test_a_quantised_model_carries_the_difference_between_its_kernels(tmp_path: Path) -> None:
    """ONNX Runtime runs the plain entry on whole numbers, and the graph of the explanation as it stands."""
    model = parsed(QUANTISED, {"s": np.float32(0.02), "o": np.uint8(128)})
    compiled = compile_model(model, DeepShap(rows(5, 200)), targets=[0])
    assert compiled.probes.limit >= 2 * compiled.probes.kernels > BROKEN
    compiled.write(tmp_path, "net")
    plain = Probes.read(tmp_path / "net" / "1")
    answers = Runner(onnx.load(tmp_path / "net" / "1" / "model.onnx"))(plain.feeds)
    assert BROKEN < plain.compare(answers).value <= plain.limit
    assert compile_model(mlp(), DeepShap(rows(5, 5))).probes.limit == BROKEN


def test_an_image_is_asked_once_and_some_of_its_elements_are_compared() -> None:
    model = parsed(
        "network (float[N, 3, 32, 32] x) => (float[N, 1] y) { f = Flatten (x)  y = MatMul (f, w) }",
        {"w": rows(3 * 32 * 32, 1)},
    )
    probes = compile_model(model, DeepShap(rows(4, 3, 32, 32))).probes
    (attributions,) = (o for o in probes.outputs if o.name == "x_attributions")
    assert len(attributions.positions) == MOST_ELEMENTS
    assert attributions.positions[-1] == 3 * 32 * 32 - 1
    assert len(attributions.data) == probes.rows * MOST_ELEMENTS


def test_every_kind_of_entry_answers_its_own_rows() -> None:
    for compiled in (
        compile_model(mlp(), DeepShap(rows(5, 5))),
        compile_model(cnn(), DeepShap(rows(3, 2, 6, 8))),
        compile_model(mlp(), Gradient()),
    ):
        difference = compiled.probes.compare(compiled.run(compiled.probes.feeds))
        assert not difference.is_notable, difference
        assert compiled.manifest.measured.probe_rows == compiled.probes.rows > 0


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no rows": lambda file: file.pop("inputs"),
    "a member too many": lambda file: file.update(more=1),
    "another version": lambda file: file.update(version=2),
    "a shape that does not fit": lambda file: file["inputs"][0].update(shape=[3, 3]),
    "words for numbers": lambda file: file["inputs"][0].update(data=["a"] * 20),
    "no type": lambda file: file["inputs"][0].update(datatype="FP8"),
    "a range of 0": lambda file: file["outputs"][0].update(scale=0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    folder = compile_model(mlp(), DeepShap(rows(5, 5))).write(tmp_path, "net") / "1"
    file = json.loads((folder / "probes.json").read_text())
    DAMAGE[damage](file)
    (folder / "probes.json").write_text(json.dumps(file))
    with pytest.raises(RepositoryError, match=r"probes\.json: .*\(.+\)"):
        Probes.read(folder)


def test_no_json_and_no_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "probes.json").write_bytes(b"\xff{")
    with pytest.raises(RepositoryError, match=r"probes\.json: "):
        Probes.read(tmp_path)
    (tmp_path / "probes.json").unlink()
    assert Probes.read(tmp_path) is None
    with pytest.raises(RepositoryError, match=r"probes\.json: is missing"):
        Probes.read(tmp_path, promised=True)


def test_half_precision_has_its_own_rounding_for_a_limit() -> None:
    model = mlp()
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    compiled = compile_model(model, Gradient(times_input=True))
    assert compiled.probes.kernels >= compiled.manifest.measured.rounding > 0


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_the_sample_is_the_mean_of_the_references_by_their_weights(weights: list[float] | None) -> None:
    """Means leave missing values out."""
    references = np.array([[1, 10, np.nan, 0, 4], [2, 20, 7, 0, 4], [6, np.nan, np.nan, 0, 5]], np.float32)
    method = TreeShap(references, weights=weights)
    trees = of.regressor(of.random_trees(1, ("LEQ",)))
    (sample,) = compile_model(trees, method).sample.values()
    shares = np.ones(3) if weights is None else np.array(weights)
    there = np.isfinite(references)
    due = (np.where(there, references, 0) * shares[:, None]).sum(0) / (there * shares[:, None]).sum(0)
    np.testing.assert_allclose(sample, due[None], rtol=1e-6)
