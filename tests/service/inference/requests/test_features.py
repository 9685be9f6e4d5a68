"""Rows of named features as tensors."""

from typing import Any

import pytest

from rationale.schema.manifest import TensorSpec
from rationale_service.engine.checks import Faults
from rationale_service.engine.features import InstanceForm, to_tensors
from rationale_service.errors import InvalidInputError

SHARED = InstanceForm(
    (
        TensorSpec(name="age", datatype="FP32", shape=(1,)),
        TensorSpec(name="b", datatype="FP32", shape=(2,)),
    ),
    {"years": ("age", 0), "age": ("b", 0), "debt": ("b", 1)},
)


@pytest.mark.parametrize("instance", [{"years": 5, "age": 40, "debt": 2}, {"age": [5], "b": [40, 2]}])
def test_a_name_of_an_input_and_of_a_feature_of_another(instance: dict[str, Any]) -> None:
    faults = Faults()
    tensors = to_tensors(SHARED, [instance], faults)
    assert not faults
    assert {name: values.tolist() for name, values in tensors.items()} == {"age": [[5]], "b": [[40, 2]]}


def test_a_feature_does_not_stand_for_the_input_of_its_name() -> None:
    faults = Faults()
    assert to_tensors(SHARED, [{"age": 40, "debt": 2}], faults) == {}
    with pytest.raises(InvalidInputError, match=r"^instances\[0\]: missing 'years'$"):
        faults.report()
