"""Alternative baselines: entries that explain a deciding entry's model by other references."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rationale.artifact.names import entry_name
from rationale.graph.runtime.session import SerializedGraph
from rationale.schema.manifest import Comparison, Manifest
from rationale.schema.probes import Probes


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
