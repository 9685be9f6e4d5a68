"""What the portfolio decides and counts, held to the compiler's own rules, the exact tie first."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score, roc_curve

from rationale.decisions.decide import outcome_of
from rationale.decisions.rows import decision_scores, shortest, sigmoid
from rationale.profiles.scores import bounds_near_ends
from rationale.schema.profile import as_profile
from tests.service.console.node import in_node

TIES = [0.25, 0.5, 0.5, 0.5, 0.75]
RULES = [
    {"threshold": 0.5, "adverse": adverse, "refer": refer}
    for adverse, refer in product(
        ("above", "below"), (None, [0.5, 0.5], [0.25, 0.5], [0.5, 0.75], [0.3, 0.7])
    )
]
NEAR = [0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1), 0.25, 0.3, 0.7, 0.75, 0.0, 1.0, -0.5, 0.1, 0.9]


def outcomes(rule: dict[str, Any], scores: list[float]) -> list[str]:
    profile = as_profile({"output": "p", **rule})
    return [outcome_of(profile, score) for score in scores]


def test_at_the_threshold_a_score_passes_wherever_it_is_judged() -> None:
    body = """return given.rules.map((rule) => given.scores.map((score) => {
        const decision = { ...rule, space: "output", output: "p" };
        const judged = own.ruleOf({ decision, output: "p" }, "", 0);
        return [own.outcomeOf(rule, score), judged.judge(score), judged.passes(score)];
    }));"""
    result = in_node(["outcome.js", "score.js"], body, {"rules": RULES, "scores": NEAR})
    for rule, row in zip(RULES, result, strict=True):
        expected = outcomes(rule, NEAR)
        assert row == [[verdict, verdict, verdict == "approve"] for verdict in expected], rule


def test_a_threshold_of_ones_own_is_met_by_what_equals_it() -> None:
    body = 'return given.map((score) => own.ruleOf({}, "0.5", 0).judge(score));'
    assert in_node(["score.js"], body, NEAR[:3]) == ["above", "below", "above"]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rates_count_what_the_profile_decides(rule: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    scores = [*TIES, *np.round(random.uniform(size=200), 2), *NEAR]
    bad = [float(outcome) for outcome in random.integers(0, 2, len(scores))]
    bad[7] = float("nan")  # a row without an outcome is not counted
    body = """const { scores, bad, rule } = given;
        return own.Rates && new own.Rates(scores, bad, [...scores.keys()]).at(rule, { bad: 5, good: 1 });"""
    sent = {
        "scores": scores,
        "bad": ["NaN" if np.isnan(outcome) else outcome for outcome in bad],
        "rule": rule,
    }
    result = in_node(["portfolio/outcomes.js"], body, sent)
    decided = [outcome for outcome, y in zip(outcomes(rule, scores), bad, strict=True) if not np.isnan(y)]
    known_outcomes = [outcome for outcome in bad if not np.isnan(outcome)]
    for kind in ("approve", "refer", "decline"):
        outcomes_of_kind = [y for outcome, y in zip(decided, known_outcomes, strict=True) if outcome == kind]
        assert (result["counts"][kind], result["defaults"][kind]) == (
            len(outcomes_of_kind),
            sum(outcomes_of_kind),
        ), kind
    declined_good = sum(
        outcome == "decline" and not y for outcome, y in zip(decided, known_outcomes, strict=True)
    )
    cost = (5 * result["defaults"]["approve"] + declined_good) / len(known_outcomes)
    assert (result["n"], result["cost"]) == (len(known_outcomes), pytest.approx(cost))
    assert result["approval"]["share"] == pytest.approx(result["counts"]["approve"] / len(known_outcomes))


def test_four_of_five_are_approved_at_a_tie() -> None:
    body = """const rates = new own.Rates(given, [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]);
        const at = (adverse) => rates.at({ threshold: 0.5, adverse, refer: null }, { bad: 1, good: 1 });
        return [at("above").counts.approve, at("below").counts.approve];"""
    assert in_node(["portfolio/outcomes.js"], body, TIES) == [4, 4]


def test_a_score_of_float32_is_compared_by_its_shortest_text() -> None:
    """0.2 of float32 is 0.20000000298: it equals a threshold of 0.2, as the gateway has it."""
    random = np.random.default_rng(0)
    scores = np.concatenate(
        [np.array([0.2, 0.1, 0.7, 1e-7, 1, 0], np.float32), random.uniform(size=500).astype(np.float32)]
    )
    body = "return given.map((score) => [true, false].map((each) => own.decidedScore({}, score, each)));"
    wide = scores.astype(float).tolist()
    assert in_node(["outcome.js"], body, wide) == [
        list(pair) for pair in zip(shortest(scores), wide, strict=True)
    ]


def test_of_a_margin_the_score_is_its_sigmoid() -> None:
    margins = np.array([-20, -0.4, 0, 3, 20], np.float32)
    exact = sigmoid(margins)
    answered = exact.astype(np.float32)
    answered[1] += 0.1  # a model that clips what it answers
    body = "return given.map(([score, margin]) => own.decidedScore({ threshold: 0.3 }, score, true, margin));"
    result = in_node(["outcome.js"], body, list(zip(answered.tolist(), margins.tolist(), strict=True)))
    expected = exact.tolist()
    expected[1] = shortest(answered)[1]
    assert result == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("bound", [0.3, 0.1, 0.6, 0.45])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_margin_that_is_a_bounds_scores_that_bound(bound: float, kind: Any) -> None:
    """A margin at a bound scores that bound. The next margins on both sides score as in decisions."""
    margin = kind(np.log(bound) - np.log1p(-bound))
    margins = [margin, np.nextafter(margin, kind(np.inf)), np.nextafter(margin, kind(-np.inf))]
    body = """const profile = { threshold: 0.3, refer: [0.1, 0.6] };
        return given.scores.map((score, i) => own.decidedScore(
          { ...profile, threshold: given.bound }, score, false, given.margins[i], given.isSingle));"""
    profile = as_profile({"output": "y", "threshold": bound, "adverse": "above", "refer": [0.1, 0.6]})
    answered = sigmoid(np.array(margins))
    sent = {
        "bound": bound,
        "scores": answered.tolist(),
        "margins": [float(m) for m in margins],
        "isSingle": kind is np.float32,
    }
    shown = in_node(["outcome.js"], body, sent)
    assert shown == pytest.approx(decision_scores(profile, answered, np.array(margins)), rel=1e-15, abs=0)
    assert shown[0] == bound


LAYOUT = {
    "inputs": [
        {
            "name": "x",
            "datatype": "FP32",
            "shape": [2],
            "features": ["a", "b"],
            "attributions": "x_attributions",
        },
        {"name": "y", "datatype": "FP32", "shape": [3], "features": ["c1", "c2", "d"]},
    ],
    "features": [{"name": name, "missing": name == "a"} for name in ("a", "b", "c1", "c2", "d")],
    "groups": [{"name": "c", "features": ["c1", "c2"]}],
    "group_attributions": "group_attributions",
    "players": ["c", "d"],
    "has_base_value": True,
    "has_gap": False,
    "outputs": [{"name": "label", "datatype": "BYTES"}, {"name": "p", "datatype": "FP32"}],
    "decision": {"output": "p", "index": 1, "space": "output"},
}


def test_near_the_ends_the_margin_is_asked_for() -> None:
    """By which the score is told apart from the threshold."""
    body = """const { layoutOf, Explained } = own;
        return [null, "score_margin"].map((margin) => {
          const decision = margin === null ? given.decision : { ...given.decision, margin };
          return Explained.outputs(layoutOf({ ...given, decision })).includes("score_margin");
        });"""
    assert in_node(["portfolio/portfolio.js", "portfolio/tensors.js"], body, LAYOUT) == [False, True]


@pytest.mark.parametrize(
    ("threshold", "refer", "expected"),
    [
        (1e-5, None, True),
        (np.nextafter(1e-5, 1), None, False),
        (1 - 1e-6, None, True),
        (0.999, None, False),
        (0.5, [0.3, 0.999999], True),
        (0.5, [1e-5, 0.7], True),
        (0.5, [0.3, 0.7], False),
        (0.5, [0, 0.7], False),  # nothing is below 0, or above 1
        (0.5, [0.3, 1], False),
        (0.5, [0, 1 - 1e-6], True),
    ],
)
def test_which_thresholds_are_near_the_ends(threshold: float, refer: Any, expected: bool) -> None:
    rule = {"threshold": float(threshold), "refer": refer}
    assert in_node(["outcome.js"], "return own.isNearEnds(given);", rule) is expected
    profile = as_profile({"output": "p", "adverse": "above", **rule})
    assert bool(bounds_near_ends(profile)) is expected


def test_each_target_has_its_own_numbers() -> None:
    """Of two rows and three targets: attributions of two features, values, base values, gaps and scores."""
    rows, targets, features = 2, 3, 2
    shapes = {"x_attributions": (rows, targets, features)} | dict.fromkeys(
        ("explained_value", "base_value", "completeness_gap"), (rows, targets)
    )
    tensors = {
        name: np.arange(np.prod(shape)).reshape(shape) + 100.0 * k
        for k, (name, shape) in enumerate(shapes.items())
    }
    body = """const { Explained } = own;
        const players = ["a", "b"].map((name, at) => ({ name, output: "x_attributions", width: 2, at }));
        const tensor = ([name, shape, values]) => [name, { shape, values, datatype: "FP64" }];
        const answer = new Map(given.map(tensor));
        return [0, 1, 2].map((target) => {
          const found = new Explained({ players, scalars: [], score: null }, [5, 6], target);
          found.take({ tensors: answer, parameters: {} }, 0, 2);
          const { attributions, values, bases, gaps, scores } = found;
          return [...attributions, values, bases, gaps, scores].map((one) => [...one]);
        });"""
    rows_sent = [[name, list(shapes[name]), tensor.ravel().tolist()] for name, tensor in tensors.items()]
    result = in_node(["portfolio/tensors.js"], body, rows_sent)
    for target, numbers in enumerate(result):
        a, b, values, bases, gaps, scores = numbers
        assert [a, b] == tensors["x_attributions"][:, target].T.tolist()
        assert values == scores == tensors["explained_value"][:, target].tolist()
        assert bases == tensors["base_value"][:, target].tolist()
        assert gaps == tensors["completeness_gap"][:, target].tolist()


@pytest.mark.parametrize("space", ["margin", "output"])
@pytest.mark.parametrize("targets", [1, 2, 3])
def test_a_row_is_judged_by_its_own_margin(space: str, targets: int) -> None:
    """The first target's, which is the profile's, however many there are beside it."""
    margins = np.array([-20.0, 0.0, 20.0])
    body = """const { scores, margins, targets, space } = given;
        const tensor = (shape, values) => ({ shape, values, datatype: "FP64" });
        const wide = margins.flatMap((one) => [one, ...Array(targets - 1).fill(99)]);
        const score = { output: "p", index: 0, space, threshold: 0.5, refer: null };
        const layout = { players: [], scalars: [], score: { ...score, margin: "m" } };
        const margin = tensor([3, targets], wide);
        const tensors = new Map([["p", tensor([3, 1], scores)], ["explained_value", margin], ["m", margin]]);
        const found = new own.Explained(layout, [0, 1, 2], 0);
        found.take({ tensors, parameters: {} }, 0, 3);
        return [...found.scores];"""
    exact = 1 / (1 + np.exp(-margins))
    answered = np.round(exact, 7)  # less exact than its margin
    given = {"scores": answered.tolist(), "margins": margins.tolist(), "targets": targets, "space": space}
    result = in_node(["portfolio/tensors.js"], body, given)
    np.testing.assert_allclose(result, exact, rtol=1e-12)


@pytest.mark.parametrize(("datatype", "kind"), [("FP16", "<f2"), ("BF16", "<u2"), ("FP32", "<f4")])
def test_floats_of_each_width_are_read_as_numpy_reads_them(datatype: str, kind: str) -> None:
    """Every half and every bfloat16 but NaN, subnormal ones too; and some of float32."""
    bits = np.arange(1 << 16, dtype="<u2")
    if datatype == "BF16":
        expected = (bits.astype("<u4") << 16).view("<f4")
        bits, expected = bits[np.isfinite(expected)], expected[np.isfinite(expected)]
        raw = bits.tobytes()
    else:
        expected = bits.view("<f2") if datatype == "FP16" else bits.astype("<u4").view("<f4")
        expected = expected[np.isfinite(expected)]
        raw = expected.tobytes()
    assert len(raw) == len(expected) * np.dtype(kind).itemsize
    body = """const bytes = Uint8Array.from(given.raw);
        const output = { name: "y", datatype: given.datatype, shape: [given.count] };
        output.parameters = { binary_data_size: bytes.length };
        const head = new TextEncoder().encode(JSON.stringify({ outputs: [output] }));
        const headers = { "Inference-Header-Content-Length": String(head.length) };
        const { tensors } = await own.decode(new Response(new Blob([head, bytes]), { headers }));
        return [...tensors.get("y").values];"""
    result = in_node(
        ["portfolio/tensors.js"], body, {"raw": list(raw), "datatype": datatype, "count": len(expected)}
    )
    np.testing.assert_array_equal(np.array(result, float), expected.astype(float))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [7.0] * 19 + [9.0] * 2,
            [0] * 19 + [254] * 2,
        ),  # a tenth is above: the 95th percentile tells them apart
        ([7.0] * 99 + [7.5] * 2, [0] * 99 + [254] * 2),  # only the 99th does
        ([7.0] * 199 + [7.5], [0] * 199 + [254]),  # the largest alone
        ([7.0] * 5, [0] * 5),
        ([float("nan")] * 2, [255] * 2),
        ([0.0, float("nan"), 1.0], [0, 255, 254]),
    ],
    ids=["tenth", "hundredth", "largest", "one value", "none", "missing"],
)
def test_colours_tell_values_apart_however_few_differ(values: list[float], expected: list[int]) -> None:
    body = "return [...own.ranks(Float64Array.from(given), Uint32Array.from(given.keys()))];"
    sent = ["NaN" if np.isnan(value) else value for value in values]
    assert in_node(["portfolio/statistics.js"], body, sent) == expected


@pytest.mark.parametrize(
    ("values", "expected"), [([1, 2, 2, 1], [1, 2, 0, 3]), ([0, 0], [0, 1]), ([-1, -3, 5], [2, 0, 1])]
)
def test_equal_ones_stay_in_their_order(values: list[float], expected: list[int]) -> None:
    assert in_node(["portfolio/statistics.js"], "return own.descending(given);", values) == expected


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("count", [24, 25, 31])
def test_each_slice_tells_of_an_interaction(place: int, count: int) -> None:
    """Slices of eight rows along the values, of which one goes with the other column; a rest is none."""
    own = [float(k % 8) if k // 8 == place else 0.0 for k in range(count)]
    body = """const rows = [...given.keys()];
        return own.interactions(rows, given, [[...rows], rows.map(() => 1), null, rows], rows);"""
    first, *others = in_node(["portfolio/statistics.js"], body, own)
    assert first == pytest.approx(np.sqrt(np.sum((np.arange(8) - 3.5) ** 2)))
    assert others == [0, 0, 0]


@pytest.mark.parametrize(
    ("errors", "n", "expected"),
    [
        ([0.0], 50, []),  # the scores are exactly right
        ([0.25], 50, [0.25]),  # and exactly wrong: nothing is surer
        ([0.25], 49, []),  # too few rows
        ([-0.25, 0.75], 50, [0.25]),
        ([-0.25, 0.25], 50, []),  # the interval has 0 in its middle
        ([0.35], 50, [0.35]),  # their variance is less than 0 by rounding
    ],
)
def test_slices_that_err_by_more_than_chance(errors: list[float], n: int, expected: list[float]) -> None:
    """Of one word, whose rows have these errors in turn."""
    outcomes = [0.5 + errors[k % len(errors)] for k in range(n)]
    body = """const column = { name: "job", kind: "text", words: ["clerk"], codes: given.map(() => 0) };
        const rows = given.map((_, k) => k);
        const found = await own.errors([column], rows, given.map(() => 0.5), given, async () => {});
        return found.map(({ label, mean, low, high }) => [label, mean, low <= mean && mean <= high]);"""
    result = in_node(["portfolio/outcomes.js"], body, outcomes)
    assert result == [["clerk", pytest.approx(mean), True] for mean in expected]


def test_only_what_is_drawn_is_asked_for() -> None:
    body = """const { layoutOf, Explained } = own;
        return [given, { ...given, decision: { ...given.decision, output: "inner" } }].map((each) => {
          const layout = layoutOf(each);
          const missing = layout.inputs.map((one) => one.missing);
          return { players: layout.players, outputs: Explained.outputs(layout), missing };
        });"""
    decides, inner = in_node(["portfolio/portfolio.js", "portfolio/tensors.js"], body, LAYOUT)
    explained = ["x_attributions", "group_attributions", "explained_value", "base_value"]
    assert decides["outputs"] == [*explained, "p"]
    assert inner["outputs"] == explained
    assert decides["missing"] == [True, False]
    assert [
        (player["name"], player["features"], player["width"], player["at"]) for player in decides["players"]
    ] == [
        ("a", ["a"], 2, 0),
        ("b", ["b"], 2, 1),
        ("c", ["c1", "c2"], 2, 0),
        ("d", ["d"], 2, 1),
    ]


INFINITE = [1.0, float("nan"), float("inf"), -1e39, 2.0]


@pytest.mark.parametrize(
    ("input_", "column", "due", "lacking"),
    [
        ({"datatype": "FP64"}, INFINITE, [0, 3, 4], 2),
        ({"datatype": "FP32"}, INFINITE, [0, 4], 3),  # float32 has no such number
        ({"datatype": "FP64", "missing": True}, INFINITE, [0, 1, 3, 4], 1),  # a missing value is sent
        ({"datatype": "FP32", "missing": True}, INFINITE, [0, 1, 4], 2),
        ({"datatype": "INT64"}, [1.0, float("nan"), 3.0], [0, 2], 1),
        ({"datatype": "INT64", "missing": True}, [1.0, float("nan")], [0], 1),  # whole numbers have no NaN
        ({"datatype": "BOOL"}, ["true", None], [0], 1),
        ({"datatype": "BYTES"}, ["own", None], [0, 1], 0),  # a missing text is an empty one
        ({"datatype": "BYTES"}, [1.0, float("nan")], [0], 1),
    ],
)
def test_which_rows_can_be_sent(
    input_: dict[str, Any], column: list[Any], due: list[int], lacking: int
) -> None:
    """One row that the gateway refuses would make it refuse all of its request."""
    body = """const { input_, values, words } = given;
        const codes = words && Int32Array.from(words, (word) => (word === null ? -1 : 0));
        const column = words
          ? { name: "a", kind: "text", words: words.filter(Boolean), codes }
          : { name: "a", kind: "number", values: Float64Array.from(values.map(Number)) };
        const bound = [{ missing: false, ...input_, columns: [column] }];
        const found = own.usable(bound, (words ?? values).length);
        return { rows: [...found.rows], lacking: [...found.lacking] };"""
    is_words = isinstance(column[0], str)
    values = None if is_words else [str(one).replace("inf", "Infinity") for one in column]
    given = {"input_": input_, "values": values, "words": column if is_words else None}
    found = in_node(["portfolio/tensors.js"], body, given)
    assert found == {"rows": due, "lacking": [["a", lacking]] if lacking else []}


def test_features_are_in_the_order_of_all_rows_that_are_there() -> None:
    """Rows come in batches: what is largest in the first need not stay so."""
    body = """const { layoutOf, Portfolio } = own;
        const { group_attributions, decision, ...features } = { ...given, groups: [], players: [] };
        const layout = layoutOf({ ...features, inputs: features.inputs.slice(0, 1) });
        const columns = ["a", "b"].map((name) => ({ name, kind: "number", values: Float64Array.of(1, 2) }));
        const rows = Uint32Array.of(0, 1);
        const portfolio = new Portfolio({ table: { columns }, layout, rows, target: 0, features });
        const orders = [[1, 0.5], [1, 9]].map((values, from) => {
          const numbers = (one) => ({ shape: [1, 1], datatype: "FP64", values: [one] });
          const tensors = new Map([["explained_value", numbers(0)], ["base_value", numbers(0)]]);
          tensors.set("x_attributions", { shape: [1, 1, 2], datatype: "FP64", values });
          portfolio.explained.take({ tensors, parameters: {} }, from, 1);
          return [portfolio.order(), [...portfolio.means]];
        });
        return orders;"""
    found = in_node(["portfolio/portfolio.js", "portfolio/tensors.js"], body, LAYOUT)
    assert found == [[[0, 1], [1, 0.5]], [[1, 0], [1, 4.75]]]


_RATES = "const rates = new own.Rates(given.scores, given.bad, [...given.scores.keys()]);"


@pytest.mark.parametrize("adverse", ["above", "below"])
@pytest.mark.parametrize("digits", [1, 9])
def test_the_roc_curve_is_scikit_learns(adverse: str, digits: int) -> None:
    """By one digit most scores are ties."""
    random = np.random.default_rng(1)
    scores = np.round(random.uniform(size=300), digits)
    bad = (random.uniform(size=300) < scores).astype(int)
    body = f"{_RATES} return own.roc(rates, {adverse!r});"
    result = in_node(["portfolio/outcomes.js"], body, {"scores": scores.tolist(), "bad": bad.tolist()})
    towards = scores if adverse == "above" else -scores
    assert result["area"] == pytest.approx(roc_auc_score(bad, towards))
    good_declined, bad_declined, _ = roc_curve(bad, towards, drop_intermediate=False)
    np.testing.assert_allclose(result["points"], np.stack([good_declined, bad_declined], 1))


def test_calibration_is_of_tenths_with_wilsons_intervals() -> None:
    random = np.random.default_rng(2)
    scores = np.sort(np.round(random.uniform(size=400), 3))
    bad = (random.uniform(size=400) < scores**2).astype(int)
    body = f'{_RATES} return ["above", "below"].map((adverse) => own.calibration(rates, adverse));'
    arguments = {"scores": scores.tolist(), "bad": bad.tolist()}
    above, below = in_node(["portfolio/outcomes.js"], body, arguments)
    assert len(above) == 10
    assert sum(bin_["n"] for bin_ in above) == 400
    start = 0
    for bin_, other in zip(above, below, strict=True):
        tenth = slice(start, start + bin_["n"])
        start += bin_["n"]
        assert start == 400 or scores[start - 1] < scores[start]  # equal scores stand together
        assert (bin_["x"], bin_["y"]) == pytest.approx((scores[tenth].mean(), bad[tenth].mean()))
        assert other["y"] == pytest.approx(1 - bin_["y"])
        expected = binomtest(int(bad[tenth].sum()), bin_["n"]).proportion_ci(method="wilson")
        assert (bin_["low"], bin_["high"]) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("scores", "bins"),
    [
        ([0.0, 0.5, 1.0], 3),  # both ends are probabilities
        ([0.0, 0.0], 1),
        ([1.0], 1),
        ([0.5, float(np.nextafter(1, 2))], 0),
        ([-float(np.nextafter(0, 1)), 0.5], 0),
        ([], 0),
    ],
)
def test_calibration_is_of_probabilities(scores: list[float], bins: int) -> None:
    body = f'{_RATES} return own.calibration(rates, "above").length;'
    given = {"scores": scores, "bad": [0] * len(scores)}
    assert in_node(["portfolio/outcomes.js"], body, given) == bins


def test_of_outcomes_of_one_kind_there_is_no_curve() -> None:
    body = f'{_RATES} return own.roc(rates, "above").points;'
    arguments = {"scores": [0.1, 0.2], "bad": [0, 0]}
    assert in_node(["portfolio/outcomes.js"], body, arguments) == [[0, 0]]


def test_curves_are_of_rows_at_even_steps() -> None:
    body = (
        "return [own.thinned([0, 1, 2, 3, 4, 5, 6], 4), own.thinned([7], 4), own.meanOf([[1, 2], [3, 6]])];"
    )
    assert in_node(["portfolio/sections/curves.js"], body) == [[0, 2, 4, 6], [7], [2, 4]]


def text(*words: str) -> dict[str, Any]:
    vocabulary = sorted({word for word in words if word})
    return {
        "name": "c",
        "kind": "text",
        "codes": [vocabulary.index(w) if w else -1 for w in words],
        "words": vocabulary,
    }


def numbers(*values: float) -> dict[str, Any]:
    return {"name": "c", "kind": "number", "values": list(values)}


@pytest.mark.parametrize(
    ("column", "kinds", "is_id"),
    [
        (text(*"abcdefghijklmnopqrst"), 20, True),
        (text(*"abcdefghijklmnopqraa"), 18, False),  # nine tenths of 20 rows
        (text(*["a", "b", ""] * 7), 2, False),
        (numbers(*range(1001, 1021)), 20, True),
        (numbers(*(n / 4 for n in range(20))), 20, False),  # measured, of which there are quarters
        (numbers(*[0, 1, 2, 3, 4, 5, 6] * 3), 7, False),  # codes
        (numbers(*range(12)), 12, False),
        (numbers(*range(13)), 13, True),
        (numbers(*[float("nan")] * 13), 0, False),
    ],
)
def test_a_column_that_tells_rows_apart_is_no_group(column: dict[str, Any], kinds: int, is_id: bool) -> None:
    size = len(column.get("values", column.get("codes")))
    body = "return [own.kindsOf(given, given.rows, given.rows.length), own.isId(given, given.rows)];"
    column = {**column, "rows": list(range(size)), "values": [_sent(v) for v in column.get("values", [])]}
    assert in_node(["portfolio/outcomes.js"], body, column) == [kinds, is_id]


def _sent(value: float) -> Any:
    return "NaN" if np.isnan(value) else value


def test_codes_are_groups_by_their_words() -> None:
    body = """
      const called = (name, text) => given.labels[text] ?? text;
      return own.slices(given.column, given.rows, { called });
    """
    arguments = {
        "column": numbers(*[1, 2, 2, 6, 2, 1]),
        "rows": [0, 1, 2, 3, 4, 5],
        "labels": {"1": "school"},
    }
    result = in_node(["portfolio/outcomes.js"], body, arguments)
    assert result == [["2", [1, 2, 4]], ["school", [0, 5]], ["6", [3]]]


@pytest.mark.parametrize(
    ("field", "column", "expected"),
    [
        (
            {"kind": "text", "choices": ["own", "rent"]},
            text("rent", "rent", "none", ""),
            ["rent", "none", "own"],  # the most frequent of the file first
        ),
        ({"kind": "number", "choices": [1, 3]}, numbers(1, 1, 7), [1, 3]),
        ({"kind": "flag", "choices": [False, True]}, numbers(0, 1), [False, True]),
        ({"kind": "number", "whole": True, "splits": [50.5]}, numbers(*range(1, 100)), [3, 51]),
    ],
)
def test_curves_go_along_words_codes_and_flags_too(
    field: dict[str, Any], column: dict[str, Any], expected: list[Any]
) -> None:
    size = len(column.get("values", column.get("codes")))
    body = "return own.valuesAlong(given.field, given.column, given.rows);"
    arguments = {"field": field, "column": column, "rows": list(range(size))}
    assert in_node(["portfolio/sections/curves.js"], body, arguments) == expected


def test_a_way_of_a_row_adds_up_from_the_base_value() -> None:
    features = [{"name": "largest", "values": [0.5, -1]}, {"name": "least", "values": [0.25, 2]}]
    body = "return [0, 1].map((i) => own.wayOf(given, i, 10));"
    assert in_node(["portfolio/sections/rows.js"], body, features) == [[10, 10.25, 10.75], [10, 12, 11]]
