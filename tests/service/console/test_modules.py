"""The functions of the console's and the exported pages' modules that draw nothing, at their edges."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route

from rationale.export.page import FILES as PAGE
from rationale.pictures.browser import FILES as SHARED
from rationale_service.console.page import FILES as CONSOLE
from tests.service.console.node import in_node

ORIGIN = "http://localhost"  # nothing is asked there: the files are handed out below
FOLDERS = {"console": (CONSOLE, SHARED), "page": (PAGE, SHARED)}

Call = Callable[..., Any]


def _hand_out(route: Route) -> None:
    kind, _, name = urlsplit(route.request.url).path.removeprefix("/").partition("/")
    files = [folder / name for folder in FOLDERS.get(kind, ()) if (folder / name).is_file()]
    if files:
        route.fulfill(path=files[0])
    else:
        route.fulfill(status=404 if kind else 200, body="<!doctype html>", content_type="text/html")


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """One page without a gateway for all tests of this file: functions leave nothing behind."""
    page = browser.new_page()
    page.route(f"{ORIGIN}/**", _hand_out)
    page.goto(f"{ORIGIN}/")
    yield page
    page.close()


@pytest.fixture(scope="module")
def call(page: Page) -> Call:
    """Evaluate a function of JavaScript on a module and on values: `call(module, script, *values)`."""

    def called(module: str, script: str, *values: Any) -> Any:
        evaluated = f"async ([url, ...values]) => ({script})(await import(url), ...values)"
        return page.evaluate(evaluated, [f"{ORIGIN}/{module}", *values])

    return called


# --- files ----------------------------------------------------------------------------------------------

READ = """async ({readRows}, chunks) => {
  const rows = [];
  const bytes = chunks.map((chunk) => Uint8Array.from(chunk));
  const start = (to) => { bytes.forEach((each) => to.enqueue(each)); to.close(); };
  const take = (row) => { rows.push(row); return rows.length < 5 && take; };
  try {
    await readRows({stream: () => new ReadableStream({start})}, take);
    return {rows};
  } catch (error) {
    return {fault: error.message};
  }
}"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n", [["a", "b"], ["1", "2"]]),
        ("a,b\n1,2", [["a", "b"], ["1", "2"]]),
        ("\ufeffa;b\r\n1;\r\n\r\n;2\r\n", [["a", "b"], ["1", ""], ["", "2"]]),
        ("a|b\r1|2\n3|4", [["a", "b"], ["1", "2"], ["3", "4"]]),
        ('a,"b""c"\n"x""y",""""\n', [["a", 'b"c'], ['x"y', '"']]),
        ('"a,b"\t"c\r\nd"\n""\té\n', [["a,b", "c\r\nd"], ["", "é"]]),
        ('a\n""""""', [["a"], ['""']]),
        ('"a;b;c",d\n1,2\n', [["a;b;c", "d"], ["1", "2"]]),  # marks within quotes divide nothing
        ("a\n1\n2\n3\n4\n5\n6\n", [["a"], ["1"], ["2"], ["3"], ["4"]]),  # the reader wants no more
    ],
)
def test_a_table_is_the_same_wherever_its_stream_is_cut(
    call: Call, text: str, expected: list[list[str]]
) -> None:
    raw = list(text.encode())
    for cut in range(len(raw) + 1):
        assert call("console/csv.js", READ, [raw[:cut], raw[cut:]]) == {"rows": expected}, cut
    assert call("console/csv.js", READ, [[byte] for byte in raw]) == {"rows": expected}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "no rows"),
        (b"a,a\n1,2\n", '"a"'),
        (b"a,b\n1,2\n3\n", "Line 3 has 1 fields"),
        (b'a\n"1\n2"\n3,4\n', "Line 4 has 2 fields"),
        (b"a\r\n1\r\n\r\n2,3\r\n", "Line 4 has 2 fields"),
        (b"a\r1\r2,3\r", "Line 3 has 2 fields"),
        (b'a\n"1"2\n', "Line 2: text after"),
        (b'a\n1\n"2\n', "Line 3: a quote that does not end"),
        (b"a\n\xe9\n", "not UTF-8"),
        (b"a\n\xc3", "not UTF-8"),
    ],
)
def test_what_is_no_table_is_named_wherever_its_stream_is_cut(call: Call, text: bytes, words: str) -> None:
    for cut in range(len(text) + 1):
        assert words in call("console/csv.js", READ, [list(text[:cut]), list(text[cut:])])["fault"], cut


