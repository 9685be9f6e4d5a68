"""Pure functions of the pages, as tables of expressions and their values; node runs a table at once."""

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.needs import need
from tests.service.console.node import modules

MODULES = (
    "address",
    "dom",
    "format",
    "parse",
    "pictures/canvas",
    "portfolio/portfolio",
    "portfolio/words",
    "rows",
    "score",
    "values",
)
SCRIPT = """
import { readFileSync } from "node:fs";
const [folder, ...names] = process.argv.slice(1);
const loaded = await Promise.all(names.map((name) => import(`${folder}/${name}.js`)));
const called = names.map((name) => name.split("/").at(-1));
const evaluated = (expression) => {
  try {
    return { value: new Function(...called, `return ${expression}`)(...loaded) ?? null };
  } catch (error) {
    return { error: error.message };
  }
};
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(evaluated)));
"""
Table = Sequence[tuple[str, Any]]
Demand = Callable[[Table], None]


@pytest.fixture
def demand() -> Demand:
    """Assert that each expression has the value that stands beside it, or fails with that error."""
    node, folder = need("Node.js"), modules()

    def demanded(table: Table) -> None:
        command = [node, "--input-type=module", "-e", SCRIPT, str(folder), *MODULES]
        expressions = json.dumps([expression for expression, _ in table])
        process = subprocess.run(command, input=expressions, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        for (expression, expected), actual in zip(table, json.loads(process.stdout), strict=True):
            if isinstance(expected, Error):
                assert expected.part in actual.get("error", ""), (expression, actual)
            else:
                assert actual == {"value": expected}, (expression, expected)

    return demanded


class Error:
    """An error, whose message holds this."""

    def __init__(self, piece: str) -> None:
        self.part = piece


# --- numbers that are read --------------------------------------------------------------------------------

READ: dict[str, Any] = {
    "0": 0,
    " 12 ": 12,
    "-3": -3,
    "−3": -3,
    "+.5": 0.5,
    "5.": 5,
    "1.2e−7": 1.2e-7,
    "1E3": 1000,
    "2,700,000": 2_700_000,
    "2,700": 2700,
    "2,700.5": 2700.5,
    "2 700 000": 2_700_000,
    "2\u202f700\u00a0000,5": 2_700_000.5,
    "2'700’000.25": 2_700_000.25,
    "2.700.000": 2_700_000,
    "2.700.000,5": 2_700_000.5,
    "2.700": 2.7,  # as files and programs write it
    "0,52": 0.52,
    "-0,525": -0.525,
    "0,520,000": Error("is no number"),
    "0.520.000": Error("is no number"),
    "0.520": 0.52,
    "12,5": 12.5,
    "1234,567": 1234.567,
    "1e999": Error("'1e999' is too large a number"),
    "a lot": Error("'a lot' is no number: write digits, and a point before decimals, such as 1234.5"),
    **{
        junk: Error("is no number")
        for junk in ("", " ", "-", ".", ",", "1,23,456", "1,,000", "1.2.3", "0x10")
    },
    **{
        junk: Error("is no number")
        for junk in ("12 EUR", "1 2", "NaN", "Infinity", "1e", "12%", "1,000,00", "２")
    },
}


def test_a_number_is_read_however_people_group_it(demand: Demand) -> None:
    demand([(f"parse.parseNumber({json.dumps(text)})", expected) for text, expected in READ.items()])


def test_of_a_file_a_number_that_has_two_readings_is_refused(demand: Demand) -> None:
    message = "'1,234' may be 1234 or 1.234: write a point before decimals, and nothing between thousands"
    unseen = "{unseen: true}"
    demand(
        [
            (f"parse.parseNumber('1,234', {unseen})", Error(message)),
            (f"parse.parseNumber('-12,345', {unseen})", Error("'-12,345' may be -12345 or -12.345")),
            (f"parse.parseNumber('0,234', {unseen})", 0.234),
            (f"parse.parseNumber('1,234.5', {unseen})", 1234.5),
            (f"parse.parseNumber('1,234,567', {unseen})", 1_234_567),
            (f"parse.parseNumber('1234,5', {unseen})", 1234.5),
        ]
    )


def test_percent_is_read_of_a_share_alone(demand: Demand) -> None:
    demand(
        [
            ("parse.parseNumber('20%', {share: true})", 0.2),
            ("parse.parseNumber('12,5 %', {share: true})", 0.125),
            ("parse.parseNumber('0.2', {share: true})", 0.2),
            ("parse.parseNumber('%', {share: true})", Error("is no number")),
        ]
    )


# --- numbers that are written -----------------------------------------------------------------------------


def test_numbers_that_stand_together_have_the_same_decimals(demand: Demand) -> None:
    euros = "format.writers([39610.11, 2700, -1077.02, 0.3023], [2346165.2])"
    chances = "format.writers([-0.0694, 0.0008], [0.1969], true)"
    demand(
        [
            (f"{euros}.value(2346165.2)", "2,346,165.2"),
            (
                f"[39610.11, 2700, -1077.02, 0.3023].map({euros}.effect)",
                ["+39,610.1", "+2,700.0", "−1,077.0", "+0.3"],
            ),
            ("format.writers([2172000, -29.7]).effect(-29.7)", "−30"),
            (f"{chances}.value(0.97331)", "97.33%"),
            (
                f"[-0.0694, 0.0008, 1e-7, -1e-7, 0].map({chances}.effect)",
                ["−6.94", "+0.08", "0.00", "0.00", "0.00"],
            ),
            (f"[{chances}.unit, {euros}.unit]", ["percentage points", ""]),
            ("format.writers([], [3.14159]).value(3.14159)", "3.14"),
            ("format.writers([0, 0], [0]).value(0)", "0"),
            ("format.writers([3e-12], [1]).effect(3e-12)", "+3.0e−12"),
            ("format.writers([1, 1e-9]).effect(1)", "+1.00"),  # what is negligible has no say
            ("format.writers([1, NaN, Infinity]).effect(NaN)", "–"),
            ("format.writers([1], [null]).value(null)", "–"),
        ]
    )


def test_a_number_alone(demand: Demand) -> None:
    written = {
        "0.19694": "0.1969",
        "24500": "24,500",
        "303000000": "303,000,000",
        "2415167.84": "2,415,167.84",
        "1.23456e-7": "1.2e−7",
        "-29.7": "−29.7",
        "-0.00001": "−1.0e−5",
        "1e16": "1.0e+16",
        "0": "0",
        "null": "–",
        "-Infinity": "−∞",
    }
    demand([(f"format.number({value})", expected) for value, expected in written.items()])
    demand(
        [
            ("format.formatted(-4.980097e-5)", "−4.980e−5"),
            ("format.formatted(1956)", "1956"),  # may be a year
            ("format.formatted(-9999.5)", "−9999.5"),
            ("format.formatted(10000)", "10,000"),
            ("format.formatted(null)", "missing"),
            ("format.formatted(undefined)", "not given"),
            ("format.percent(0.97331)", "97.33%"),
            ("[0.05, 0.97331, NaN].map((one) => format.percentInTable(one))", ["5.0%", "97.3%", "–"]),
            ("format.rest(-1.5e-8)", "−1.5e−8"),
        ]
    )


# --- addresses and rows -----------------------------------------------------------------------------------


def test_an_address_that_was_cut_or_changed_is_known(demand: Demand) -> None:
    address = {"view": "decisions", "model": "a b", "row": '{"x":0.5,"y":"ä"}', "threshold": "0.25"}
    whole = f"address.written({json.dumps({**address, 'empty': ''})})"
    demand(
        [
            (f"address.parsed({whole})", {"at": address, "isWhole": True}),
            (f"address.parsed({whole}.replaceAll('+', '%20'))", {"at": address, "isWhole": True}),
            (
                f"Array.from({{length: {whole}.length - 11}}, (_, i) => i + 11)"
                f".filter((n) => address.parsed({whole}.slice(0, n)).isWhole)",
                [],
            ),
            (f"address.parsed({whole}.replace('0.25', '0.2')).isWhole", False),
            (f"address.parsed({whole}.replace('decisions', 'explain')).isWhole", False),
            (
                "address.parsed('#explain?model=credit&row=%7B').isWhole",
                True,
            ),  # by hand: its row is looked at
            ("address.parsed('#explain?row=%7B%7D').isWhole", False),  # whose row it is was lost
            ("address.parsed('#explain?').isWhole", False),
            ("address.parsed('#explain').isWhole", True),
            ("address.parsed('').isWhole", True),
            ("address.written({view: 'explain'})", "#explain"),
        ]
    )


FIELDS = """[
  {name: "x", input: "t", kind: "number", missing: false, begin: 2},
  {name: "kind", input: "t", kind: "text", missing: false, begin: "a"},
  {name: "own", input: "t", kind: "flag", missing: true, begin: false},
  {name: "__proto__", input: "t", kind: "number", missing: true, begin: 4},
]"""


def test_a_value_that_a_row_lacks_is_never_made_up(demand: Demand) -> None:
    def lacking(row: str) -> str:
        fields = f"rows.lacking({FIELDS}, rows.read({FIELDS}, {json.dumps(row)}))"
        return f"{fields}.map((field) => field.name)"

    every = ["x", "kind", "own", "__proto__"]
    demand(
        [
            (
                f"Object.entries(rows.read({FIELDS}, ''))",
                [["x", 2], ["kind", "a"], ["own", False], ["__proto__", 4]],
            ),
            *((lacking(row), every) for row in ("{", '{"x": 1, "ki', "null", "[1]", "7", "{}")),
            (lacking('{"x": 1, "kind": "b", "own": null, "__proto__": null}'), []),
            (lacking('{"x": null, "kind": "b", "own": true, "__proto__": 0}'), ["x"]),
            (lacking('{"x": "1", "kind": 2, "own": 1, "__proto__": 1e999}'), every),
        ]
    )


def test_what_only_a_knock_out_looks_at_begins_unknown(demand: Demand) -> None:
    model = '{"features": [], "inputs": [], "decision": {"decision_only_features": [%s]}}'
    flag = '{"name": "fraud", "kind": "flag", "missing": true}'
    demand([(f"rows.read(rows.decisionFields({model % flag}), '')", {"fraud": None})])


def test_a_value_is_chosen_and_called_as_the_description_says(demand: Demand) -> None:
    job = (
        '{name: "job", title: "Job", unit: "h", choices: [0, 1], value_labels: {"0": "none", "0.5": "half"}}'
    )
    demand(
        [
            (
                f"[0, 0.5, 24500, null].map((one) => values.labelOf({job}, one))",
                ["none", "half", "24,500", "missing"],
            ),
            (f"[0, null].map((one) => values.shownOf({job}, one))", ["none h", "missing"]),
            (
                f"[undefined, null, 1, 7].map((one) => values.choicesOf({job}, one))",
                [[0, 1], [0, 1], [0, 1], [0, 1, 7]],
            ),
            ('values.choicesOf({name: "x"}, 7)', None),
            ('values.labelOf({name: "x", value_labels: {}}, "constructor")', "constructor"),
            ('values.labelOf({name: "x", value_labels: {"true": "owner"}}, true)', "owner"),
            (f'[{job}, {{name: "x"}}].map(values.titleOf)', ["Job", "x"]),
            ("values.tidy(12345.678, {whole: true}, 50000)", 12300),
            ("values.tidy(0.123456, {}, 1)", 0.12),
            (
                "[[true, 200], [true, 201], [false, 2]].map(([whole, to]) => values.stepOf({whole}, to))",
                ["1", "any", "any"],
            ),
        ]
    )


def test_a_text_of_a_file_or_an_entry_as_a_value(demand: Demand) -> None:
    field = {
        "number": {"name": "x", "title": "Income", "kind": "number"},
        "flag": {"name": "own", "kind": "flag"},
        "text": {"name": "job", "kind": "text"},
    }

    def parsed(kind: str, text: str, more: str = "") -> str:
        return f"values.parsed({json.dumps({'missing': False, **field[kind]})}, {json.dumps(text)}{more})"

    demand(
        [
            (parsed("number", "24,500"), 24500),
            (parsed("number", "24,500", ", true"), Error("Income: '24,500' may be 24500 or 24.500")),
            (parsed("number", "0,52", ", true"), 0.52),
            (parsed("number", "x"), Error("Income: 'x' is no number")),
            (parsed("number", "n/a"), Error("Income: a value is missing, which the model does not take")),
            (parsed("number", "NaN").replace("false", "true"), None),
            (
                parsed("number", "1.5").replace('"kind"', '"integer": true, "kind"'),
                Error("Income: a whole number is needed"),
            ),
            (parsed("text", " own  home "), " own  home "),  # as it is: the model may know it so
            (parsed("text", "NA"), "NA"),
            (parsed("text", ""), ""),
            (parsed("text", "").replace("false", "true"), None),
            (parsed("flag", "YES"), True),
            (parsed("flag", "0"), False),
            (parsed("flag", "2"), Error("own: '2' is neither true nor false")),
        ]
    )


def test_a_row_of_a_file_by_the_names_of_its_columns(demand: Demand) -> None:
    def row(columns: list[str], texts: list[str]) -> str:
        return f"Object.entries(rows.ofTable({FIELDS}, {json.dumps(columns)}, {json.dumps(texts)}))"

    names = ["own", "__proto__", "other", "kind", "x"]
    two = Error("x: '1,234' may be 1234 or 1.234: write a point before decimals")
    demand(
        [
            (
                row(names, ["yes", "", "9", " b ", "0,52"]),
                [["x", 0.52], ["kind", " b "], ["own", True], ["__proto__", None]],
            ),
            (row(names, ["no", "0", "9", "b", "1,234"]), two),  # nobody sees how it was read
            (row(names, ["", "1,234", "9", "b", "1"]), Error("__proto__: '1,234' may be 1234 or 1.234")),
            (
                row(names, ["", "1,234.5", "9", "1,234", "1"]),
                [["x", 1], ["kind", "1,234"], ["own", None], ["__proto__", 1234.5]],
            ),
            (row(names, ["no", "0", "9", "b", ""]), Error("x: a value is missing")),
            (row(names[2:], ["9", "b", "1"]), Error("the file has no column own, __proto__")),
        ]
    )


def test_a_line_may_break_after_underscores(demand: Demand) -> None:
    parts = {"debt_to_income": ["debt_", "to_", "income"], "__proto__": ["__", "proto__"], "": [""]}
    demand([(f"dom.breakable({json.dumps(text)})", due) for text, due in parts.items()])


def test_a_row_is_changed_whatever_a_feature_is_called(demand: Demand) -> None:
    fields = '[{name: "a", begin: 2}, {name: "b"}]'
    demand(
        [
            (f"values.typical({fields})", {"a": 2, "b": None}),
            ("values.changed({a: 1, b: 2}, 'a', 3)", {"a": 3, "b": 2}),
            ("values.changed({a: 1, b: 2}, 'a', undefined)", {"b": 2}),
            ("Object.keys(values.changed({a: 1}, '__proto__', 2))", ["a", "__proto__"]),
        ]
    )


def test_the_explained_number_of_a_prediction(demand: Demand) -> None:
    single = {"outputs": [{"name": "p"}], "output": "p"}
    two = {"outputs": [{"name": "p"}, {"name": "q"}], "output": "q"}

    def element(model: dict[str, Any], prediction: Any, target: Any) -> str:
        return f"score.element({', '.join(map(json.dumps, (model, prediction, target)))})"

    demand(
        [
            (element(single, [0, 0.5], 0), 0),  # which is a number as any other
            (element(single, 0, 0), 0),
            (element(single, [[0.1, 0.5]], 1), 0.5),
            (element(single, [0.1, 0.5], 2), None),
            (element(single, [0.5, 0.5], "1-0"), 0),
            (element(single, [0.1, 0.6], "0-1"), -0.5),
            (element(two, {"p": [1, 2], "q": [3, 4]}, 1), 4),
            (element(single, ["a", "b"], 0), None),
            (element({**single, "output": "inner"}, [1, 2], 0), None),
            (element(single, [1, 2], None), None),
        ]
    )


# --- thresholds -------------------------------------------------------------------------------------------


def test_a_score_at_a_threshold_and_at_the_ends_of_the_band(demand: Demand) -> None:
    def judged(profile: dict[str, Any] | None, own_threshold: float | None, *scores: float) -> str:
        model = json.dumps({"decision": profile, "output": "p", "outputs": [], "output_shape": [1]})
        return f"{list(scores)}.map(score.ruleOf({model}, {json.dumps(own_threshold)}, 0).judge)"

    above = {"threshold": 0.5, "adverse": "above", "output": "p", "index": 0, "space": "output"}
    demand(
        [
            (judged(above, None, 0.49, 0.5, 0.51), ["approve", "approve", "decline"]),
            (judged({**above, "adverse": "below"}, None, 0.49, 0.5, 0.51), ["decline", "approve", "approve"]),
            (
                judged({**above, "refer": [0.4, 0.6]}, None, 0.39, 0.4, 0.5, 0.6, 0.61),
                ["approve", "refer", "refer", "refer", "decline"],
            ),
            (judged(None, 2_700_000, 2_699_999, 2_700_000), ["below", "above"]),
            ("score.ruleOf({output: 'p'}, null, 0)", None),
            ("score.isShare({probabilities: ['p']}, 'p')", True),
            ("score.isShare({}, 'p')", False),
        ]
    )


def test_a_score_near_an_end_is_that_of_its_margin(demand: Demand) -> None:
    """The one that stands beside it, or the explained one; without either the answered score counts."""
    exact = 2.061e-9  # of a margin of -20, which a graph in float32 may answer as 0

    def scored(space: str, answered: float, explanation: dict[str, float] | None) -> str:
        rule = {"output": "p", "index": 1, "space": space, "threshold": 0.5, "adverse": "above"}
        outputs = [{"name": "p", "datatype": "FP32"}]
        model = json.dumps({"decision": rule, "output": "p", "outputs": outputs, "output_shape": [2]})
        score = f"score.ruleOf({model}, null, 0).score([1, {answered}], {json.dumps(explanation)})"
        return f"Number({score}.toPrecision(4))"

    demand(
        [
            (scored("output", 0, {"explained_value": 0, "score_margin": -20}), exact),
            (scored("margin", 0, {"explained_value": -20}), exact),
            (scored("margin", 0, {"explained_value": -20, "score_margin": 3}), exact),
            (scored("output", 0.25, {"explained_value": 0, "score_margin": -20}), 0.25),  # of another number
            (scored("output", 0, {"explained_value": -20}), 0),
            (scored("margin", 0, None), 0),
        ]
    )


def test_numbers_on_an_axis_and_beside_pictures(demand: Demand) -> None:
    texts = {"0.25": "0.25", "-2500": "−2,500", "100000": "100K", "-1250000": "−1.25M", "2e9": "2B"}
    figures = {"0.0061234": "0.00612", "595139.4": "595,139", "1272868.75": "1,272,869", "-0.5": "−0.5"}
    shares: dict[str, Any] = {
        "value(0.19694)": "19.7%",
        "effect(-0.0123)": "−1.23 points",
        "signed(0.0123)": "+1.23",
        "size(0.5)": "50",
        "tick(0.25)": "25%",
        "effectTick(0.25)": "25",
        "factor": 100,
        "unit": "percentage points",
    }
    amounts: dict[str, Any] = {
        "value(1234.5)": "1,235",
        "effect(-0.0123)": "−0.0123",
        "tick(100000)": "100K",
        "unit": "",
    }
    demand([(f"words.measures(true).{call}", due) for call, due in shares.items()])
    demand([(f"words.measures(false).{call}", due) for call, due in amounts.items()])
    demand([(f"canvas.tickText({value})", due) for value, due in texts.items()])
    demand([(f"words.figure({value})", due) for value, due in figures.items()])


def test_round_numbers_within_a_range(demand: Demand) -> None:
    """Both ends too, which rounding may put a little beyond the range."""
    demand(
        [
            ("canvas.ticks(0, 0.3, 3)", [0, 0.1, 0.2, 0.3]),
            ("canvas.ticks(0.1, 0.7, 6)", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
            ("canvas.ticks(-1, 1, 4)", [-1, -0.5, 0, 0.5, 1]),
            ("canvas.ticks(1, 99, 5)", [20, 40, 60, 80]),
            ("canvas.ticks(2, 2)", [2]),
            ("canvas.ticks(0, Infinity)", [0]),
            ("canvas.ticks(NaN, 1)", []),
        ]
    )


def test_a_name_that_is_cut_keeps_both_its_ends(demand: Demand) -> None:
    names = ["Repayment status in August", "Repayment status in September", "Sex", "ab"]
    due = ["Repaym…August", "Repaym…tember", "Sex", "ab"]
    cut = "(text) => canvas.elided(text, (found) => found.length <= 13)"
    demand([(f"{json.dumps(names)}.map({cut})", due), ("canvas.elided('abc', () => false)", "a…c")])


def test_coded_values_are_words_where_colours_and_axes_tell_of_them(demand: Demand) -> None:
    """Words stand in the order of their codes. A code without a word stays a number."""
    made = (
        "Object.assign(Object.create(portfolio.Portfolio.prototype), {"
        "values: [{name: 'sex', kind: 'number', values: [2, 1, NaN, 10, 2]},"
        " {name: 'age', kind: 'number', values: [5]}],"
        "described: new Map([['sex', {value_labels: {1: 'male', 2: 'female'}}], ['age', {}]])})"
    )
    column = {"name": "sex", "kind": "text", "codes": [1, 0, -1, 2, 1], "words": ["male", "female", "10"]}
    demand(
        [
            (f"(({{codes, ...more}}) => ({{...more, codes: [...codes]}}))({made}.inWords(0))", column),
            (f"words.orderOf({made}.inWords(0))", "male, female, 10"),
            (f"words.orderOf({made}.inWords(1))", "low to high"),
            ("words.orderOf({kind: 'text', words: [...'abcdefg']})", "a, b, c, d, e, f …"),
        ]
    )
