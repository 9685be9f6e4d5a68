"""What is served at one moment: a snapshot that is replaced as a whole, never changed.

A request looks its entry up once and keeps it, whatever is published or removed meanwhile.
"""

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from rationale.distribution import version
from rationale.errors import RepositoryError
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

COMPILED = "compiled"  # the explainer that `NAME_explain` of the repository is, beside those of the API
_SHOWN_NAMES = 20
UNLOADED = "unloaded by request"


@dataclass(frozen=True)
class Unserved:
    """Why what a folder of the repository holds now is not served; `stamp` is of its files."""

    reason: str
    stamp: Stamp


@dataclass(frozen=True)
class Canary:
    """An explainer that answers a share of the requests that name none."""

    explainer: str
    share: float

    def takes(self, model: str, key: str) -> bool:
        """Return whether it answers what has this key: always the same, and so too at a larger share."""
        drawn = hashlib.sha256(f"{model}\n{key}".encode()).digest()[:8]
        return int.from_bytes(drawn) < self.share * 2**64


@dataclass(frozen=True)
class ModelRegistry:
    """Entries, and which of them explain which model.

    Attributes:
        folder: the repository.
        entries: every entry that is served, by its own name.
        explainers: made over the API: {model: {explainer: entry}}.
        defaults: what explains a model where a request names no explainer, {model: entry}; a model that is
            not here is explained by its `NAME_explain`.
        canaries: what answers in place of the default for some requests, {model: canary}.
        unserved: folders of which nothing is served, or what they held before they changed.
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
            UnknownModelError: there is no such entry, or not of that version.
            NotReadyError: there is one, and it cannot be served.
        """
        entry = self.entries.get(name)
        if name.endswith(EXPLAIN_SUFFIX):
            entry = self.defaults.get(name.removesuffix(EXPLAIN_SUFFIX), entry)
        if entry is None:
            self._check_served(name)
            raise UnknownModelError(f"no model '{_shown(name)}' here; there are: {_listed(self.entries)}")
        if version not in (None, entry.version):
            raise UnknownModelError(
                f"model '{name}' has no version '{_shown(version)}'; version {entry.version} is served"
            )
        return entry

    def explainer(self, name: str, version: str | None = None, explainer: str | None = None) -> Entry:
        """Return the entry that explains model `name` (an explain entry's own name does too).

        Args:
            explainer: one of the model's explainers; None for its default.

        Raises:
            UnknownModelError, NotReadyError, NotExplainableError, BrokenExplanationError.
            UnknownResourceError: the model has no explainer of that name.
        """
        entry = self.entry(name, version)
        if explainer is not None:
            return self._named(entry.name if entry.manifest is None else entry.manifest.model, explainer)
        found = self.default_explainer(entry)
        if found is None:
            self._check_served(name + EXPLAIN_SUFFIX, BrokenExplanationError)
            raise NotExplainableError(
                f"model '{name}' has no explainer. Make one with PUT /v2/models/{name}/explainers/NAME, "
                f"or with `rationale compile MODEL.onnx --method deepshap --references FILE --name {name}` "
                "and have the server read its repository again."
            )
        return found

    def decider(self, name: str, version: str | None = None) -> Entry:
        """Return the compiled entry that decides for model `name` (an explain entry's own name does too).

        It does so whichever explainer is the model's default.

        Raises:
            UnknownModelError, NotReadyError, BrokenExplanationError.
            NotExplainableError: it was compiled without a decision profile, or only over the API.
        """
        entry = self.entry(name, version)
        model = entry.name if entry.manifest is None else entry.manifest.model
        found = self.compiled(model)
        if found is None:
            self._check_served(model + EXPLAIN_SUFFIX, BrokenExplanationError)
        if found is None or found.manifest is None or found.manifest.decision is None:
            raise NotExplainableError(
                f"model '{model}' has no decision profile, by which it would decide: compile it with "
                f"`rationale compile … --decision decision.yaml --name {model}`"
            )
        return found

    def decides(self, entry: Entry) -> bool:
        """Return whether it is a model that decides, or the compiled entry by which that does."""
        model = entry.name if entry.manifest is None else entry.manifest.model
        found = self.compiled(model)
        if found is None or found.manifest is None or found.manifest.decision is None:
            return False
        return entry is found or entry is self.entries.get(model)

    def default_explainer(self, entry: Entry) -> Entry | None:
        """Return what explains `entry` where a request names no explainer; an explain entry is its own."""
        if entry.manifest is not None:
            return entry
        return self.defaults.get(entry.name) or self.compiled(entry.name)

    def split(self, name: str, default: Entry) -> tuple[Canary, Entry] | None:
        """Return what answers beside `default` where a request names no explainer; None for nothing.

        Args:
            name: of the model, as the request has it: `NAME_explain` is NAME's default explainer.
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
        """Return names of the inputs in which NaN is a missing value, as what explains `entry` says."""
        manifest = self.manifest_of(entry)
        return frozenset() if manifest is None else manifest.takes_missing

    def manifest_of(self, entry: Entry) -> Manifest | None:
        """Return the manifest that describes the rows of `entry`.

        An explainer has its own. A model's rows are described by the compiled one, whichever is the default.
        """
        if entry.manifest is not None:
            return entry.manifest
        explainer = self.compiled(entry.name) or self.defaults.get(entry.name)
        return None if explainer is None else explainer.manifest

    def explainer_name(self, entry: Entry) -> str | None:
        """Return the name by which `explainer` gives it; None for a model, and for what has none."""
        if entry.manifest is None:
            return None
        model = entry.manifest.model
        made = (name for name, each in self.explainers.get(model, {}).items() if each is entry)
        return next(made, COMPILED if self.compiled(model) is entry else None)

    def compiled(self, model: str) -> Entry | None:
        """Return the explain entry that `rationale compile` made of the model."""
        twin = self.entries.get(model + EXPLAIN_SUFFIX)
        return None if twin is None or twin.manifest is None else twin

    @cached_property
    def made_by_others(self) -> str:
        """A sentence that names the entries which other versions of Rationale compiled; empty without any."""
        names = {entry: entry.name for entry in self.entries.values()}
        for model, own in self.explainers.items():
            names |= {entry: f"{model}/{name}" for name, entry in own.items()}
        found: dict[str, list[str]] = defaultdict(list)
        for entry, name in names.items():
            made_by = None if entry.manifest is None else entry.manifest.tools.get("rationale")
            if made_by not in (None, version()):
                found[made_by].append(name)
        listed = "; ".join(f"{', '.join(of)} (by {made_by})" for made_by, of in sorted(found.items()))
        return listed and (
            f"entries that other versions compiled are served by {version()}: {listed}. Compile them again, "
            "and PUT those again that the API made (MODEL/NAME), to have what this version does"
        )

    def why_unserved(self, name: str) -> str:
        """Return why what lies in that folder now is not served; empty where it is."""
        found = self.unserved.get(name)
        return "" if found is None else found.reason.replace(f"{self.folder}/", "")

    def unloaded(self) -> set[str]:
        """Return folders that are not served because somebody requested that."""
        return {name for name, why in self.unserved.items() if why.reason == UNLOADED}

    def without(self, names: Container[str]) -> "ModelRegistry":
        """Return it without entries of these names, be they served or not."""
        return replace(
            self,
            entries={name: entry for name, entry in self.entries.items() if name not in names},
            unserved={name: why for name, why in self.unserved.items() if name not in names},
        )

    def by_folder(self) -> dict[str, tuple[Entry, ...]]:
        """Return the entries of each folder: a one-shot entry is two."""
        found: dict[str, tuple[Entry, ...]] = defaultdict(tuple)
        for entry in self.entries.values():
            found[entry.model] += (entry,)
        return found

    def explains_another(self, entry: Entry) -> bool:
        """Return whether it is part of another model that is served here, as explain entries are."""
        explained = entry.manifest.model if entry.manifest is not None else entry.name
        return explained != entry.name and explained in self.entries

    def _check_served(self, name: str, error: type[ServiceError] = NotReadyError) -> None:
        if name in self.unserved:
            raise error(
                f"model '{name}' cannot be served: POST /v2/repository/index tells why, and the server's log"
            )

    def _named(self, model: str, explainer: str) -> Entry:
        known = dict(self.explainers.get(model, {}))
        compiled = self.compiled(model)
        if compiled is not None:
            known[COMPILED] = compiled
        if explainer not in known:
            raise UnknownResourceError(
                f"model '{model}' has no explainer '{_shown(explainer)}' to answer with; "
                f"it has: {_listed(known) or 'none'}"
            )
        return known[explainer]


def read_repository(
    folder: Path, *, strict: bool = True, refused: Mapping[str, str] | None = None
) -> ModelRegistry:
    """Read every entry of a model repository; hidden folders and plain files are passed over.

    Args:
        strict: a broken entry is an error; else it is listed as unserved, unless all are broken.
        refused: why folders are not here, or not as they were to be.

    Raises:
        RepositoryError: the folder is missing or empty, or entries are broken; names each and why.
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
            found = read_folder(path, registry.entries)
        except RepositoryError as error:
            unserved = {**registry.unserved, path.name: Unserved(str(error), stamp)}
            registry = replace(registry, unserved=unserved)
        else:
            registry = replace(registry, entries={**registry.entries, **{one.name: one for one in found}})
    for name, reason in (refused or {}).items():
        unserved = {**registry.unserved, name: Unserved(reason, refused_stamp(reason))}
        registry = replace(registry, unserved=unserved)
    check_served(registry, strict=strict)
    return registry


