"""What a gateway remembers of its explainers when it starts, made to agree with what lies on the disk."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from service.explainers import records
from service.explainers.artifact_store import ArtifactStore
from service.explainers.records import Artifact, Record, RecordStore, Stage
from service.explainers.spec import ExplainerSpec, file_digest
from service.repository.registry import ModelRegistry

_ATTEMPTS = 3  # at one explainer, in as many lives of the gateway: the third does not try again


def recover(artifacts: ArtifactStore, registry: ModelRegistry) -> RecordStore:
    """Return what is remembered, of the models as they are today.

    An artefact that is gone or cannot be read is made again where it served, and so is what explains a model
    that is another one now. Nothing is made where there is no state.

    Raises:
        StateUnavailableError: another gateway uses the state, or it cannot be read.
    """
    state = artifacts.state
    if not state.exists:
        return RecordStore(state, registry)
    found, artefacts = records.read(state)
    artifacts.sweep()
    sound = {one.digest: one for one in artefacts if one.entry in registry.entries}
    gone = [one for one in artefacts if one.digest not in sound]
    for one in gone:
        artifacts.remove(one.entry)
    mended = [_mended(one, sound) for one in found]
    records.write(state, [new for new, old in zip(mended, found, strict=True) if new != old], gone)
    registry = registry.without({one.entry for one in artefacts})
    digests = digests_of({one.model for one in mended}, registry)
    today = [of_today(one, sound, digests.get(one.model)) for one in mended]
    return RecordStore(state, registry, today, sound.values())


def digests_of(models: Iterable[str], registry: ModelRegistry) -> dict[str, str]:
    """Return the digests of the files of those models that are served. Blocks."""
    known = {name: registry.entries[name] for name in models if name in registry.entries}
    return {name: file_digest(entry.model_path.parent) for name, entry in known.items()}


def _mended(record: Record, artefacts: Mapping[str, Artifact]) -> Record:
    """Mend a record after its gateway ended: what it was at begins again, what is gone is made again."""
    if record.serving not in artefacts:
        record = replace(record, serving=None, is_default=False)
    if record.stage is Stage.READY and record.serving is None:
        return replace(record, stage=Stage.QUEUED, attempts=0)
    if record.settled:
        return record
    if record.attempts + 1 >= _ATTEMPTS:
        error = f"the gateway ended {_ATTEMPTS} times while this was made: PUT it again to try once more"
        return replace(record, stage=Stage.FAILED, error=error, attempts=0)
    return replace(record, stage=Stage.QUEUED, attempts=record.attempts + 1)


def of_today(record: Record, artefacts: Mapping[str, Artifact], model_digest: str | None) -> Record:
    """Return a record that goes with the model as it is now."""
    served = artefacts.get(record.serving or "")
    if served is not None and served.model_digest != model_digest:
        record = replace(record, serving=None, is_default=False, stage=Stage.QUEUED, attempts=0)
    if record.settled:
        return record
    if model_digest is None:
        return replace(record, stage=Stage.FAILED, error=f"the repository has no model '{record.model}' now")
    spec = ExplainerSpec.model_validate(record.spec)
    return replace(record, digest=spec.digest(model_digest, record.references))
