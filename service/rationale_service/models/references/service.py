"""Reference sets as a resource: upload, precompute and remove them, with the explainers made of them."""

import asyncio
import logging
import weakref

from rationale.references.reference_set import spreads
from rationale.schema.manifest import Manifest, Spread
from rationale.tables.archives import read_npz
from rationale.tables.files import FEATURE_NAMES, WEIGHTS
from rationale_service.engine.dataplane import DataPlane
from rationale_service.errors import (
    ConflictError,
    InvalidInputError,
    NotExplainableError,
    ServiceError,
    UnknownModelError,
)
from rationale_service.models.explainers.records import HIDDEN
from rationale_service.models.explainers.service import Explainers
from rationale_service.models.references.formats import ReferenceRows, parse_rows
from rationale_service.models.references.resolver import spec_of
from rationale_service.models.references.store import ReferenceSets, StoredReferenceSet

log = logging.getLogger(__name__)


class ReferenceSetService:
    """One gateway's sets, and one upload at a time: parsing takes several times the memory of the rows."""

    def __init__(
        self, sets: ReferenceSets, explainers: Explainers, plane: DataPlane, most_bytes: int
    ) -> None:
        self.sets = sets
        self.most_bytes = most_bytes
        self._explainers = explainers
        self._plane = plane
        self._parsing = asyncio.Lock()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def parse(self, body: bytes, kind: str, model: str) -> ReferenceRows:
        """Parse an upload. Raises as `parse_rows`, and UnknownModelError."""
        entry = self._plane.repository.entry(model)
        async with self._parsing:
            return await asyncio.to_thread(
                parse_rows, body, kind, entry, self._default_manifest(model), self.most_bytes
            )

    async def put(
        self, name: str, model: str, rows: ReferenceRows, *, force: bool
    ) -> tuple[StoredReferenceSet, bool]:
        """Store a set and begin to precompute it; return it, and whether its name is new."""
        async with self._turn(name):
            sets = {item.name: item for item in await asyncio.to_thread(self.sets.all)}
            before = sets.get(name)
            if before is None or before.digest == rows.digest:
                stored = await asyncio.to_thread(self.sets.put, name, model, rows)
            else:
                with self.sets.leaving(before.digest):
                    await self._release(before, force=force)
                    stored = await asyncio.to_thread(self.sets.put, name, model, rows)
            await self._explainers.sync.wait_until_adopted()
            await self._bake(stored)
            return stored, before is None

    async def remove(self, name: str, *, force: bool) -> None:
        async with self._turn(name):
            reference_set = await asyncio.to_thread(self.sets.get, name)
            with self.sets.leaving(reference_set.digest):
                await self._release(reference_set, force=force)
                await asyncio.to_thread(self.sets.remove, name)
            await self._explainers.sync.wait_until_adopted()

    def users(self, reference_set: StoredReferenceSet) -> tuple[list[str], list[str]]:
        """Return the explainers of a set as `model/explainer`: named ones, and those made for requests.

        The latter are deleted without `force`.
        """
        users = self._explainers.users(reference_set.digest)
        hidden = [user for user in users if f"/{HIDDEN}" in user]
        return [user for user in users if user not in hidden], hidden

    def spreads(self, reference_set: StoredReferenceSet) -> tuple[Spread, ...]:
        """Return the spread of each named feature over a set. Blocks. Raises UnknownResourceError."""
        with self.sets.path(reference_set.digest).open("rb") as file:
            arrays = read_npz(file)
        weights = arrays.pop(WEIGHTS, None)
        arrays.pop(FEATURE_NAMES, None)
        return spreads(
            arrays, self._names(reference_set), None if weights is None else weights / weights.sum()
        )

    def _names(self, reference_set: StoredReferenceSet) -> dict[str, tuple[str, ...] | None]:
        """Return the feature names of each input, from the set or else from the model's explainer."""
        if reference_set.features is not None and len(reference_set.inputs) == 1:
            return {next(iter(reference_set.inputs)): tuple(reference_set.features)}
        try:
            manifest = self._default_manifest(reference_set.model)
        except UnknownModelError:  # the model was removed since
            manifest = None
        return {} if manifest is None else manifest.feature_names

    async def _bake(self, reference_set: StoredReferenceSet) -> None:
        """Begin to make the model's default explainer with this set, since requests will name it."""
        manifest = self._default_manifest(reference_set.model)
        if manifest is None:
            return
        try:
            await self._explainers.ensure(
                reference_set.model, spec_of(manifest), reference_set.digest, retry=True
            )
        except InvalidInputError:
            return  # it explains without references
        except ServiceError as error:
            log.warning(
                "reference set %s is precomputed when a request names it: %s", reference_set.name, error
            )

    async def _release(self, reference_set: StoredReferenceSet, *, force: bool) -> None:
        """Delete explainers precomputed from a content without another name, before its rows."""
        if self.sets.named(reference_set.digest) != [reference_set.name]:
            return
        users, _ = self.users(reference_set)
        if users and not force:
            raise ConflictError(
                f"reference set '{reference_set.name}' is used by {', '.join(users[:10])}: delete them "
                "first, or send ?force=true to delete them too"
            )
        await self._explainers.forget(reference_set.digest)

    def _default_manifest(self, model: str) -> Manifest | None:
        try:
            return self._plane.repository.explainer(model).manifest
        except NotExplainableError:
            return None

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())
