"""Methods by the names the command line knows, made from the options it was given."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from rationale.errors import InvalidOptionError
from rationale.methods.auto import Auto
from rationale.methods.coalitions.shapley import ExactShap, PermutationShap
from rationale.methods.engine import Method, References
from rationale.methods.propagation.deepshap import DeepShap
from rationale.methods.propagation.gradients import (
    ExpectedGradients,
    Gradient,
    IntegratedGradients,
    SmoothGrad,
)
from rationale.methods.propagation.lrp.attnlrp import AttnLrp, CpLrp
from rationale.methods.propagation.lrp.lrp import Lrp
from rationale.methods.propagation.lrp.texts import parse_choice
from rationale.methods.trees.treeshap import TreeShap
from rationale.schema.request import CompileRequest

__all__ = [
    "AttnLrp",
    "Auto",
    "CpLrp",
    "DeepShap",
    "ExactShap",
    "ExpectedGradients",
    "Gradient",
    "IntegratedGradients",
    "Lrp",
    "Method",
    "PermutationShap",
    "SmoothGrad",
    "TreeShap",
]

REFERENCES, WEIGHTS, COVERS = "references", "weights", "covers"


@dataclass(frozen=True)
class Choice:
    """A method's row.

    Attributes:
        make: called with the given options by keyword.
        needs, takes: names of the options without which it cannot be made, and of those it also knows.
    """

    make: Callable[..., Method]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()

    def knows(self, option: str) -> bool:
        return option in self.needs or option in self.takes


def make_lrp(rule: Sequence[str] = (), composite: str = "EpsilonPlus", **bounds: Any) -> Method:
    """Make Lrp from its options: rules as `Conv=gamma:0.25`, the composite a preset's name."""
    return Lrp(composite, tuple(parse_choice(text) for text in rule), **bounds)


METHODS: dict[str, Choice] = {
    "deepshap": Choice(DeepShap, needs=(REFERENCES,), takes=(WEIGHTS, "standard_error")),
    "gradient": Choice(Gradient),
    "input-x-gradient": Choice(lambda: Gradient(times_input=True)),
    "integrated-gradients": Choice(IntegratedGradients, takes=(REFERENCES, "steps", "standard_error")),
    "expected-gradients": Choice(
        ExpectedGradients, needs=(REFERENCES,), takes=("samples", "seed", "standard_error")
    ),
    "smoothgrad": Choice(
        lambda sigma, samples=50, **more: SmoothGrad(samples, sigma, **more),
        needs=("sigma",),
        takes=("samples", "seed", "standard_error"),
    ),
    "lrp": Choice(make_lrp, takes=("composite", "rule", "low", "high")),
    "attnlrp": Choice(AttnLrp, takes=("epsilon",)),
    "cplrp": Choice(CpLrp, takes=("epsilon",)),
    "treeshap": Choice(TreeShap, takes=(REFERENCES, WEIGHTS, COVERS, "space", "interactions")),
    "auto": Choice(Auto, needs=(REFERENCES,), takes=(WEIGHTS,)),
    "exactshap": Choice(ExactShap, needs=(REFERENCES,), takes=(WEIGHTS,)),
    "permutationshap": Choice(
        PermutationShap, needs=(REFERENCES,), takes=(WEIGHTS, "permutations", "seed", "standard_error")
    ),
}

_ADVICE = {
    REFERENCES: "typical rows to compare with",
    "sigma": "the noise's standard deviation in the input's own units, 0.1 to 0.2 of its range",
}


def make_method(name: str, references: References | None, options: Mapping[str, Any]) -> Method:
    """Make the method of that name.

    Args:
        references: None where none are given.
        options: by their Python names (`standard_error`); those that are None were not given.

    Raises:
        InvalidOptionError: no such method, an option it needs and lacks, one it does not take, or a value
            that makes no sense.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if references is not None:
        given[REFERENCES] = references
    check_options(name, given)
    return METHODS[name].make(**given)


def method_of(
    request: CompileRequest, references: References | None = None, weights: npt.ArrayLike | None = None
) -> Method:
    """Return the method that a request names, with other references.

    Raises:
        InvalidOptionError: no method of the table, or one that needs references.
    """
    if request.method not in METHODS:
        raise InvalidOptionError(f"the method {request.method!r} cannot be made from its manifest")
    options = dict(request.options)
    if references is None and REFERENCES in METHODS[request.method].needs:
        raise InvalidOptionError("a recompile needs the references: give --references FILE")
    if references is not None and weights is not None:
        options[WEIGHTS] = weights
    if options.pop("path_dependent", False):
        options[COVERS], references = references, None
    return make_method(request.method, references, options)


def takes_seed(name: str) -> bool:
    """Tell whether a method of that name draws."""
    return name in METHODS and METHODS[name].knows("seed")


def check_options(name: str, given: Iterable[str]) -> None:
    """Raise InvalidOptionError for an unknown method, an option it does not take, or one that it lacks."""
    if name not in METHODS:
        raise InvalidOptionError(f"--method {name!r}: choose {_listed(list(METHODS))}.")
    choice, given = METHODS[name], set(given)
    surplus = [option for option in sorted(given) if not choice.knows(option)]
    if surplus:
        option = surplus[0]
        takers = [other for other, row in METHODS.items() if row.knows(option)]
        raise InvalidOptionError(
            f"--method {name} takes no {_flag(option)}: that is for {_listed(takers, 'and')}."
        )
    for option in choice.needs:
        if option not in given:
            flag = _flag(option) + " FILE" * (option == REFERENCES)
            raise InvalidOptionError(f"--method {name} needs {flag}: {_ADVICE[option]}.")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _listed(names: Sequence[str], word: str = "or") -> str:
    *first, last = names or ("no method",)
    return f"{', '.join(first)} {word} {last}" if first else last
