"""The models that can have explainers, each with the digest of the files that the gateway serves."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from service.errors import ConflictError, InvalidExplainerError, UnknownModelError
from service.explainers.spec import file_digest
from service.repository.entry import Entry, stamp_of
from service.repository.registry import ModelRegistry


@dataclass(frozen=True)
class Model:
    """The model to explain: its entry's name, its file, and the digest of that."""

    name: str
    path: Path
    digest: str


class Models:
    """The plain entries of the repository."""

    def __init__(self, base: ModelRegistry) -> None:
        self._base = base
        self._digests: dict[str, str] = {}

    def entry(self, name: str) -> Entry:
        """Raises UnknownModelError, InvalidExplainerError: it is an explanation, or one-shot."""
        entry = self._base.entries.get(name)
        if entry is None:
            raise UnknownModelError(f"no model '{name[:80]}' here that could have explainers")
        if entry.manifest is not None or entry.gate is not None:
            raise InvalidExplainerError(
                f"'{name}' is an explanation, or holds its own: explainers are made of plain models. "
                "Compile it without --one-shot"
            )
        return entry

    async def get(self, name: str) -> Model:
        """Raises as `entry`, and ConflictError where the files are no more those that are served."""
        entry = self.entry(name)
        if await asyncio.to_thread(stamp_of, self._base.folder / name) != entry.stamp:
            raise ConflictError(
                f"the files of '{name}' are not those that are served: reload it with "
                f"POST /v2/repository/models/{name}/load, or the whole repository with SIGHUP"
            )
        if name not in self._digests:
            self._digests[name] = await asyncio.to_thread(file_digest, entry.model_path.parent)
        return Model(name, entry.model_path, self._digests[name])
