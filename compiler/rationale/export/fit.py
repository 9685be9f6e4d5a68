"""Requirements of a page: a small entry, a table's features as inputs, standard operators."""

import math
from collections.abc import Iterator
from pathlib import Path

import onnx

from rationale.errors import UnsupportedModelError
from rationale.export.web import WebRuntime
from rationale.schema.manifest import Manifest

MOST_BYTES = 32 << 20  # largest graph: people send pages by mail
MOST_FEATURES = 200  # more than this nobody fills in
_MOST_MEMORY = 1 << 30  # WebAssembly can address 4 GiB
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")  # domains with kernels in the runtime for browsers
TYPES = {  # types that a page can create, in the spelling of the runtime's JavaScript
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
}


def check_size(explain: Path) -> None:
    """Raise UnsupportedModelError if an entry's files are too large for a page, before reading them."""
    size = sum(file.stat().st_size for file in (explain / "1").glob("*") if file.is_file())
    if size > MOST_BYTES:
        raise UnsupportedModelError(
            f"{explain}: its graph takes {size / 2**20:.0f} MiB, and a page can contain at most "
            f"{MOST_BYTES >> 20} MiB. Compile it with fewer references (rationale references), or use "
            "rationale serve."
        )


def check_fits(name: str, manifest: Manifest, model: onnx.ModelProto, runtime: WebRuntime) -> None:
    """Raise UnsupportedModelError if an entry cannot be a page; the error lists all faults."""
    faults = list(_faults(manifest, model, runtime))
    if faults:
        listed = faults[0] if len(faults) == 1 else " ".join(f"({i}) {f}." for i, f in enumerate(faults, 1))
        raise UnsupportedModelError(f"{name}: cannot be a page: {listed.rstrip('.')}.")


def _faults(manifest: Manifest, model: onnx.ModelProto, runtime: WebRuntime) -> Iterator[str]:
    yield from _input_faults(manifest)
    defined = {function.domain for function in model.functions}
    domains = sorted({node.domain for node in model.graph.node} - {*_DOMAINS} - defined)
    if domains or manifest.custom_ops:
        requirement = f"operators of {', '.join(domains)}" if domains else "a library of kernels"
        yield f"it needs {requirement}, which no browser has: rationale serve answers with them"
    if manifest.memory.needed > _MOST_MEMORY:
        yield (
            f"it needs {manifest.memory.needed >> 20} MiB of memory, and a page has {_MOST_MEMORY >> 20}: "
            "compile it with fewer references, or with --memory-budget 500MB"
        )
    least = manifest.least_onnxruntime
    if least[0].isdigit() and runtime.release < tuple(map(int, least.split("."))):
        yield f"its graph needs onnxruntime-web {least}, and this is {runtime.version}: take a newer one"
    hidden = manifest.decision.profile.never_disclose if manifest.decision else ()
    if hidden:
        yield (
            f"its decision profile says never to disclose {', '.join(hidden)}, and a page names and explains "
            "every feature. For readers who may see them, compile an entry without --decision"
        )


def _input_faults(manifest: Manifest) -> Iterator[str]:
    if manifest.open_references is not None:
        yield "its references come with each request: compile an entry that holds some (--references)"
    if manifest.open_length is not None or any(-1 in spec.shape for spec in manifest.inputs):
        yield "its rows have an open length: compile an entry with --size"
    words = [e.tensor.name for e in manifest.explained if e.at]
    shaped = [spec.name for spec in manifest.inputs if sum(size != 1 for size in spec.shape) > 1]
    if words or shaped:
        yield (
            f"{', '.join([*words, *shaped])} holds tokens, or is an image or another array, and a page has "
            "fields for the features of a table: rationale explain --html page.html draws such rows"
        )
    elif sum(math.prod(spec.shape) for spec in manifest.inputs) > MOST_FEATURES:
        yield (
            f"it has more than {MOST_FEATURES} features, too many to fill in: draw its rows instead "
            "(rationale explain --html page.html)"
        )
    strange = sorted({spec.datatype for spec in manifest.inputs if spec.datatype not in TYPES})
    if strange:
        yield (
            f"its inputs hold {', '.join(strange)}, a type that JavaScript lacks: let the model take FP32 "
            "and cast it"
        )
    inner = [e.tensor.name for e in manifest.explained if e.tensor not in manifest.inputs]
    if inner and not words:
        yield f"{', '.join(inner)} is explained, but is not an input: compile it without --input"
