"""The manifest of a compiled model: names, digests, versions, measurements."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime

from rationale.artifact.checks.check import CheckResult, FinishedGraph, adds_up
from rationale.distribution import version
from rationale.errors import UnsupportedModelError
from rationale.graph.runtime.kernels import digest
from rationale.graph.variants import VariantChoices
from rationale.lowering import Lowered
from rationale.lowering.inference import Span, length_warnings
from rationale.methods.engine import MissingValues, Selection
from rationale.methods.feature_names import features_of
from rationale.methods.leaves import Leaf
from rationale.methods.logits import class_names, is_probability
from rationale.methods.outputs import (
    BASE_VALUE,
    EXPLAINED_VALUE,
    GAP,
    GAP_ERROR,
    INTERACTIONS,
    STANDARD_ERROR,
    attributions_name,
    inner_spec,
)
from rationale.methods.references import PreparedReferences
from rationale.methods.target import Target, stop_notes, stop_warnings
from rationale.methods.trees.ensembles import TreeChoice
from rationale.references.reference_set import ReferenceSet, spreads
from rationale.references.request_time import describe_open
from rationale.rules.rule import find_rule, package_of
from rationale.schema.manifest import (
    DATATYPES,
    FLOATS,
    GROUPS,
    CustomOps,
    Digests,
    ExplainedInput,
    ExplainedLayer,
    Extension,
    LayerRule,
    Manifest,
    MethodRecord,
    OpenLength,
    Parity,
    Player,
    References,
    Stopped,
    TensorSpec,
    TreeScores,
    is_float,
    names_of,
)
from rationale.schema.outputs import WHOLE
from rationale.schema.request import CompileRequest, plain

_MEMBERS = {*Manifest.model_fields, *ExplainedInput.model_fields}  # the kinds that the manifest has by name


def describe(
    selection: Selection[Any, Any],
    request: CompileRequest,
    referenced: PreparedReferences,
    graph: FinishedGraph,
    checked: CheckResult,
    variants: VariantChoices,
    rules: Sequence[LayerRule] = (),
    *,
    notes: Sequence[str] = (),
    first: Sequence[str] = (),
    libraries: Sequence[FilePath] = (),
    parity: Parity | None = None,
) -> Manifest:
    """Describe the graph for a server: the last stage of a compile.

    Args:
        rules: the rule of relevance propagation that each operator got.
        notes: notes on the plain model for the user.
        first: warnings that come before all others.
        libraries: libraries of kernels.
        parity: the parity of a fitted model.

    Raises:
        InvalidOptionError: if feature names do not fit or repeat.
    """
    lowered, target, method, span = selection.lowered, selection.target, selection.method, graph.span
    references = referenced.set
    engine = method.engine
    outputs = engine.outputs(selection)
    lengths = {**lowered.lengths, **({span.name: (span.least, span.most)} if span else {})}
    combined = graph.edges
    graph_inputs = {v.name: tensor_spec(v) for v in combined.graph.input}
    is_open = references is not None and references.is_open
    open_references = describe_open(graph_inputs, target.tensors) if is_open else None
    reference_names = open_references.names if open_references else set()
    inputs = {name: spec for name, spec in graph_inputs.items() if name not in reference_names}
    shapes = {v.name: tensor_spec(v).shape[1:] for v in combined.graph.output if is_tensor(v)}
    inner = {s.name: inner_spec(lowered.specs, s.tensor, _row_of(lowered, s, shapes)) for s in target.leaves}
    specs = {**inner, **inputs}
    names = features_of(target.inputs, {i: specs[i].shape for i in target.inputs}, selection.feature_names)
    originals = {v.name for v in lowered.source.graph.output}
    kernels = tuple(CustomOps(file=library.name, sha256=digest(library)) for library in libraries)
    gap = checked.measured.completeness_gap or 0.0
    harmless = bool(target.stops) and all(stop.is_among_carriers for stop in target.stops)
    harmless = harmless and adds_up(checked.measured, method.gap)
    manifest = Manifest(
        model="",
        method=MethodRecord(name=method.name, options=method.options, gap=method.gap),
        request=request,
        digests=_digests(selection, references, span, kernels),
        custom_ops=kernels,
        inputs=tuple(inputs.values()),
        explained=_explained(selection, specs, names, references, parity),
        players=_players(target, engine.players),
        group_attributions=outputs.attributions.get(GROUPS),
        group_standard_error=outputs.of_kind(STANDARD_ERROR).get(GROUPS),
        splits=_splits(selection, names),
        trees=_trees(selection, names) if isinstance(selection.choice, TreeChoice) else None,
        layers=_layers(lowered, combined, checked),
        concepts=outputs.concepts,
        rules=tuple(rules),
        outputs=tuple(tensor_spec(v) for v in combined.graph.output if v.name in originals and is_tensor(v)),
        probabilities=tuple(
            v.name for v in lowered.source.graph.output if is_probability(lowered.source, v.name)
        ),
        explained_output=target.output,
        explained_shape=tuple(lowered.specs[target.output][0][1:]),
        class_names=class_names(
            lowered.source, target.closed or target.output, math.prod(lowered.specs[target.output][0][1:])
        ),
        targets=target.elements,
        base_value=BASE_VALUE if method.has_base_value else None,
        explained_value=EXPLAINED_VALUE,
        completeness_gap=GAP if method.gap else None,
        completeness_gap_standard_error=outputs.of_kind(GAP_ERROR).get(WHOLE),
        other_outputs={kind: dict(names) for kind, names in outputs.by_kind.items() if kind not in _MEMBERS},
        references=None if open_references else _references(combined, target, referenced, names, checked),
        open_references=open_references,
        open_length=_open_length(span, combined) if span else None,
        stopped=tuple(Stopped(**asdict(stop)) for stop in target.stops),
        points=method.rows_per_target(references.count if references else 1),
        opset=next(e.version for e in combined.opset_import if e.domain in ("", "ai.onnx")),
        ir_version=combined.ir_version,
        least_onnxruntime=_least_onnxruntime(combined),
        tools=_tools(),
        extensions=_extensions(selection),
        measured=checked.measured,
        parity=parity,
        memory=checked.memory,
        variants=variants.describe(),
        one_shot=graph.one_shot,
        notes=stop_notes(target.stops, gap) if harmless else (),
        warnings=(
            *first,
            *lowered.warnings,
            *length_warnings(lengths),
            *notes,
            *target.notes,
            *(() if harmless else stop_warnings(target.stops)),
            *(references.warnings if references else ()),
            *checked.warnings,
        ),
    )
    features = plain(manifest.given_names)
    return manifest.model_copy(update={"request": request.model_copy(update={"features": features})})


def _tools() -> dict[str, str]:
    return {
        "rationale": version(),
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
    }


def _explained(
    selection: Selection[Any, Any],
    specs: Mapping[str, TensorSpec],
    names: Mapping[str, tuple[str, ...] | None],
    references: ReferenceSet | None,
    parity: Parity | None,
) -> tuple[ExplainedInput, ...]:
    target, engine = selection.target, selection.method.engine
    outputs = engine.outputs(selection)

    def takes_missing(name: str) -> bool:
        """Tell whether missing values pass, by the fitted model's answers or else by the references."""
        if parity is not None and name in (*parity.takes_missing, *parity.refuses_missing):
            is_text = specs[name].datatype == DATATYPES["STRING"]
            is_explained = is_text or engine.takes_missing or name in target.filled
            return is_explained and name in parity.takes_missing
        return name in target.filled or _may_miss(specs[name], engine.missing, references)

    return tuple(
        ExplainedInput(
            tensor=specs[i],
            attributions=outputs.attributions.get(i),
            at=tuple(s.tensor for s in target.leaves if s.name == i and s.is_looked_up) or None,
            standard_error=outputs.of_kind(STANDARD_ERROR).get(i),
            interactions=outputs.of_kind(INTERACTIONS).get(i),
            feature_names=names[i],
            takes_missing=takes_missing(i),
        )
        for i in target.inputs
    )


