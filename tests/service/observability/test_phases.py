"""A request's duration in Triton's phases: they add up, whatever ran, and none is negative."""

import pytest

from rationale_service.observability.context import RequestContext

PHASES = ("compute_input", "queue", "compute_infer", "compute_output")


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], (10, 0, 0, 0)),
        ([(1, 3, 6)], (1, 2, 3, 4)),
        ([(0, 0, 10)], (0, 0, 10, 0)),
        ([(1, 2, 4), (4, 5, 8)], (1, 2, 5, 2)),
        ([(1, 2, 9), (1, 3, 9)], (1, 3, 13, 0)),  # side by side: their times overlap
    ],
)
def test_where_the_time_of_a_request_goes(
    runs: list[tuple[float, float, float]], expected: tuple[float, ...]
) -> None:
    """Each run: when it entered the queue, began and ended, of ten seconds."""
    context = RequestContext("http", "GET /", "id", began_s=100.0)
    for times in runs:
        context.ran(*(100.0 + time for time in times))
    assert tuple(context.phases(10.0).values()) == pytest.approx(expected)
    assert tuple(context.phases(10.0)) == PHASES
