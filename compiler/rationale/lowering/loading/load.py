"""The loading of an untrusted ONNX file, and its conversion to the opset of the compiler."""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import helper

from rationale.errors import InvalidModelError, UnsupportedModelError
from rationale.graph.nodes import RANDOM
from rationale.graph.runtime.session import Runner
from rationale.lowering.bodies import all_node_lists, node_lists, remove_identities
from rationale.lowering.loading.locales import without_default_locale
from rationale.lowering.loading.newer import RECURRENT, known_to_runtime, without_layout
from rationale.lowering.loading.old_scan import scan_by_row
from rationale.lowering.loading.sparse import without_sparse
from rationale.lowering.rewrites.microsoft import DOMAIN, UNDER_ONNX, WITHOUT_CPU_KERNEL
from rationale.lowering.sizes import check_inputs, check_nodes
from rationale.rules.rule import find_rule
from rationale.schema.locales import locale_advice
from rationale.trees.read import is_ensemble, read_ensemble

OPSET = 21  # every ONNX Runtime since 1.18, every Triton since 24.05
IR_VERSION = 10
_CLASSICAL, _CLASSICAL_OPSET = "ai.onnx.ml", 3
LARGE = 1_900_000_000  # bytes of weights; protobuf serialises less than 2 GB in one piece
LONGEST_REASON = 400
_RESIZE_HAS_MODES = 11
_RUNTIME_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_UNKNOWN_OPERATOR = "is not a registered function/op"
_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\(")


@dataclass(frozen=True)
class Loaded:
    """A model that ONNX's checker and ONNX Runtime accept.

    Attributes:
        proto: the given model, except for ZipMaps, which no server can return, recurrent layouts without a
            kernel in ONNX Runtime, sparse tensors, which become dense, and a locale that images lack.
        digest: SHA-256 of the file and of the weights beside it.
        warnings: the changes to the model.
    """

    model: ir.Model
    proto: onnx.ModelProto
    digest: str
    warnings: tuple[str, ...] = ()


def load(model: str | os.PathLike[str] | onnx.ModelProto) -> Loaded:
    """Read and check a model.

    Raises:
        InvalidModelError: if this is no ONNX model, or a truncated or inconsistent one, or its opset is
            unknown.
    """
    path = None if isinstance(model, onnx.ModelProto) else _path(model)
    name = "the model" if path is None else str(path)
    proto, digest = _from_proto(model) if isinstance(model, onnx.ModelProto) else _from_file(_path(model))
    if not proto.graph.output or not proto.opset_import:
        raise InvalidModelError(
            f"{name}: not an ONNX model (it has no outputs or no opset). Export it again."
        )
    _check_text(proto, name)
    _check_opsets(proto, name)
    _check_values(proto, name)
    check_inputs(proto, name)
    check_nodes(proto, name)
    proto, replaced = without_zip_maps(proto)
    nodes = [n for nodes_of_graph in all_node_lists(proto) for n in nodes_of_graph]
    kinds = {n.op_type for n in nodes}
    proto, layout_notes = (proto, ()) if kinds.isdisjoint(RECURRENT) else without_layout(proto)
    proto = without_default_locale(proto) if "StringNormalizer" in kinds else proto
    try:
        proto = without_sparse(proto) if _is_sparse(proto, nodes) else proto
        _check(proto, path)
        loaded = ir.from_proto(proto)
    except (onnx.checker.ValidationError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise InvalidModelError(
            f"{name}: damaged or not valid ONNX: {_reason(error)}. Export it again."
        ) from error
    _check_trees(proto)
    served, older = _loadable(proto, name)
    loaded = loaded if served is proto else ir.from_proto(served)
    return Loaded(loaded, served, digest, (*replaced, *layout_notes, *older))


def _path(model: object) -> Path:
    if isinstance(model, str | os.PathLike):
        return Path(model)
    raise InvalidModelError(f"{type(model).__name__} is not a model: give a path or an onnx.ModelProto.")


def _from_proto(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    digest = hashlib.sha256()
    if _weight_bytes(proto) < LARGE:
        digest.update(proto.SerializeToString(deterministic=True))
    else:  # more than protobuf can serialise in one piece
        for message in (*proto.graph.node, *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
            digest.update(message.SerializeToString(deterministic=True))
    return proto, digest.hexdigest()


def _from_file(path: Path) -> tuple[onnx.ModelProto, str]:
    try:
        content = path.read_bytes()
        proto = onnx.load_model_from_string(content)
        external = [t for t in _tensors(proto.graph) if t.data_location == onnx.TensorProto.EXTERNAL]
        onnx.load_external_data_for_model(proto, str(path.parent))
    except DecodeError as error:
        raise InvalidModelError(
            f"{path}: not an ONNX model, or a truncated one ({len(content)} bytes). Export or copy it again."
        ) from error
    except (onnx.checker.ValidationError, ValueError) as error:
        raise InvalidModelError(
            f"{path}: its external data cannot be read: {_reason(error)}. Copy the complete data file into "
            "the model's folder, under its original name."
        ) from error
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    digest = hashlib.sha256(content)
    for tensor in external:
        digest.update(tensor.raw_data)
    return proto, digest.hexdigest()


def _is_sparse(proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> bool:
    """Tell whether initializers or constants are sparse, including those in subgraphs of `nodes`."""
    attributes = [a for node in nodes for a in node.attribute]
    graphs = [proto.graph, *(graph for a in attributes for graph in (a.g, *a.graphs))]
    return any(g.sparse_initializer for g in graphs) or any(a.name == "sparse_value" for a in attributes)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that may lie in a file of its own, including subgraphs."""
    yield from graph.initializer
    for _, attribute in _attributes(graph):
        yield from (attribute.t, *attribute.tensors)
        for inner in (attribute.g, *attribute.graphs):
            yield from inner.initializer


def _attributes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, onnx.AttributeProto]]:
    """Yield every node with each of its attributes, including subgraphs."""
    return ((node, a) for nodes in node_lists(graph.node) for node in nodes for a in node.attribute)


def _weight_bytes(proto: onnx.ModelProto) -> int:
    return sum(len(t.raw_data) for t in proto.graph.initializer)


def _reason(error: BaseException) -> str:
    """Return the first cause, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(_RUNTIME_PREFIX.sub("", str(error)).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} …"


def _check_opsets(proto: onnx.ModelProto, name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    imports = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    versions = list(dict.fromkeys(imports))  # skl2onnx writes an entry twice
    if len(versions) > 1:
        raise InvalidModelError(
            f"{name}: imports the opset of ai.onnx twice, as {versions}. Export it again."
        )
    for version in versions:
        if not 1 <= version <= newest:
            raise InvalidModelError(
                f"{name}: opset {version} is not known; the installed onnx {onnx.__version__} knows 1 to "
                f"{newest}. Export with an opset in that range or install a newer onnx."
            )


def _check_text(proto: onnx.ModelProto, name: str) -> None:
    """Refuse a name that is not UTF-8: it is read without an error, but cannot be written."""
    undecoded = next((text for text in _texts(proto) if not isinstance(text, str)), None)
    if undecoded is not None:
        raise InvalidModelError(f"{name}: damaged: {undecoded!r} is not UTF-8 text. Export or copy it again.")


def _texts(message: Message) -> Iterator[str | bytes]:
    """Yield every name and comment; bytes if protobuf found no UTF-8."""
    if isinstance(message, onnx.TensorProto):  # a list of its fields would copy its numbers
        yield from (message.name, message.doc_string)
        return
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            yield from [value] if isinstance(value, str | bytes) else value
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in [value] if isinstance(value, Message) else value:
                yield from _texts(item)


def _check_values(proto: onnx.ModelProto, name: str) -> None:
    """Refuse values that the checker accepts or reports unclearly."""
    for edge, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for i, value in enumerate(values):
            if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
                kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
                infer = "" if edge == "input" else "add it by onnx.shape_inference.infer_shapes, "
                raise InvalidModelError(
                    f"{name}: {edge} {value.name!r} has no shape. Export the model with shapes, {infer}or "
                    f"write it in, with the lengths of a row after 'N': model.graph.{edge}[{i}].CopyFrom("
                    f"onnx.helper.make_tensor_value_info({value.name!r}, onnx.TensorProto.{kind}, ['N', …]))."
                )
    outputs = [v.name for v in proto.graph.output]
    repeated = sorted({o for o in outputs if outputs.count(o) > 1})
    if repeated:
        raise InvalidModelError(f"{name}: outputs {repeated} are listed twice. Export it again.")
    for node, attribute in _attributes(proto.graph):
        if attribute.ref_attr_name:
            raise InvalidModelError(
                f"{name}: {node.op_type} node {node.name!r} takes its {attribute.name} from a function's "
                f"attribute {attribute.ref_attr_name!r}, but lies outside of any function. Export it again."
            )


def _check(proto: onnx.ModelProto, path: Path | None) -> None:
    with _own_domains(proto) as has_moved:
        if _weight_bytes(proto) < LARGE:
            onnx.checker.check_model(proto)
        elif path is not None and not has_moved:
            onnx.checker.check_model(str(path))


@contextmanager
def _own_domains(proto: onnx.ModelProto) -> Iterator[bool]:
    """Move ONNX Runtime's operators in ONNX's own domain to Microsoft's until exit; yield True if any."""
    version = next((e.version for e in proto.opset_import if e.domain in ("", "ai.onnx")), OPSET)
    nodes = [n for n in proto.graph.node if _is_under_onnx(n, version)]
    added = bool(nodes) and DOMAIN not in {entry.domain for entry in proto.opset_import}
    for node in nodes:
        node.domain = DOMAIN
    if added:
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    try:
        yield bool(nodes)
    finally:
        for node in nodes:
            node.domain = ""
        if added:
            del proto.opset_import[-1]


def _check_trees(proto: onnx.ModelProto) -> None:
    """Refuse trees that ONNX Runtime accepts, reports unclearly, or crashes on."""
    for node in proto.graph.node:
        if node.domain == _CLASSICAL and is_ensemble(node.op_type, node.domain):
            with suppress(UnsupportedModelError):  # the trees are sound; other faults are reported later
                read_ensemble(node)


def _loadable(proto: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model in a form that ONNX Runtime, which serves it, can load, and the changes made.

    An unknown operator is accepted: the compiler lists it with all others without a rule. So is an operator
    that has only GPU kernels and that the compiler rewrites.
    """
    run = partial(Runner, optimise=False, threads=1, users_model=True)
    try:
        run(proto)
    except InvalidModelError as error:
        fault = error
    else:
        return proto, ()
    try:
        return known_to_runtime(proto, fault, run)
    except InvalidModelError as error:
        missing = _NO_KERNEL.search(str(error))
        if _UNKNOWN_OPERATOR in str(error) or (missing and missing[1] in WITHOUT_CPU_KERNEL):
            return proto, ()
        advice = "Export it again, or repair the named part."
        if "bfloat16" in str(error):
            advice = "Many operators take bfloat16 since opset 22: export with opset_version=22."
        reason = locale_advice(_reason(error)) or f"{_reason(error)}. {advice}"
        raise InvalidModelError(f"{name}: ONNX Runtime cannot load it: {reason}") from error


def without_zip_maps(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Replace skl2onnx's lists of dictionaries by tensors of probabilities, under the same names.

    No tensor protocol can carry a ZipMap's output: neither Triton nor this gateway could serve it.
    """
    zips = [node for node in proto.graph.node if node.op_type == "ZipMap" and node.domain == "ai.onnx.ml"]
    if not zips:
        return proto, ()
    changed = deepcopy(proto)
    outputs = {v.name: v for v in changed.graph.output}
    warnings = []
    for node in changed.graph.node:
        if node.op_type != "ZipMap" or node.domain != "ai.onnx.ml" or len(node.output) != 1:
            continue
        labels = sum(len(a.ints) + len(a.strings) for a in node.attribute if a.name.startswith("classlabels"))
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        if node.output[0] in outputs:
            end = outputs[node.output[0]]
            number = end.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type
            value = helper.make_tensor_value_info(
                node.output[0], number or onnx.TensorProto.FLOAT, ["N", labels]
            )
            end.CopyFrom(value)
            warnings.append(
                f"output {node.output[0]!r} is a ZipMap (dictionaries), which no server can return; "
                f"the entries return its tensor [N, {labels}] under that name"
            )
    return changed, tuple(warnings)


def standardise(model: ir.Model) -> ir.Model:
    """Return a copy of the model in the form that the compiler reads.

    Functions without a rule are inlined, weights are initializers only, and the opset is the compiler's.

    Raises:
        UnsupportedModelError: if the opset cannot be converted.
    """
    model = model.clone()
    if "ai.onnx" in model.graph.opset_imports:  # the default domain's other name
        model.graph.opset_imports[""] = model.graph.opset_imports.pop("ai.onnx")
    for node in model.graph.all_nodes():
        if _is_under_onnx(node, _opset(model)):
            node.domain = DOMAIN
            model.graph.opset_imports.setdefault(DOMAIN, 1)
    model.graph.opset_imports.setdefault("", OPSET)  # the graph of a single tree ensemble imports none
    for step in (
        passes.RemoveInitializersFromInputsPass(),
        passes.InlinePass(lambda function: find_rule(function.name, function.domain) is None),
        passes.RemoveUnusedFunctionsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.RemoveUnusedNodesPass(),
    ):
        model = step(model).model
    if next(model.graph.subgraphs(), None) is None:
        remove_identities(model)  # the pass may leave branches with outputs that are not their own
    _convert_opset(model)
    _convert_classical(model)
    model.ir_version = max(model.ir_version, IR_VERSION) if _opset(model) > OPSET else IR_VERSION
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def demand_no_draws(model: ir.Model) -> None:
    """Raise UnsupportedModelError if the model's outputs are random."""
    drawn = [node for node in model.graph.all_nodes() if not node.domain and _draws(node)]
    if drawn:
        named = ", ".join(f"{node.op_type} node {node.name or node.outputs[0].name!r}" for node in drawn[:5])
        verb, more = "draws" if len(drawn) == 1 else "draw", f" and {len(drawn) - 5} more" * (len(drawn) > 5)
        raise UnsupportedModelError(
            f"{named}{more} {verb} random numbers: the model answers the same row differently each time, so "
            "no answer has an explanation. Export it in evaluation mode (model.eval()), or make the random "
            "numbers an input of the model."
        )


def _draws(node: ir.Node) -> bool:
    """Tell whether a node is random; a Dropout is, unless it is known not to be in training mode."""
    training = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    if training is None:
        return node.op_type in RANDOM
    return training.const_value is None or bool(training.const_value.numpy())


def _opset(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", OPSET)


def _convert_classical(model: ir.Model) -> None:
    """Convert classical operators to the version whose shapes ONNX infers, but for an old LabelEncoder."""
    version = model.graph.opset_imports.get(_CLASSICAL, _CLASSICAL_OPSET)
    first = version == 1 and any(node.op_type == "LabelEncoder" for node in model.graph.all_nodes())
    if version < _CLASSICAL_OPSET and not first:
        model.graph.opset_imports[_CLASSICAL] = _CLASSICAL_OPSET


def _convert_opset(model: ir.Model) -> None:
    """Convert to OPSET, or leave the model above it if one of its operators is newer."""
    version = _opset(model)
    if version == OPSET:
        return
    if version == 8 and scan_by_row(model):
        model.graph.opset_imports[""] = version = 9
    if all(
        _since(node, version) == _since(node, OPSET) for node in model.graph.all_nodes() if not node.domain
    ):
        model.graph.opset_imports[""] = OPSET
        for node in model.graph.all_nodes():
            node.version = None
        return
    if version > OPSET:
        return
    from onnxscript.version_converter import (
        ConvertVersionPass,
    )  # here: it is a quarter of a compile's imports

    with _quiet("onnxscript.version_converter"):
        ConvertVersionPass(OPSET, fallback=True)(model)
    if version < _RESIZE_HAS_MODES:
        _keep_corners(model)
    if _opset(model) != OPSET:
        raise UnsupportedModelError(
            f"opset {version} cannot be converted to {OPSET}. Export the model with opset {OPSET}, "
            "or convert it with onnx.version_converter and look at its error."
        )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a library that logs each step as a warning and a failure with its traceback.

    The compiler's own error says what to do.
    """
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _keep_corners(model: ir.Model) -> None:
    """Let each value of an Upsample, or a Resize without modes, begin at its pixel's corner.

    The converter gives the Resize that replaces them the new default instead.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "Resize" and not node.domain:
            for name, value in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
                node.attributes[name] = ir.AttrString(name, value)


def _is_under_onnx(node: ir.Node | onnx.NodeProto, version: int) -> bool:
    """Tell whether only ONNX Runtime knows the operator in that opset."""
    return not node.domain and node.op_type in UNDER_ONNX and _since(node, version) is None


def _since(node: ir.Node | onnx.NodeProto, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(node.op_type, version, "").since_version)
    except onnx.defs.SchemaError:
        return None