def refused_stamp(reason: str) -> Stamp:
    """Return the stamp of what was not put on the disk."""
    return ((reason, 0, 0, 0),)


def folders(repository: Path) -> list[Path]:
    """Return those that may have an entry. What is being written is hidden, or has another name."""
    return sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))


def read_folder(folder: Path, others: Mapping[str, Entry]) -> tuple[Entry, ...]:
    """Return a folder's entries. Raises RepositoryError, also where `others` have their names."""
    found = sides(read_entry(folder))
    for entry in found:
        other = others.get(entry.name, entry)
        if other.model != entry.model:
            one_shot, twin = (entry, other) if entry.gate is not None else (other, entry)
            raise RepositoryError(
                f"{folder.with_name(one_shot.model)}: is a one-shot entry, which explains itself, and "
                f"{folder.with_name(twin.model)} is there too. Delete one of them, or compile the name again."
            )
    return found


def check_served(registry: ModelRegistry, *, strict: bool) -> None:
    """Raise RepositoryError where nothing is served; with `strict`, where anything is not."""
    if registry.unserved and (strict or not registry.entries):
        raise RepositoryError("\n".join(one.reason for one in registry.unserved.values()))
    if not registry.entries:
        raise RepositoryError(f"{registry.folder}: holds no model. Make an entry with `rationale compile`.")


def _listed(names: Iterable[str]) -> str:
    first = list(names)
    return ", ".join(first[:_SHOWN_NAMES]) + (" …" if len(first) > _SHOWN_NAMES else "")


def _shown(text: str | None) -> str:
    """Shorten a caller's own text for an error."""
    return (text or "")[:80]
