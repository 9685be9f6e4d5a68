"""HTML and SVG: bars that add up, dots, shades, heatmaps; hostile names, numbers that are none."""

import base64
import io
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rationale import DeepShap, Gradient, compile_model
from rationale.pictures.colours import HIGH, LOW, LOWERS, RAISES, rgb
from rationale.pictures.figures import figures
from rationale.pictures.markup import SHADES, element, fragment, page
from rationale.pictures.overview import Overview
from rationale.pictures.panels import Bars, Estimate, Heat, LayerFlow, Words, largest_targets
from rationale.pictures.png import data_uri, full_colour, heat_map, resize_picture
from rationale.pictures.words import Word
from tests.compiler.export import models
from tests.compiler.models import parsed
from tests.compiler.pictures.pages import Page, percent

HOSTILE = ['<script>alert("1")</script>', "</style><b>", "a&amp;b'\"", "\x00\x1b[31m\u202ex", "\ud800half"]


def seen(*drawn: object) -> Page:
    return Page(fragment(figures(drawn)))


def spans(actual: Page) -> list[tuple[float, float]]:
    """Left and right ends of bars."""
    bars = [seen.attributes for seen in actual.of("rect")]
    return [(percent(b["x"]), percent(b["x"]) + percent(b["width"])) for b in bars]


# -- bars ----------------------------------------------------------------------------------------------


def test_a_waterfall_leads_from_the_base_value_to_the_score() -> None:
    drawn = seen(Bars("t", ("a", "b", "c"), np.array([3.0, -1.0, 0.5]), base=1.0, score=3.5))
    assert drawn.rows() == [
        ("base value", "1.00"),
        ("a", "+3.00"),
        ("b", "-1.00"),
        ("c", "+0.50"),
        ("score", "3.50"),
    ]
    first, second, third = spans(drawn)
    np.testing.assert_allclose([first, second, third], [(2, 98), (66, 98), (66, 82)], atol=0.01)
    start, end = (percent(seen.attributes["cx"]) for seen in drawn.of("circle"))
    assert (start, end) == pytest.approx((2, 82), abs=0.01)
    assert [seen.attributes["fill"] for seen in drawn.of("rect")] == [RAISES, LOWERS, RAISES]


def test_a_probability_is_in_percent_and_its_effects_in_points() -> None:
    errors = np.array([0.02, np.nan])
    bars = Bars("t", ("a", "b"), np.array([0.5, -0.1574]), errors, base=0.25, score=0.6426, is_share=True)
    drawn = seen(bars)
    assert drawn.rows() == [
        ("base value", "25.0%"),
        ("a", "+50.0 ± 2"),
        ("b", "-15.7"),
        ("not explained (completeness gap)", "+5"),
        ("score", "64.3%"),
    ]
    assert "percentage points" in drawn.of("figcaption")[0].text
    assert spans(drawn) == spans(seen(replace(bars, is_share=False)))


@pytest.mark.parametrize("method", [DeepShap(np.zeros((1, 2), np.float32)), Gradient()])
def test_pictures_of_a_probability_are_in_percent(method: DeepShap | Gradient) -> None:
    """Attributions of a gradient are slopes: the score alone is a probability."""
    graph = (
        "g (float[N, 2] x) => (float[N, 1] p) <float[2, 1] w = {1, 2}> { s = MatMul (x, w)  p = Sigmoid (s) }"
    )
    model = parsed(graph)
    answer = compile_model(model, method).explain(np.array([[0.5, -0.25], [1.0, 0.5]], np.float32))
    drawn = Page(fragment(answer.plot().content()))
    points = [seen.text for seen in drawn.of("figcaption") if "percentage points" in seen.text]
    assert any("row 2, p: 88.08%" in seen.text for seen in drawn.of("figcaption"))
    if isinstance(method, DeepShap):
        assert drawn.rows()[-4] == ("base value", "50.0%")
        assert ("score", "88.1%") in drawn.rows()
        assert len(points) == 4  # means, dots and two rows
    else:
        assert points == []