@pytest.mark.parametrize(
    ("tokens", "is_text", "expected"),
    [
        (["1", "-2.5", ".5", "1e3", " 7 "], False, [1, -2.5, 0.5, 1000, 7]),
        (["", "NA", "nan", "null", "<NA>", "0"], False, [None, None, None, None, None, 0]),
        (["1", "", "own", "1", "NA", "own"], False, ["1", None, "own", "1", None, "own"]),
        (["own", "", "NA", "None", "none"], True, ["own", None, None, None, "none"]),
        (["1", "2"], True, ["1", "2"]),
        (["1,5", "0x10", "Infinity", "1."], False, ["1,5", "0x10", "Infinity", "1."]),
        (["1"] * 1024 + ["2"], False, [1] * 1024 + [2]),
        (["a"] * 1024 + ["b"], True, ["a"] * 1024 + ["b"]),
        (["1"] * 1024 + ["b"], False, ["1"] * 1024 + ["b"]),
        (["0,52", "−3", "2.700.000,5", "1,234"], False, [0.52, -3, 2_700_000.5, 1.234]),
        (["1,234", "", "-12,345", "0,5"], False, [1.234, None, -12.345, 0.5]),
        (["1,234", "1 000.25", "2'000", "7"], False, [1234, 1000.25, 2000, 7]),
        (["1,234", "2.700.000"], False, [1.234, 2_700_000]),
        (["1,234", "2,700,000"], False, [1234, 2_700_000]),
        (["1,234", "", "7"], False, ["1,234", None, "7"]),
        (["1.5", "0,5"], False, ["1.5", "0,5"]),
        (["0,5", "1.5", ""], False, ["0,5", "1.5", None]),
        (["0,5", "1,234", "x"], False, ["0,5", "1,234", "x"]),
    ],
    ids=(
        "numbers missing mixed words codes none long long_words words_at_last commas commas_at_last points "
        "grouped_by_points grouped_by_commas either both both_again comma_words"
    ).split(),
)
def test_columns_are_numbers_or_words_or_missing(
    call: Call, tokens: list[str], is_text: bool, expected: list[Any]
) -> None:
    script = """({Column}, tokens, isText) => {
      const column = new Column("a", isText);
      tokens.forEach((each) => column.add(each));
      const {values, codes, words} = column.finished();
      return values ? [...values].map((each) => (Number.isNaN(each) ? null : each))
                    : [...codes].map((code) => (code < 0 ? null : words[code]));
    }"""
    assert call("console/portfolio/columns.js", script, tokens, is_text) == expected


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["1", "a lot"], "\"a lot\" in row 2: 'a lot' is no number: write digits, and a point before"),
        (["7", "1,234"], "\"1,234\" in row 2: '1,234' may be 1234 or 1.234: write a point before"),
        (["7", "", "0,5", "1.5"], '"1.5" in row 4: other rows have another mark before decimals'),
    ],
)
def test_a_column_without_numbers_is_refused_by_what_is_wrong(
    call: Call, tokens: list[str], message: str
) -> None:
    script = """async ({Column}, url, tokens) => {
      const {bind} = await import(url);
      const column = new Column("debt");
      tokens.forEach((each) => column.add(each));
      try {
        bind({inputs: [{name: "x", datatype: "FP32", shape: [1], features: ["debt"]}]}, [column.finished()]);
      } catch (error) {
        return error.message;
      }
    }"""
    error = call("console/portfolio/columns.js", script, f"{ORIGIN}/console/portfolio/tensors.js", tokens)
    assert f'Column "debt" has to hold numbers, and holds {message}' in error


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("income", '"income"'),
        ('the "own" one', '"the ""own"" one"'),
        ('"', '""""'),
        ("a,b\nc", '"a,b\nc"'),
        *((f"{sign}1", f'"\'{sign}1"') for sign in "=+-@\t\r"),
        ("a=1", '"a=1"'),
    ],
)
def test_names_are_quoted_in_a_saved_file(call: Call, name: str, expected: str) -> None:
    """The header, rows with a missing number, and the first row of the second part."""
    script = """async ({saveRows}, name) => {
      const n = 5001;
      const column = (value) => Float64Array.from({length: n}, (_, k) => (k === 1 ? NaN : value));
      const [create, click] = [URL.createObjectURL, HTMLAnchorElement.prototype.click];
      let blob;
      try {
        URL.createObjectURL = (each) => { blob = each; return "blob:none"; };
        HTMLAnchorElement.prototype.click = () => {};
        saveRows({
          layout: {players: [{name}]}, n, features: {model: "credit"},
          rows: Uint32Array.from({length: n}, (_, k) => 2 * k),
          explained: {
            values: column(0.5), bases: column(0.25), attributions: [column(0.125)], gaps: column(0),
          },
        });
      } finally {
        [URL.createObjectURL, HTMLAnchorElement.prototype.click] = [create, click];
      }
      return blob.text();
    }"""
    header, rows = f"row,explained_value,base_value,{expected},completeness_gap\n", 5001
    quoted = header.replace("row", '"row"', 1)
    for column in ("explained_value", "base_value", "completeness_gap"):
        quoted = quoted.replace(column, f'"{column}"')
    saved = call("console/portfolio/save.js", script, name)
    assert saved.startswith(f"{quoted}0,0.5,0.25,0.125,0\n2,,,,\n4,0.5,0.25,0.125,0\n")
    body = saved.removeprefix(quoted).splitlines()
    assert len(body) == rows
    assert body[-1].split(",")[0] == str(2 * rows - 2)


# --- rows -----------------------------------------------------------------------------------------------

NUMBER: dict[str, Any] = {"name": "a", "input": "x", "kind": "number", "missing": False}


@pytest.mark.parametrize(
    ("change", "value", "expected"),
    [
        ({}, 1, True),
        ({}, None, False),
        ({"missing": True}, None, True),
        ({}, "1", False),
        ({}, True, False),
        ({"kind": "flag"}, False, True),
        ({"kind": "flag"}, 0, False),
        ({"kind": "text"}, "", True),
        ({"kind": "text"}, 1, False),
    ],
)
def test_what_fits_a_field(call: Call, change: dict[str, Any], value: Any, expected: bool) -> None:
    assert (
        call("console/rows.js", "({fits}, field, value) => fits(field, value)", NUMBER | change, value)
        is expected
    )


