"""A large batch's answers go out a few in each turn of the event loop, and none is lost or overtaken."""

import asyncio
import gc
import itertools
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from service.scheduling.batch import PendingRequest
from service.scheduling.batch_queue import BatchQueue
from service.scheduling.handing_out import AT_ONCE, HandingOut
from service.tensors import Tensors
from tests.service.own_time import Clock, standing_still
from tests.service.scheduling.test_batch_queue import Doubler, queue_of, rows

MANY = 30
FULL = 64
NO_TIME = -1.0  # seconds
FIRST = 100  # the value of the first: 13 would be refused


def ask(queue: BatchQueue, answered: list[int], count: int = MANY) -> list[asyncio.Task[Tensors]]:
    """Requests 0, 1, …; each notes when it is answered."""

    async def one(number: int) -> Tensors:
        answer = await queue.submit(rows(FIRST + number), ["y"])
        answered.append(number)
        return answer

    return [asyncio.create_task(one(number)) for number in range(count)]


async def test_a_few_in_each_turn_oldest_first_and_each_its_own() -> None:
    run, answered = Doubler(), list[int]()
    queue = queue_of(run, max_batch_size=64)
    asked = ask(queue, answered)
    turns = [0]
    while len(answered) < MANY:
        await asyncio.sleep(0)
        turns.append(len(answered))
    assert max(after - before for before, after in itertools.pairwise(turns)) == AT_ONCE
    assert answered == list(range(MANY))
    assert len(run.batches) == 1
    for number, task in enumerate(asked):
        np.testing.assert_array_equal(task.result()["y"], [[2 * (FIRST + number)] * 2])
    await queue.close()


async def test_the_next_batch_runs_meanwhile_and_does_not_overtake() -> None:
    run, answered = Doubler(), list[int]()
    queue = queue_of(run, max_batch_size=MANY // 2)
    asked = ask(queue, answered)
    begun_before_the_first_was_handed_out = False
    while len(answered) < MANY:
        await asyncio.sleep(0)
        begun_before_the_first_was_handed_out |= len(run.batches) == 2 and len(answered) < MANY // 2
    assert begun_before_the_first_was_handed_out
    assert answered == list(range(MANY))
    await asyncio.gather(*asked)
    await queue.close()


async def test_close_waits_until_all_is_handed_out() -> None:
    run, answered = Doubler(), list[int]()
    queue = queue_of(run, max_batch_size=64)
    asked = ask(queue, answered)
    await asyncio.sleep(0)
    await queue.close()
    await asyncio.sleep(0)
    assert answered == list(range(MANY))
    await asyncio.gather(*asked)


async def test_whoever_leaves_meanwhile_holds_up_nobody() -> None:
    run, answered = Doubler(), list[int]()
    queue = queue_of(run, max_batch_size=64)
    asked = ask(queue, answered)
    while not answered:
        await asyncio.sleep(0)
    asked[-1].cancel()
    await asyncio.wait(asked, timeout=5)
    assert answered == list(range(MANY - 1))
    assert asked[-1].cancelled()
    await queue.close()


class Timed(Doubler):
    """Takes `seconds` for a batch."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds

    async def double(self, inputs: Tensors, outputs: Sequence[str]) -> Tensors:
        self._clock.pass_by(self._seconds)
        return await super().double(inputs, outputs)


@pytest.mark.parametrize(("run_s", "joined"), [(0.0, True), (60.0, False)])
async def test_where_answers_outlast_a_run_the_next_batch_waits_for_company(
    run_s: float, joined: bool
) -> None:
    """A second of the event loop for each answer; what comes one by one meanwhile is run together, or not."""
    with standing_still() as clock:
        run = Timed(clock, run_s)
        queue = queue_of(run, max_batch_size=FULL)

        async def one(number: int) -> None:
            answer = await queue.submit(rows(FIRST + number), ["y"])
            clock.pass_by(1.0)
            np.testing.assert_array_equal(answer["y"], [[2 * (FIRST + number)] * 2])

        await asyncio.gather(*(one(number) for number in range(FULL)))
        asked = [asyncio.create_task(one(number)) for number in range(FULL)]
        while len(run.batches) < 2:
            await asyncio.sleep(0)
        asked += [asyncio.create_task(one(FULL))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked += [asyncio.create_task(one(FULL + 1))]
        await asyncio.gather(*asked)
        sizes = [len(batch) for batch in run.batches]
        assert sizes == [FULL, FULL, *([2] if joined else [1, 1])]
        await queue.close()


async def test_a_queue_that_is_closed_is_freed_at_once() -> None:
    """And the model that it runs: a gateway's garbage collector hardly ever looks at what is old."""
    run, answered = Doubler(), list[int]()
    queue = queue_of(run, max_batch_size=FULL)
    freed = weakref.ref(queue)
    gc.disable()
    try:
        await asyncio.gather(*ask(queue, answered, FULL))
        await queue.close()
        del queue
        await asyncio.sleep(0)
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_given_up_halfway_holds_up_no_batch(turns: int) -> None:
    """After so many turns; 0: before the first, while another batch's answers go out."""
    out = HandingOut()
    loop = asyncio.get_running_loop()
    waiters = [PendingRequest(rows(FIRST), ["y"], 1, 0.0, 0.0, loop.create_future()) for _ in range(MANY)]
    answers = [{"y": np.zeros((1, 2))} for _ in waiters]
    out.announce(2 * MANY)
    first = asyncio.create_task(out.give(waiters, answers, lambda: None))
    given_up = asyncio.create_task(out.give(waiters, answers, lambda: None))
    if turns:
        await first
    for _ in range(max(turns, 1)):
        await asyncio.sleep(0)
    assert out.outlasts(NO_TIME)
    given_up.cancel()
    await asyncio.wait([first, given_up])
    assert not out.outlasts(NO_TIME)
