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