@pytest.mark.parametrize("name", ["a", "__proto__", "constructor", "toString"])
def test_a_row_holds_a_name_of_any_kind(name: str) -> None:
    """What is set, read from an address and written again."""
    body = """
      const text = own.written(own.changed({b: 1}, given.name, 2));
      const [read, typical] = [text, ""].map((each) => own.written(own.read([given], each)));
      return [text, read, typical, Object.prototype.a === undefined];
    """
    given = {**NUMBER, "name": name, "begin": 7}
    own, read, other, is_clean = in_node(["values.js", "rows.js"], body, given)
    assert own == f'{{"b":1,"{name}":2}}'
    assert read == f'{{"{name}":2}}'
    assert other == f'{{"{name}":7}}'
    assert is_clean


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        ([[1, 0, 0], [0, 1, 0]], [0, 1, -1]),
        ([[0, 0]], None),  # a player of one feature has its column
        ([[1, 0], [1, 1]], None),
        ([[0.5], [0]], None),
        ([[1], [2]], None),
        ([[1], [float("nan")]], None),
        ([[], []], None),
        ([None, [1]], None),
    ],
)
def test_a_group_has_values_if_it_is_one_hot(call: Call, columns: list[Any], codes: list[int] | None) -> None:
    script = """({valuesOf}, columns) => {
      const features = columns.map((_, k) => `housing_${k}`);
      const column = (values) => values && {values: Float64Array.from(values)};
      const known = new Map(columns.map((values, k) => [features[k], column(values)]));
      const found = valuesOf({name: "housing", features}, known);
      return found && (found.codes ? {codes: [...found.codes], words: found.words} : [...found.values]);
    }"""
    result = call("console/portfolio/portfolio.js", script, columns)
    if len(columns) == 1:
        assert result == columns[0]
    elif codes is None:
        assert result is None
    else:
        assert result == {"codes": codes, "words": [str(k) for k in range(len(columns))]}


# --- scores ---------------------------------------------------------------------------------------------

RULE: dict[str, Any] = {"output": "p", "index": 0, "space": "output", "threshold": 0.5, "refer": None}


@pytest.mark.parametrize(
    ("profile", "score", "expected"),
    [
        (None, 0.5, "above"),
        (None, float(np.nextafter(0.5, 0)), "below"),
        *((RULE | {"adverse": adverse}, 0.5, "approve") for adverse in ("above", "below")),
        (RULE | {"adverse": "above"}, float(np.nextafter(0.5, 1)), "decline"),
        (RULE | {"adverse": "below"}, float(np.nextafter(0.5, 0)), "decline"),
        *(
            (RULE | {"adverse": "above", "refer": [0.25, 0.75]}, score, expected)
            for score, expected in [
                (0.2, "approve"),
                (0.25, "refer"),
                (0.5, "refer"),
                (0.75, "refer"),
                (0.8, "decline"),
            ]
        ),
    ],
)
def test_a_score_at_the_threshold(
    call: Call, profile: dict[str, Any] | None, score: float, expected: str
) -> None:
    script = """({ruleOf}, decision, score) => {
      const rule = ruleOf({decision, output: "p"}, "0.5", 0);
      return [rule.judge(score), rule.passes(score)];
    }"""
    assert call("console/score.js", script, profile, score) == [expected, expected in ("approve", "above")]


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [1.0, 1.0, 1.0], [1e6, 1e6 + 1, 1e6 + 4, 1e6 + 9]])
def test_the_interval_of_a_mean(call: Call, values: list[float]) -> None:
    """By the deviation of a sample: n - 1."""
    script = """({meanInterval}, values) =>
      meanInterval(Float64Array.from([99, ...values]), Uint32Array.from(values, (_, i) => i + 1))"""
    result = call("console/portfolio/statistics.js", script, values)
    n = len(values)
    error = np.std(values, ddof=1) / np.sqrt(n) if n > 1 else np.inf
    assert result["n"] == n
    assert result["mean"] == pytest.approx(np.mean(values), rel=1e-12)
    assert result["error"] == pytest.approx(error, rel=1e-9)
    assert result["high"] - result["mean"] == pytest.approx(1.959963984540054 * error, rel=1e-6)


def test_a_score_in_float32_is_its_shortest_number(call: Call) -> None:
    """As numpy writes it, with one to nine digits; a score in float64 stays."""
    drawn = np.random.default_rng(0).uniform(0, 1, 2000).astype(np.float32)
    scores = np.concatenate([drawn, np.array([0, 1, 0.1, 0.25, 1e-30, 3.4028235e38, 16777216], np.float32)])
    shortest = [float(str(score)) for score in scores]
    digits = {
        len(np.format_float_scientific(score, trim="-").split("e")[0].replace(".", "")) for score in scores
    }
    assert {1, 8, 9} <= digits
    script = """({answer}, scores, type) => {
      const outputs = {score: "score", element: 0};
      const facts = {inputs: [], fields: [], attributed: [], targets: [0], outputs};
      const run = (score) => ({run: async () => ({score: {data: [score], type}})});
      return Promise.all(scores.map(async (score) => (await answer(run(score), facts, {}))[0].score));
    }"""
    requests = [float(score) for score in scores]
    assert call("page/graph.js", script, requests, "float32") == shortest
    assert call("page/graph.js", script, requests, "float64") == requests


