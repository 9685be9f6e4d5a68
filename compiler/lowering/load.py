"""Reading an ONNX file with distrust, and bringing it to the opset that is emitted."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.message import DecodeError
from onnxscript.version_converter import ConvertVersionPass

from compiler.errors import InvalidModelError, UnsupportedModelError

OPSET = 21  # every ONNX Runtime since 1.18, every Triton since 24.05
IR_VERSION = 10
DOMAINS = frozenset({"", "ai.onnx.ml"})


@dataclass(frozen=True)
class Loaded:
    model: ir.Model
    proto: onnx.ModelProto
    digest: str


def load(model: str | Path | onnx.ModelProto) -> Loaded:
    """Reads and checks a model.

    Raises:
        InvalidModelError: no ONNX model, truncated, inconsistent, or an opset that is not known.
    """
    proto, digest = _from_proto(model) if isinstance(model, onnx.ModelProto) else _from_file(Path(model))
    name = "the model" if isinstance(model, onnx.ModelProto) else str(model)
    if not proto.graph.output or not proto.opset_import:
        raise InvalidModelError(
            f"{name}: not an ONNX model (it has no outputs or no opset). Export it again."
        )
    _check_opsets(proto, name)
    try:
        onnx.checker.check_model(proto)
        return Loaded(ir.from_proto(proto), proto, digest)
    except (onnx.checker.ValidationError, ValueError, TypeError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidModelError(f"{name}: damaged or not valid ONNX: {reason}. Export it again.") from error


def _from_proto(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    return proto, hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def _from_file(path: Path) -> tuple[onnx.ModelProto, str]:
    try:
        content = path.read_bytes()
        proto = onnx.load_model_from_string(content)
        onnx.load_external_data_for_model(proto, str(path.parent))
    except DecodeError as error:
        raise InvalidModelError(
            f"{path}: not an ONNX model, or a truncated one ({len(content)} bytes). Export or copy it again."
        ) from error
    except (onnx.checker.ValidationError, ValueError) as error:
        raise InvalidModelError(f"{path}: its external data cannot be read: {error}") from error
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    return proto, hashlib.sha256(content).hexdigest()


def _check_opsets(proto: onnx.ModelProto, name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            raise InvalidModelError(
                f"{name}: opset {entry.version} is not known; the installed onnx {onnx.__version__} knows 1 to "
                f"{newest}. Export with an opset in that range or install a newer onnx."
            )


def standardise(model: ir.Model) -> ir.Model:
    """A copy with functions inlined, weights as initializers only, and the opset that is emitted.

    Raises:
        UnsupportedModelError: the opset cannot be converted.
    """
    model = model.clone()
    for step in (
        passes.RemoveInitializersFromInputsPass(),
        passes.InlinePass(),
        passes.RemoveUnusedFunctionsPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
    ):
        model = step(model).model
    _convert_opset(model)
    model.ir_version = max(model.ir_version, IR_VERSION) if _opset(model) > OPSET else IR_VERSION
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def _opset(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", OPSET)


def _convert_opset(model: ir.Model) -> None:
    """To OPSET, or left above it where an operator is newer than that."""
    version = _opset(model)
    if version == OPSET:
        return
    if all(
        _since(node, version) == _since(node, OPSET) for node in model.graph.all_nodes() if not node.domain
    ):
        model.graph.opset_imports[""] = OPSET
        for node in model.graph.all_nodes():
            node.version = None
        return
    if version > OPSET:
        return
    ConvertVersionPass(OPSET, fallback=True)(model)
    if _opset(model) != OPSET:
        raise UnsupportedModelError(
            f"opset {version} cannot be converted to {OPSET}. Export the model with opset {OPSET}, "
            "or convert it with onnx.version_converter and look at its error."
        )


def _since(node: ir.Node, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(node.op_type, version, "").since_version)
    except onnx.defs.SchemaError:
        return None
