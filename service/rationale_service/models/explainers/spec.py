"""Specification of an explainer, and the digest that names its artifact."""

import asyncio
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from rationale import extensions
from rationale.distribution import version
from rationale.errors import RationaleError
from rationale.from_files import check_method
from rationale.schema.machine import Deployment, parse_bytes
from rationale.schema.manifest import Parity
from rationale.schema.methods import OPTIONS, takers
from rationale.schema.request import CompileRequest, parse_concepts
from rationale_service.errors import ConflictError, InvalidExplainerError, UnknownModelError
from rationale_service.repository.entry import Entry, stamp_of
from rationale_service.repository.registry import ModelRegistry

_DIGITS = 16  # digits of a digest in an entry's name
Count = Annotated[int, Field(ge=1)]
Target = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^\d+-\d+$")]


_MOST_NAMES = 10_000


def _check_member_count(members: Any) -> Any:
    """Limit the number of members before pydantic reads them: it would report each fault of a million."""
    if isinstance(members, dict | list) and len(members) > _MOST_NAMES:
        raise ValueError(f"{len(members)} members are more than {_MOST_NAMES}")
    return members


_Bounded = BeforeValidator(_check_member_count)
_Names = Annotated[list[str], Field(fail_fast=True)]


class _StrictSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _is_bounded(cls, members: Any) -> Any:
        return _check_member_count(members)


def _option_field(name: str) -> tuple[Any, Any]:
    option = OPTIONS[name]
    kind = _Names if option.kind is list else option.kind
    return kind | None, Field(None, description=f"{', '.join(takers(name))}: {option.help}")


if TYPE_CHECKING:
    MethodOptions = _StrictSpec
else:
    MethodOptions = create_model(
        "MethodOptions",
        __base__=_StrictSpec,
        __doc__="Options of the methods, as `rationale compile` has them; each method takes some of them.",
        **{name: _option_field(name) for name, option in OPTIONS.items() if option.kind is not Path},
    )


def _same(name: str, default: Any = None) -> Any:
    """Return a field with the meaning that it has in a compile request."""
    return Field(default, description=CompileRequest.model_fields[name].description)


class ExplainerSpec(_StrictSpec):
    """How to explain a model. The names are those of `rationale compile --help`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"method": "deepshap", "reference_set": "approved", "default": True}]}
    )

    method: str = _same("method", "deepshap")
    options: MethodOptions = Field(default_factory=MethodOptions)
    reference_set: str | None = Field(None, description="name of an uploaded reference set")
    open_references: Count | None = _same("open_references")
    output: str | None = _same("output")
    logits: bool = _same("logits", False)
    targets: Annotated[list[Target], Field(fail_fast=True)] | Literal["all", "predicted"] | None = _same(
        "targets"
    )
    inputs: _Names | None = _same("inputs")
    layers: _Names | Literal["all"] = _same("layers", [])
    concepts: str | None = Field(
        None,
        description="TENSOR=COUNT: for how many channels of an inner tensor to return what inputs contribute",
    )
    concept_axis: Count | None = Field(None, description="the axis of that tensor's channels; default: 1")
    sizes: Annotated[dict[str, Count], _Bounded] = _same("sizes", {})
    features: _Names | Annotated[dict[str, _Names], _Bounded] | None = _same("features")
    groups: Annotated[dict[str, _Names], _Bounded] = _same("groups", {})
    memory_budget: str = Field("4GB", description="for references and one row's work together")
    storage: Literal["float32", "float16"] = Field("float32", description="of baked references")
    default: bool | None = Field(
        None,
        description="whether it answers requests that name no explainer; left out: if none else does",
    )

    def requested(self, *, referenced: bool) -> CompileRequest:
        """Convert the spec → a compile request. Raises InvalidExplainerError for invalid options.

        Args:
            referenced: True if it gets a reference set.
        """
        try:
            same = CompileRequest.model_fields.keys() & ExplainerSpec.model_fields.keys()
            request = CompileRequest(
                **{name: getattr(self, name) for name in same - {"options", "concepts"}},
                options=self.options.model_dump(),
                concepts=parse_concepts(self.concepts, self.concept_axis),
                deployment=Deployment(memory_budget=parse_bytes(self.memory_budget), storage=self.storage),
            )
            check_method(request, referenced=referenced or self.open_references is not None)
        except RationaleError as error:
            raise InvalidExplainerError(str(error)) from error
        return request

    def digest(self, model: str, references: str | None) -> str:
        """Return the SHA-256 of all that determines the artifact: model, references, options, compiler.

        If installed packages bring rules, it includes their versions.
        """
        options = self.model_dump(exclude={"default", "reference_set"}, exclude_defaults=True)
        parts: list[Any] = [model, references, options, version()]
        if brought := extensions.packages():
            parts.append(brought)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def entry_name(model: str, digest: str) -> str:
    """Return the repository's entry name, `NAME_explain_<digest>`."""
    return f"{model}_explain_{digest[:_DIGITS]}"


def file_digest(folder: Path) -> str:
    """Hash (SHA-256) an entry's name and its version's files; equal files of two models hash differently."""
    digest = hashlib.sha256(f"{folder.parent.name}\n".encode())
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            file_hash: Any = hashlib.file_digest(file, "sha256")
        digest.update(f"{path.name}\0{file_hash.hexdigest()}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class PlainModel:
    """The model to explain.

    Attributes:
        name: name of its entry.
        digest: digest of its files.
        custom_ops: libraries of its kernels.
        parity: parity with its fitted original, from the manifest of its compiled explanation.
    """

    name: str
    path: Path
    digest: str
    custom_ops: tuple[Path, ...] = ()
    parity: Parity | None = None


class PlainModels:
    """The plain entries of the repository."""

    def __init__(self, base: ModelRegistry) -> None:
        self._base = base
        self._digests: dict[str, str] = {}

    def entry(self, name: str) -> Entry:
        """Return the plain entry of that name.

        Raises UnknownModelError; InvalidExplainerError if it is an explanation or one-shot.
        """
        entry = self._base.entries.get(name)
        if entry is None:
            raise UnknownModelError(f"no model '{name[:80]}' here that can have explainers")
        if entry.manifest is not None or entry.gate is not None:
            raise InvalidExplainerError(
                f"'{name}' is or contains an explanation, but explainers need a plain model. Compile it "
                "without --one-shot"
            )
        return entry

    def digest(self, name: str) -> str | None:
        """Return the digest of a served model; None if its files have changed since. Blocks."""
        entry = self._base.entries.get(name)
        if entry is None or stamp_of(self._base.folder / name) != entry.stamp:
            return None
        if name not in self._digests:
            self._digests[name] = file_digest(entry.model_path.parent)
        return self._digests[name]

    async def get(self, name: str) -> PlainModel:
        """Return the model to explain.

        Raises as `entry`, and ConflictError if its files differ from the served ones.
        """
        entry = self.entry(name)
        if await asyncio.to_thread(stamp_of, self._base.folder / name) != entry.stamp:
            raise ConflictError(
                f"the files of '{name}' differ from the loaded model: reload it with POST "
                f"/v2/repository/models/{name}/load, or the whole repository with SIGHUP"
            )
        if name not in self._digests:
            self._digests[name] = await asyncio.to_thread(file_digest, entry.model_path.parent)
        compiled = self._base.compiled(name)
        parity = None if compiled is None or compiled.manifest is None else compiled.manifest.parity
        return PlainModel(name, entry.model_path, self._digests[name], entry.custom_ops, parity)