@pytest.mark.parametrize("margin", [-800.0, -40.0, -1.5, 0.0, 1.5, 40.0, 800.0])
def test_a_score_is_the_margins_sigmoid_if_both_agree(call: Call, margin: float) -> None:
    exact = float(np.exp(min(margin, 0)) / (1 + np.exp(-abs(margin))))
    script = """async ({answer}, margin, score) => {
      const outputs = {score: "score", element: 0, explained: "margin", margin: "margin"};
      const decided = {profile: {threshold: 0.25, refer: null}};
      const facts = {inputs: [], fields: [], attributed: [], targets: [0], outputs, decided};
      const found = {score: {data: [score], type: "float64"}, margin: {data: [margin], type: "float64"}};
      return (await answer({run: async () => found}, facts, {}))[0].score;
    }"""
    for away, expected in ((0.0, exact), (0.9e-6, exact), (1.1e-6, exact + 1.1e-6)):
        assert call("page/graph.js", script, margin, exact + away) == pytest.approx(
            expected, rel=1e-12, abs=0
        )


@pytest.mark.parametrize(
    ("expected", "actual", "more", "difference"),
    [
        ([1, 2], [1, 2], {}, 0),
        ([1, 2], [1, 3], {}, 0.25),  # of a scale of 4
        ([1, 2], [1.5, 3], {"rounding": 1}, 0),  # exactly what rounding explains
        ([1, 2], [1, 4], {"rounding": 1}, 0.25),
        ([None, 2], [float("nan"), 2], {}, 0),
        ([None, 2], [float("inf"), 2], {}, 0),
        ([None, 2], [1, 2], {}, float("inf")),  # a number where none is due
        ([1, 2], [1, float("nan")], {}, float("inf")),
        ([1, 2], [1, 9, 2, 9], {"positions": [0]}, 0),  # of each row of two the first
        ([1, 2], [9, 1, 9, 3], {"positions": [1]}, 0.25),
        ([1, 2], [1, 2, 3, 4], {"positions": [2]}, float("inf")),
        ([1, 2, 3], [1, 2], {}, float("inf")),
        (["a", "b"], ["a", "c"], {"rounding": None}, 0.5),
        ([True, False], [1, 0], {"rounding": None}, 0),
    ],
)
def test_how_far_an_answer_is_from_the_one_that_is_due(
    call: Call, expected: list[Any], actual: list[Any], more: dict[str, Any], difference: float
) -> None:
    """Of two rows."""
    arguments = {"data": expected, "positions": None, "scale": 4, "rounding": 0, **more}
    script = "({differenceOf}, due, found) => differenceOf(due, found, 2)"
    assert call("page/proof.js", script, arguments, actual) == difference


def test_each_target_of_a_page_has_its_own_attributions(call: Call) -> None:
    script = """async ({answer}, data) => {
      const attributed = [
        {output: "x", error: "e", keys: ["a", "b"], others: {sign: "s"}},
        {output: "z", error: null, keys: ["c"], others: {sign: "t"}},
      ];
      const outputs = {explained: "v", base: "b", gap: "g", score: "v", element: 0, others: {spread: "o"}};
      const facts = {inputs: [], fields: [], attributed, targets: [0, 1, 2], outputs};
      const found = Object.fromEntries(
        Object.entries(data).map(([name, own]) => [name, {type: "float64", data: Float64Array.from(own)}]));
      return answer({run: async () => found}, facts, {});
    }"""
    counts = {"x": 6, "e": 6, "z": 3, "v": 3, "b": 3, "g": 3, "o": 3, "s": 6, "t": 3}
    starts = range(0, 90, 10)
    data = {name: [*range(start, start + n)] for (name, n), start in zip(counts.items(), starts, strict=True)}
    assert call("page/graph.js", script, data) == [
        {
            "target": t,
            "classes": None,
            "score": 30 + t,
            "explained": 30 + t,
            "base": 40 + t,
            "gap": 50 + t,
            "attributions": {"a": 2 * t, "b": 2 * t + 1, "c": 20 + t},
            "errors": {"a": 10 + 2 * t, "b": 11 + 2 * t},
            "others": {"spread": 60 + t},
            "byFeature": {"sign": {"a": 70 + 2 * t, "b": 71 + 2 * t, "c": 80 + t}},
        }
        for t in range(3)
    ]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "[UNK]", "a", "##b"], {"isLower": True, "isWordPiece": True, "mark": ""}),
        (["<s>", "\u2581The", "x"], {"isLower": False, "isWordPiece": False, "mark": "\u2581"}),
        (["[PAD]", "A"], {"isLower": False, "isWordPiece": False, "mark": ""}),
        (["\u0120", "a"], {"isLower": True, "isWordPiece": False, "mark": ""}),  # a mark alone begins no word
        (["<|begin_of_text|>", "\u0120a"], {"isLower": True, "isWordPiece": False, "mark": "\u0120"}),
    ],
)
def test_what_a_vocabulary_is_like(call: Call, tokens: list[str], expected: dict[str, Any]) -> None:
    script = """({vocabulary}, text) => {
      const {isLower, isWordPiece, mark} = vocabulary(text);
      return {isLower, isWordPiece, mark};
    }"""
    for text in ("\n".join(tokens), json.dumps({token: i for i, token in enumerate(tokens)})):
        assert call("console/words.js", script, text) == expected


# --- requests -------------------------------------------------------------------------------------------

