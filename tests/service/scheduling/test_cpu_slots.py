"""Predictions go first, explanations are not starved, and no more threads run than there are cores."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rationale_service.engine.scheduling.cpu_slots import CpuSlots


class Recorder:
    """Runs that hold their turn until they are let go."""

    def __init__(self, cores: int) -> None:
        self.budget = CpuSlots(cores)
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    def start(self, name: str, threads: int = 1) -> None:
        """Names that begin with `p` are predictions."""
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, threads))

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, name: str, threads: int) -> None:
        async with self.budget.turn(threads, prediction=name.startswith("p")):
            self.began.append(name)
            await self.ends[name].wait()


@contextlib.asynccontextmanager
async def recorder(cores: int) -> AsyncIterator[Recorder]:
    new_recorder = Recorder(cores)
    yield new_recorder
    for event in new_recorder.ends.values():
        event.set()
    await asyncio.gather(*new_recorder.tasks.values(), return_exceptions=True)
    async with asyncio.timeout(5), new_recorder.budget.turn(cores, prediction=True):
        pass  # every thread came back
    async with asyncio.timeout(5), new_recorder.budget.turn(cores, prediction=False):
        pass


async def test_no_more_runs_than_cores() -> None:
    async with recorder(3) as runs:
        for name in ("e1", "e2", "e3", "e4"):
            runs.start(name)
        await runs.settle()
        assert runs.began == ["e1", "e2", "e3"]
        await runs.end("e2")
        assert runs.began == ["e1", "e2", "e3", "e4"]


async def test_a_prediction_never_waits_for_explanations() -> None:
    async with recorder(2) as runs:
        runs.start("e1", threads=2)
        runs.start("e2", threads=2)
        await runs.settle()
        runs.start("p1")
        runs.start("p2")
        runs.start("p3")
        await runs.settle()
        assert runs.began == ["e1", "p1", "p2"]
        await runs.end("p1")
        assert runs.began == ["e1", "p1", "p2", "p3"]


async def test_an_explanation_does_not_overtake_a_prediction_that_waits() -> None:
    """Though its own threads are free: the next that are free as well are the prediction's."""
    async with recorder(4) as runs:
        for name, threads in (("e1", 1), ("e2", 1), ("p1", 2), ("p2", 3), ("e3", 1)):
            runs.start(name, threads)
        await runs.settle()
        await runs.end("e1")
        assert runs.began == ["e1", "e2", "p1"]
        runs.start("e4")
        await runs.settle()
        assert runs.began == ["e1", "e2", "p1"]
        await runs.end("p1")
        assert runs.began == ["e1", "e2", "p1", "p2"]


async def test_an_explanation_lets_predictions_go_first_but_is_not_starved() -> None:
    async with recorder(2) as runs:
        for name in ("p1", "p2", "p3"):
            runs.start(name)
        runs.start("e1")
        runs.start("e2")
        await runs.settle()
        assert runs.began == ["p1", "p2", "e1"]
        await runs.end("p1")
        assert runs.began == ["p1", "p2", "e1", "p3"]
        await runs.end("e1")
        assert runs.began[-1] == "e2"


async def test_a_run_of_more_threads_than_cores_still_runs() -> None:
    async with recorder(2) as runs:
        runs.start("p1", threads=16)
        await runs.settle()
        assert runs.began == ["p1"]


async def test_who_leaves_while_it_waits_holds_nothing() -> None:
    async with recorder(1) as runs:
        for name in ("p1", "p2", "p3"):
            runs.start(name)
        await runs.settle()
        runs.tasks["p2"].cancel()
        await runs.settle()
        await runs.end("p1")
        assert runs.began == ["p1", "p3"]


async def test_who_leaves_just_when_its_turn_comes_holds_nothing() -> None:
    async with recorder(1) as runs:
        async with runs.budget.turn(1, prediction=True):
            for name in ("p1", "p2"):
                runs.start(name)
            await runs.settle()
        runs.tasks["p1"].cancel()  # after its turn was granted, before it went on
        await runs.settle()
        assert runs.began == ["p2"]
