"""What a notebook shows of an answer and of a combined graph, what is left out, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rationale import AttnLrp, Compiled, DeepShap, Explanation, Gradient, Lrp, TreeShap, compile_model
from rationale.errors import InvalidOptionError
from rationale.pictures.numbers import format_effect, writer
from rationale.pictures.picture import ROWS, TARGETS
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows
from tests.compiler.pictures.pages import Page

CREDIT = Path(__file__).parents[3] / "examples" / "credit"
HOSTILE = ("<script>alert(1)</script>", "a\x00b", "c", "d", "e")


@pytest.fixture(scope="module")
def table() -> Compiled:
    return compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets="all", feature_names=HOSTILE)


@pytest.fixture(scope="module")
def answer(table: Compiled) -> Explanation:
    return table.explain(rows(40, FEATURES, seed=9))


def titles(shown: Any) -> list[str]:
    return [seen.text for seen in Page(shown._repr_html_()).of("figcaption")]


def test_an_answer_shows_an_overview_and_its_first_rows(answer: Explanation) -> None:
    page = Page(answer._repr_html_())
    captions = [seen.text for seen in page.of("figcaption")]
    assert [caption.split(" over ")[0] for caption in captions[:6:2]] == [
        f"y[{t}]: mean |attribution|" for t in range(3)
    ]
    assert [caption.split(":")[0] for caption in captions[6:]] == [
        f"row {i + 1}, y[{t}]" for i in range(ROWS) for t in range(TARGETS)
    ]
    assert page.of("p", "note")[0].text.startswith("the first 3 of 40 rows are shown one by one")
    cells = [seen.text for seen in page.of("td")]
    assert "40, 3 targets each" in cells
    assert any("x_attributions [40, 3, 5]" in cell for cell in cells)
    assert not page.of("script")
    assert all("style" not in seen.attributes and "src" not in seen.attributes for seen in page.elements)


def test_bars_are_the_answers_numbers(answer: Explanation) -> None:
    page = Page(answer.plot(7, targets=1, top=2)._repr_html_()).rows()
    j = int(answer["explained_value"][7].argmax())
    values = answer["x_attributions"][7, j]
    order = np.argsort(-np.abs(values))
    shown = [*values[order[:2]], values[order[2:]].sum(dtype=np.float64)]
    write = writer(shown, is_share=True)
    assert [number for _, number in page] == [
        f"{write(answer['base_value'][7, j])}%",
        *(format_effect(write, each) for each in shown),
        f"{write(answer['explained_value'][7, j])}%",
    ]
    assert page[3][0] == "3 others"


def test_rows_are_chosen(answer: Explanation) -> None:
    assert [title.split(",")[0] for title in titles(answer.plot([5, 2], targets=1))] == ["row 6", "row 3"]
    assert [t.split(",")[0] for t in titles(answer.plot(np.array([39]), targets=1))] == ["row 40"]
    assert Page(answer.plot(3)._repr_html_()).of("p", "note") == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, "row 3"),
        (range(4), "row 3"),
        ([7, 8, 24017, 9], "row 3, index 24017"),
        ([*"abab"], "row 3, index a"),
    ],
)
def test_a_row_has_the_label_of_its_data_frame(table: Compiled, labels: Any, expected: str) -> None:
    frame = pd.DataFrame(rows(4, FEATURES), columns=table.manifest.explained[0].feature_names, index=labels)
    (title,) = titles(table.explain(frame).plot(rows=[2], targets=1))
    assert title.partition(", y[")[0] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 40}, r"plot\(rows=40\): give rows of the answer, 0 to 39"),
        ({"rows": [39, 40]}, "0 to 39"),
        ({"rows": -1}, "0 to 39"),
        ({"rows": []}, "0 to 39"),
        ({"rows": "3"}, "0 to 39"),
        ({"rows": [0.5]}, "0 to 39"),
        ({"top": 0}, r"plot\(top=0\): give 1 or more"),
        ({"targets": 0}, r"plot\(targets=0\)"),
        ({"tokens": "no.json"}, r"tokens no\.json: cannot be read"),
    ],
)
def test_what_cannot_be_drawn_is_refused(answer: Explanation, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        answer.plot(**options)


@pytest.mark.parametrize(
    ("method", "ends"),
    [
        (Lrp(), ["base value", "explained value"]),  # the logits
        (AttnLrp(), ["base value", "explained value"]),
        (DeepShap(rows(4, FEATURES)), ["base value", "score"]),
        (Gradient(), []),
    ],
)
def test_only_what_adds_up_is_a_waterfall(method: Any, ends: list[str]) -> None:
    shown = compile_model(mlp(), method, targets=[0]).explain(rows(1, FEATURES)).plot(0)
    names = [name for name, _ in Page(shown._repr_html_()).rows()]
    assert [name for name in names if name in ("base value", "explained value", "score")] == ends


def test_one_row_needs_no_overview(table: Compiled) -> None:
    shown = titles(table.explain(rows(1, FEATURES)))
    assert [title.split(":")[0] for title in shown] == [f"row 1, y[{t}]" for t in range(3)]


def test_many_targets_are_counted() -> None:
    model = parsed(
        "g (float[N, 5] x) => (float[N, 40] y) { h = Relu (x) y = MatMul (h, w) }", {"w": rows(5, 40)}
    )
    answer = compile_model(model, DeepShap(rows(4, 5)), targets="all").explain(rows(1, 5))
    (note,) = Page(answer._repr_html_()).of("p", "note")
    assert note.text == "of 40 targets those 3 of the largest value: see plot(targets=…)"
    largest = np.argsort(-answer["explained_value"][0])[:TARGETS]
    assert [title.split(":")[0] for title in titles(answer)] == [f"row 1, y[{t}]" for t in largest]


def test_images_and_tokens() -> None:
    x = rows(3, 2, 6, 8)
    page = Page(compile_model(cnn(), DeepShap(x), targets=[0]).explain(x)._repr_html_())
    assert len(page.of("img")) == 3
    assert all(seen.attributes["src"].startswith("data:image/png;base64,") for seen in page.of("img"))
    text = parsed(
        """g (int64[N, 4] ids) => (float[N, 2] y) { e = Gather (table, ids) h = Tanh (e)
          p = ReduceMean <keepdims = 0> (h, one) y = MatMul (p, w) }""",
        {"table": rows(9, 3), "w": rows(3, 2, seed=1), "one": np.array([1])},
    )
    answer = compile_model(text, Lrp(), targets=[1]).explain(np.array([[1, 2, 8, 3]]))
    drawn = answer.plot(tokens=["zero", "one", "<i>", "three"])
    assert Page(drawn._repr_html_()).of("p", "tokens")[0].text.split() == ["one", "<i>", "[8]", "three"]
    assert Page(answer._repr_html_()).of("p", "tokens")[0].text.split() == ["1", "2", "8", "3"]


def test_it_is_saved(answer: Explanation, tmp_path: Path) -> None:
    drawn = answer.plot([0, 1], targets=1)
    assert repr(drawn) == "Picture('y explained by deepshap', 2 drawn)"
    for name, start in (("p.html", b"<!doctype html>"), ("p.svg", b"<svg ")):
        drawn.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    answer.plot().save(tmp_path / "all.svg")
    assert "the first 3 of 40 rows are shown one by one" in (tmp_path / "all.svg").read_text("utf-8")
    page = Page((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert len(page.of("figure")) == 2
    assert page.of("h1")[0].text == "y explained by deepshap"


@pytest.mark.parametrize(
    ("name", "words"),
    [("p.gif", r"must end in \.html or \.svg"), ("p", "must end in"), ("no/p.html", "cannot be written")],
)
def test_a_file_that_cannot_be_saved(answer: Explanation, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        answer.plot(0).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# -- combined graphs -----------------------------------------------------------------------------------


def test_a_compiled_model_says_what_it_is(table: Compiled) -> None:
    page = Page(table._repr_html_())
    facts = dict(zip([s.text for s in page.of("th")], [s.text for s in page.of("td")], strict=True))
    assert facts["explains"] == "y (targets: 0, 1, 2) by x, deepshap"
    assert facts["explainer"] == table.manifest.digests.explanation[:12]
    assert [name for name, _ in page.rows()] == ["y[0]", "y[1]", "y[2]"]
    assert HOSTILE[0] in page.of("details")[0].text
    assert not page.of("script")


def test_a_decision_has_its_thresholds() -> None:
    profile = CREDIT / "decision.yaml"
    import pandas as pd

    near = pd.read_csv(CREDIT / "near_threshold.csv")
    compiled = compile_model(CREDIT / "credit.onnx", DeepShap(near), decision=profile)
    rows_ = dict(Page(compiled._repr_html_()).rows())
    base = compiled.manifest.references.base_value[0]
    assert rows_ == {
        "approve": "0% … 18%",
        "a person decides": "18% … 22%",
        "decline": "22% … 100%",
        "base value": f"{base:.2%}",
    }


def test_the_base_value_stands_among_the_thresholds_of_an_element() -> None:
    """A classifier's score is one element of its probabilities."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    x = rows(60, 3)
    model = HistGradientBoostingClassifier(max_iter=3).fit(x.astype(np.float64), x[:, 0] > 0)
    names = list("abc")
    profile = {"output": "probabilities[1]", "threshold": 0.5, "adverse": "above", "max_reasons": 2}
    profile |= {"features": {n: {"reason": n} for n in names}, "reasons": {n: f"reason {n}" for n in names}}
    compiled = compile_model(model, TreeShap(x[:10]), decision=profile, feature_names=names)
    assert compiled.manifest.references is not None
    (base,) = compiled.manifest.references.base_value
    assert dict(Page(compiled._repr_html_()).rows())["base value"] == f"{base:.2%}"


def test_a_fitted_model_says_how_far_it_is_from_its_own(table: Compiled) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    x = rows(60, 3)
    model = HistGradientBoostingClassifier(max_iter=3).fit(x.astype(np.float64), x[:, 0] > 0)
    compiled = compile_model(model, TreeShap(x[:10]))
    assert compiled.conversion is not None
    assert compiled.conversion in Page(compiled._repr_html_()).of("td")[0].text
    assert "converted" not in [seen.text for seen in Page(table._repr_html_()).of("th")]