# `answers`: [status, Retry-After] or null of each request, or how many rows are not too much.
ASK = """async ({ask}, total, answers, stopAt, answerS = 0) => {
  const {setTimeout} = window;
  let clock = 0;
  if (answerS) performance.now = () => (clock += answerS * 1000);
  const stop = new AbortController();
  const [asked, waits, taken] = [[], [], []];
  window.setTimeout = (then, after) => {
    if (waits.push(after / 1000) === stopAt) queueMicrotask(() => stop.abort(new Error("stopped")));
    return setTimeout(then, 0);
  };
  const send = async (from, to) => {
    const k = asked.push([from, to]) - 1;
    const tooMuch = to - from > answers ? [413, null] : null;
    const fault = typeof answers === "number" ? tooMuch : answers[Math.min(k, answers.length - 1)];
    if (fault) throw Object.assign(new Error(`status ${fault[0]}`), {status: fault[0], retryAfter: fault[1]});
    return to;
  };
  const take = (to, from, count) => taken.push([from, count]);
  let fault = null;
  try {
    await ask({total, send, decode: async (each) => each, take, signal: stop.signal});
  } catch (error) {
    fault = error.message;
  } finally {
    window.setTimeout = setTimeout;
    delete performance.now;
  }
  return {asked, waits, taken, fault};
}"""


@pytest.mark.parametrize(
    ("answers", "waits"),
    [
        ([[429, 7], None], [7]),
        ([[503, 0.5], None], [0.5]),
        ([[429, 61], None], [60]),
        ([[429, 0], None], [0]),
        ([[0, None]] * 3 + [None], [0.25, 0.5, 1]),
        ([[503, None]] * 10 + [None], [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]),
    ],
)
def test_a_request_is_made_again_when_the_gateway_says(
    call: Call, answers: list[list[int | None] | None], waits: list[float]
) -> None:
    result = call("console/portfolio/asking.js", ASK, 10, answers, None)
    assert result == {"asked": [[0, 10]] * len(answers), "waits": waits, "taken": [[0, 10]], "fault": None}


@pytest.mark.parametrize(
    ("total", "answers", "request_count", "fault"),
    [
        (0, [None], 0, None),
        (1, [None], 1, None),
        (256, [None], 1, None),
        (257, [None], 2, None),
        (4, [[413, None], None], 3, None),  # halves
        (2, [[413, None], [504, None]], 2, "status 504"),  # one row is too much
        (1, [[413, None]], 1, "status 413"),
        (1, [[422, None]], 1, "status 422"),
        (1, [[429, 0]] * 20 + [None], 21, None),
        (1, [[429, 0]] * 21 + [None], 21, "status 429"),
    ],
)
def test_how_often_a_request_is_made(
    call: Call, total: int, answers: list[Any], request_count: int, fault: str | None
) -> None:
    result = call("console/portfolio/asking.js", ASK, total, answers, None)
    assert (len(result["asked"]), result["fault"]) == (request_count, fault)
    if fault is None:
        starts = np.cumsum([0, *(count for _, count in result["taken"])]).tolist()
        assert [start for start, _ in result["taken"]] == starts[:-1]
        assert starts[-1] == total


@pytest.mark.parametrize(
    ("most", "sizes"), [(1000, [256]), (256, [256]), (255, [256, 128]), (64, [256, 128, 64])]
)
def test_what_was_too_much_is_not_asked_again(call: Call, most: int, sizes: list[int]) -> None:
    """The gateway answers slowly: requests have the fewest rows, half of those that were too much."""
    sizes_sent = call("console/portfolio/asking.js", ASK, 10_240, most, None, 9)["asked"]
    counts = [end - start for start, end in sizes_sent]
    assert sorted({*counts}, reverse=True) == sizes
    assert sum(count > most for count in counts) <= 3 * (1 + 2 + 4)  # what all lanes had asked by then


@pytest.mark.parametrize(
    ("explainer", "more", "query"),
    [
        (None, {}, ""),
        ("a b", {}, "?explainer=a+b"),
        (None, {"language": "de"}, "?language=de"),
        ("", {"language": ""}, ""),
        ("a", {"language": "de"}, "?explainer=a&language=de"),
    ],
)
def test_features_are_asked_of_an_explainer_and_in_a_language(
    call: Call, explainer: str | None, more: dict[str, str], query: str
) -> None:
    script = """async ({features}, explainer, more) => {
      const {fetch} = window;
      let asked = null;
      window.fetch = async (url) => ((asked = String(url)), new Response("{}"));
      try {
        await features("m/1", explainer, more);
      } finally {
        window.fetch = fetch;
      }
      return asked;
    }"""
    asked = call("console/api.js", script, explainer, more)
    assert asked.removeprefix(f"{ORIGIN}/") == f"v1/models/m%2F1/features{query}"


def test_a_stop_ends_a_rest(call: Call) -> None:
    result = call("console/portfolio/asking.js", ASK, 10, [[429, 60]], 2)
    assert result["fault"] == "stopped"
    assert len(result["asked"]) == 2


# --- tensors --------------------------------------------------------------------------------------------

