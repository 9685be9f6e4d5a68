"""The circuit breaker, by a clock that stands still until it is told to go on."""

from service.backends.breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def opened() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    for _ in range(5):
        assert breaker.try_pass()
        breaker.failed()
    return breaker, clock


def test_it_opens_after_five_failures_in_a_row_and_not_before() -> None:
    breaker = CircuitBreaker(Clock())
    for _ in range(3):
        for _ in range(4):
            breaker.failed()
        assert breaker.try_pass()
        breaker.succeeded()
    for _ in range(5):
        breaker.failed()
    assert breaker.is_open
    assert not breaker.try_pass()
    assert breaker.retry_after_s == 0.25


def test_one_probe_at_a_time_and_a_success_closes_it() -> None:
    breaker, clock = opened()
    clock.now_s += 0.25
    assert breaker.try_pass()
    assert not breaker.try_pass()
    breaker.succeeded()
    assert breaker.try_pass()
    assert breaker.try_pass()


def test_a_probe_that_fails_doubles_the_pause_up_to_four_seconds() -> None:
    breaker, clock = opened()
    pauses = []
    for _ in range(7):
        pauses.append(breaker.retry_after_s)
        clock.now_s += breaker.retry_after_s
        assert breaker.try_pass()
        breaker.failed()
    assert pauses == [0.25, 0.5, 1, 2, 4, 4, 4]


def test_a_probe_whose_caller_left_makes_room_for_another() -> None:
    breaker, clock = opened()
    clock.now_s += 0.25
    assert breaker.try_pass()
    breaker.left()
    assert breaker.try_pass()


def test_failures_of_what_was_under_way_do_not_lengthen_the_pause() -> None:
    breaker, _ = opened()
    for _ in range(20):
        breaker.failed()
    assert breaker.retry_after_s == 0.25
