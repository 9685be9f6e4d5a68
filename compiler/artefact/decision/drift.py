"""The references' own explanations, from which the drift of decisions is measured."""

import numpy as np

from compiler.artefact.compiled import Compiled
from compiler.decisions.drift import classes_of
from compiler.decisions.rows import ExplainedRow, explained_rows, keys_of
from compiler.errors import InvalidOptionError
from compiler.explain.engine import Method
from compiler.manifest import Classes
from compiler.references.reference_set import Baseline, OpenReferences

MOST_ROWS = 1000  # references that are explained: more would tell deciles no better


def classes_of_references(compiled: Compiled, method: Method) -> dict[str, Classes]:
    """Return the deciles of the references' attributions.

    Raises:
        InvalidOptionError: the references are none that the graph could explain.
    """
    given, weights = method.reference_set, method.reference_weights
    if given is None or isinstance(given, Baseline | OpenReferences):
        raise InvalidOptionError("there are no references that decisions could drift from")
    manifest, inputs = compiled.manifest, compiled.fit(given)
    count = len(next(iter(inputs.values())))
    chosen = np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(int)
    rows: list[ExplainedRow] = []
    for part in np.array_split(chosen, -(-len(chosen) // manifest.measured.max_batch)):
        rows += explained_rows(manifest, compiled.run({name: array[part] for name, array in inputs.items()}))
    own = None if weights is None else np.asarray(weights, np.float64)[chosen]
    return classes_of(rows, own, keys_of(manifest))
