"""The run of float64 graphs, for which ONNX Runtime lacks kernels, by ONNX's evaluator or another."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rationale.errors import InvalidModelError
from rationale.graph.runtime.session import ModelFile

Rows = dict[str, np.ndarray]
_FAULTS = (RuntimeError, ValueError, IndexError)  # such as a number of rows that a model does not allow
_RUNNERS = (
    "graph.nodes",
    "graph.memory.scan",
    "artifact.checks.measure",
    "artifact.checks.check",
    "lowering.batch",
)


class RunModel(Protocol):
    """A function that runs a model: it returns all outputs, or those named, by name."""

    def __call__(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str] | None = None,
        /,
    ) -> Rows: ...


def by_onnx(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None, /
) -> Rows:
    """Run a model in ONNX's reference evaluator, in the model's own number types."""
    evaluator = ReferenceEvaluator(_with_defaults(model), new_ops=[Erf])
    names = list(outputs or evaluator.output_names)
    with np.errstate(all="ignore"):  # infinities are part of a graph's arithmetic
        return dict(zip(names, evaluator.run(names, dict(inputs)), strict=True))


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write functions' default attributes into their calls: ONNX's evaluator ignores them."""
    if not model.functions:
        return model
    full = onnx.ModelProto()
    full.CopyFrom(model)
    defaults = {(f.domain, f.name): f.attribute_proto for f in full.functions}
    for node in (*full.graph.node, *(n for f in full.functions for n in f.node)):
        names = {a.name for a in node.attribute}
        attributes = defaults.get((node.domain, node.op_type), ())
        node.attribute.extend(a for a in attributes if a.name not in names)
    return full


class Erf(OpRun):
    """An exact float64 Erf; the evaluator's own is accurate to 3e-8."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class _Runner:
    """The interface of `rationale.graph.runtime.session.Runner` on another engine."""

    def __init__(self, run: RunModel, model: Any, **_: Any) -> None:
        loaded = model.load() if isinstance(model, ModelFile) else model
        self.run = run
        self.model = loaded if isinstance(loaded, onnx.ModelProto) else ir.serde.serialize_model(loaded)

    def __call__(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> Rows:
        try:
            return self.run(self.model, inputs, outputs)
        except _FAULTS as error:
            raise InvalidModelError(f"the interpreter cannot run the model: {error}") from error


@contextmanager
def computing_by(run: RunModel) -> Iterator[None]:
    """Fold constants and check graphs by `run`, without timing, since its seconds mean nothing."""
    with ExitStack() as stack:
        for module in _RUNNERS:
            stack.enter_context(patch(f"rationale.{module}.Runner", partial(_Runner, run)))
        for limit in ("LATENCY_SECONDS", "BATCH_SECONDS"):
            stack.enter_context(patch(f"rationale.artifact.checks.measure.{limit}", 0.0))
        yield
