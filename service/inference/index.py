"""What the repository holds and whether it can answer, as Triton's index tells it."""

import asyncio

from service.inference.dataplane import DataPlane, Lifecycle
from service.repository.entry import Entry

# By the state of the server, for entries that are not ready.
_REASONS = {Lifecycle.READY: "the backend does not serve it now"}
_STATES = {Lifecycle.LOADING: "LOADING"}


async def index_of(plane: DataPlane, *, only_ready: bool) -> list[dict[str, str]]:
    """One item for each entry, with Triton's members: name, version, state, reason."""
    items = await asyncio.gather(*(_item(plane, entry) for entry in plane.repository.entries.values()))
    return [item for item in items if item["state"] == "READY" or not only_ready]


async def _item(plane: DataPlane, entry: Entry) -> dict[str, str]:
    item = {"name": entry.name, "version": entry.version, "state": "READY", "reason": ""}
    if await plane.ready(entry):
        return item
    state = _STATES.get(plane.state, "UNAVAILABLE")
    return item | {"state": state, "reason": _REASONS.get(plane.state, plane.state.value)}