def _may_miss(spec: TensorSpec, missing: MissingValues, references: ReferenceSet | None) -> bool:
    """Tell whether rows of an explained input may hold missing values; a text may always be empty."""
    if spec.datatype == DATATYPES["STRING"] or (missing is MissingValues.ALWAYS and spec.datatype in FLOATS):
        return True
    array = references.arrays.get(spec.name) if references and missing is not MissingValues.NEVER else None
    return array is not None and is_float(array.dtype) and bool(np.isnan(array).any())


def _players(target: Target, kind: Literal["player", "sum"]) -> tuple[Player, ...]:
    if target.players is None:
        return ()
    members = zip(target.players.names, target.players.members, strict=True)
    return tuple(Player(name=name, features=features, kind=kind) for name, features in members)


def _splits(
    selection: Selection[Any, Any], names: Mapping[str, tuple[str, ...] | None]
) -> dict[str, tuple[float, ...]]:
    splits_of = {
        feature: tuple(values)
        for name, splits in selection.choice.splits(selection.lowered, selection.target).items()
        if name in names
        for feature, values in zip(names_of(name, names[name], len(splits)), splits, strict=True)
    }
    return {feature: values for feature, values in splits_of.items() if values}


def _trees(selection: Selection[Any, Any], names: Mapping[str, tuple[str, ...] | None]) -> TreeScores | None:
    """Return the trees if they read features unchanged, and their score is one of the explained values."""
    trees, elements = selection.choice, selection.target.elements
    if not isinstance(trees, TreeChoice) or len(elements) != 1 or not isinstance(column := elements[0], int):
        return None
    read = {int(feature) for feature in trees.ensemble.feature if feature >= 0}
    features = list[str | None]()
    for feature, element in enumerate(trees.elements(selection.lowered, selection.target)):
        if feature not in read:
            features.append(None)
        elif element is None or (own := names.get(element[0])) is None:
            return None
        else:
            features.append(own[element[1]])
    datatype = DATATYPES[selection.lowered.specs[trees.reads][1].name]
    return TreeScores(output=trees.answers, column=column, datatype=datatype, features=tuple(features))


