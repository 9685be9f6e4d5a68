"""The glance that spares pydantic: what it lets pass, pydantic does too, and as the same message."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from service.api.schemas import InferRequest
from service.api.v2_codec import is_request

ODD: st.SearchStrategy[Any] = st.sampled_from([None, True, 0, 1.5, "x", [], {}, [1], ["x"], {"x": 1}, [[]]])
SHAPES = st.lists(st.sampled_from([1, -1, 2**70, True, 1.0, "1", None, 3, 3, 3]), max_size=3)
GOOD = st.one_of(st.just({}), st.just({"binary_data": True, "own": [1]}))


def members(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that may lack a member, and may hold something else in it."""
    return st.fixed_dictionaries({}, optional={name: st.one_of(kind, ODD) for name, kind in known.items()})


def right(tensors: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """More of those that are whole, or a request of several would hardly ever be right."""
    whole = st.just({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]})
    return st.one_of(whole, whole, tensors)


INPUTS = st.lists(
    right(members(name=st.text(max_size=2), shape=SHAPES, datatype=st.just("FP32"), parameters=GOOD)),
    max_size=2,
)
OUTPUTS = st.lists(members(name=st.text(max_size=2), parameters=GOOD), max_size=2)
MESSAGES = st.one_of(ODD, members(id=st.just("7"), inputs=INPUTS, outputs=OUTPUTS, parameters=GOOD))


def as_pydantic_has_it(message: Any) -> dict[str, Any] | None:
    try:
        return InferRequest.model_validate(message).model_dump(exclude_unset=True)
    except ValidationError:
        return None


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(MESSAGES)
def test_the_glance_agrees_with_pydantic(message: Any) -> None:
    assert is_request(message) == (as_pydantic_has_it(message) is not None)


def test_what_it_lets_pass_means_the_same() -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2.5]], "parameters": {"a": [1]}}
    output = {"name": "y", "parameters": {"binary_data": True}}
    message = {"id": "7", "inputs": [tensor], "outputs": [output], "parameters": {"timeout": 5}}
    assert is_request(message)
    assert as_pydantic_has_it(message) == message
