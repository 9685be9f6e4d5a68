"""`rationale replay`: recompute an old decision from the files that made it, and compare."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort
import orjson

from rationale.decisions.decided import Undecided, decide_rows
from rationale.decisions.rows import feature_values, profile_of
from rationale.errors import InvalidOptionError, RationaleError, RepositoryError
from rationale.schema.machine import available_cores
from rationale.schema.manifest import FILE_NAME, Manifest
from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.audit.trail import RecordedDecision
from rationale_service.decisions.decider import inputs_of
from rationale_service.decisions.options.options import OPTIONS, Replay
from rationale_service.decisions.records.cases import link_faults
from rationale_service.engine.backends.devices import CPU, Devices
from rationale_service.engine.backends.onnxruntime import load_warmed, run, runtime
from rationale_service.engine.checks import Faults
from rationale_service.repository.entry import Entry, read_entry, sides
from rationale_service.repository.registry import folders
from rationale_service.repository.remote import local_repository
from rationale_service.settings import Settings

_FACTS = (
    "id",
    "digests",
    "application_id",
    "reviews",
    "reviewer",
    "difference",
)  # members that no model computes
TOLERANCE = 1e-4  # relative to the largest number, on runtimes that sum in another order
UNKNOWN_INPUTS = {
    "hashed": "the trail holds only a digest of decision {}'s inputs: give them with --instance FILE",
    "erased": "the inputs of decision {} were erased: nobody can compute it again",
}
# Members with scales of their own; the largest attribution is the scale of all others.
_SCORES, _MARKS = ("score", "threshold"), ("tied", "uncertain")


@dataclass(frozen=True)
class ReplayedDecision:
    """A decision and its repetition.

    Attributes:
        entry: entry that decided; None if a person did.
        differences: differences from the recorded answer.
        elsewhere: differences of this runtime from the one that decided. Without any, numbers must be equal
            bit for bit, else within TOLERANCE.
        passed_over: members of the answer that no replay computes.
    """

    decision: RecordedDecision
    entry: Entry | None
    differences: tuple[str, ...]
    elsewhere: tuple[str, ...]
    passed_over: tuple[str, ...]


class Replayer:
    """Replayer of decisions of one repository. It keeps sessions between replays."""

    def __init__(self, settings: Settings, entries: Path | None = None) -> None:
        """Take the settings of the gateway that decided.

        Args:
            entries: folder to use instead of the gateway's repository.
        """
        self._repository = entries or local_repository(settings)
        # Each replay shows differences, so an entry need not answer its probe rows first.
        self._devices = replace(Devices.chosen(settings), allow_drift=True)
        self._manifests: list[tuple[Path, Manifest]] | None = None
        self._entries: dict[Path, tuple[Entry, ...]] = {}
        self._sessions: dict[tuple[Entry, int], tuple[ort.InferenceSession, str]] = {}

    def entry(self, decision: RecordedDecision) -> Entry:
        """Return the entry that decided; among several with its explainer and profile, one with its files.

        Raises:
            RepositoryError: if the repository has no such entry.
        """
        identity = _identity(decision)
        candidates = [
            entry
            for folder, manifest in self._deciding()
            if (manifest.digests.explanation, profile_of(manifest).profile.digest) == identity
            for entry in self._read(folder)
            if entry.manifest is not None
        ]
        if not candidates:
            raise self._no_entry(decision)
        graph, model = decision.runtime.get("graph"), decision.model

        def distance(entry: Entry) -> tuple[bool, bool, str]:
            assert entry.manifest is not None  # noqa: S101 (those without are left out)
            return entry.graph_digest != graph, entry.manifest.model != model, entry.name

        return min(candidates, key=distance)

    def replay(self, decision: RecordedDecision, first: RecordedDecision | None = None) -> ReplayedDecision:
        """Compute a decision again, and check its link to the first decision of its case.

        A person's judgment is not computed: its link alone is checked.

        Args:
            first: first decision of the case, if it is not `decision` and is still in the trail.

        Raises:
            InvalidOptionError: if its inputs are not known, or it is a contest.
            RepositoryError: if the entry that decided is missing or cannot run here.
        """
        if decision.kind == "contest":
            raise InvalidOptionError(
                f"{decision.id} is a contest, and only decisions can be replayed: give the id of a decision"
            )
        links = () if first is None else tuple(link_faults(decision, first))
        unlinked = ("reviews",) if decision.reviews and first is None else ()
        if decision.kind == "judgment":
            return ReplayedDecision(decision, None, links, (), ("judgment", *unlinked))
        if decision.instance is None:
            raise InvalidOptionError(UNKNOWN_INPUTS[decision.kept].format(decision.id))
        entry = self.entry(decision)
        manifest = entry.manifest
        assert manifest is not None  # noqa: S101 (it decided)
        session, here = self._session(entry, decision.runtime)
        elsewhere = tuple(_elsewhere(decision.runtime, here))
        differences = [*describe_altered_files(decision, entry), *links]
        try:
            inputs = inputs_of(entry, manifest, [decision.instance], Faults())
            tensors = run(entry, session, inputs, entry.output_names)
            values = feature_values(manifest, inputs, [decision.instance])
            (decided,) = decide_rows(manifest, tensors, values, inputs)
            fault = decided.fault if isinstance(decided, Undecided) else ""
        except RationaleError as error:
            fault = str(error)
        if fault:
            differences.append(f"nothing is decided now: {fault}")
            return ReplayedDecision(decision, entry, tuple(differences), elsewhere, ())
        repeated = decided.as_json()
        now = orjson.loads(orjson.dumps(repeated, option=orjson.OPT_SERIALIZE_NUMPY))
        differences += compare(decision.answer, now, exact=not elsewhere)
        again = Replay(
            manifest,
            inputs,
            values[0],
            lambda row: run(entry, session, row, entry.output_names),
            TOLERANCE if elsewhere else 0.0,
        )
        added = {o.member: o for o in OPTIONS if o.member is not None and o.member in decision.answer}
        for member, option in added.items():
            differences += option.load().differences(again, decision.answer[member])
        passed_over = sorted({*decision.answer} - {*now, *_FACTS, *added})
        return ReplayedDecision(decision, entry, tuple(differences), elsewhere, (*passed_over, *unlinked))

    def profile(self, decision: RecordedDecision) -> DecisionProfile:
        """Return the profile that decided.

        Raises:
            RepositoryError: if no entry of the repository has it.
        """
        _, digest = _identity(decision)
        profiles = (profile_of(manifest).profile for _, manifest in self._deciding())
        found = next((profile for profile in profiles if profile.digest == digest), None)
        if found is None:
            raise self._no_entry(decision)
        return found

    def _no_entry(self, decision: RecordedDecision) -> RepositoryError:
        explainer, profile = _identity(decision)
        return RepositoryError(
            f"{self._repository}: has no entry with the explainer {explainer[:12]}… and the profile "
            f"{profile[:12]}… of decision {decision.id}. Put the folder of '{decision.model}' back that was "
            "served then, or name a folder that has it with --entries"
        )

    def _deciding(self) -> list[tuple[Path, Manifest]]:
        """Return folders with a decision profile; skip unreadable ones."""
        if self._manifests is None:
            if not self._repository.is_dir():
                raise RepositoryError(f"{self._repository}: is not a folder: give one with --entries")
            self._manifests = [
                (folder, manifest)
                for folder in folders(self._repository)
                if (manifest := _manifest(folder)) is not None and manifest.decision is not None
            ]
        return self._manifests

    def _read(self, folder: Path) -> tuple[Entry, ...]:
        if folder not in self._entries:
            self._entries[folder] = sides(read_entry(folder))
        return self._entries[folder]

    def _session(self, entry: Entry, then: Mapping[str, Any]) -> tuple[ort.InferenceSession, dict[str, Any]]:
        """Open a session with the number of threads of the decision, since they divide sums."""
        cores = int(then.get("threads", available_cores())) * entry.instances
        if (entry, cores) not in self._sessions:
            devices = replace(self._devices, cores=cores)
            sessions = load_warmed(replace(entry, warmups=()), devices=devices).sessions
            self._sessions[entry, cores] = sessions.by_device[sessions.devices[0]], sessions.devices[0]
        session, device = self._sessions[entry, cores]
        return session, runtime(entry, cores, (device,))


def _identity(decision: RecordedDecision) -> tuple[str, str]:
    """Return the digests of the explainer and of the profile that decided."""
    digests = decision.answer["digests"]
    return digests["explainer"], digests["profile"]


def compare(answered: Mapping[str, Any], computed: Mapping[str, Any], *, exact: bool) -> list[str]:
    """Describe the differences between two answers; ignore members that only one of them has.

    Args:
        exact: True to compare bit for bit; else numbers within TOLERANCE, and reasons in any order.
    """
    if exact:
        return [*_differing(answered, computed, "", None)]
    numbers = (computed["explained_value"], computed["base_value"], *computed["attributions"].values())
    scales = {
        "": max(abs(number) for number in numbers if number is not None),
        "score": max(abs(computed["score"]), abs(computed["threshold"])),
        "share": 1.0,
    }
    return [*_differing(_with_reasons_by_code(answered), _with_reasons_by_code(computed), "", scales)]


def _differing(then: Any, now: Any, where: str, scales: Mapping[str, float] | None) -> Iterator[str]:
    """Describe the differences between two values.

    Args:
        scales: scales of numbers, by their member's name; None if numbers must be equal.
    """
    name = where.rpartition(".")[2]
    if isinstance(then, dict) and isinstance(now, dict) and name != "value":
        if where in ("attributions", "standard_errors", "reasons") and then.keys() != now.keys():
            yield f"{where}: {', '.join(then)} then, {', '.join(now)} now"
        for member in then.keys() & now.keys():
            yield from _differing(then[member], now[member], f"{where}.{member}".lstrip("."), scales)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from _differing(old, new, f"{where}[{i}]", scales)
    elif not _same(then, now, name, scales):
        yield f"{where}: {then} was answered, {now} is computed"


def _same(then: Any, now: Any, name: str, scales: Mapping[str, float] | None) -> bool:
    if scales is None or name == "value" or isinstance(then, bool) or isinstance(now, bool):
        return bool(then == now)
    if not isinstance(then, int | float) or not isinstance(now, int | float):
        return bool(then == now)
    scale = scales.get("score" if name in _SCORES else name, scales[""])
    return abs(then - now) <= TOLERANCE * scale


def _with_reasons_by_code(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with reasons by their codes, without marks that depend on the last digits."""
    reasons = {
        reason["code"]: {name: value for name, value in reason.items() if name not in _MARKS}
        for reason in answer["reasons"]
    }
    return {**answer, "reasons": dict(sorted(reasons.items()))}


