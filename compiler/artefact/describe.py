"""The manifest of a compiled model: names, digests, versions, measurements."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime

from compiler.checks.check import Candidate, Checked
from compiler.combine.concepts import channel_attributions_name, channels_name, concept_attributions_name
from compiler.combine.outputs import (
    BASE_VALUE,
    EXPLAINED_VALUE,
    GAP,
    GAP_ERROR,
    GROUP_ATTRIBUTIONS,
    GROUP_ERROR,
    attributions_name,
    has_gap_error,
    has_interactions,
    has_standard_error,
    interactions_name,
    standard_error_name,
)
from compiler.errors import UnsupportedModelError
from compiler.graph.variants import Variants
from compiler.lowering import Lowered
from compiler.lowering.lengths import Span, length_warnings
from compiler.manifest import (
    DATATYPES,
    FLOATS,
    CustomOps,
    Digests,
    ExplainedConcepts,
    ExplainedInput,
    ExplainedLayer,
    Extension,
    Manifest,
    OpenLength,
    Player,
    References,
    Stopped,
    TensorSpec,
)
from compiler.manifest import Method as MethodEntry
from compiler.methods import Method
from compiler.methods.base import Extended, OnPaths, Walked
from compiler.references.reference_set import ReferenceSet
from compiler.references.request_time import describe_open, own_inputs
from compiler.rules.packages import package_of
from compiler.rules.rule import find_rule
from compiler.runtime.kernels import digest
from compiler.runtime.session import is_float
from compiler.selection.activity import stop_warnings
from compiler.selection.labelled import features_of
from compiler.selection.leaves import Leaf
from compiler.selection.path import Path
from compiler.selection.select import Selection


def describe(
    selection: Selection,
    references: ReferenceSet | None,
    graph: Candidate,
    checked: Checked,
    variants: Variants,
    notes: Sequence[str] = (),
    libraries: Sequence[FilePath] = (),
) -> Manifest:
    """The last stage of a compile: what the graph is, for whoever serves it.

    Args:
        notes: what the user is told of the plain model.
        libraries: of kernels.

    Raises:
        InvalidOptionError: feature names that do not fit or repeat.
    """
    lowered, path, method, span = selection.lowered, selection.path, selection.method, graph.span
    lengths = {**lowered.lengths, **({span.name: (span.least, span.most)} if span else {})}
    combined = graph.edges
    every = {v.name: tensor_spec(v) for v in combined.graph.input}
    opened = describe_open(every, path.tensors) if references and references.is_open else None
    inputs = {name: spec for name, spec in every.items() if name not in own_inputs(opened)}
    shapes = {v.name: tensor_spec(v).shape[1:] for v in combined.graph.output if is_tensor(v)}
    inner = {s.name: _inner_spec(lowered, s.tensor, _row_of(lowered, s, shapes)) for s in path.leaves}
    specs = {**inner, **inputs}
    names = features_of(path.inputs, {i: specs[i].shape for i in path.inputs}, selection.feature_names)
    spread = has_standard_error(method)
    originals = {v.name for v in lowered.source.graph.output}
    kernels = tuple(CustomOps(file=library.name, sha256=digest(library)) for library in libraries)
    return Manifest(
        model="",
        method=MethodEntry(name=method.name, options=method.options, gap=method.gap),
        digests=_digests(lowered, path, method, references, span, kernels),
        custom_ops=kernels,
        inputs=tuple(inputs.values()),
        explained=tuple(
            ExplainedInput(
                tensor=specs[i],
                attributions=attributions_name(i) if i in path.ungrouped else None,
                at=tuple(s.tensor for s in path.leaves if s.name == i and s.places is not None) or None,
                standard_error=standard_error_name(i) if spread and i in path.ungrouped else None,
                interactions=interactions_name(i) if has_interactions(method) else None,
                feature_names=names[i],
                takes_missing=(path.trees is not None and specs[i].datatype in FLOATS)
                or _holds_missing(references, i, path),
            )
            for i in path.inputs
        ),
        players=_players(path, method),
        group_attributions=GROUP_ATTRIBUTIONS if path.players else None,
        group_standard_error=GROUP_ERROR if path.players and spread else None,
        layers=_layers(lowered, combined, checked),
        concepts=_concepts(lowered, path),
        outputs=tuple(tensor_spec(v) for v in combined.graph.output if v.name in originals and is_tensor(v)),
        explained_output=path.output,
        explained_shape=tuple(lowered.specs[path.output][0][1:]),
        targets=path.targets,
        base_value=BASE_VALUE if method.has_base_value else None,
        explained_value=EXPLAINED_VALUE,
        completeness_gap=GAP if method.gap else None,
        completeness_gap_standard_error=GAP_ERROR if has_gap_error(method) else None,
        references=None if opened else _references(combined, path, references, checked),
        open_references=opened,
        open_length=_open_length(span, combined) if span else None,
        stopped=tuple(Stopped(**asdict(stop)) for stop in path.stops),
        points=_points(method, references),
        opset=next(e.version for e in combined.opset_import if e.domain in ("", "ai.onnx")),
        ir_version=combined.ir_version,
        least_onnxruntime=_least_onnxruntime(combined),
        tools={
            "rationale": metadata.version("rationale"),
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "numpy": np.__version__,
        },
        extensions=_extensions(lowered, method),
        measured=checked.measured,
        memory=checked.memory,
        variants=variants.describe(),
        one_shot=graph.one_shot,
        warnings=(
            *lowered.warnings,
            *length_warnings(lengths),
            *notes,
            *path.notes,
            *stop_warnings(path.stops),
            *(references.warnings if references else ()),
            *checked.warnings,
        ),
    )


def _players(path: Path, method: Method) -> tuple[Player, ...]:
    """A walk gives each feature its own attribution, of which those of a group are a sum."""
    if path.players is None:
        return ()
    kind: Literal["player", "sum"] = "sum" if isinstance(method, Walked) else "player"
    each = zip(path.players.names, path.players.members, strict=True)
    return tuple(Player(name=name, features=features, kind=kind) for name, features in each)


def _holds_missing(references: ReferenceSet | None, name: str, path: Path) -> bool:
    """Whether a method that knows nothing of the model has references with missing values, which it took."""
    array = references.arrays.get(name) if references and path.game else None
    return array is not None and is_float(array.dtype) and bool(np.isnan(array).any())


def _layers(lowered: Lowered, combined: onnx.ModelProto, checked: Checked) -> tuple[ExplainedLayer, ...]:
    """What has attributions beside the inputs, as the graph answers it."""
    shapes = {v.name: tensor_spec(v).shape[1:] for v in combined.graph.output if is_tensor(v)}
    return tuple(
        ExplainedLayer(
            tensor=_inner_spec(lowered, name, shapes[attributions_name(name)]),
            attributions=attributions_name(name),
            completeness_gap=gap,
        )
        for name, gap in checked.layers.items()
    )


def _concepts(lowered: Lowered, path: Path) -> ExplainedConcepts | None:
    asked = path.concepts
    if asked is None:
        return None
    return ExplainedConcepts(
        tensor=_inner_spec(lowered, asked.layer, lowered.specs[asked.layer][0][1:]),
        axis=asked.axis,
        count=asked.count,
        attributions=channel_attributions_name(asked.layer),
        channels=channels_name(asked.layer),
        heatmaps={name: concept_attributions_name(name) for name in path.inputs},
    )


def is_tensor(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type")


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """OIP name, datatype and shape without the batch axis.

    Raises:
        UnsupportedModelError: a type that no protocol carries, such as complex64.
    """
    tensor = value.type.tensor_type
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if kind not in DATATYPES:
        raise UnsupportedModelError(
            f"{value.name!r} holds {kind}, which no server can carry. Cast it to another type, or drop it "
            "from the model's outputs."
        )
    dims = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    return TensorSpec(name=value.name, datatype=DATATYPES[kind], shape=dims[1:])


def _row_of(lowered: Lowered, leaf: Leaf, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of one row of what a leaf explains, as the graph answers it."""
    own = tuple(lowered.specs[leaf.name][0][1:]) if leaf.name in lowered.specs else leaf.row
    return shapes.get(attributions_name(leaf.name), own)


