"""The options of `:decide` that change its answer: a row for each, and the functions that its module has.

An option is a member of the request, true or false or a text. Its module is loaded if a request has it.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from rationale_service.errors import MalformedError

if TYPE_CHECKING:
    from rationale.schema.manifest import Manifest
    from rationale_service.engine.dataplane import DataPlane
    from rationale_service.repository.entry import Entry
    from rationale_service.security.keys import Caller
    from rationale_service.tensors import Tensors

_TAKEN: dict[type, str] = {bool: "true or false", str: "a name"}


@dataclass(frozen=True)
class DecisionOption:
    """An option.

    Attributes:
        name: member of the request.
        module: name of its `OptionModule`.
        takes: bool if the option is on or off, str if it takes a text.
        is_recorded: False if the trail keeps decisions without it: its module has `answered`, no `search`.
        member: member that it adds to each decision; None if it adds to members that are there.
        is_personal: True if the member has the applicant's data: the trail keeps it as it keeps the inputs.
    """

    name: str
    module: str
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

    def search(self, plane: "DataPlane") -> "OptionSearch":
        """Return the search that adds the option to decisions of a data plane. Needed if it is recorded."""

    def answered(
        self, manifest: "Manifest", decisions: Sequence[Mapping[str, Any]], value: Any
    ) -> Iterator[dict[str, Any]]:
        """Return recorded decisions as they are answered. Needed if the option is not recorded."""

    def differences(self, replay: "Replay", member: Any) -> Iterator[str]:
        """Describe the differences between a replay and the recorded member. Needed if there is a member."""


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


OPTIONS = (
    DecisionOption("language", "rationale_service.decisions.language", takes=str, is_recorded=False),
    DecisionOption("stability", "rationale_service.decisions.stability"),
    DecisionOption("recourse", "rationale_service.decisions.recourse", "recourse", is_personal=True),
)
PERSONAL = tuple(option.member for option in OPTIONS if option.member is not None and option.is_personal)
