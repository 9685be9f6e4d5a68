"""Each option of `:decide` is whole: its flag and member in the schemas, and the functions of its module."""

import pytest

from rationale_service.decisions.options import OPTIONS, DecisionOption
from rationale_service.protocols.rest.schemas import Applicants, Decision


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_it_is_described_and_has_its_functions(option: DecisionOption) -> None:
    assert Applicants.model_fields[option.name].description
    module = option.load()
    assert all(map(callable, (module.demand, module.search)))
    if option.member is not None:
        assert Decision.model_fields[option.member].description
        assert callable(module.differences)
