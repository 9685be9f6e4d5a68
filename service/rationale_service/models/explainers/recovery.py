"""Recovery of a gateway's explainers at its start: records reconciled with the disk."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rationale.errors import RationaleError
from rationale_service.errors import StateUnavailableError
from rationale_service.models.explainers import records
from rationale_service.models.explainers.artifact_store import ArtifactStore
from rationale_service.models.explainers.records import (
    Artifact,
    ExplainerRecord,
    RecordStore,
    Stage,
    lease_of,
)
from rationale_service.models.explainers.spec import ExplainerSpec, file_digest
from rationale_service.repository.entry import Entry, read_entry
from rationale_service.repository.registry import ModelRegistry

log = logging.getLogger(__name__)


def recover(artifacts: ArtifactStore, registry: ModelRegistry) -> RecordStore:
    """Return the recorded explainers, reconciled with the present models.

    A serving artifact that is missing or unreadable is made again, and so is the explainer of a changed
    model.
    Without a state this creates nothing.

    If the database does not answer, the repository's models serve until it does.

    Raises:
        StateUnavailableError: if the state folder cannot be read or written.
    """
    state = artifacts.state
    if not state.exists:
        return RecordStore(state, registry)
    try:
        return _reconcile(artifacts, registry)
    except StateUnavailableError as error:
        if not state.is_remote:
            raise
        log.error("explainers made over the API do not answer yet: %s", error)
        return RecordStore(state, registry)


def _reconcile(artifacts: ArtifactStore, registry: ModelRegistry) -> RecordStore:
    state = artifacts.state
    while True:
        snapshot = records.read(state)
        artifacts.sweep(snapshot.artifacts)
        leases = state.leases()
        entries = {
            item.digest: registry.entries.get(item.entry) or _fetch_entry(artifacts, item)
            for item in snapshot.artifacts
        }
        gone = [
            item
            for item in snapshot.artifacts
            if entries[item.digest] is None and lease_of(item.digest) not in leases
        ]
        for item in gone:
            artifacts.remove(item)
        artifacts_by_digest = {item.digest: item for item in snapshot.artifacts if item not in gone}
        base = registry.without({item.entry for item in snapshot.artifacts})
        digests = digests_of({item.model for item in snapshot.records}, base)
        today = [
            of_today(
                _without_missing_artifact(item, artifacts_by_digest),
                artifacts_by_digest,
                digests.get(item.model),
            )
            for item in snapshot.records
        ]
        changed = [new for new, old in zip(today, snapshot.records, strict=True) if new != old]
        revision: int | None = snapshot.revision
        if changed or gone:
            revision = records.write(state, changed, gone, since=snapshot.revision)
        if revision is not None:
            store = RecordStore(state, base, today, artifacts_by_digest.values(), snapshot.canaries, revision)
            serving = {item.serving for item in today}
            store.entries = {key: entry for key, entry in entries.items() if entry and key in serving}
            return store


def _fetch_entry(artifacts: ArtifactStore, artifact: Artifact) -> Entry | None:
    """Return the entry that another machine made; None if there is no readable one."""
    try:
        if artifacts.blobs is not None:
            artifacts.remove_here(artifact.entry)  # a copy that could not be read
        return read_entry(artifacts.repository / artifact.entry) if artifacts.fetch(artifact) else None
    except RationaleError as error:
        log.error("explainer %s cannot be read: %s", artifact.entry, error)
        return None


def digests_of(models: Iterable[str], registry: ModelRegistry) -> dict[str, str]:
    """Return the digests of the served ones among `models`. Blocks."""
    served = {name: registry.entries[name] for name in models if name in registry.entries}
    return {name: file_digest(entry.model_path.parent) for name, entry in served.items()}


def _without_missing_artifact(record: ExplainerRecord, artifacts: Mapping[str, Artifact]) -> ExplainerRecord:
    """Return a record without a missing artifact; if it lacks one, queue it again."""
    if record.serving not in artifacts:
        record = replace(record, serving=None, is_default=False)
    if record.stage is Stage.READY and record.serving is None:
        return replace(record, stage=Stage.QUEUED, attempts=0)
    return record


def of_today(
    record: ExplainerRecord, artifacts: Mapping[str, Artifact], model_digest: str | None
) -> ExplainerRecord:
    """Return a record that fits the present model."""
    served = artifacts.get(record.serving or "")
    if served is not None and served.model_digest != model_digest:
        record = replace(record, serving=None, is_default=False, stage=Stage.QUEUED, attempts=0)
    if record.settled:
        return record
    if model_digest is None:
        return replace(record, stage=Stage.FAILED, error=f"the repository has no model '{record.model}' now")
    spec = ExplainerSpec.model_validate(record.spec)
    return replace(record, digest=spec.digest(model_digest, record.references))
