"""Curves of the score along a feature: those of trees are held to dense scans."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from rationale import TreeShap, compile_model
from tests.service.console.node import in_node

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
    """Boosted trees, whose score has many levels along income, compiled."""
    table = people(4000)
    unusual = (np.log(table["income"] / 700).astype(int) + (table["age"] // 7) + (table["debt"] > 0)) % 2
    model = HistGradientBoostingClassifier(max_iter=60, max_depth=5, random_state=0).fit(table, unusual)
    return compile_model(model, TreeShap(table[:60]))


def scan(trees: Any, name: str, row: dict[str, float], values: np.ndarray) -> np.ndarray:
    rows = pd.DataFrame([row] * len(values)).assign(**{name: values})
    return np.asarray(trees.explain(rows)["probabilities"])[:, 1]


@pytest.mark.parametrize("name", list(ROW))
@pytest.mark.parametrize("seed", range(4))
def test_a_curve_of_trees_is_that_of_a_dense_scan(trees: Any, name: str, seed: int) -> None:
    row = ROW if seed == 0 else people(400).iloc[seed * 90].to_dict()
    spread = next(item for item in trees.manifest.references.spreads if item.feature == name)
    splits = np.asarray(trees.manifest.splits[name])
    span = [min(spread.quantiles[0], row[name]), max(spread.quantiles[-1], row[name])]
    field = {"name": name, "kind": "number", "whole": spread.whole, "splits": splits.tolist()}
    body = "return own.grid(given.field, given.span, given.row[given.field.name]);"
    values = np.array(in_node(["explain/along.js"], body, {"field": field, "span": span, "row": row}))
    assert (values[0] >= span[0], values[-1] <= span[1], row[name] in values) == (True, True, True)
    # The scan: every split, the number just before it, and a thousand steps; or all whole numbers.
    before = np.nextafter(splits.astype(np.float32), np.float32(-np.inf))
    dense = np.concatenate([splits, before, np.linspace(span[0], span[1], 1000)])
    dense = np.arange(np.ceil(span[0]), span[1] + 1) if spread.whole else np.unique(dense)
    dense = dense[(dense >= span[0]) & (dense <= span[1])]
    pieces = np.searchsorted(splits, values, "right")
    level = dict(zip(pieces.tolist(), scan(trees, name, row, values).tolist(), strict=True))
    drawn = [level[piece] for piece in np.searchsorted(splits, dense, "right").tolist()]
    assert drawn == scan(trees, name, row, dense).tolist()


def test_curves_of_the_scan_have_many_levels(trees: Any) -> None:
    """Else the test above would hold pages to nothing."""
    splits = np.asarray(trees.manifest.splits["income"])
    assert len(np.unique(scan(trees, "income", ROW, splits))) > 20


@pytest.mark.parametrize("count", [3, 60])
def test_curves_are_those_of_the_most_relevant_features(count: int) -> None:
    """The request holds a row for each value, the other features as they are."""
    body = """const names = Array.from({ length: given }, (_, i) => `x${i}`);
        const fields = names.map((name) => ({ name, kind: "text", choices: ["a", "b"] }));
        const row = Object.fromEntries(names.map((name) => [name, "a"]));
        const score = (each) => names.reduce((sum, name, i) => sum + (each[name] === "b" ? i + 1 : 0), 0);
        const scores = { of: async (rows) => rows.map(score) };
        const relevance = ({ name }) => Number(name.slice(1));
        const asked = { row, fields, spans: new Map(), scores, relevance };
        return [...(await own.along(asked))];"""
    curves = in_node(["explain/along.js"], body, count)
    assert curves == [
        [f"x{i}", [{"value": "a", "score": 0}, {"value": "b", "score": i + 1}]]
        for i in reversed(range(max(0, count - 48), count))
    ]


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
        ([2.5, 2.75], True, 9, [-3, 9]),
        ([2.0], True, 5, [-3, 5]),
        ([2.0], True, 1, [1, 2]),
        ([29250.002, 35800.004], False, 30_000, [-3, 30_000, 35800.004]),
        ([0.5, 50_000.0], False, 0.6, [-3, 0.6]),
        ([1.0000001, 1.0000002], False, 9, [-3, 1.0000001, 9]),
        ([-3.0, 40_000.0], False, 5, [5, 40_000]),  # splits at the ends of the range
        ([0.0], False, None, [-3, 0]),
        ([2.0], False, 2.0, [-3, 2]),  # a present value at a split is of the piece that begins there
        ([2.5, 3.0], True, 3, [-3, 3]),
        ([2.0], False, -3, [-3, 2]),
    ],
)
def test_a_value_stands_for_each_piece(
    splits: list[float], whole: bool, present: float | None, expected: list[float]
) -> None:
    field = {"name": "x", "kind": "number", "whole": whole, "splits": splits}
    body = "return own.grid(given.field, [-3, 40000], given.present);"
    assert in_node(["explain/along.js"], body, {"field": field, "present": present}) == expected


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
