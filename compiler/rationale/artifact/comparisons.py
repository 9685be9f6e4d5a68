"""Alternative baselines: entries that explain a deciding entry's model by other references."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rationale.graph.runtime.session import SerializedGraph
from rationale.schema.manifest import EXPLAIN_SUFFIX, Comparison, Manifest
from rationale.schema.probes import Probes

_DIGITS = 12  # digits of a digest in an entry's name; explainers made over the API have 16


@dataclass(frozen=True)
class CompiledComparison:
    """The same model explained by other references, compiled.

    Attributes:
        graph, sample, probes: see `Compiled`.
    """

    name: str
    kind: Literal["baseline", "draw"]
    graph: SerializedGraph
    manifest: Manifest
    sample: Mapping[str, np.ndarray]
    probes: Probes | None = None

    def comparison(self, model: str) -> Comparison:
        """Return the comparison as the manifest of the deciding entry names it."""
        explanation = self.manifest.digests.explanation
        return Comparison(
            name=self.name, kind=self.kind, entry=entry_name(model, explanation), explanation=explanation
        )


def entry_name(model: str, explanation: str) -> str:
    """Return NAME_explain_<digits of its digest>."""
    return f"{model}{EXPLAIN_SUFFIX}_{explanation[:_DIGITS]}"


def is_entry_name(name: str, model: str) -> bool:
    """Tell whether a name is one that `entry_name` gives."""
    digits = name.removeprefix(f"{model}{EXPLAIN_SUFFIX}_")
    return digits != name and re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", digits) is not None
