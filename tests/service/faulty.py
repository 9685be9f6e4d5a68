"""A backend that raises or hangs instead of running: the fault to inject."""

import asyncio

from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors


class FaultyBackend:
    """`fault` is raised by every call; without one a call hangs until it is cancelled."""

    name = "faulty"

    def __init__(self, fault: Exception | None) -> None:
        self.fault = fault
        self.up = True
        self.calls = 0
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def start(self, *_: object) -> dict[Entry, str]:
        return {}

    async def load(self, *_: object) -> None: ...

    async def unload(self, *_: object) -> None: ...

    def devices(self, *_: object) -> tuple[str, ...]:
        return ("cpu",)

    def drift(self, *_: object) -> None:
        return None

    def runtime(self, *_: object) -> dict[str, str]:
        return {"backend": self.name}

    async def ready(self, *_: object) -> bool:
        return self.up

    def admit(self, *_: object) -> None: ...

    async def infer(self, *_: object) -> Tensors:
        self.calls += 1
        self.started.set()
        if self.fault is not None:
            raise self.fault
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def stop(self) -> None: ...
