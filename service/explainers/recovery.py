"""What a gateway remembers of its explainers when it starts, made to agree with what lies on the disk."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from service.explainers import records
from service.explainers.artifact_store import ArtifactStore
from service.explainers.records import Artifact, Record, Remembered, Stage
from service.explainers.spec import ExplainerSpec, file_digest
from service.repository.registry import ModelRegistry

_ATTEMPTS = 3  # at one explainer, in as many lives of the gateway: the third does not try again


def remember(artifacts: ArtifactStore) -> Remembered:
    """Reads the records and puts the entries where they belong. Nothing is made where there is no state.

    Raises:
        StateUnavailableError: another gateway uses the state, or it cannot be read.
    """
    state = artifacts.state
    if not (state.is_owned and state.exists and artifacts.repository.is_dir()):
        return Remembered()
    found, artefacts = records.read(artifacts.state)
    present = artifacts.recover(artefacts, {one.serving for one in found if one.serving})
    known = {one.digest: one for one in present}
    mended = [_mended(one, known) for one in found]
    gone = [one for one in artefacts if one.digest not in known]
    records.write(artifacts.state, [new for new, old in zip(mended, found, strict=True) if new != old], gone)
    return Remembered({one.key: one for one in mended}, known)


def reconciled(
    remembered: Remembered, artifacts: ArtifactStore, registry: ModelRegistry
) -> tuple[Remembered, ModelRegistry]:
    """Without what explains a model that is another one now, or gone; and the repository without artefacts.

    What was asked for a model that has changed is made anew.
    """
    ours = {one.entry for one in remembered.artefacts.values()}
    broken = ours & registry.unserved.keys()
    registry = registry.without(ours)
    remembered = _swept(remembered, artifacts, broken)
    digests = digests_of({one.model for one in remembered.records.values()}, registry)
    kept = [
        of_today(one, remembered.artefacts, digests.get(one.model)) for one in remembered.records.values()
    ]
    return Remembered({one.key: one for one in kept}, remembered.artefacts), registry


def _swept(remembered: Remembered, artifacts: ArtifactStore, broken: Collection[str]) -> Remembered:
    """Without artefacts whose entries cannot be read: those are deleted, and made again where they served."""
    if not broken:
        return remembered
    for entry in broken:
        artifacts.remove(entry)
    sound = {digest: one for digest, one in remembered.artefacts.items() if one.entry not in broken}
    return Remembered({key: _mended(one, sound) for key, one in remembered.records.items()}, sound)


def digests_of(models: Iterable[str], registry: ModelRegistry) -> dict[str, str]:
    """Of the files of those models that are served. Blocks."""
    known = {name: registry.entries[name] for name in models if name in registry.entries}
    return {name: file_digest(entry.model_path.parent) for name, entry in known.items()}


def _mended(record: Record, artefacts: Mapping[str, Artifact]) -> Record:
    """A record after its gateway ended: what it was at begins again, what is gone is made again."""
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
    """A record that goes with the model as it is now."""
    served = artefacts.get(record.serving or "")
    if served is not None and served.model_digest != model_digest:
        record = replace(record, serving=None, is_default=False, stage=Stage.QUEUED, attempts=0)
    if record.settled:
        return record
    if model_digest is None:
        return replace(record, stage=Stage.FAILED, error=f"the repository has no model '{record.model}' now")
    spec = ExplainerSpec.model_validate(record.spec)
    return replace(record, digest=spec.digest(model_digest, record.references))
