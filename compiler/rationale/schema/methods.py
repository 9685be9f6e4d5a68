"""Explanation methods by name, with their options: the one table of command line, API, requests and docs.

It imports nothing that takes time, so that `rationale --help` starts at once. A method's module is imported
when the method is made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rationale.errors import InvalidOptionError

REFERENCES, WEIGHTS, COVERS = "references", "weights", "covers"


@dataclass(frozen=True)
class Option:
    """An option of one or more methods; its name is that of the parameter.

    Attributes:
        kind: type of the value; `list` stands for several texts, `Path` for a file of rows, which only the
            command line reads.
        help: text for help and the API's schema; they put the methods' names before it.
        advice: advice for a user who omits the option, if a method needs it.
    """

    kind: type
    help: str
    metavar: str | None = None
    advice: str = ""


OPTIONS: dict[str, Option] = {
    "steps": Option(int, "points on the path from a reference. Default: 50."),
    "samples": Option(
        int, "draws of a reference and a point (default 200), or noisy copies of the row (default 50)."
    ),
    "permutations": Option(
        int,
        "number of pairs of feature orders; one explained row costs 2 · features · pairs · references "
        "rows of the model. Default: 10.",
    ),
    "sigma": Option(
        float,
        "standard deviation of the noise, in the input's own units.",
        advice="the noise's standard deviation in the input's own units, 0.1 to 0.2 of its range",
    ),
    "seed": Option(int, "seed of the draws. Default: 0."),
    "standard_error": Option(
        bool, "also return the standard error of each attribution over the references or draws."
    ),
    "composite": Option(
        str,
        "the preset of rules: EpsilonPlus (default), EpsilonAlpha2Beta1, EpsilonPlusFlat, "
        "EpsilonAlpha2Beta1Flat, EpsilonGammaBox (needs low and high), ExcitationBackprop, GuidedBackprop "
        "or Deconvnet.",
        metavar="NAME",
    ),
    "rule": Option(
        list,
        "a rule for some layers, such as Conv=gamma:0.25, name:head.*=epsilon:0.1, "
        "'first=zbox(low=-2, high=2)' or 'last 2=zero'. Give several if needed; the last match wins. "
        "Installed packages may add rules (entry points of rationale.lrp_rules).",
        metavar="SELECTOR=RULE",
    ),
    "low": Option(float, "the smallest value of an input, for zbox."),
    "high": Option(float, "the largest value of an input, for zbox."),
    "epsilon": Option(float, "added to denominators; it absorbs relevance. Default: 1e-6."),
    COVERS: Option(
        Path,
        "instead of references: rows (best the training data) to count how many reach each node of the "
        "trees; the same kinds of files as --references.",
        metavar="FILE",
    ),
    "space": Option(
        str,
        "output, the sum of the trees (default), or probability, the LOGISTIC of that sum, with rescaled "
        "attributions to each reference.",
    ),
    "interactions": Option(bool, "also return the interaction of each two features."),
}
_REFERENCES_ADVICE = "typical rows to compare with"


@dataclass(frozen=True)
class MethodEntry:
    """A method in the table.

    Attributes:
        path: "module:callable" that makes it, called with the options by keyword.
        needs: names of required options.
        takes: names of the other options.
        preset: options that the name implies.
        fixed_by: recorded options with which requests cannot bring references; None if they never can.
    """

    path: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    preset: Mapping[str, Any] = field(default_factory=dict)
    fixed_by: tuple[str, ...] | None = None

    def knows(self, option: str) -> bool:
        """Tell whether the method has that option."""
        return option in self.needs or option in self.takes


_GRADIENTS = "rationale.methods.propagation.gradients"
_LRP = "rationale.methods.propagation.lrp"
_SHAPLEY = "rationale.methods.coalitions.shapley"

METHODS: dict[str, MethodEntry] = {
    "deepshap": MethodEntry(
        "rationale.methods.propagation.deepshap:DeepShap",
        (REFERENCES,),
        (WEIGHTS, "standard_error"),
        fixed_by=("standard_error",),
    ),
    "gradient": MethodEntry(f"{_GRADIENTS}:Gradient", preset={"times_input": False}),
    "input-x-gradient": MethodEntry(f"{_GRADIENTS}:Gradient", preset={"times_input": True}),
    "integrated-gradients": MethodEntry(
        f"{_GRADIENTS}:IntegratedGradients",
        takes=(REFERENCES, "steps", "standard_error"),
        fixed_by=("standard_error",),
    ),
    "expected-gradients": MethodEntry(
        f"{_GRADIENTS}:ExpectedGradients", (REFERENCES,), ("samples", "seed", "standard_error")
    ),
    "smoothgrad": MethodEntry(
        f"{_GRADIENTS}:SmoothGrad", ("sigma",), ("samples", "seed", "standard_error"), {"samples": 50}
    ),
    "lrp": MethodEntry(f"{_LRP}.lrp:lrp_from_texts", takes=("composite", "rule", "low", "high")),
    "attnlrp": MethodEntry(f"{_LRP}.attnlrp:AttnLrp", takes=("epsilon",)),
    "cplrp": MethodEntry(f"{_LRP}.attnlrp:CpLrp", takes=("epsilon",)),
    "treeshap": MethodEntry(
        "rationale.methods.trees.treeshap:TreeShap",
        takes=(REFERENCES, WEIGHTS, COVERS, "space", "interactions"),
        fixed_by=("interactions", "path_dependent"),
    ),
    "auto": MethodEntry("rationale.methods.auto:Auto", (REFERENCES,), (WEIGHTS,)),
    "exactshap": MethodEntry(f"{_SHAPLEY}:ExactShap", (REFERENCES,), (WEIGHTS,)),
    "permutationshap": MethodEntry(
        f"{_SHAPLEY}:PermutationShap", (REFERENCES,), (WEIGHTS, "permutations", "seed", "standard_error")
    ),
}


def takers(option: str) -> list[str]:
    """Return the names of the methods that have an option."""
    return [name for name, entry in METHODS.items() if entry.knows(option)]


def takes_seed(method: str) -> bool:
    """Tell whether a method of that name draws samples."""
    return method in METHODS and METHODS[method].knows("seed")


def takes_request_references(method: str, options: Mapping[str, Any]) -> bool:
    """Tell whether requests may bring the references of a method with these options."""
    fixed_by = METHODS[method].fixed_by if method in METHODS else None
    return fixed_by is not None and not any(options.get(name) for name in fixed_by)


def check_options(method: str, options: Iterable[str]) -> None:
    """Check the names of a method's options.

    Raises:
        InvalidOptionError: if the method is unknown, does not take an option, or lacks one that it needs.
    """
    if method not in METHODS:
        raise InvalidOptionError(f"--method {method!r}: choose {_join_names(list(METHODS))}.")
    entry, options = METHODS[method], set(options)
    surplus = [option for option in sorted(options) if not entry.knows(option)]
    if surplus:
        option = surplus[0]
        raise InvalidOptionError(
            f"--method {method} takes no {_flag(option)}: that is for {_join_names(takers(option), 'and')}."
        )
    for option in entry.needs:
        if option not in options:
            flag = _flag(option) + " FILE" * (option == REFERENCES)
            advice = OPTIONS[option].advice if option in OPTIONS else _REFERENCES_ADVICE
            raise InvalidOptionError(f"--method {method} needs {flag}: {advice}.")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _join_names(names: Sequence[str], word: str = "or") -> str:
    *first, last = names or ("no method",)
    return f"{', '.join(first)} {word} {last}" if first else last
