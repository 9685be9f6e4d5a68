"""Pure functions of the pages at a limit, one below and one above it, and where two settings meet."""

from typing import Any

import pytest

from tests.service.console.node import in_node

# As much of a document as tables need: elements with their children's texts.
DOCUMENT = """
  globalThis.Node = class {
    constructor(tag) { Object.assign(this, { tag, parts: [], style: { setProperty() {} } }); }
    append(...parts) { this.parts.push(...parts); }
    setAttribute() {}
    get text() { return this.parts.map((each) => each.text ?? each).join(""); }
    all(tag) { return this.parts.flatMap((each) => each instanceof Node ? [each, ...each.all()] : [])
      .filter((each) => !tag || each.tag === tag); }
  };
  document.createElement = (tag) => new Node(tag);
"""


@pytest.mark.parametrize(
    ("value", "more", "expected"),
    [
        (0.0001, [], "0.0001"),
        (-0.0001, [], "−0.0001"),
        (0.00009999, [], "1.0e−4"),
        (0.001, [3], "0.001"),
        (0.0009, [3], "9.0e−4"),  # with three digits, 0.0004 would be 0
        (0.0004, [3], "4.0e−4"),
        (999.96, [], "999.96"),
        (1000, [], "1,000"),
        (1000, [4, "min2"], "1000"),
        (9999.5, [4, "min2"], "9999.5"),
        (10_000, [4, "min2"], "10,000"),
        (999_999_999_999_999, [], "999,999,999,999,999"),
        (1e15, [], "1.0e+15"),
        (-1e15, [], "−1.0e+15"),
    ],
)
def test_a_number_at_the_limits_of_its_kinds_of_text(value: float, more: list[Any], expected: str) -> None:
    given = [value, *more]
    assert in_node(["format.js"], "return own.number(...given);", given) == expected


@pytest.mark.parametrize(
    ("count", "rows", "others"),
    [(2, 2, None), (10, 10, None), (11, 11, None), (12, 10, "2 others, each at most"), (13, 10, "3 others")],
)
def test_classes_are_listed_unless_more_than_one_would_be_left_out(
    count: int, rows: int, others: str | None
) -> None:
    given = {"names": [f"c{i}" for i in range(count)], "values": [i / 100 for i in range(count)]}
    body = f"""{DOCUMENT}
      const table = own.classTable({{ ...given, explained: 0, isShare: false }});
      return table.all("tr").map((row) => row.all("th")[0].text);"""
    listed = in_node(["pictures/classes.js"], body, given)
    largest = [f"c{i}" for i in reversed(range(count))][:rows]
    assert listed[:rows] == largest
    assert len(listed) == rows + (others is not None)
    assert listed[-1].startswith(others or "c0")


ITEMS = [{"name": "a", "amount": 0.3}, {"name": "b", "amount": -0.1}]
WIDE = {"least": -0.1, "most": 0.75}  # bars from 0 reach from -0.1 to 0.3, those from 0.4 up to 0.7


@pytest.mark.parametrize(
    ("former", "kind", "is_kept"),
    [
        ({**WIDE, "kind": "waterfall"}, "waterfall", True),
        ({**WIDE, "kind": "bars"}, "bars", True),
        ({**WIDE, "kind": "bars"}, "waterfall", False),
        ({**WIDE, "kind": "waterfall"}, "bars", False),
        ({"least": 0.4, "most": 0.7, "kind": "waterfall"}, "waterfall", True),  # it ends where the bars do
        ({"least": 0.41, "most": 0.7, "kind": "waterfall"}, "waterfall", False),
        ({"least": 0.4, "most": 0.69, "kind": "waterfall"}, "waterfall", False),
        ({"least": -9, "most": 9, "kind": "waterfall"}, "waterfall", False),  # much too wide
        (None, "waterfall", False),
    ],
)
def test_a_scale_is_kept_while_bars_of_its_kind_fit(former: Any, kind: str, is_kept: bool) -> None:
    base = 0.4 if kind == "waterfall" else None
    given = {"of": [{"items": ITEMS, "base": base}], "kind": kind, "former": former}
    scale = in_node(["pictures/bars.js"], "return own.scaleOf(given.of, given.kind, given.former);", given)
    assert (scale == former) is is_kept
    assert scale["kind"] == kind


@pytest.mark.parametrize(("count", "names"), [(1, 1), (19, 19), (20, 20), (21, 20), (40, 20)])
def test_of_more_bars_than_there_is_room_for_the_others_are_one(count: int, names: int) -> None:
    body = "return own.shortened(given.map((amount, i) => ({ name: `f${i}`, amount })));"
    shown = in_node(["pictures/bars.js"], body, [float(i + 1) for i in range(count)])
    assert len(shown) == names
    assert sum(each["amount"] for each in shown) == count * (count + 1) / 2
    assert [each["name"] for each in shown if "others" in each["name"]] == (
        [f"{count - 19} others together"] if count > 20 else []
    )


@pytest.mark.parametrize(
    ("quantiles", "ends", "count", "shares"),
    [
        ([0, 1, 2, 3, 4], (0, 4), 4, [0.25] * 4),
        ([0, 1, 2, 3, 4], (0, 4), 2, [0.5, 0.5]),
        ([0, 0, 0, 1, 2], (-2, 2), 2, [0.5, 0.5]),  # an edge at a value that half of them have counts it
        ([0, 0, 0, 2, 2], (-1, 3), 4, [0.5, 0.125, 0.375, 0]),
        ([1, 1, 1, 1, 1], (0, 2), 2, [1, 0]),
        ([1, 1, 1, 1, 1], (1, 2), 1, [1]),
    ],
)
def test_bins_of_a_histogram(
    quantiles: list[float], ends: tuple[float, float], count: int, shares: list[float]
) -> None:
    body = "return own.histogram(given.quantiles, ...given.ends, given.count);"
    sent = {"quantiles": quantiles, "ends": ends, "count": count}
    assert in_node(["pictures/spread.js"], body, sent) == pytest.approx(shares)
