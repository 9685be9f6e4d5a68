"""The options of `:decide` that change its answer: a row for each, and the functions that its module has.

An option is a member of the request, true or false or a text. Its module is loaded if a request has it.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from rationale_service.errors import MalformedError

if TYPE_CHECKING:
    from rationale.portfolios.decisions import Further
    from rationale.schema.manifest import Manifest
    from rationale_service.repository.entry import Entry
    from rationale_service.repository.registry import ModelRegistry
    from rationale_service.security.keys import Caller
    from rationale_service.tensors import Tensors

_TAKEN: dict[type, str] = {bool: "true or false", str: "a name"}


@dataclass(frozen=True)
class DecisionOption:
    """An option.

    Attributes:
        name: member of the request, and option of `rationale decide`.
        module: name of its `OptionModule`.
        help: text of `rationale decide --help`.
        takes: bool if the option is on or off, str if it takes a text.
        is_recorded: False if the trail keeps decisions without it: its module has `answered`, no `search`.
        member: member that it adds to each decision; None if it adds to members that are there.
        is_personal: True if the member has the applicant's data: the trail keeps it as it keeps the inputs.
    """

    name: str
    module: str
    help: str
    member: str | None = None
    is_personal: bool = False
    takes: type[bool] | type[str] = bool
    is_recorded: bool = True

    def value_of(self, members: Mapping[str, Any]) -> bool | str | None:
        """Return the value of the option in the members of a request; None if they do not ask for it.

        Raises:
            MalformedError: if the value has a wrong type.
        """
        value = members.get(self.name)
        if value is not None and (type(value) is not self.takes or value == ""):
            raise MalformedError(f"{self.name} must be {_TAKEN[self.takes]}")
        return value or None

    def load(self) -> "OptionModule":
        return cast("OptionModule", importlib.import_module(self.module))


class OptionModule(Protocol):
    """The functions that an option's module has."""

    def demand(self, manifest: "Manifest", caller: "Caller | None", value: Any) -> None:
        """Raise ServiceError if the model does not have the option, or the caller must not use it."""

    def search(self, plane: "Plane") -> "OptionSearch":
        """Return the search that adds the option to decisions of a data plane. Needed if it is recorded."""

    def columns(self, manifest: "Manifest") -> "Further":
        """Return the columns that it adds to a table of decisions. Needed if it is recorded.

        Raises InvalidOptionError if no decision of the model has them.
        """

    def answered(
        self, manifest: "Manifest", decisions: Sequence[Mapping[str, Any]], value: Any
    ) -> Iterator[dict[str, Any]]:
        """Return recorded decisions as they are answered. Needed if the option is not recorded."""

    def differences(self, replay: "Replay", member: Any) -> Iterator[str]:
        """Describe the differences between a replay and the recorded member. Needed if there is a member."""


class Plane(Protocol):
    """A runner of entries: a gateway's data plane, or that of a command."""

    @property
    def repository(self) -> "ModelRegistry": ...

    async def infer(
        self,
        entry: "Entry",
        inputs: "Tensors",
        outputs: Sequence[str] | None,
        deadline_s: float,
        *,
        by_row: bool = False,
    ) -> "Tensors":
        """Run an entry; see `DataPlane.infer`."""


class OptionSearch(Protocol):
    """Search that adds an option to decisions."""

    async def add(
        self,
        entry: "Entry",
        rows: Sequence[Mapping[str, Any]],
        inputs: "Tensors",
        decisions: Sequence[Mapping[str, Any]],
        deadline_s: float,
    ) -> list[dict[str, Any]]:
        """Return the decisions with the additions of the option. Raises ServiceError.

        Args:
            rows: the instances of the decisions.
            inputs: inputs of the model, [N, …] each; a row for each decision.
        """

    def stop(self) -> None:
        """Begin no more work."""


@dataclass(frozen=True)
class Replay:
    """A decision's row, and the session that computes it again.

    Attributes:
        inputs: inputs of the model, [1, …] each.
        values: values of the features by name.
        run: function that runs the entry.
        tolerance: relative to the largest number; 0 if numbers must be equal bit for bit.
    """

    manifest: "Manifest"
    inputs: "Tensors"
    values: Mapping[str, Any]
    run: "Callable[[Tensors], Tensors]"
    tolerance: float


def asked_options(values: Mapping[str, Any]) -> list[tuple[DecisionOption, Any]]:
    """Return the options that have a value, each with its value."""
    return [(option, values[option.name]) for option in OPTIONS if values.get(option.name)]


OPTIONS = (
    DecisionOption(
        "language",
        "rationale_service.decisions.options.language",
        "Language of the reasons' texts, one of the decision profile's. Default: its first, which the audit "
        "trail keeps.",
        takes=str,
        is_recorded=False,
    ),
    DecisionOption(
        "stability",
        "rationale_service.decisions.options.stability",
        "Show which reasons stay with other references; the model needs --compare or --draws at its compile. "
        "Each reference set costs another run.",
    ),
    DecisionOption(
        "recourse",
        "rationale_service.decisions.options.recourse",
        "Add the cheapest changes that would have led to an approval, for each row that is not approved. "
        "Each search is much slower than a decision.",
        "recourse",
        is_personal=True,
    ),
)
PERSONAL = tuple(option.member for option in OPTIONS if option.member is not None and option.is_personal)