@pytest.mark.parametrize(("score", "message"), [(3.5, None), (3.5001, None), (3.0, "-0.5"), (4.25, "+0.75")])
def test_what_is_not_explained_has_a_bar(score: float, message: str | None) -> None:
    drawn = seen(Bars("t", ("a", "b", "c"), np.array([3.0, -1.0, 0.5]), base=1.0, score=score))
    gap = [number for name, number in drawn.rows() if name.startswith("not explained")]
    assert gap == ([] if message is None else [message])
    assert len(drawn.of("rect")) == 3 + len(gap)


def test_bars_that_add_up_to_nothing_start_from_zero() -> None:
    bars = Bars(
        "t",
        ("a", "b"),
        np.array([2.0, -2.0]),
        np.array([1.0, np.nan]),
        Estimate(np.array([3.0, np.nan]), np.ones(2)),
    )
    drawn = seen(bars)
    assert drawn.rows() == [("a", "+2.00 ± 1"), ("b", "-2.00")]
    (zero, right), (start, also_zero) = spans(drawn)
    assert zero == also_zero
    assert right - zero == pytest.approx(zero - start, abs=0.01)
    assert [percent(seen.attributes["cx"]) for seen in drawn.of("circle")] == [98]
    assert len([seen for seen in drawn.of("line") if seen.attributes["y1"] == seen.attributes["y2"]]) == 1
    assert "standard error" in drawn.of("figcaption")[0].text
    assert "Shapley" in drawn.of("figcaption")[0].text


@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf, -1.0], [0.0, 0.0], [1e38, -1e38], [5e-324, 0.0]])
def test_every_number_has_a_place(values: list[float]) -> None:
    for base in (None, 0.5):
        drawn = seen(Bars("t", ("a", "b"), np.array(values), base=base, score=base))
        for start, right in spans(drawn):
            assert 0 <= start <= right <= 100.5


def test_a_flow_has_a_dot_at_its_sum() -> None:
    drawn = seen(LayerFlow("t", ("x", "h"), np.array([3.0, 1.0]), np.array([-1.0, 0.0]), 2.0))
    assert [percent(seen.attributes["cx"]) for seen in drawn.of("circle")] == [74, 50]
    assert drawn.rows() == [("x", "+3.00 -1.00"), ("h", "+1.00 0.00")]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name: str) -> None:
    drawn = (
        Bars(name, (name,), np.ones(1), base=0.0, score=1.0),
        LayerFlow(name, (name,), np.ones(1), np.zeros(1), 1.0),
        Heat(name, np.ones((2, 2)), None),
        Words(name, (Word(name, False),), np.ones(1)),
        Overview(name, 2, (name,), np.ones(1), 0, np.ones((1, 2)), np.ones((1, 2))),
    )
    plain = re.sub("[\x00-\x08\x0b-\x1f]", "\ufffd", name).replace("\ud800", "?")
    markups = (fragment(figures(drawn)), page(name, figures(drawn)).decode())
    for markup in markups:
        actual = Page(markup)
        assert {seen.tag for seen in actual.elements} & {"script", "b"} == set()
        assert [seen.text for seen in actual.of("span", "name")].count(plain) >= 3
        assert all(plain in seen.text for seen in actual.of("figcaption"))
        assert plain in actual.of("img")[0].attributes["alt"]
        assert actual.of("style")[0].text.strip().endswith("}")
    assert actual.of("title")[0].text == plain


# -- many rows -----------------------------------------------------------------------------------------


def overview(n: int, remaining: int = 0) -> Overview:
    spread = np.linspace(-1, 1, n)
    means = np.array([0.5, 0.25, *[0.125] * bool(remaining)])
    values = np.stack([np.linspace(0, 1, n), np.full(n, np.nan)])
    return Overview("y", 10 * n, ("a", "b"), means, remaining, np.stack([spread, spread / 2]), values)