def describe_altered_files(decision: RecordedDecision, entry: Entry) -> Iterator[str]:
    """Describe files that differ from those that decided, although their manifest is the same."""
    manifest = entry.manifest
    assert manifest is not None  # noqa: S101 (it decided)
    graph = decision.runtime.get("graph")
    if graph is not None and graph != entry.graph_digest:
        yield (
            f"the files in {entry.model_path.parent} are not those that decided: their digest is "
            f"{(entry.graph_digest or '')[:12]}…, and was {graph[:12]}…"
        )
    for name, now in (("model", manifest.digests.model), ("references", manifest.digests.references)):
        if decision.answer["digests"][name] != now:
            yield f"{entry.name}: the digest of its {name} was another"


def _elsewhere(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    if then.get("backend") != here["backend"]:
        yield f"backend: {then.get('backend', 'not recorded')} then, {here['backend']} here"
        return
    for name in dict.fromkeys((*here, "kernels")):  # which is recorded if they were taken
        if then.get(name) != here.get(name):
            yield f"{name}: {_as_text(then.get(name))} then, {_as_text(here.get(name))} here"
    if here["devices"] != [CPU]:
        yield "a GPU promises no equal bits"


def _as_text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _manifest(folder: Path) -> Manifest | None:
    try:
        return Manifest.read(folder / FILE_NAME)
    except RepositoryError:
        return None
