"""`Compiled.decide`: in Python, as the gateway decides."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rationale import (
    Decision,
    DeepShap,
    InvalidOptionError,
    Undecided,
    compile_model,
    decide_batches,
    decisions_schema,
    load,
)
from tests.compiler.models import NAMES, mlp, rows
from tests.service.decisions.decided import INSTANCES, NETWORK, Decided
from tests.service.decisions.portfolio.test_portfolio import with_rounded_values

TABLES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "pyarrow": pa.Table.from_pylist,
}


@pytest.mark.parametrize("library", TABLES)
@pytest.mark.parametrize("name", ["net", "once", "margin", "words", "credit"])
def test_rows_are_decided_as_the_gateway_does(decided: Decided, name: str, library: str) -> None:
    rows_sent = [row for row in INSTANCES[name] if not any(isinstance(cell, list) for cell in row.values())]
    table = TABLES[library]([{"application": f"a{i}", **row} for i, row in enumerate(rows_sent)])
    actual = load(decided.settings.repository, name).decide(table)
    expected = [
        decided.answers[decision_id]
        for decision_id, row in zip(decided.ids[name], INSTANCES[name], strict=True)
        if row in rows_sent
    ]
    assert len(actual) == len(expected) > 1
    for decision, answer in zip(actual, expected, strict=True):
        assert isinstance(decision, Decision)
        rounded = with_rounded_values(decision.as_json())
        rounded_answer = with_rounded_values(answer)
        assert {member: rounded_answer[member] for member in rounded if member != "id"} == {
            member: value for member, value in rounded.items() if member != "id"
        }


@pytest.mark.parametrize("name", ["net", "words", "credit"])
@pytest.mark.parametrize("numbered", [True, False])
def test_batches_are_decided_as_rows_are(decided: Decided, name: str, numbered: bool) -> None:
    rows_sent = [row for row in INSTANCES[name] if not any(isinstance(cell, list) for cell in row.values())]
    table = pa.Table.from_pylist([{"loan": f"a{i}", **row} for i, row in enumerate(rows_sent)])
    entry = Path(decided.settings.repository) / name
    actual = list(decide_batches(entry, table.to_batches(max_chunksize=2), keep=["loan"], numbered=numbered))
    schema = decisions_schema(entry, table.schema, ["loan"], numbered=numbered)
    assert {batch.schema for batch in actual} == {schema}
    rows_found = pa.Table.from_batches(actual, schema).to_pylist()
    assert [row["loan"] for row in rows_found] == table["loan"].to_pylist()
    assert "id" not in schema.names
    assert [row.get("row") for row in rows_found] == (
        list(range(len(rows_sent))) if numbered else [None] * len(rows_sent)
    )
    for row, expected in zip(rows_found, load(entry.parent, name).decide(table), strict=True):
        assert (row["decision"], row["score"], row["fault"]) == (expected.decision, expected.score, None)
        codes = [row[f"reason_{k}_code"] for k in range(1, 9) if row.get(f"reason_{k}_code")]
        assert codes == [reason.code for reason in expected.reasons]


def test_batches_that_cannot_be_decided(decided: Decided) -> None:
    repository, table = Path(decided.settings.repository), pa.Table.from_pylist(INSTANCES["net"])
    with pytest.raises(InvalidOptionError, match=r"'score'.* to keep"):
        decisions_schema(repository / "net", pa.schema({"score": pa.int64()}), ["score"])
    with pytest.raises(InvalidOptionError, match=r"rows 0 to 5: .*'bankruptcies' are missing"):
        list(decide_batches(repository / "net", table.drop_columns(["bankruptcies"])))
    plain = compile_model(mlp(), DeepShap(rows(4, 5)))
    for call in (lambda: decide_batches(plain, table), lambda: decisions_schema(plain)):
        with pytest.raises(InvalidOptionError, match="decision profile"):
            call()


def test_a_mapping_of_inputs_has_the_columns_of_knock_outs_too(decided: Decided) -> None:
    compiled = load(decided.settings.repository, "net")
    x = pd.DataFrame(INSTANCES["net"])
    by_table = compiled.decide(x)
    assert compiled.decide({"x": x[NAMES].to_numpy(), "bankruptcies": x["bankruptcies"]}) == by_table
    assert any(
        outcome.reasons[0].attribution is None for outcome in by_table if outcome.decision == "decline"
    )
    unknown = x.assign(bankruptcies=pd.array([pd.NA] * len(x), dtype="Int64"))
    assert all(
        reason.attribution is not None for outcome in compiled.decide(unknown) for reason in outcome.reasons
    )
    with pytest.raises(InvalidOptionError, match=r"'bankruptcies' .*knock-outs"):
        compiled.decide(x[NAMES])
    with pytest.raises(InvalidOptionError, match="'bankruptcies' holds 'two'"):
        compiled.decide(x.assign(bankruptcies="two"))


def test_a_row_without_a_decision_says_why() -> None:
    features = {"age": {"reason": "A", "least": -0.5}, "cards": {"reason": "A"}, "years": {"reason": "Y"}}
    profile: dict[str, Any] = {**NETWORK, "features": features, "knock_outs": []}
    profile["reasons"] = {code: text for code, text in profile["reasons"].items() if code != "R09"}
    compiled = compile_model(
        mlp((5, 16, 1), last="Sigmoid"), DeepShap(rows(6, 5)), decision=profile, feature_names=NAMES
    )
    x = pd.DataFrame(rows(3, 5), columns=NAMES).assign(age=[0.5, -1.0, 0.25])
    actual = compiled.decide(x)
    assert [outcome.decision is None for outcome in actual] == [False, True, False]
    assert actual[1] == Undecided("feature 'age' is less than the decision profile's -0.5: -1")
    assert actual[1].as_json() == {"fault": actual[1].fault}

    def broken(inputs: Any) -> dict[str, np.ndarray]:
        return {name: np.full_like(a, np.nan) for name, a in compiled.run(inputs).items()}

    other = replace(compiled)
    vars(other)["run"] = broken
    actual = other.decide(x[::2])
    assert len(actual) == 2
    for outcome in actual:
        assert isinstance(outcome, Undecided)
        assert "not finite" in outcome.fault


def test_a_model_without_a_profile_decides_nothing() -> None:
    compiled = compile_model(mlp(), DeepShap(rows(4, 5)))
    with pytest.raises(InvalidOptionError, match="decision profile"):
        compiled.decide(rows(2, 5))
