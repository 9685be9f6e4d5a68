"""Other reference sets to explain the model against: a test whether the reasons of a decision stay."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rationale.decisions.stability import DRAWS
from rationale.errors import InvalidOptionError
from rationale.methods.engine import Method
from rationale.references.draws import bootstrap_samples
from rationale.references.reference_set import OpenReferences
from rationale.schema.machine import Deployment
from rationale.schema.manifest import Manifest

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, eq=False)
class Comparisons:
    """Other reference sets to explain the model against.

    Args:
        baselines: the same method with other references, by a name, such as all_applicants.
        draws: the number of sets of the same size to draw, with replacement, from the deciding references.
        seed: the seed of the draws.
    """

    baselines: Mapping[str, Method] = field(default_factory=dict)
    draws: int = 0
    seed: int = 0

    def check(self, method: Method, deployment: Deployment, *, decides: bool) -> None:
        """Check the options before anything is compiled; raise InvalidOptionError."""
        if not decides:
            raise InvalidOptionError(
                "comparisons need a decision profile, because they test its reasons: give --decision FILE."
            )
        if deployment.one_shot or isinstance(method.reference_set, OpenReferences):
            raise InvalidOptionError(
                "comparisons need the entry NAME_explain: compile without --one-shot and --open-references."
            )
        for name, other in self.baselines.items():
            if not _NAME.fullmatch(name) or name == DRAWS:
                raise InvalidOptionError(
                    f"{name[:80]!r} is not a valid name of a baseline: use letters, digits, '_' and '-', "
                    f"beginning with a letter, and not {DRAWS!r}."
                )
            if other.reference_set is None:
                raise InvalidOptionError(f"baseline {name!r} needs references: --compare {name}=FILE.")

    def methods(self, method: Method) -> Iterator[tuple[str, Literal["baseline", "draw"], Method]]:
        """Yield name, kind and method of each. Raise InvalidOptionError if there is nothing to draw from."""
        drawn = bootstrap_samples(method.reference_set, method.reference_weights, self.draws, self.seed)
        for name, other in self.baselines.items():
            yield name, "baseline", other
        for i, rows in enumerate(drawn, start=1):
            yield f"draw {i}", "draw", _with_references(method, rows)


def check_same_method(name: str, decision: Manifest, other: Manifest) -> None:
    """Raise InvalidOptionError if the other explanation differs in more than its references."""
    if decision.method != other.method:
        ours, theirs = (f"{m.method.name} {m.method.options}" for m in (decision, other))
        raise InvalidOptionError(
            f"{name} uses {theirs}, but the decision uses {ours}: give the same method and options (with "
            "--method auto, name the method)."
        )


def _with_references(method: Method, rows: Any) -> Method:
    changed: Any = method  # a frozen dataclass, as all methods are
    option = "covers" if getattr(method, "references", None) is None else "references"
    weights = {} if method.reference_weights is None else {"weights": None}  # it was drawn by them
    drawn: Method = replace(changed, **{option: rows}, **weights)
    return drawn