EXPLAIN = """async ({explain}, input, answer) => {
  const {fetch} = window;
  let sent = null;
  window.fetch = async (_, {body, headers}) => {
    sent = [...new Uint8Array(await new Response(body).arrayBuffer())];
    const length = Object.entries(headers).find(([name]) => /header-content-length/i.test(name))[1];
    const [head, bytes] = answer ?? [JSON.stringify({outputs: []}), []];
    const all = new Blob([head, Uint8Array.from(bytes)]);
    sent = sent.slice(Number(length));
    return new Response(all, {headers: {"Inference-Header-Content-Length": new Blob([head]).size}});
  };
  try {
    const {outputs} = await explain("m", [input]);
    return {sent, found: Object.entries(outputs).map(([name, {data}]) => [name, [...data].map(String)])};
  } finally {
    window.fetch = fetch;
  }
}"""
HALVES = [0.0, -0.0, 1.0, 1 / 3, -2.5, 65504.0, 65519.9, 65520.0, 1e6, -1e6, float("inf"), 6e-8, 3e-8, 6.1e-5]
TIES = [1 + k / 2048 for k in range(1, 8)] + [2049.0, 2051.0, 6.103515625e-05, 5.96e-08]


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "INT64", "UINT8", "BOOL"])
def test_numbers_are_sent_and_read_in_their_own_type(call: Call, datatype: str) -> None:
    """As numpy has them: halves are rounded to the nearest, ties to even."""
    kind = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "UINT8": "u1", "BOOL": "u1"}[
        datatype
    ]
    values = {"f": HALVES + TIES, "i": [0.0, -1.0, 2.0**52], "u": [0.0, 1.0]}[kind[-2]]
    with np.errstate(over="ignore"):
        expected = np.array(values).astype(kind)
    sized = {"name": "y", "datatype": datatype, "shape": [len(expected)]}
    first = {"name": "x", "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}}
    outputs = [first, {**sized, "parameters": {"binary_data_size": expected.nbytes}}]
    tensor = {**sized, "name": "x", "data": values}
    answer = [json.dumps({"outputs": outputs}), [7, *expected.tobytes()]]
    result = call("console/tensors.js", EXPLAIN, tensor, answer)
    assert bytes(result["sent"]) == expected.tobytes()
    (_, seven), (_, read) = result["found"]
    assert seven == ["7"]
    np.testing.assert_array_equal(
        np.array([float(each.replace("Infinity", "inf")) for each in read]), expected
    )


def test_texts_of_an_answer_are_read(call: Call) -> None:
    texts = ["", "ä", "own"]
    raw = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
    output = {"name": "y", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(raw)}}
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    result = call("console/tensors.js", EXPLAIN, tensor, [json.dumps({"outputs": [output]}), [*raw]])
    assert result == {"sent": [], "found": [["y", texts]]}


@pytest.mark.parametrize(
    ("shape", "value_shape", "expected"),
    [
        ([1, 3], [1, 3], [1, 3]),
        ([1, -1], [1, 3], [1, 3]),
        ([1, 3, 1], [3], [1, 3, 1]),
        ([1, 3], [4], None),
        ([1, -1, 2], [6], [1, 3, 2]),
        ([1, -1, 2], [5], None),
        ([1, -1, 2], [0], None),
        ([1, -1, -1], [6], None),
        ([1, -1, -1], [1, 2, 3], [1, 2, 3]),
    ],
)
def test_open_lengths_are_those_of_the_values(
    call: Call, shape: list[int], value_shape: list[int], expected: list[int] | None
) -> None:
    assert (
        call("console/tensors.js", "({fitted}, shape, given) => fitted(shape, given)", shape, value_shape)
        == expected
    )


@pytest.mark.parametrize(
    ("kind", "value", "datatype", "expected"),
    [
        ("number", 2.5, "FP32", 2.5),
        ("number", None, "FP32", None),
        ("number", 7, "BYTES", "7"),
        ("number", 1, "BOOL", True),
        ("number", 0, "BOOL", False),
        ("text", "own", "BYTES", "own"),
        ("text", None, "BYTES", ""),
        ("text", "TRUE", "BOOL", True),
        ("text", "truely", "BOOL", False),
        ("text", None, "BOOL", False),
    ],
)
def test_a_row_of_a_file_as_the_api_takes_it(
    call: Call, kind: str, value: Any, datatype: str, expected: Any
) -> None:
    """A feature may be called __proto__."""
    script = """({instance}, kind, value, datatype) => {
      const codes = Int32Array.of(9, value === null ? -1 : 0);
      const values = Float64Array.of(9, kind === "text" ? NaN : value ?? NaN);
      const column = {kind, codes, words: [value], values};
      const name = "__proto__";
      const layout = {inputs: [{datatype, features: [name]}]};
      const row = instance({rows: Uint32Array.of(1), layout, columns: new Map([[name, column]])}, 0);
      return Object.entries(row);
    }"""
    result = call("console/portfolio/words.js", script, kind, value, datatype)
    assert result == [["__proto__", expected]]


# --- pictures -------------------------------------------------------------------------------------------

CUT = """(module, name, given) => {
  document.body.style.font = "12px sans-serif";
  const drawn = module[name](given);
  const picture = drawn.element ?? drawn;
  document.body.replaceChildren(picture);
  const edges = picture.getBoundingClientRect();
  const isCut = (box) => box.left < edges.left || box.right > edges.right;
  const texts = [...picture.querySelectorAll("text")];
  return texts.filter((text) => isCut(text.getBoundingClientRect())).map((text) => text.textContent);
}"""
MILLIONS = [-3_319_425.5, 24_648_102.25]


