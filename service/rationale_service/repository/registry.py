"""Snapshot of the served entries, which is replaced as a whole and never changed.

A request looks its entry up once and keeps it, even if others are published or removed meanwhile.
"""

import hashlib
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from rationale.distribution import version
from rationale.errors import RepositoryError, quoted
from rationale.schema.manifest import EXPLAIN_SUFFIX, Manifest
from rationale_service.errors import (
    BrokenExplanationError,
    NotExplainableError,
    NotReadyError,
    ServiceError,
    UnknownModelError,
    UnknownResourceError,
)
from rationale_service.repository.entry import Entry, Stamp, read_entry, sides, stamp_of

COMPILED = "compiled"  # name of the repository's explainer, `NAME_explain`
UNLOADED = "unloaded by request"


@dataclass(frozen=True)
class Unserved:
    """Reason for which a folder's present content is not served; `stamp` is that of its files."""

    reason: str
    stamp: Stamp


@dataclass(frozen=True)
class Canary:
    """An explainer that answers a share of the requests that name no explainer."""

    explainer: str
    share: float

    def takes(self, model: str, key: str) -> bool:
        """Tell whether it answers the request with this key; a larger share keeps every earlier True."""
        drawn = hashlib.sha256(f"{model}\n{key}".encode()).digest()[:8]
        return int.from_bytes(drawn) < self.share * 2**64


