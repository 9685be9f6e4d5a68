"""From an ONNX file to a graph of operators that have rules.

`lower(model)` is the story: load and check, bring to one opset, make the batch symbolic, fold what is
constant, rewrite operators that are defined by others, and note the shape of every value for one row.
"""

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from compiler.fold import fold_constants
from compiler.lowering.batch import free_batch, row_specs
from compiler.lowering.load import load, standardise
from compiler.lowering.rewrites import rewrite
from compiler.shapes import Spec


@dataclass(frozen=True)
class Lowered:
    """A model ready for the walk.

    Attributes:
        source: the model as given, but for a symbolic batch; what the combined graph is checked against.
        model: the lowered graph; names of the source's values are kept.
        specs: row shape and dtype of each value, by name.
        batched: names of the values whose axis 0 grows with the batch.
    """

    source: onnx.ModelProto
    digest: str
    model: ir.Model
    specs: dict[str, Spec]
    batched: frozenset[str]
    warnings: tuple[str, ...]


def lower(model: str | Path | onnx.ModelProto) -> Lowered:
    """Raises InvalidModelError or UnsupportedModelError, each with what to do."""
    loaded = load(model)
    lowered = standardise(loaded.model)
    fold_constants(lowered)
    freed = lowered.clone()
    fixed = free_batch(freed)
    source = ir.to_proto(freed) if fixed else loaded.proto
    rewrite(lowered)
    fold_constants(lowered)
    free_batch(lowered)
    specs, batched = row_specs(lowered)
    notes = ("the batch was fixed at 1; it is symbolic in the entries",) if fixed else ()
    return Lowered(source, loaded.digest, lowered, specs, batched, (*loaded.warnings, *notes))