@pytest.mark.parametrize("width", [320, 1200])
@pytest.mark.parametrize(
    ("module", "name", "figures"),
    [
        (
            "curves",
            "drawCurves",
            {"values": MILLIONS, "curves": [MILLIONS], "mean": MILLIONS, "threshold": None},
        ),
        (
            "curves",
            "drawCurves",
            {"values": [0, 1], "words": ["own", "with the parents of a friend"], "curves": [MILLIONS]}
            | {"mean": MILLIONS, "threshold": 0},
        ),
        (
            "rowmap",
            "drawRowMap",
            {"features": [{"name": "a", "values": MILLIONS}], "ends": MILLIONS, "most": 1},
        ),
        ("paths", "drawPaths", {"names": ["a", "b" * 60], "paths": [[0, *MILLIONS]], "threshold": None}),
    ],
)
def test_no_number_of_a_picture_is_cut(
    call: Call, module: str, name: str, figures: dict[str, Any], width: int
) -> None:
    figures = {**figures, "width": width, "label": "drawn"}
    assert call(f"console/pictures/{module}.js", CUT, name, figures) == []


@pytest.mark.parametrize(
    ("score", "rule", "place"),
    [
        (0, {}, 0),  # probabilities have the whole scale, their ends too
        (1, {}, 1),
        (0.25, {}, 0.25),
        (0.5, {"threshold": 1}, 0.5),
        (0.5, {"threshold": 0.25, "refer": [0, 1]}, 0.5),
        (-1, {"threshold": 1}, 1 / 6),  # others as far as they reach, and a quarter of that beyond
        (3, {"threshold": 1, "refer": [0, 2]}, 5 / 6),
        (2, {"threshold": 2}, 0.5),
    ],
)
def test_where_a_score_stands_on_its_scale(
    call: Call, score: float, rule: dict[str, Any], place: float
) -> None:
    script = """({gauge}, score, rule) => {
      const drawn = gauge(score, rule, "Approve", String);
      return Number(drawn.querySelector("circle").getAttribute("cx"));
    }"""
    rule = {"threshold": 0.5, "adverse": "above", "refer": None, **rule}
    assert call("console/pictures/gauge.js", script, score, rule) == pytest.approx(14 + place * 392)


# --- parts of views, without a gateway -------------------------------------------------------------------

# `rows` of the file, of which some were left out: a place is no row.
PORTFOLIO = f"""
  const {{measures}} = await import("{ORIGIN}/console/portfolio/words.js");
  const rows = Uint32Array.of(1, 3, 4, 6);
  const column = (name, of) => (typeof of[0] === "number"
    ? {{name, kind: "number", values: Float64Array.from(of)}}
    : {{name, kind: "text", words: [...new Set(of)],
        codes: of.map((each) => [...new Set(of)].indexOf(each))}});
  const columns = [
    column("job", ["clerk", "cook", "cook", "clerk", "cook", "cook", "clerk"]),
    column("age", [70, 20, 71, 30, 40, 72, 50]),
  ];
  const numbers = [[0.1, 0.1, 0.2, 0.1], [-5, 1, -5, 1], [1, 0, 2, 0]];
  const attributions = numbers.map((each) => Float32Array.from(each));
  const portfolio = {{
    rows, n: 4, picked: [], scores: Float64Array.of(0.1, 0.2, 0.3, 0.4), explained: {{attributions}},
    table: {{columns}}, titleOf: (name) => name, valueOf: (_, text) => text, isRead: () => true,
    write: measures(false), writeScore: measures(false), others: () => [],
    playerTitle: (j) => ["least", "down", "up"][j],
  }};
"""


@pytest.mark.parametrize(
    ("column", "entries", "places"),
    [
        ("job", {"word": "cook"}, [0, 2]),
        ("job", {"word": "clerk"}, [1, 3]),
        ("age", {"from": "30", "to": "40"}, [1, 2]),  # both ends are picked
        ("age", {"from": "30.5"}, [2, 3]),
        ("age", {"to": "70"}, [0, 1, 2, 3]),
        ("score", {"from": "0,2", "to": "0.3"}, [1, 2]),
    ],
)
def test_a_filter_picks_the_rows_that_it_names(
    call: Call, column: str, entries: dict[str, str], places: list[int]
) -> None:
    script = f"""async ({{makePicked}}, name, entries) => {{
      {PORTFOLIO}
      let picked = null;
      const {{element}} = makePicked(portfolio, {{pickAll: (places) => (picked = places)}});
      document.body.replaceChildren(element);
      const chosen = element.querySelector("#filter-column");
      chosen.value = [...chosen.options].find(({{text}}) => text === name).value;
      chosen.dispatchEvent(new Event("change"));
      for (const [id, text] of Object.entries(entries)) element.querySelector(`#filter-${{id}}`).value = text;
      element.querySelector("form").requestSubmit();
      return picked;
    }}"""
    assert call("console/portfolio/sections/picked.js", script, column, entries) == places


def test_of_two_cohorts_the_largest_difference_is_first_whatever_its_sign(call: Call) -> None:
    """And each row has its own means: A less B."""
    script = f"""async ({{makeCohorts}}) => {{
      {PORTFOLIO}
      const {{element, draw}} = makeCohorts(portfolio);
      document.body.replaceChildren(element);
      element.querySelector("#cohort-by").selectedIndex = 2;
      draw();
      const number = (cell) => cell.firstChild.textContent;
      const shown = (row) => [row.cells[0].textContent, ...[1, 2, 3].map((i) => number(row.cells[i]))];
      return [...element.querySelectorAll("tbody tr")].map(shown);
    }}"""
    score, *features = call("console/portfolio/sections/cohorts.js", script)
    assert [score[0], *(name for name, *_ in features)] == ["score", "down", "up", "least"]
    by_name = {name: numbers for name, *numbers in features}
    a, b, apart = by_name["down"]
    assert {a, b} == {"−5", "1"}
    assert apart == ("−6" if a == "−5" else "+6")


