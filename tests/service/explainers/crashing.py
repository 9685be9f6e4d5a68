"""A gateway killed with -9 during a publication: `python -m tests.service.explainers.crashing`."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rationale_service.engine.model_cache import ModelCache
from rationale_service.models.explainers import artifact_store as artifacts
from rationale_service.models.explainers import builder as builder
from rationale_service.models.explainers import records
from rationale_service.models.explainers.records import Artifact, RecordStore
from tests.service.explaining import OTHER, PATH, Gate, administered, sets_of


def always(*_: Any) -> bool:
    return True


def of_artifacts(_: Any, saved: Any = (), *__: Any) -> bool:
    return any(isinstance(item, Artifact) for item in saved)


def of_folders(path: Path) -> bool:
    return path.is_dir()


# name: the function, whether the kill comes before it or after it, and for which of its calls
POINTS: dict[str, tuple[Any, str, str, Callable[..., bool]]] = {
    "before it is recorded": (records, "write", "before", always),
    "recorded": (records, "write", "after", always),
    "compiling": (builder, "compile_entry", "before", always),
    "compiled": (builder, "compile_entry", "after", always),
    "artifact recorded": (records, "write", "after", of_artifacts),
    "before the rename": (Path, "rename", "before", always),
    "renamed": (Path, "rename", "after", always),
    "loaded": (ModelCache, "load", "after", always),
    "committed": (RecordStore, "save", "after", lambda _, *changed: changed[0].serving == changed[0].digest),
    "before the old one is deleted": (artifacts.ArtifactStore, "remove", "before", always),
    "half of the old one is deleted": (artifacts, "_delete", "before", of_folders),
    "the old one is deleted": (artifacts.ArtifactStore, "remove", "after", always),
}


def arm(point: str) -> None:
    place, name, when, is_crash_point = POINTS[point]
    function = getattr(place, name)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def blocking(*arguments: Any, **named: Any) -> Any:
        is_now = is_crash_point(*arguments)
        if is_now and when == "before":
            die()
        result = function(*arguments, **named)
        if is_now:
            die()
        return result

    async def awaiting(*arguments: Any, **named: Any) -> Any:
        is_now = is_crash_point(*arguments)
        if is_now and when == "before":
            die()
        result = await function(*arguments, **named)
        if is_now:
            die()
        return result

    waits = asyncio.iscoroutinefunction(function) or isinstance(function, Gate)
    setattr(place, name, awaiting if waits else blocking)


async def publish(folder: Path, point: str) -> None:
    builder.compile_entry = Gate()
    async with administered(folder, sets_of(folder), grace_s=0.1) as client:
        arm(point)
        await client.put(f"{PATH}/one", json=OTHER)
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(publish(Path(sys.argv[1]), sys.argv[2]))
