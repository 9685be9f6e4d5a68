"""The combined graph: a copy of the model to which an engine adds its explanation."""

from dataclasses import replace

import onnx_ir as ir

from compiler.explain.engine import Canvas, Selection
from compiler.explain.target import check_names
from compiler.graph.chunk_markers import Chunks
from compiler.graph.ops import Ops
from compiler.graph.variants import Variants
from compiler.lowering import with_model
from compiler.lowering.rewrites.discrete import spell_out_dequantising
from compiler.lowering.rows import in_front
from compiler.memory.fit import Plan, Progress
from compiler.references.reference_set import ReferenceSet
from compiler.references.request_time import names_of_inputs


def combine(
    selection: Selection, references: ReferenceSet | None, variants: Variants, progress: Progress
) -> Plan:
    """Plan the combined model next to the lowered one, to be built as memory allows.

    Args:
        variants: for what machine operators choose them.
        progress: called as `progress(stage, done, total)`.

    Raises:
        InvalidOptionError: names that are taken.
    """
    engine, target = selection.method.engine, selection.target
    own_inputs = names_of_inputs(target.tensors) if references and references.is_open else set()
    check_names(selection.lowered, engine.outputs(selection).names | own_inputs)

    def build(chunks: Chunks) -> ir.Model:
        """Return the combined graph with nothing computed yet."""
        copy, flat = _cloned(selection)
        lowered, output = copy.lowered, copy.target.output
        graph = lowered.model.graph
        sizes = {"T": target.count, "K": references.count if references else 1, "S": 1, "C": 1}
        sizes |= engine.sizes(copy)
        dtype = lowered.specs[output][1]
        op = Ops(graph, graph.opset_imports.get("", 21), sizes, dtype, variants, chunks)
        variants.begin()
        engine.emit(Canvas(op, copy, flat, references, progress))
        return lowered.model

    return Plan(build, engine.axes(selection.method, references))


def _cloned(selection: Selection) -> tuple[Selection, frozenset[str]]:
    """Return a copy whose graph may be changed, and the names of `in_front`.

    Tensors are shared. The names are as lowering knows them: what is spelled out here has inner values of
    which it knows nothing, unless they have to be lifted.
    """
    lowered, engine = selection.lowered, selection.method.engine
    model = lowered.model.clone()
    copies = dict(zip(lowered.model.graph, model.graph, strict=True))
    on_path = {copies[node] for node in engine.path(selection)}
    before = len(model.graph)
    spell_out_dequantising(model.graph, [n for n in copies.values() if n not in on_path])
    to_be_lifted = lowered.one_row and len(model.graph) != before
    copy = with_model(lowered, model) if to_be_lifted else replace(lowered, model=model)
    flat = in_front(lowered) | engine.flat(selection)
    return replace(engine.on(selection, copies), lowered=copy), flat
