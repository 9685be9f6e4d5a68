"""Where the score turns along a feature, and what is the least that turns it: held to exhaustive scans."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from rationale import TreeShap, compile_model
from tests.service.console.node import in_node

_RULE = 'const rule = own.ruleOf({}, "0.5", 0);'
ROW = {"income": 30_000.5, "age": 41.0, "debt": 0.0}


def people(count: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "income": np.round(random.lognormal(10.3, 1.2, count), 2),  # skewed
            "age": random.integers(18, 90, count).astype(float),
            "debt": np.round(random.normal(size=count), 3),
        }
    )


@pytest.fixture(scope="module")
def trees() -> Any:
    """Boosted trees, whose decision along income turns many times, compiled."""
    table = people(4000)
    unusual = (np.log(table["income"] / 700).astype(int) + (table["age"] // 7) + (table["debt"] > 0)) % 2
    model = HistGradientBoostingClassifier(max_iter=60, max_depth=5, random_state=0).fit(table, unusual)
    return compile_model(model, TreeShap(table[:60]))


def scan(trees: Any, name: str, row: dict[str, float], values: np.ndarray) -> np.ndarray:
    rows = pd.DataFrame([row] * len(values)).assign(**{name: values})
    return np.asarray(trees.explain(rows)["probabilities"])[:, 1] >= 0.5


def splits_of(trees: Any, name: str) -> tuple[np.ndarray, Any]:
    spread = next(item for item in trees.manifest.references.spreads if item.feature == name)
    return np.asarray(trees.manifest.splits[name]), spread


@pytest.mark.parametrize("name", list(ROW))
@pytest.mark.parametrize("seed", range(4))
def test_flip_points_are_those_of_an_exhaustive_scan(trees: Any, name: str, seed: int) -> None:
    row = ROW if seed == 0 else people(400).iloc[seed * 90].to_dict()
    splits, spread = splits_of(trees, name)
    least, most = min(spread.quantiles[0], row[name]), max(spread.quantiles[-1], row[name])
    field = {"name": name, "kind": "number", "whole": spread.whole, "splits": splits.tolist()}
    question = {"field": field, "span": [least, most], "row": row}
    body = "return own.grid(given.field, given.span, given.row[given.field.name]);"
    values = np.array(in_node(["explain/along.js"], body, question))
    answers = scan(trees, name, row, values)
    body = f"""{_RULE}
        const {{ field, row, span, values, answers }} = given;
        const scores = {{ of: async (rows) => rows.map((one) => answers[values.indexOf(one[field.name])]) }};
        const spans = new Map([[field.name, span]]);
        const asked = {{ row, fields: [field], spans, scores, rule, relevance: () => 0 }};
        const {{ result }} = await own.along(asked);
        return result.get(field.name).flips.map(({{ value }}) => value);"""
    exhaustive = {**question, "values": values.tolist(), "answers": answers.astype(float).tolist()}
    flips = in_node(["explain/along.js", "score.js"], body, exhaustive)
    # The scan: every split, what lies just before it, and a thousand steps; of whole numbers all of them.
    before = np.nextafter(splits.astype(np.float32), np.float32(-np.inf))
    dense = np.concatenate([splits, before, np.linspace(least, most, 1000)])
    dense = np.arange(np.ceil(least), most + 1) if spread.whole else np.unique(dense)
    dense = dense[(dense >= least) & (dense <= most)]
    here = answers[values == row[name]][0]
    other = scan(trees, name, row, dense) != here
    expected = [*dense[(dense < row[name]) & other][-1:], *dense[(dense > row[name]) & other][:1]]
    assert flips == pytest.approx(expected, rel=2e-5, abs=2e-5)
    assert not len(flips) or (scan(trees, name, row, np.array(flips)) != here).all()


def test_rows_of_the_scan_turn(trees: Any) -> None:
    """Else the test above would hold pages to nothing."""
    splits, _ = splits_of(trees, "income")
    assert len(splits) > 40
    answers = scan(trees, "income", ROW, splits)
    assert np.count_nonzero(answers[1:] != answers[:-1]) >= 4


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"late": 1.0, "debt": 0.1}, ["late"]),
        ({"late": 0.45, "debt": 0.4}, ["late", "debt"]),
        ({"late": 0.2, "debt": 0.19, "age": 0.18}, ["late", "debt", "age"]),
        ({"late": 0.7, "debt": 0.1, "age": 0.1}, ["late"]),
        ({"late": 0.1, "debt": 0.1}, None),
    ],
)
def test_of_several_at_once_none_can_be_left_out(
    weights: dict[str, float], expected: list[str] | None
) -> None:
    """Words, which are there at once: each adds its weight, and 0.5 is to be reached."""
    fields = [{"name": name, "kind": "text", "choices": ["no", "yes"]} for name in weights]
    body = f"""{_RULE}
        const {{ weights, fields }} = given;
        const names = Object.keys(weights);
        const weight = (row, name) => (row[name] === "yes" ? weights[name] : 0);
        const score = (row) => names.reduce((sum, name) => sum + weight(row, name), 0);
        const scores = {{ of: async (rows) => rows.map(score) }};
        const row = Object.fromEntries(names.map((name) => [name, "no"]));
        const asked = {{ row, scores, rule, fields, spans: new Map(), relevance: () => 0 }};
        const several = await own.together({{ ...asked, ...(await own.along(asked)) }});
        if (several === null) return null;
        return [several.changed.map(({{ field }}) => field.name), several.score, score(several.row)];"""
    result = in_node(["explain/along.js", "score.js"], body, {"weights": weights, "fields": fields})
    if expected is None:
        assert result is None
        return
    names, score, second_score = result
    assert names == expected
    assert score == second_score >= 0.5
    assert all(score - weights[name] < 0.5 for name in names)


@pytest.mark.parametrize(
    ("threshold", "present", "due"),
    [
        (0.95, 10, [19, 19]),  # both at the ends of the middle nine tenths
        (0.951, 10, None),  # which only the outermost tenths would reach
        (0.05, 10, [1, 1]),
        (0.049, 10, None),
    ],
)
def test_several_at_once_stay_within_the_middle_nine_tenths(
    threshold: float, present: float, due: list[float] | None
) -> None:
    """Of two features, whose mean over 20 is the score; 21 quantiles, one at each whole number."""
    body = """const rule = own.ruleOf({}, String(given.threshold), 0);
        rule.threshold = given.threshold;
        rule.passes = (score) => (given.threshold > 0.5 ? score >= given.threshold : score > given.threshold);
        const quantiles = Array.from({ length: 21 }, (_, i) => i);
        const fields = ["a", "b"].map((name) => ({ name, kind: "number", whole: true, quantiles }));
        const scores = { of: async (rows) => rows.map(({ a, b }) => (a + b) / 40) };
        const spans = new Map(["a", "b"].map((name) => [name, [0, 20]]));
        const row = { a: given.present, b: 10 };
        const asked = { row, scores, rule, fields, spans, relevance: () => 0 };
        const several = await own.together({ ...asked, ...(await own.along(asked)) });
        return several && [several.row.a, several.row.b];"""
    given = {"threshold": threshold, "present": present}
    assert in_node(["explain/along.js", "score.js"], body, given) == due


def test_without_splits_quantiles_and_even_steps_are_looked_at() -> None:
    quantiles = [float(2**i) for i in range(21)]
    field = {"name": "x", "kind": "number", "quantiles": quantiles}
    body = "return own.grid(given, [given.quantiles[0], given.quantiles.at(-1)], 5);"
    result = in_node(["explain/along.js"], body, field)
    assert {5, *quantiles} <= set(result)
    assert result == sorted(result)
    assert len(result) == 41  # both ends are steps, too


@pytest.mark.parametrize(
    ("splits", "whole", "present", "expected"),
    [
        ([2.5], True, 1, [1, 3]),
        ([2.5, 2.75], True, 9, [2, 9]),
        ([2.0], True, 5, [1, 5]),
        ([2.0], True, 1, [1, 2]),
        ([29250.002, 35800.004], False, 30_000, [29250, 30_000, 35800.1]),
        ([0.5], False, 0.6, [0.499999, 0.6]),
        ([1.0000001, 1.0000002], False, 9, [1, 1.0000001, 9]),
        ([0.0], False, 2, [-1e-05, 2]),
    ],
)
def test_a_value_of_few_digits_stands_for_each_piece(
    splits: list[float], whole: bool, present: float, expected: list[float]
) -> None:
    field = {"name": "x", "kind": "number", "whole": whole, "splits": splits}
    body = "return own.grid(given.field, [-3, 40000], given.present);"
    result = in_node(["explain/along.js"], body, {"field": field, "present": present})
    assert result == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"kind": "number", "quantiles": [*range(21)]}, [13]),  # the nearest to the median, 10
        ({"kind": "number", "splits": [3.5, 12.5], "whole": True, "quantiles": [*range(21)]}, [13]),
        ({"kind": "number", "choices": [12, 13, 14]}, [13, 14]),
        ({"kind": "text", "choices": ["13", "1", "20"]}, ["13", "20"]),
    ],
    ids=["number", "split", "codes", "words"],
)
def test_in_place_of_a_missing_value_one_number_turns_or_each_word(
    field: dict[str, Any], expected: Any
) -> None:
    body = f"""{_RULE}
        const field = {{ name: "x", missing: true, ...given }};
        const score = ({{ x }}) => (x !== null && Number(x) >= 13 ? 0.9 : 0.1);
        const scores = {{ of: async (rows) => rows.map(score) }};
        const spans = new Map(given.quantiles ? [["x", [0, 20]]] : []);
        const asked = {{ row: {{ x: null }}, fields: [field], spans, scores, rule, relevance: () => 0 }};
        return (await own.along(asked)).result.get("x").flips.map(({{ value }}) => value);"""
    assert in_node(["explain/along.js", "score.js"], body, field) == expected


def test_a_curve_of_trees_is_level_between_splits_and_to_the_ends() -> None:
    body = "return own.outline(given, [{ value: 1, score: 0.1 }, { value: 3, score: 0.4 }], [0, 8]);"
    result = in_node(["explain/along.js"], body, {"splits": [2.5, 9]})
    corners = ((0, 0.1), (1, 0.1), (2.5, 0.1), (2.5, 0.4), (3, 0.4), (8, 0.4))
    assert result == [{"value": value, "score": score} for value, score in corners]


@pytest.mark.parametrize(
    ("features", "rows", "expected"), [(10, 4500, [2000, 2000, 500]), (300, 700, [334, 334, 32])]
)
def test_a_request_holds_no_more_values_than_a_gateway_takes(
    features: int, rows: int, expected: list[int]
) -> None:
    body = """
      const asked = [];
      globalThis.fetch = async (url, { body }) => {
        const { instances } = JSON.parse(body);
        asked.push(instances.length);
        const headers = { "Content-Type": "application/json" };
        return new Response(JSON.stringify({ predictions: instances.map(() => [0.5]) }), { headers });
      };
      globalThis.sessionStorage = { getItem: () => null };
      const row = Object.fromEntries(Array.from({ length: given.features }, (_, i) => [`x${i}`, i]));
      const model = { model: "m", outputs: [{ name: "p" }], output: "p" };
      const scores = await new own.Scores(model, "", ([p]) => p).of(Array(given.rows).fill(row));
      return [asked, scores.length];
    """
    result = in_node(["explain/along.js"], body, {"features": features, "rows": rows})
    assert result == [expected, rows]