def _layers(lowered: Lowered, combined: onnx.ModelProto, checked: CheckResult) -> tuple[ExplainedLayer, ...]:
    """Return the explained layers, in the shapes that the graph answers."""
    shapes = {v.name: tensor_spec(v).shape[1:] for v in combined.graph.output if is_tensor(v)}
    return tuple(
        ExplainedLayer(
            tensor=inner_spec(lowered.specs, name, shapes[attributions_name(name)]),
            attributions=attributions_name(name),
            completeness_gap=gap,
        )
        for name, gap in checked.layers.items()
    )


def is_tensor(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type")


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return OIP name, datatype and shape without the batch axis.

    Raises:
        UnsupportedModelError: if no protocol carries the type, such as complex64.
    """
    tensor = value.type.tensor_type
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if kind not in DATATYPES:
        raise UnsupportedModelError(
            f"{value.name!r} holds {kind}, which no server can return. Cast it to another type, or remove "
            "it from the model's outputs."
        )
    dims = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    return TensorSpec(name=value.name, datatype=DATATYPES[kind], shape=dims[1:])


def _row_of(lowered: Lowered, leaf: Leaf, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of one row of a leaf's attributions, as the graph answers it."""
    row = tuple(lowered.specs[leaf.name][0][1:]) if leaf.name in lowered.specs else leaf.row
    return shapes.get(attributions_name(leaf.name), row)


def _digests(
    selection: Selection[Any, Any],
    references: ReferenceSet | None,
    span: Span | None,
    kernels: Sequence[CustomOps],
) -> Digests:
    target, method = selection.target, selection.method
    options: dict[str, Any] = {
        "method": method.name,
        "options": method.options,
        "output": target.output,
        "targets": target.elements,
        "inputs": target.inputs,
        "rationale": version(),
        **selection.choice.options,
    }
    if target.players:
        options["groups"] = dict(zip(target.players.names, target.players.members, strict=True))
    if span is not None:
        options["lengths"] = {span.name: (span.least, span.most)}
    if brought := _extensions(selection):
        options["extensions"] = [package.model_dump() for package in brought]
    if kernels:
        options["custom_ops"] = [library.sha256 for library in kernels]
    if references and references.is_open:
        options["open_references"] = references.count
    options_digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
    model = selection.lowered.digest
    parts = [model, references.digest or None if references else None, options_digest]
    explanation = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Digests(model=model, references=parts[1], options=options_digest, explanation=explanation)


def _extensions(selection: Selection[Any, Any]) -> tuple[Extension, ...]:
    """Return the installed packages that take part: rules of operators, and the method's extensions."""
    rules = (find_rule(node.op_type, node.domain) for node in selection.lowered.model.graph)
    packages = (package_of(rule) for rule in dict.fromkeys(rules) if rule is not None)
    brought = dict.fromkeys(package for package in packages if package is not None)
    return (*brought, *selection.method.extensions)


def _open_length(span: Span, combined: onnx.ModelProto) -> OpenLength:
    axes = tuple(
        (value.name, axis)
        for value in combined.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param == span.name
    )
    return OpenLength(name=span.name, least=span.least, most=span.most, axes=axes)


def _references(
    combined: onnx.ModelProto,
    target: Target,
    referenced: PreparedReferences,
    names: Mapping[str, tuple[str, ...] | None],
    checked: CheckResult,
) -> References | None:
    references = referenced.set
    if references is None:
        return None
    graph_inputs = {v.name for v in combined.graph.input}
    rows = {name: array for name, array in references.arrays.items() if name in graph_inputs}
    base = None
    explained = {v.name for v in combined.graph.input} == set(
        target.tensors
    )  # all, so that x decides nothing
    if target.elements != "predicted" and explained:
        base = tuple(float(v) for v in checked.answers[BASE_VALUE][0])
    return References(
        count=references.count,
        given=references.given_rows,
        base_value=base,
        spreads=spreads(rows, names, references.weights),
    )


def _least_onnxruntime(model: onnx.ModelProto) -> str:
    """Return the first release that loads the opset, by ONNX Runtime's compatibility table."""
    opset = next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
    releases = {21: "1.18", 22: "1.20", 23: "1.23", 24: "1.24"}
    return releases.get(opset, "1.18" if opset < 21 else "the newest")
