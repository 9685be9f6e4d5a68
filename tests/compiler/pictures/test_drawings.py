"""Pictures of tables, images and tokens, `rationale explain --save FILE.svg`, and bad input."""

import re
import sys
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner, Result

from rationale import DeepShap, Gradient, Lrp, compile_model
from rationale.methods.engine import Method
from rationale.pictures.figures import figures
from rationale.pictures.panels import (
    Bars,
    Estimate,
    Heat,
    LayerFlow,
    Panel,
    TensorAttributions,
    Words,
    bars,
    format_value,
    panels,
    panels_of,
    shorten_name,
)
from rationale.pictures.svg import svg
from rationale.pictures.words import NUMBERS, Word, read_vocabulary, vocabulary_of
from rationale.schema.manifest import Attributed, TensorSpec
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows, two_inputs

HOSTILE = ["$x^2$", "a very long name that some pipeline made__of__its__steps_17", "<b>&", "{}", "金額"]
VOCABULARY, LENGTH = 60, 7


def panels_drawn(model: onnx.ModelProto, method: Method, x: object, **options: object) -> list[Panel]:
    answer = compile_model(model, method, **options).explain(x)
    count = len(answer[answer.manifest.explained_value])
    return [panel for i in range(count) for panel in panels_of(answer, i, i, 3, NUMBERS)]


def tensor_attributions(
    attributions: np.ndarray, values: np.ndarray | None = None, position: tuple[str, ...] | None = None
) -> TensorAttributions:
    spec = TensorSpec(name="x", datatype="FP32", shape=attributions.shape)
    return TensorAttributions(
        Attributed(tensor=spec, attributions="x_attributions", at=position), attributions, values, None
    )


# -- panels --------------------------------------------------------------------------------------------


def test_bars_are_sorted_and_add_up() -> None:
    values = np.array([0.1, -3.0, 0.0, 2.0, -0.4])
    drawn = bars("t", [tensor_attributions(values, np.arange(5.0))], 2, Estimate(values + 1, np.ones(5)))
    assert drawn.labels == ("x[1] = 1", "x[3] = 3", "3 others")
    np.testing.assert_allclose(drawn.values, [-3, 2, -0.3])
    np.testing.assert_allclose(drawn.shapley.values, [-2, 3, 2.7])
    np.testing.assert_array_equal(drawn.shapley.errors, [1, 1, np.nan])
    assert len(bars("t", [tensor_attributions(values)], 4).labels) == 5, "one other feature has its own bar"


def test_a_table_has_a_panel_for_each_row_and_target() -> None:
    x = rows(2, FEATURES, seed=9)
    drawn = panels_drawn(mlp(), DeepShap(rows(4, FEATURES), standard_error=True), x, targets=[2, 0])
    answer = compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets=[2, 0]).explain(x)
    assert [re.sub(r"[\d.]+%, base value [\d.]+%$", "…", panel.title) for panel in drawn] == [
        f"row {i}, y[{target}]: …" for i in range(2) for target in (2, 0)
    ]
    for panel, expected in zip(drawn, answer["x_attributions"].reshape(4, -1), strict=True):
        assert isinstance(panel, Bars)
        assert panel.values.sum() == pytest.approx(expected.sum(), abs=1e-6)
        assert np.isfinite(panel.errors[:3]).all()


def test_predicted_classes_are_named_and_slopes_have_no_base_value() -> None:
    x = rows(1, FEATURES, seed=9)
    (drawn,) = panels_drawn(mlp(), Gradient(), x)
    answer = compile_model(mlp(), Gradient()).explain(x)
    assert drawn.title == f"row 0, y[{answer['y'].argmax()}] (predicted): {answer['y'].max():.2%}"


def test_tables_of_several_inputs_share_their_bars() -> None:
    references = {"a": rows(3, 3), "b": rows(3, 4)}
    x = {name: a[:1] * 2 for name, a in references.items()}
    drawn = panels_drawn(two_inputs(), DeepShap(references), x, targets=[0])
    assert len(drawn) == 1
    assert {label[0] for label in drawn[0].labels[:3]} <= {"a", "b"}
    assert drawn[0].labels[3] == "4 others"