def test_rows_saved_under_a_name_are_each_models_own(call: Call) -> None:
    script = """({source}) => {
      sessionStorage.clear();
      const model = (name) => ({model: name, features: [{name: "x", input: "x", kind: "number", begin: 0}]});
      const loaded = [];
      const of = (name, x) => {
        const box = document.createElement("div");
        const take = (row) => loaded.push([name, row.x]);
        box.append(...source(model(name), {take, present: () => ({x})}));
        document.body.append(box);
        return box;
      };
      const save = (box, called) => {
        box.querySelector("[aria-label='Save the row as']").value = called;
        box.querySelector("form").requestSubmit();
      };
      const [credit, income] = [of("credit", 1), of("income", 2)];
      save(credit, "mine");
      save(income, "mine");
      save(income, " other ");
      save(of("income", 3), "mine");
      const names = [credit, of("credit"), of("income")].map((box) =>
        [...(box.querySelector("select")?.options ?? [])].slice(1).map(({text}) => text));
      for (const name of ["credit", "income"]) {
        const list = of(name).querySelector("select");
        list.selectedIndex = [...list.options].findIndex(({text}) => text === "mine");
        list.dispatchEvent(new Event("change"));
      }
      sessionStorage.clear();
      document.body.replaceChildren();
      return [names, loaded];
    }"""
    names, loaded = call("console/explain/source.js", script)
    assert names == [["mine"], ["mine"], ["other", "mine"]]
    assert loaded == [["credit", 1], ["income", 3]]


@pytest.mark.parametrize(
    ("field", "text", "due"),
    [
        ({"kind": "text", "missing": True}, "", None),
        ({"kind": "text", "missing": True}, "own", "own"),
        ({"kind": "text", "missing": False}, "", ""),
        ({"kind": "number", "missing": True, "least": 0, "most": 9}, "", None),
        ({"kind": "number", "missing": True, "least": 0, "most": 9}, "4", 4),
        ({"kind": "number", "missing": False, "least": 0, "most": 9}, "", "a value is missing"),
        ({"kind": "number", "missing": False, "least": 0, "most": 9}, "0,5", 0.5),
        ({"kind": "text", "missing": True, "choices": ["own", "rent"]}, "0", None),
        ({"kind": "text", "missing": True, "choices": ["own", "rent"]}, "1", "own"),
        ({"kind": "text", "missing": False, "choices": ["own", "rent"]}, "0", "own"),
        ({"kind": "flag", "missing": False, "choices": [False, True]}, "1", True),
    ],
)
def test_what_a_field_of_a_page_says(call: Call, field: dict[str, Any], text: str, due: Any) -> None:
    """An empty entry is a missing value wherever the model takes one."""
    script = """({Form}, field, text) => {
      const before = field.missing ? null : (field.choices ?? [field.kind === "text" ? "a" : 1])[0];
      const form = new Form([{name: "x", ...field}], {x: before}, () => {});
      document.body.replaceChildren(form.element);
      const entry = document.getElementById("field-0");
      if (field.choices) entry.selectedIndex = Number(text);
      else entry.value = text;
      for (const kind of ["input", "change"]) entry.dispatchEvent(new Event(kind));
      return form.trouble || [form.row.x];
    }"""
    found = call("page/form.js", script, field, text)
    assert found == [due] or (isinstance(found, str) and due in found)


# --- reviews --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "before", "value"),
    [("3", 1, 3), ("", 1, None), ("0.5", 1, 0.5), ("true", False, True), ("3", "a", "3"), ("x", 1, "x")],
)
def test_a_corrected_input_keeps_its_kind(call: Call, text: str, before: Any, value: Any) -> None:
    assert call("console/reviews.js", "({valueOf}, ...given) => valueOf(...given)", text, before) == value


def test_reasons_of_a_person_may_have_codes(call: Call) -> None:
    lines = "R05: Late: twice\n\n It stays "
    found = call("console/reviews.js", "({reasonsOf}, lines) => reasonsOf(lines)", lines)
    assert found == [{"code": "R05", "text": "Late: twice"}, {"code": None, "text": "It stays"}]


@pytest.mark.parametrize(
    ("faults", "times", "expected"),
    [
        ([], 2, ["answer", []]),
        ([[503, 3]], 2, ["answer", [3000]]),
        ([[429, 1], [503, 2]], 2, ["answer", [1000, 2000]]),
        ([[429, 1], [429, 1], [429, 1]], 2, [429, [1000, 1000]]),  # one try more than allowed
        ([[429, None]], 2, [429, []]),  # the gateway does not say when
        ([[503, None]], 2, [503, []]),
        ([[500, 1]], 2, [500, []]),
        ([[422, 1]], 2, [422, []]),
    ],
)
def test_what_is_asked_again_when_the_gateway_says(
    faults: list[list[int | None]], times: int, expected: list[Any]
) -> None:
    body = """
    const waits = [];
    globalThis.setTimeout = (go, milliseconds) => { waits.push(milliseconds); queueMicrotask(go); };
    const ask = async () => {
      const fault = given.faults.shift();
      if (fault) throw new own.Problem(fault[0], "", "", { retryAfter: fault[1] });
      return "answer";
    };
    return [await own.patiently(ask, { times: given.times }).catch((error) => error.status), waits];
    """
    assert in_node(["api.js"], body, {"faults": faults, "times": times}) == expected
