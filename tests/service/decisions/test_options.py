"""Each option of `:decide` is whole: its flag and member in the schemas, and the functions of its module."""

import pytest

from rationale_service.decisions.options.options import OPTIONS, DecisionOption
from rationale_service.errors import MalformedError
from rationale_service.protocols.rest.schemas import Applicants, Decision


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_it_is_described_and_has_its_functions(option: DecisionOption) -> None:
    assert Applicants.model_fields[option.name].description
    module = option.load()
    assert callable(module.demand)
    assert option.help
    assert callable(module.search if option.is_recorded else module.answered)
    if option.is_recorded:
        assert callable(module.columns)
    if option.member is not None:
        assert Decision.model_fields[option.member].description
        assert callable(module.differences)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_it_takes_a_value_of_its_type_alone(option: DecisionOption) -> None:
    values = {bool: True, str: "de"}
    value = values.pop(option.takes)
    assert option.value_of({option.name: value}) == value
    assert option.value_of({}) is option.value_of({option.name: None}) is None
    for wrong in (*values.values(), 1, 0, "", []):
        with pytest.raises(MalformedError, match=option.name):
            option.value_of({option.name: wrong})
