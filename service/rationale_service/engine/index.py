"""The repository's content and readiness in the form of Triton's index."""

import asyncio

from rationale_service.engine.dataplane import DataPlane, Lifecycle
from rationale_service.repository.entry import Entry

# States of entries that are not ready, by the state of the server.
_STATES = {Lifecycle.LOADING: "LOADING"}


async def index_of(plane: DataPlane, *, only_ready: bool) -> list[dict[str, str]]:
    """Return one item for each entry, with Triton's members: name, version, state, reason.

    A ready entry's reason describes the fault of files that have replaced it on the disk.
    """
    registry = plane.repository
    items = await asyncio.gather(*(_item(plane, entry) for entry in registry.entries.values()))
    items += [
        {"name": name, "version": "", "state": "UNAVAILABLE", "reason": registry.why_unserved(name)}
        for name in registry.unserved
        if name not in registry.entries
    ]
    return [item for item in items if item["state"] == "READY" or not only_ready]


async def _item(plane: DataPlane, entry: Entry) -> dict[str, str]:
    why = plane.repository.why_unserved(entry.name)
    item = {"name": entry.name, "version": entry.version, "state": "READY", "reason": why}
    why_not = await plane.why_not_ready(entry)
    if why_not is None:
        return item
    return item | {"state": _STATES.get(plane.state, "UNAVAILABLE"), "reason": str(why_not)}