@dataclass(frozen=True)
class ModelRegistry:
    """The served entries and the explainers of each model.

    Attributes:
        folder: folder of the repository.
        entries: every served entry, by its own name.
        explainers: explainers made over the API: {model: {explainer: entry}}.
        defaults: explainers for requests that name none, {model: entry}; `NAME_explain` explains a model that
            is missing here.
        canaries: canaries that replace the default for some requests, {model: canary}.
        unserved: folders that are not served, or that are served as they were before they changed.
    """

    folder: Path
    entries: Mapping[str, Entry]
    explainers: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    defaults: Mapping[str, Entry] = field(default_factory=dict)
    unserved: Mapping[str, Unserved] = field(default_factory=dict)
    canaries: Mapping[str, Canary] = field(default_factory=dict)

    def entry(self, name: str, version: str | None = None) -> Entry:
        """Return the entry of that name; `NAME_explain` is NAME's default explainer.

        Raises:
            UnknownModelError: if there is no such entry, or not in that version.
            NotReadyError: if the entry exists but cannot be served.
        """
        entry = self.entries.get(name)
        if name.endswith(EXPLAIN_SUFFIX):
            entry = self.defaults.get(name.removesuffix(EXPLAIN_SUFFIX), entry)
        if entry is None:
            self._check_served(name)
            raise UnknownModelError(f"no model '{_shorten(name)}' here; there are: {quoted(self.entries)}")
        if version not in (None, entry.version):
            raise UnknownModelError(
                f"model '{name}' has no version '{_shorten(version)}'; version {entry.version} is served"
            )
        return entry

    def explainer(self, name: str, version: str | None = None, explainer: str | None = None) -> Entry:
        """Return the entry that explains model `name` (an explain entry's own name does too).

        Args:
            explainer: name of one of the model's explainers; None for its default.

        Raises:
            UnknownModelError, NotReadyError: if `entry` raises them.
            NotExplainableError: if the model has no explainer.
            BrokenExplanationError: if its explainer cannot be served.
            UnknownResourceError: if the model has no explainer of that name.
        """
        entry = self.entry(name, version)
        if explainer is not None:
            return self._find_explainer(entry.explained_model, explainer)
        default = self.default_explainer(entry)
        if default is None:
            self._check_served(name + EXPLAIN_SUFFIX, BrokenExplanationError)
            raise NotExplainableError(
                f"model '{name}' has no explainer. Make one with PUT /v2/models/{name}/explainers/NAME, or "
                f"with `rationale compile MODEL.onnx --method deepshap --references FILE --name {name}` "
                "and let the server read its repository again (SIGHUP)."
            )
        return default

    def decider(self, name: str, version: str | None = None) -> Entry:
        """Return the compiled entry that decides for model `name` (an explain entry's own name does too).

        The model's default explainer does not matter.

        Raises:
            UnknownModelError, NotReadyError: if `entry` raises them.
            BrokenExplanationError: if the compiled entry cannot be served.
            NotExplainableError: if the model has no decision profile, or only the API compiled it.
        """
        model = self.entry(name, version).explained_model
        compiled = self.compiled(model)
        if compiled is None:
            self._check_served(model + EXPLAIN_SUFFIX, BrokenExplanationError)
        if compiled is None or not compiled.has_profile:
            raise NotExplainableError(
                f"model '{model}' has no decision profile, which decisions need: compile it with "
                f"`rationale compile … --decision decision.yaml --name {model}`"
            )
        return compiled

    def decides(self, entry: Entry) -> bool:
        """Tell whether the entry is a model that decides, or the compiled entry that decides for it."""
        model = entry.explained_model
        compiled = self.compiled(model)
        if compiled is None or not compiled.has_profile:
            return False
        return entry is compiled or entry is self.entries.get(model)

    def default_explainer(self, entry: Entry) -> Entry | None:
        """Return the explainer of `entry` for requests that name none; an explain entry explains itself."""
        if entry.manifest is not None:
            return entry
        return self.defaults.get(entry.name) or self.compiled(entry.name)

    def canary(self, name: str, default: Entry) -> tuple[Canary, Entry] | None:
        """Return the canary that shares requests with `default`, and its entry; None if there is none.

        Only requests that name no explainer are shared.

        Args:
            name: model's name in the request: `NAME_explain` is NAME's default explainer.
        """
        model = name.removesuffix(EXPLAIN_SUFFIX)
        canary = self.canaries.get(model)
        if canary is None:
            return None
        entry = self.explainers.get(model, {}).get(canary.explainer)
        if canary.explainer == COMPILED:
            entry = self.compiled(model)
        is_default = default is (self.defaults.get(model) or self.compiled(model))
        return (canary, entry) if is_default and entry is not None and entry is not default else None

    def takes_missing(self, entry: Entry) -> frozenset[str]:
        """Return names of inputs in which NaN is a missing value, according to the manifest of `entry`."""
        manifest = self.manifest_of(entry)
        return frozenset() if manifest is None else manifest.takes_missing

    def manifest_of(self, entry: Entry) -> Manifest | None:
        """Return the manifest that describes the rows of `entry`.

        An explainer has its own. For a model it is the compiled explainer's, even if another is the default.
        """
        if entry.manifest is not None:
            return entry.manifest
        explainer = self.compiled(entry.name) or self.defaults.get(entry.name)
        return None if explainer is None else explainer.manifest

    def explainer_name(self, entry: Entry) -> str | None:
        """Return the name under which `explainer` finds the entry; None for a model or an unnamed one."""
        if entry.manifest is None:
            return None
        model = entry.manifest.model
        names = (name for name, each in self.explainers.get(model, {}).items() if each is entry)
        return next(names, COMPILED if self.compiled(model) is entry else None)

    def compiled(self, model: str) -> Entry | None:
        """Return the explain entry that `rationale compile` made of the model."""
        twin = self.entries.get(model + EXPLAIN_SUFFIX)
        return None if twin is None or twin.manifest is None else twin

    @cached_property
    def made_by_others(self) -> str:
        """Warning about entries that other versions of Rationale compiled; empty if there are none."""
        names = {entry: entry.name for entry in self.entries.values()}
        for model, explainers in self.explainers.items():
            names |= {entry: f"{model}/{name}" for name, entry in explainers.items()}
        by_version: dict[str, list[str]] = defaultdict(list)
        for entry, name in names.items():
            made_by = None if entry.manifest is None else entry.manifest.tools.get("rationale")
            if made_by not in (None, version()):
                by_version[made_by].append(name)
        listed = "; ".join(f"{', '.join(of)} (by {made_by})" for made_by, of in sorted(by_version.items()))
        return listed and (
            f"entries that other versions compiled are served by {version()}: {listed}. Compile them again, "
            "and PUT those again that the API made (MODEL/NAME), to have what this version does"
        )

    def why_unserved(self, name: str) -> str:
        """Return the reason for which a folder's present content is not served; empty if it is served."""
        unserved = self.unserved.get(name)
        return "" if unserved is None else unserved.reason.replace(f"{self.folder}/", "")

    def unloaded(self) -> set[str]:
        """Return folders that are not served because somebody unloaded them."""
        return {name for name, why in self.unserved.items() if why.reason == UNLOADED}

    def without(self, names: Container[str]) -> "ModelRegistry":
        """Return a registry without entries of these names, served or not."""
        return replace(
            self,
            entries={name: entry for name, entry in self.entries.items() if name not in names},
            unserved={name: why for name, why in self.unserved.items() if name not in names},
        )

    def by_folder(self) -> dict[str, tuple[Entry, ...]]:
        """Return the entries of each folder; a one-shot entry counts as two."""
        entries: dict[str, tuple[Entry, ...]] = defaultdict(tuple)
        for entry in self.entries.values():
            entries[entry.model] += (entry,)
        return entries

    def explains_another(self, entry: Entry) -> bool:
        """Tell whether the entry explains another model that is served here."""
        return entry.explained_model != entry.name and entry.explained_model in self.entries

    def _check_served(self, name: str, error: type[ServiceError] = NotReadyError) -> None:
        if name in self.unserved:
            raise error(f"model '{name}' cannot be served: see POST /v2/repository/index or the server's log")

    def _find_explainer(self, model: str, explainer: str) -> Entry:
        explainers = dict(self.explainers.get(model, {}))
        compiled = self.compiled(model)
        if compiled is not None:
            explainers[COMPILED] = compiled
        if explainer not in explainers:
            raise UnknownResourceError(
                f"model '{model}' has no explainer '{_shorten(explainer)}'; it has: "
                f"{quoted(explainers) or 'none'}"
            )
        return explainers[explainer]