def test_an_overview_has_bars_of_means_and_a_dot_for_each_row() -> None:
    drawn = seen(overview(50, remaining=7))
    assert drawn.rows() == [
        ("a", "0.500"),
        ("b", "0.250"),
        ("7 others together", "0.125"),
        ("a", "-1.00 … +1.00"),
        ("b", "-0.50 … +0.50"),
    ]
    widths = [right - start for start, right in spans(drawn)]
    np.testing.assert_allclose(widths, [96, 48, 24], atol=0.02)
    paths = [seen.attributes for seen in drawn.of("path")]
    dots = {p["stroke"]: re.findall(r"M(-?[\d.]+) (-?[\d.]+)h0", p["d"]) for p in paths}
    assert sum(map(len, dots.values())) == 100
    assert len(dots["#808080"]) == 50
    assert max(float(x) for x, _ in dots[LOW]) < min(float(x) for x, _ in dots[HIGH])
    assert "50 of 500 rows" in drawn.of("figcaption")[1].text


def test_dots_of_many_equal_rows_stay_in_their_row() -> None:
    same = np.zeros((1, 300))
    drawn = seen(Overview("y", 300, ("a",), np.zeros(1), 0, same, same))
    heights = [float(y) for p in drawn.of("path") for y in re.findall(r" ([\d.]+)h0", p.attributes["d"])]
    assert len(heights) == 300
    assert len(set(heights)) > 200
    assert 0 < min(heights) < max(heights) < 46


# -- images and tokens ---------------------------------------------------------------------------------


def pixels(uri: str) -> np.ndarray:
    start = "data:image/png;base64,"
    assert uri.startswith(start)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix(start)))))


def test_a_heatmap_is_red_where_it_raises_and_the_picture_where_it_does_nothing() -> None:
    picture = np.array([[0.0, 1.0, 0.5], [0.25, 0.75, 1.0]])
    drawn = heat_map(Heat("t", np.array([[2.0, -2.0, 0.0], [1.0, 0.0, -1.0]]), picture))
    np.testing.assert_array_equal(drawn[0, :2], [rgb(RAISES), rgb(LOWERS)])
    assert len(set(drawn[0, 2])) == 1
    assert 128 < drawn[0, 2, 0] < 255
    red, _, blue = drawn[1, 0].astype(int)
    assert red > blue
    large = pixels(data_uri(resize_picture(drawn)))
    assert large.shape == (160, 240, 3)
    np.testing.assert_array_equal(large[::80, ::80], drawn)


def test_the_largest_attribution_is_told_beside_a_heatmap() -> None:
    values = np.zeros((3, 4))
    values[2, 1] = -0.5
    first, second = seen(Heat("t", values, np.ones((3, 4)))).of("img")
    assert first.attributes["alt"] == "the picture that is explained"
    assert "3 × 4 pixels, largest -0.5 at row 2, column 1" in second.attributes["alt"]
    assert second.attributes["width"] == "240"
    assert len(seen(Heat("t", values, None)).of("img")) == 1


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [((8, 8), (240, 240)), ((1, 50), (60, 200)), ((2500, 30), (834, 10)), ((1024, 1000), (1024, 1000))],
)
def test_pictures_have_a_size_that_can_be_seen(shape: tuple[int, int], drawn: tuple[int, int]) -> None:
    actual = resize_picture(np.full((*shape, 3), 77, np.uint8))
    assert actual.shape == (*drawn, 3)
    assert (actual == 77).all()


def test_large_pictures_are_means_of_their_pixels() -> None:
    large = np.zeros((2048, 3, 3), np.uint8)
    large[::2] = 100
    assert (resize_picture(large) == 50).all()


@pytest.mark.parametrize(
    ("elsewhere", "full"),
    [(0.0, 0.5), (1e-3, 1e-3), (np.nan, 0.5)],  # a few pixels of many are no measure of the others
)
def test_a_heatmap_is_as_bright_as_most_of_its_pixels_allow(elsewhere: float, full: float) -> None:
    values = np.full((30, 30), elsewhere)
    values[2, 1] = -0.5
    assert full_colour(values) == full
    np.testing.assert_array_equal(heat_map(Heat("t", values, None))[2, 1], rgb(LOWERS))
    assert full_colour(np.zeros((3, 3))) == 1


@pytest.mark.parametrize("values", [np.full((2, 2), np.nan), np.zeros((2, 2)), np.array([[np.inf, 1.0]])])
def test_a_heatmap_of_what_is_no_number(values: np.ndarray) -> None:
    assert len(seen(Heat("t", values, None)).of("img")) == 1