def test_players_are_bars_beside_the_features_of_other_inputs() -> None:
    references = {"a": rows(4, 3), "b": rows(4, 4)}
    compiled = compile_model(
        two_inputs(), DeepShap(references), targets=[1], groups={"ends": ["b[0]", "b[3]"]}
    )
    answer = compiled.explain({"a": rows(2, 3, seed=1), "b": rows(2, 4, seed=2)})
    (panel,) = panels_of(answer, 1, 1, 9, NUMBERS)
    assert isinstance(panel, Bars)
    assert {label.split(" = ")[0] for label in panel.labels} == {
        "a[0]",
        "a[1]",
        "a[2]",
        "ends",
        "b[1]",
        "b[2]",
    }
    assert f"b[2] = {format_value(answer.inputs['b'][1, 2])}" in panel.labels
    place = panel.labels.index("ends")
    assert panel.values[place] == pytest.approx(answer["group_attributions"][1, 0, 0])


def test_an_image_is_a_heatmap_of_its_channels_sum() -> None:
    references = rows(3, *(d.dim_value for d in cnn().graph.input[0].type.tensor_type.shape.dim[1:]))
    (drawn,) = panels_drawn(cnn(), DeepShap(references), references[:1] * 2, targets=[1])
    answer = compile_model(cnn(), DeepShap(references), targets=[1]).explain(references[:1] * 2)
    assert isinstance(drawn, Heat)
    name = next(n for n in answer if n.endswith("_attributions"))
    np.testing.assert_allclose(drawn.values, answer[name][0, 0].sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "drawn", "has_picture"),
    [
        ((3, 8, 9), (8, 9), True),
        ((8, 9, 3), (8, 9), True),
        ((1, 8, 9), (8, 9), True),
        ((8, 9), (8, 9), True),
        ((16, 8, 9), (8, 9), False),  # channels of an inner tensor are no picture
    ],
)
def test_where_the_channels_are(shape: tuple[int, ...], drawn: tuple[int, ...], has_picture: bool) -> None:
    (actual,) = panels("t", [tensor_attributions(rows(*shape), rows(*shape, seed=1))], 3)
    assert isinstance(actual, Heat)
    assert actual.values.shape == drawn
    assert (actual.picture is not None) == has_picture
    if actual.picture is not None:
        assert (actual.picture.min(), actual.picture.max()) == (0, 1)


def test_layers_share_a_picture_of_how_attributions_flow() -> None:
    """Which adds up to explained − base at every layer of a chain."""
    x = rows(2, 2, 6, 8, seed=1)
    *_, flow = panels_drawn(cnn(), DeepShap(rows(4, 2, 6, 8)), x[:1], targets=["2-0"], layers=["c", "r", "y"])
    assert isinstance(flow, LayerFlow)
    assert flow.title.startswith("row 0, y[2-0]: ")
    assert flow.labels == ("x", "c", "r", "y")
    assert (flow.raising > 0).all()
    assert (flow.lowering < 0).all()
    np.testing.assert_allclose(flow.raising + flow.lowering, np.full(4, flow.total), rtol=1e-4)


def test_what_is_no_picture_has_bars() -> None:
    (actual,) = panels("t", [tensor_attributions(rows(2, 3, 4, 5))], 3)
    assert isinstance(actual, Bars)
    assert re.fullmatch(r"x\[\d+\]", actual.labels[0])


def test_padding_is_left_out() -> None:
    ids = np.array([4, 9, 0, 7, 0, 0, 0])
    for values, length in (
        (np.array([1.0, 2, 0, 3, 0, 0, 0]), 4),
        (np.array([1.0, 2, 0, 3, 0, 0, 1]), 7),
        (np.zeros(7), 4),
    ):
        (actual,) = panels("t", [tensor_attributions(values, ids, position=("e",))], 3)
        assert isinstance(actual, Words)
        assert [word.text for word in actual.words] == [str(i) for i in ids[:length]]
    (actual,) = panels("t", [tensor_attributions(np.zeros(3), np.zeros(3, int), position=("e",))], 3)
    assert len(actual.words) == 3


# -- words ---------------------------------------------------------------------------------------------

TEXT = ["an unbelievable film, müßig", "the film was unbelievably good"]
NEW = "the fil was unbeliev"