def read_repository(
    folder: Path, *, strict: bool = True, refused: Mapping[str, str] | None = None
) -> ModelRegistry:
    """Read every entry of a model repository; skip hidden folders and plain files.

    Args:
        strict: True to raise for a broken entry; else it is listed as unserved, unless all are broken.
        refused: reasons for which the copy lacks folders or their newest content.

    Raises:
        RepositoryError: if the folder is missing or empty, or entries are broken; names each fault.
    """
    if not folder.is_dir():
        raise RepositoryError(
            f"{folder}: there is no such folder. Make a model repository with `rationale compile`, "
            "or name another one with --repository."
        )
    registry = ModelRegistry(folder, {})
    for path in folders(folder):
        stamp = stamp_of(path)
        try:
            entries = read_folder(path, registry.entries)
        except RepositoryError as error:
            unserved = {**registry.unserved, path.name: Unserved(str(error), stamp)}
            registry = replace(registry, unserved=unserved)
        else:
            registry = replace(
                registry, entries={**registry.entries, **{item.name: item for item in entries}}
            )
    for name, reason in (refused or {}).items():
        unserved = {**registry.unserved, name: Unserved(reason, refused_stamp(reason))}
        registry = replace(registry, unserved=unserved)
    check_served(registry, strict=strict)
    return registry


def refused_stamp(reason: str) -> Stamp:
    """Return a stamp for a folder that was refused and is not on the disk."""
    return ((reason, 0, 0, 0),)


def folders(repository: Path) -> list[Path]:
    """Return folders that may hold an entry. A folder that is being written is hidden or has another name."""
    return sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))


def read_folder(folder: Path, other_entries: Mapping[str, Entry]) -> tuple[Entry, ...]:
    """Return a folder's entries. Raises RepositoryError, also if `other_entries` have their names."""
    entries = sides(read_entry(folder))
    for entry in entries:
        other = other_entries.get(entry.name, entry)
        if other.model != entry.model:
            one_shot, twin = (entry, other) if entry.gate is not None else (other, entry)
            raise RepositoryError(
                f"{folder.with_name(one_shot.model)}: is a one-shot entry, which includes its explanation, "
                f"but {folder.with_name(twin.model)} also exists. Delete one of them, or compile the name "
                "again."
            )
    return entries


def check_served(registry: ModelRegistry, *, strict: bool) -> None:
    """Raise RepositoryError if nothing is served; with `strict`, if anything is unserved."""
    if registry.unserved and (strict or not registry.entries):
        raise RepositoryError("\n".join(folder.reason for folder in registry.unserved.values()))
    if not registry.entries:
        raise RepositoryError(f"{registry.folder}: holds no model. Make an entry with `rationale compile`.")


def _shorten(text: str | None) -> str:
    """Shorten a caller's text for an error."""
    return (text or "")[:80]