def _inner_spec(lowered: Lowered, name: str, shape: tuple[int, ...]) -> TensorSpec:
    """Of the shape that its attributions have."""
    return TensorSpec(name=name, datatype=DATATYPES[lowered.specs[name][1].name], shape=shape)


def _digests(
    lowered: Lowered,
    path: Path,
    method: Method,
    references: ReferenceSet | None,
    span: Span | None,
    kernels: Sequence[CustomOps],
) -> Digests:
    options: dict[str, Any] = {
        "method": method.name,
        "options": method.options,
        "output": path.output,
        "targets": path.targets,
        "inputs": path.inputs,
        "rationale": metadata.version("rationale"),
    }
    if path.players:
        options["groups"] = dict(zip(path.players.names, path.players.members, strict=True))
    if path.layers:
        options["layers"] = path.layers
    if path.concepts:
        options["concepts"] = asdict(path.concepts)
    if span is not None:
        options["lengths"] = {span.name: (span.least, span.most)}
    if brought := _extensions(lowered, method):
        options["extensions"] = [one.model_dump() for one in brought]
    if kernels:
        options["custom_ops"] = [library.sha256 for library in kernels]
    if references and references.is_open:
        options["open_references"] = references.count
    chosen = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
    parts = [lowered.digest, references.digest or None if references else None, chosen]
    whole = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Digests(model=lowered.digest, references=parts[1], options=chosen, explanation=whole)


def _extensions(lowered: Lowered, method: Method) -> tuple[Extension, ...]:
    """What of the answer installed packages bring: rules of operators, and what the method took."""
    rules = (find_rule(node.op_type, node.domain) for node in lowered.model.graph)
    found = (package_of(rule) for rule in dict.fromkeys(rules) if rule is not None)
    brought = dict.fromkeys(one for one in found if one is not None)
    return (*brought, *(method.extensions if isinstance(method, Extended) else ()))


def _open_length(span: Span, combined: onnx.ModelProto) -> OpenLength:
    axes = tuple(
        (value.name, axis)
        for value in combined.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param == span.name
    )
    return OpenLength(name=span.name, least=span.least, most=span.most, axes=axes)


def _references(
    combined: onnx.ModelProto, path: Path, references: ReferenceSet | None, checked: Checked
) -> References | None:
    if references is None:
        return None
    base = None
    explained = {v.name for v in combined.graph.input} == set(path.tensors)  # all, so that x decides nothing
    if path.targets != "predicted" and explained:
        base = tuple(float(v) for v in checked.answers[BASE_VALUE][0])
    return References(count=references.count, given=references.given, base_value=base)


def _points(method: Method, references: ReferenceSet | None) -> int:
    count = references.count if references else 1
    if not isinstance(method, OnPaths):
        return count
    return method.points * (count if method.each_reference else 1)


def _least_onnxruntime(model: onnx.ModelProto) -> str:
    """The first release that loads the opset; ONNX Runtime's compatibility table."""
    opset = next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
    releases = {21: "1.18", 22: "1.20", 23: "1.23", 24: "1.24"}
    return releases.get(opset, "1.18" if opset < 21 else "the newest")