def trained(kind: str) -> Tokenizer:
    actual = {"bytes": Tokenizer(models.BPE()), "pieces": Tokenizer(models.WordPiece(unk_token="?"))}[kind]  # noqa: S106
    if kind == "bytes":
        actual.pre_tokenizer, actual.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<s>"])
    else:
        actual.pre_tokenizer, actual.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=45, show_progress=False, special_tokens=["?", "[CLS]"])
    actual.train_from_iterator(TEXT * 3, trainer)
    return actual


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_words_of_a_tokenizer_are_the_text_again(tmp_path: Path, kind: str) -> None:
    tokenizer, file = trained(kind), tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    ids = tokenizer.encode(NEW).ids
    words = read_vocabulary(file).words(ids)
    assert len(words) == len(ids)
    message = "".join(word.text if word.joined else f" {word.text}" for word in words).strip()
    assert message.replace("␣", "").replace("  ", " ") == NEW
    assert any(word.joined for word in words)
    assert read_vocabulary(file).words([10**6, -1]) == [Word("[1000000]", False), Word("[-1]", False)]


def test_a_mark_without_a_word_is_a_word() -> None:
    words = vocabulary_of(["a", "##b", "##"]).words([0, 1, 2])
    assert words == [Word("a", False), Word("b", True), Word("##", False)]


def test_words_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\nfilm\r\n##s\n\ngood", encoding="utf-8")
    words = read_vocabulary(tmp_path / "vocab.txt").words([1, 2, 4, 3, 0, 5])
    assert [word.text for word in words] == ["film", "s", "good", "␣", "[PAD]", "[5]"]
    assert [word.joined for word in words] == [False, True, False, False, False, False]


# -- files ---------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, an image and a text as entries, with rows of each."""
    monkeypatch.chdir(tmp_path)
    table = compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets="all", feature_names=HOSTILE)
    table.write("model_repository", "table")
    text = parsed(
        f"""g (int64[N, {LENGTH}] ids) => (float[N, 2] y)
        {{ e = Gather (table, ids) h = Tanh (e)
          p = ReduceMean <keepdims = 0> (h, one) y = MatMul (p, w) }}""",
        {"table": rows(VOCABULARY, 3), "w": rows(3, 2, seed=1), "one": np.array([1])},
    )
    compile_model(text, Lrp(), targets=[1]).write("model_repository", "text")
    np.save("x.npy", rows(9, FEATURES, seed=9) * np.float32([1, 1e-6, 1e6, 1, 0]))
    np.save("ids.npy", np.random.default_rng(0).integers(0, VOCABULARY, (3, LENGTH)))
    Path("vocab.txt").write_text("\n".join(f"<w{i}>" for i in range(VOCABULARY)))
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


SVG = "{http://www.w3.org/2000/svg}"


def drawn_in(file: Path) -> tuple[Element, list[str]]:
    """The root of a picture, and its texts, of which none may reach over the right edge."""
    root = fromstring(file.read_text("utf-8"))  # noqa: S314
    texts = root.findall(f"{SVG}text")
    for text in texts:
        start, length = float(text.get("x", 0)), float(text.get("textLength", 0))
        assert start + length <= float(root.get("width", 0))
    return root, ["".join(text.itertext()) for text in texts]


def test_a_table_is_drawn_in_a_file(place: Path) -> None:
    """The same rows give the same file, with names, numbers and bars; hostile names are text."""
    np.save("one.npy", np.load("x.npy")[:1])
    for name in ("p.svg", "q.svg"):
        result = call("table", "--input", "one.npy", "--save", name)
        assert result.exit_code == 0, result.output
        assert f"wrote {name}: 1 of 1 row\n" in result.stdout
    assert (place / "p.svg").read_bytes() == (place / "q.svg").read_bytes()
    root, texts = drawn_in(place / "p.svg")
    for name in HOSTILE:
        assert sum(text.startswith(f"{shorten_name(name)} = ") for text in texts) == 3, "of three targets"
    gaps = texts.count("not explained (completeness gap)")
    assert len(root.findall(f"{SVG}svg")) == 3 * (len(HOSTILE) + 2) + gaps, "base value and score, a bar each"
    tops = [float(row.get("y", 0)) for row in root.findall(f"{SVG}svg")]
    assert tops == sorted(set(tops)), "one below the other"
    assert tops[-1] < float(root.get("height", 0))


