"""Recorded decisions that a request is compared with, at the limits; inputs that become references."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rationale.schema.manifest import TensorSpec
from rationale_service.decisions.audit.acts import AdminAct
from rationale_service.decisions.audit.trail import RecordedDecision
from rationale_service.decisions.records import archive
from rationale_service.decisions.records.archive import ComparedDecisions
from rationale_service.engine.checks import Faults
from rationale_service.engine.features import InstanceForm, RequestRows, compared_rows
from rationale_service.errors import InvalidInputError, ServiceError, StateUnavailableError
from tests.service.decisions.audit.conftest import decision

INSTANCE = {"income": 1.0}
RECORDS = {
    "own": decision(1, instance=INSTANCE),
    "longer": decision(2, model="credit2"),
    "shorter": decision(3, model="cred"),
    "capital": decision(4, model="Credit"),
    "contest": decision(5, kind="contest"),
    "judgment": decision(6, kind="judgment"),
    "hashed": decision(7, kept="hashed"),
}


class Trail:
    """An archive of RECORDS, and the log of acts."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault, self.acts = fault, list[AdminAct]()

    async def read(self, name: str) -> RecordedDecision:
        record = RECORDS[name]
        if name == "hashed":
            return RecordedDecision(**{**vars(record), "instance": None})
        return record

    async def check(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def note(self, act: AdminAct) -> None:
        self.acts.append(act)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("longer", "belongs to another model than 'credit'"),
        ("shorter", "belongs to another model than 'credit'"),
        ("capital", "belongs to another model than 'credit'"),
        ("contest", "is a contest"),
        ("judgment", "is a judgment"),
        ("hashed", "are hashed in the trail"),
    ],
)
async def test_only_decisions_of_the_model_with_their_inputs_are_taken(name: str, words: str) -> None:
    trail: Any = Trail()
    with pytest.raises(InvalidInputError, match=words) as refused:
        await ComparedDecisions(trail, trail).instances(["own", name], "credit")
    (act,) = trail.acts
    assert (act.status, act.detail) == (refused.value.status, {"compare_with": ["own", name]})


@pytest.mark.parametrize(("count", "is_taken"), [(1, True), (999, True), (1000, True), (1001, False)])
async def test_a_request_names_at_most_a_thousand(count: int, is_taken: bool) -> None:
    trail: Any = Trail()
    compared = ComparedDecisions(trail, trail)
    if is_taken:
        assert await compared.instances(["own"] * count, "credit") == [INSTANCE] * count
        assert [act.status for act in trail.acts] == [200]
    else:
        with pytest.raises(InvalidInputError, match=f"{count} decisions, more than {archive._MOST_COMPARED}"):
            await compared.instances(["own"] * count, "credit")
        assert trail.acts == []


async def test_nothing_is_read_that_cannot_be_logged() -> None:
    trail: Any = Trail(StateUnavailableError("gone"))
    trail.read = None
    with pytest.raises(ServiceError, match="gone"):
        await ComparedDecisions(trail, trail).instances(["own"], "credit")


# --- rows of several inputs, some of which are explained ---------------------------------------------------

FORM = InstanceForm(
    (
        TensorSpec(name="x", datatype="FP32", shape=(2,)),
        TensorSpec(name="mask", datatype="INT64", shape=(1,)),
        TensorSpec(name="z", datatype="FP32", shape=(1,)),
    ),
    {"a": ("x", 0), "b": ("x", 1)},
)
ROWS = [{"a": 1.0, "b": 2.0, "mask": 1, "z": 0.5}, {"a": 3.0, "b": 4.0, "mask": 0, "z": 0.5}]


@pytest.mark.parametrize(
    ("explained", "names"), [(["x"], {"x"}), (["x", "z"], {"x", "z"}), (["z", "inner"], {"z"}), ([], set())]
)
def test_only_explained_inputs_become_references(explained: list[str], names: set[str]) -> None:
    manifest: Any = SimpleNamespace(
        explained=[SimpleNamespace(tensor=SimpleNamespace(name=name)) for name in explained]
    )
    tensors = compared_rows(FORM, manifest, ROWS, Faults())
    assert tensors.keys() == {f"{name}_compare_with" for name in names}
    if "x" in names:
        assert np.array_equal(tensors["x_compare_with"], [[1, 2], [3, 4]])
    rows = RequestRows(ROWS, references=ROWS, weights=[1, 3])
    entry: Any = SimpleNamespace(inputs=FORM.inputs)
    manifest.open_references, manifest.places, manifest.takes_missing = None, FORM.features, frozenset()
    sent = rows.tensors(entry, manifest, Faults())
    assert sent.keys() == {"x", "mask", "z", "reference_weights", *(f"{name}_references" for name in names)}
