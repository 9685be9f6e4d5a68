"""What is served at one moment: a snapshot that is replaced as a whole, never changed.

A request looks its entry up once and keeps it, whatever is published or removed meanwhile.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compiler.errors import RepositoryError
from compiler.manifest import EXPLAIN_SUFFIX
from service.errors import NotExplainableError, UnknownModelError, UnknownResourceError
from service.repository.entry import Entry, read_entry, sides

COMPILED = "compiled"  # the explainer that `NAME_explain` of the repository is, beside those of the API
_SHOWN_NAMES = 20


@dataclass(frozen=True)
class ModelRegistry:
    """Entries, and which of them explain which model.

    Attributes:
        folder: the repository.
        entries: every entry that is served, by its own name.
        explainers: made over the API: {model: {explainer: entry}}.
        defaults: what explains a model where a request names no explainer, {model: entry}; a model that is
            not here is explained by its `NAME_explain`.
    """

    folder: Path
    entries: Mapping[str, Entry]
    explainers: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    defaults: Mapping[str, Entry] = field(default_factory=dict)

    def entry(self, name: str, version: str | None = None) -> Entry:
        """The entry of that name; `NAME_explain` is NAME's default explainer. Raises UnknownModelError."""
        entry = self.entries.get(name)
        if name.endswith(EXPLAIN_SUFFIX):
            entry = self.defaults.get(name.removesuffix(EXPLAIN_SUFFIX), entry)
        if entry is None:
            raise UnknownModelError(f"no model '{_shown(name)}' here; there are: {_listed(self.entries)}")
        if version not in (None, entry.version):
            raise UnknownModelError(
                f"model '{name}' has no version '{_shown(version)}'; version {entry.version} is served"
            )
        return entry

    def explainer(self, name: str, version: str | None = None, explainer: str | None = None) -> Entry:
        """The entry that explains model `name` (an explain entry's own name does too).

        Args:
            explainer: one of the model's explainers; None for its default.

        Raises:
            UnknownModelError, NotExplainableError.
            UnknownResourceError: the model has no explainer of that name.
        """
        entry = self.entry(name, version)
        if explainer is not None:
            return self._named(entry.name if entry.manifest is None else entry.manifest.model, explainer)
        found = self.default_explainer(entry)
        if found is None:
            raise NotExplainableError(
                f"model '{name}' has no explainer. Make one with PUT /v2/models/{name}/explainers/NAME, "
                f"or with `rationale compile MODEL.onnx --method deepshap --references FILE --name {name}` "
                "and restart the server."
            )
        return found

    def default_explainer(self, entry: Entry) -> Entry | None:
        """What explains `entry` where a request names no explainer; an explain entry is its own."""
        if entry.manifest is not None:
            return entry
        return self.defaults.get(entry.name) or self.compiled(entry.name)

    def explainer_name(self, entry: Entry) -> str | None:
        """Under which name `explainer` gives it; None for a model, and for what has none."""
        if entry.manifest is None:
            return None
        model = entry.manifest.model
        made = (name for name, each in self.explainers.get(model, {}).items() if each is entry)
        return next(made, COMPILED if self.compiled(model) is entry else None)

    def compiled(self, model: str) -> Entry | None:
        """The explain entry that `rationale compile` made of the model."""
        twin = self.entries.get(model + EXPLAIN_SUFFIX)
        return None if twin is None or twin.manifest is None else twin

    def explains_another(self, entry: Entry) -> bool:
        """Whether it is part of another model that is served here, as explain entries are."""
        explained = entry.manifest.model if entry.manifest is not None else entry.name
        return explained != entry.name and explained in self.entries

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


def read_repository(folder: Path) -> ModelRegistry:
    """Reads every entry of a model repository; hidden folders and plain files are passed over.

    Raises:
        RepositoryError: the folder is missing or empty, or entries are broken; names each and why.
    """
    if not folder.is_dir():
        raise RepositoryError(
            f"{folder}: there is no such folder. Make a model repository with `rationale compile`, "
            "or name another one with --repository."
        )
    found: list[Entry] = []
    faults = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            try:
                found.extend(sides(read_entry(path)))
            except RepositoryError as error:
                faults.append(str(error))
    entries = {entry.name: entry for entry in found}
    faults += [
        f"{folder / entry.model}: is a one-shot entry, which explains itself, and {folder / entry.name} is "
        "there too. Delete one of them, or compile the name again."
        for entry in found
        if entries[entry.name] is not entry
    ]
    if faults:
        raise RepositoryError("\n".join(faults))
    if not entries:
        raise RepositoryError(f"{folder}: holds no model. Make an entry with `rationale compile`.")
    return ModelRegistry(folder, entries)


def _listed(names: Iterable[str]) -> str:
    first = list(names)
    return ", ".join(first[:_SHOWN_NAMES]) + (" …" if len(first) > _SHOWN_NAMES else "")


def _shown(text: str | None) -> str:
    """A caller's own text in an error, kept short."""
    return (text or "")[:80]
