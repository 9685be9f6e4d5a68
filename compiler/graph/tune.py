"""Timing forms on this machine: each in a graph of its own, all in turn, medians."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.graph.variants import Form
from compiler.runtime.session import Runner

BATCHES = 12
SECONDS = 0.5  # for each form at most, and once at least


def time_forms(
    op: Ops, forms: Sequence[Form], operands: Sequence[Tensor], geometry: Any
) -> Mapping[str, float]:
    """Median seconds of each form, by name, for one row of the batch; the forms take turns."""
    runners = {
        form.name: Runner(trial(op, form, operands, geometry), threads=op.forms.deployment.cores)
        for form in forms
    }
    inputs = _rows(op, operands)
    taken: dict[str, list[float]] = {form.name: [] for form in forms}
    for runner in runners.values():
        runner(inputs)
    start = time.perf_counter()
    while all(len(times) < BATCHES for times in taken.values()):
        for name, runner in runners.items():
            begin = time.perf_counter()
            runner(inputs)
            taken[name].append(time.perf_counter() - begin)
        if time.perf_counter() - start > SECONDS * len(forms):
            break
    return {name: float(np.median(times)) for name, times in taken.items()}


def trial(op: Ops, form: Form, operands: Sequence[Tensor], geometry: Any) -> ir.Model:
    """A model of one form alone: what varies over the batch is its input, everything else a constant."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": op.opset}, name="trial")
    scratch = Ops(graph, op.opset, op.sizes, op.dtype, op.forms)
    stand_ins = []
    for i, tensor in enumerate(operands):
        if "N" not in tensor.lead:
            held = scratch.constant(_constant(op, tensor))
            stand_ins.append(replace(held, shape=tensor.shape, lead=tensor.lead, rows=tensor.rows))
            continue
        value = ir.Value(
            name=f"operand_{i}", type=ir.TensorType(tensor.dtype), shape=ir.Shape([None, *tensor.shape[1:]])
        )
        graph.inputs.append(value)
        stand_ins.append(Tensor(value, tensor.shape, tensor.dtype, tensor.lead, rows=True))
        rows = prod(op.sizes[a] for a in tensor.lead - {"N"}) * tensor.shape[0]
        scratch.bind_batch(replace(stand_ins[-1], shape=(rows, *tensor.shape[1:])))
    result = scratch.flat(form.emit(scratch, *stand_ins, geometry))
    result.value.dtype = result.dtype
    graph.outputs.append(result.value)
    return ir.Model(graph, ir_version=10)


def _rows(op: Ops, operands: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Random numbers for the operands that vary over the batch, at a batch of one; zeros for indices."""
    varying = {f"operand_{i}": tensor for i, tensor in enumerate(operands) if "N" in tensor.lead}
    return {name: _random(op, tensor) for name, tensor in varying.items()}


def _constant(op: Ops, tensor: Tensor) -> np.ndarray:
    """Its own numbers where they are known, random ones where they are still to be computed."""
    return tensor.constant if tensor.constant is not None else _random(op, tensor)


def _random(op: Ops, tensor: Tensor) -> np.ndarray:
    count = prod(op.sizes[a] for a in tensor.lead - {"N"}) * (tensor.shape[0] if tensor.shape else 1)
    shape, dtype = (count, *tensor.shape[1:]) if tensor.shape else (), tensor.dtype.numpy()
    draw = np.random.default_rng(0).standard_normal(shape)
    return np.asarray(draw if tensor.dtype.is_floating_point() else 0 * draw, dtype)