def test_only_the_first_rows_are_drawn(place: Path) -> None:
    result = call("table", "--input", "x.npy", "--save", "p.svg", "--rows", "2", "--top", "2")
    assert result.exit_code == 0, result.output
    assert "wrote p.svg: 2 of 9 rows\n" in result.stdout
    _, texts = drawn_in(place / "p.svg")
    assert [text for text in texts if text.startswith("row ")][::3] == [
        next(text for text in texts if text.startswith(f"row {i},")) for i in (1, 2)
    ]
    assert texts.count("3 others") == 2 * 3


def test_words_are_a_picture_with_as_many_lines_as_they_need(place: Path) -> None:
    heights = []
    for vocabulary in ("vocab.txt", "long.txt"):
        Path("long.txt").write_text(
            "\n".join(f"a_word_that_is_as_long_as_this_{i}" for i in range(VOCABULARY))
        )
        result = call("text", "--input", "ids.npy", "--save", "p.svg", "--tokenizer", vocabulary)
        assert result.exit_code == 0, result.output
        root, texts = drawn_in(place / "p.svg")
        ids = np.load("ids.npy").reshape(-1)
        names = Path(vocabulary).read_text().split("\n")
        assert [text for text in texts if text in names] == [names[i] for i in ids]
        heights.append(float(root.get("height", 0)))
    assert heights[1] > 1.5 * heights[0]


@pytest.mark.parametrize("wide", [9, 1500])
def test_images_and_layers_are_drawn_in_a_file(tmp_path: Path, wide: int) -> None:
    drawn = [
        Heat("h", rows(8, wide), np.abs(rows(8, wide)) % 1),
        LayerFlow("f", ("x",), np.ones(1), np.zeros(1), 1.0),
    ]
    (tmp_path / "p.svg").write_bytes(svg(figures(drawn)))
    root, texts = drawn_in(tmp_path / "p.svg")
    images = root.findall(f"{SVG}image")
    assert [image.get("href", "")[:22] for image in images] == ["data:image/png;base64,"] * 2
    ends = [float(image.get("x", 0)) + float(image.get("width", 0)) for image in images]
    assert ends[0] < ends[1] <= float(root.get("width", 0))
    assert {"h", "f", "x"} <= set(texts)


REFUSED = {
    "another kind": (("--save", "p.png"), r"p\.png: .* must end in .* or \.svg"),
    "a picture as a page": (("--html", "p.svg"), r"--html p\.svg: give a name that ends in \.html"),
    "columns in a picture": (("--save", "p.svg", "--keep", "a"), "--keep needs --save FILE"),
    "a page in a folder that is a file": (("--html", "x.npy/p.html"), r"--html x\.npy: cannot be written"),
    "a page without its tokenizer": (
        ("--html", "p.html", "--tokenizer", "no.txt"),
        r"no\.txt: cannot be read",
    ),
    "a folder that is a file": (("--save", "x.npy/p.svg"), r"x\.npy/p\.svg: cannot be written"),
    "no tokenizer": (("--save", "p.svg", "--tokenizer", "no.txt"), r"--tokenizer no\.txt: cannot be read"),
    "a tokenizer that is no text": (("--save", "p.svg", "--tokenizer", "x.npy"), "not UTF-8 text"),
    "another json": (("--save", "p.svg", "--tokenizer", "other.json"), r"other\.json: no tokenizer\.json"),
    "a tokenizer without a picture": (("--tokenizer", "vocab.txt"), "--tokenizer needs --html FILE"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_user_error(place: Path, name: str) -> None:
    arguments, words = REFUSED[name]
    (place / "other.json").write_text('{"model": 1}')
    before = sorted(place.rglob("*"))
    result = call("text", "--input", "ids.npy", *arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert re.search(words, " ".join(result.stderr.split())), result.stderr
    assert result.stdout == ""
    assert sorted(place.rglob("*")) == before


@pytest.mark.usefixtures("place")
def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    Path("t.json").write_text("{}")
    result = call("text", "--input", "ids.npy", "--save", "p.svg", "--tokenizer", "t.json")
    assert result.exit_code == 2
    assert "pip install 'tokenizers<" in result.stderr
