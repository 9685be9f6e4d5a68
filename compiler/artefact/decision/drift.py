"""The references' own explanations, from which the drift of decisions is measured."""

import numpy as np

from compiler.artefact.compiled import Compiled
from compiler.decisions.drift import classes_of
from compiler.decisions.rows import ExplainedRow, decided_of, explained_rows, keys_of
from compiler.errors import InvalidOptionError
from compiler.manifest import Classes
from compiler.methods import Method
from compiler.references.reference_set import Baseline, OpenReferences

MOST_ROWS = 1000  # references that are explained: more would tell deciles no better


def with_classes(compiled: Compiled, method: Method) -> Compiled:
    """With the deciles of the references' attributions in the manifest, or a warning why there are none."""
    manifest = compiled.manifest
    try:
        decided = decided_of(manifest).model_copy(update={"classes": _classes(compiled, method)})
        compiled.manifest = manifest.model_copy(update={"decision": decided})
    except InvalidOptionError as error:
        warning = f"the drift of decisions will not be measured: {error}"
        compiled.manifest = manifest.model_copy(update={"warnings": (*manifest.warnings, warning)})
    return compiled


def _classes(compiled: Compiled, method: Method) -> dict[str, Classes]:
    """Raises InvalidOptionError where the references are none that the graph could explain."""
    given, weights = method.reference_set, method.reference_weights
    if given is None or isinstance(given, Baseline | OpenReferences):
        raise InvalidOptionError("there are no references that decisions could drift from")
    inputs = compiled.fit(given)
    count = len(next(iter(inputs.values())))
    chosen = np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(int)
    rows: list[ExplainedRow] = []
    for part in np.array_split(chosen, -(-len(chosen) // compiled.manifest.measured.max_batch)):
        answer = compiled.run({name: array[part] for name, array in inputs.items()})
        rows += explained_rows(compiled.manifest, answer)
    own = None if weights is None else np.asarray(weights, np.float64)[chosen]
    return classes_of(rows, own, keys_of(compiled.manifest))
