"""The options of `:decide` that add to its answer: a row for each, and the functions that its module has.

An option is a flag of the request. Only a request with the flag loads its module.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from rationale.schema.manifest import Manifest
    from rationale_service.engine.dataplane import DataPlane
    from rationale_service.repository.entry import Entry
    from rationale_service.security.keys import Caller
    from rationale_service.tensors import Tensors


@dataclass(frozen=True)
class DecisionOption:
    """An option.

    Attributes:
        name: flag of the request.
        module: name of its `OptionModule`.
        member: member that it adds to each decision; None if it adds to members that are there.
        is_personal: True if the member has the applicant's data: the trail keeps it as it keeps the inputs.
    """

    name: str
    module: str
    member: str | None = None
    is_personal: bool = False

    def load(self) -> "OptionModule":
        return cast("OptionModule", importlib.import_module(self.module))


class OptionModule(Protocol):
    """The functions that an option's module has."""

    def demand(self, manifest: "Manifest", caller: "Caller | None") -> None:
        """Raise ServiceError if the model does not have the option, or the caller must not use it."""

    def search(self, plane: "DataPlane") -> "OptionSearch":
        """Return the search that adds the option to decisions of a data plane."""

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
    DecisionOption("stability", "rationale_service.decisions.stability"),
    DecisionOption("recourse", "rationale_service.decisions.recourse", "recourse", is_personal=True),
)
PERSONAL = tuple(option.member for option in OPTIONS if option.member is not None and option.is_personal)