def test_tokens_are_shaded_by_their_sign_and_size() -> None:
    words = (Word("un", False), Word("paid", True), Word("loan", False), Word("is", False))
    drawn = seen(Words("t", words, np.array([0.5, -1.0, 0.0, 1e-9])))
    tokens = [seen for seen in drawn.of("span") if "p" in seen.inside]
    assert [t.attributes["class"] for t in tokens] == [f"r{SHADES // 2}", f"l{SHADES}", "r0", "r1"]
    assert [t.attributes["title"] for t in tokens] == ["+0.5", "-1", "0", "+1.0e-09"]
    assert drawn.of("p", "tokens")[0].text == " unpaid loan is"
    assert [seen.text for seen in drawn.of("td")][:3] == ["1", "paid", "-1.00"]


def test_a_long_text_says_what_it_leaves_out() -> None:
    drawn = seen(Words("t", (Word("w", False),) * 5000, np.ones(5000)))
    assert "1,000 more tokens" in drawn.of("p", "tokens")[0].text
    assert "largest 20 of 5000 tokens" in drawn.of("summary")[0].text


# -- pages ---------------------------------------------------------------------------------------------


def test_text_goes_where_it_was_given() -> None:
    created = element("p", "a", element("b", "c"), "d", "e", class_="x", data_y=1)
    drawn = Page(fragment([created]))
    (p,) = drawn.of("p", "x")
    assert p.text == "acde"
    assert p.attributes["data-y"] == "1"


# -- targets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "most", "expected"),
    [
        ([1.0, 3.0], 2, [0, 1]),
        ([1.0, 3.0, 2.0], 2, [1, 2]),
        ([2.0, 3.0, 2.0, 3.0], 3, [1, 3, 0]),
        ([0.5] * 40, 3, [0, 1, 2]),  # ties: in their order
        ([0.0] * 20 + [1.0] * 20, 2, [20, 21]),
        ([-1.0, -3.0], 1, [0]),
    ],
)
def test_the_targets_of_the_largest_value(values: list[float], most: int, expected: list[int]) -> None:
    class Answer(dict[str, np.ndarray]):
        manifest = SimpleNamespace(explained_value="explained_value")

    answer = Answer(explained_value=np.array([np.zeros_like(values), values]))
    assert [*largest_targets(answer, 1, most)] == expected


def test_bars_have_the_titles_of_the_profile() -> None:
    """The names of features stay where the profile has no title."""
    compiled = models.double()
    drawn = Page(compiled.explain(compiled.sample).plot(0)._repr_html_()).rows()
    named = [name.partition(" = ")[0] for name, _ in drawn]
    assert sorted(named) == ["Age", "Job", "Money", "base value", "score"]


def test_values_have_the_words_and_units_of_the_profile() -> None:
    """A code without a word stays a number, and so does a feature that the profile does not name."""
    model = parsed(
        "g (float[N, 3] x) => (float[N, 1] y) { y = MatMul (x, w) }", {"w": np.ones((3, 1), np.float32)}
    )
    rows = np.array([[50_000, 1, 0.5], [200, 2, 0.25], [7, 9, 1]], np.float32)
    features = {
        "limit": {"reason": "L", "title": "Credit limit", "unit": "NT$"},
        "sex": {"reason": "S", "title": "Sex", "categories": {"1": "male", "2": "female"}, "open": True},
        "rest": {"reason": "S"},
    }
    profile = {"output": "y", "threshold": 900, "adverse": "above", "features": features}
    profile["reasons"] = {"L": "Limit", "S": "Sex"}
    compiled = compile_model(model, DeepShap(rows[:2]), feature_names=[*features], decision=profile)
    pages = [Page(compiled.explain(row[None]).plot(0)._repr_html_()) for row in rows]
    drawn = [sorted(name for name, _ in page.rows()) for page in pages]
    assert drawn[0][:2] == ["Credit limit = 50,000 NT$", "Sex = male"]
    assert drawn[2][:2] == ["Credit limit = 7 NT$", "Sex = 9"]
    assert "rest = 0.25" in drawn[1]
