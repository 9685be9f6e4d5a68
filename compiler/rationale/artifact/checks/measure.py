"""The measurements of every compile: the combined graph beside the model, on a few rows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from rationale.artifact.checks.probes import NEAR
from rationale.errors import CheckFailedError, InvalidModelError, UnsupportedModelError
from rationale.graph.runtime.session import (
    Run,
    Runner,
    SerializedGraph,
    count_nodes,
    model_bytes,
    outline,
    threads_of_few_runs,
    with_open_gate,
)
from rationale.lowering.precision import on_cpu
from rationale.methods.outputs import BASE_VALUE, EXPLAINED_VALUE, GAP, GAP_ERROR
from rationale.schema.machine import MAX_BATCH
from rationale.schema.manifest import Measurements, is_float

OUTPUTS_LIMIT = 1e-4  # relative to the largest value: far above float32's noise, far below a wrong graph
GAP_LIMIT = 1e-2  # relative to the largest explained − base
OUTPUT_ROUNDINGS = 8  # the model's own: of half-precision inputs and outputs, or of another order
ROWS_LIMIT = 1e-3  # a batch against its rows alone; float32 sums in another order differ by about 1e-6
GAP_NOISE = 32  # roundings of the output: the means and sums that form the gap; 9 where a Softmax is full
DRAWS = 3  # copies with weights rounded otherwise: one alone may answer alike by chance
BATCH_SECONDS = 1.0  # limit for a request of the largest batch
PROPORTIONAL_SECONDS = 0.1  # from a batch that takes as long, the time of larger ones follows in proportion
LATENCY_RUNS, LATENCY_SECONDS = 5, 2.0  # number of runs, and the total time after which they stop

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Measurement:
    """The measurements, with both models loaded.

    Attributes:
        answers: the combined graph's answers to the probe rows, by name of the output.
        run: the loaded combined graph, which explains every row.
        original: the loaded model, which takes its own inputs alone.
    """

    measured: Measurements
    answers: dict[str, np.ndarray]
    run: Run
    original: Run


def measure(
    source: onnx.ModelProto,
    combined: SerializedGraph,
    attributions: Sequence[str],
    probes: Arrays,
    most: int = MAX_BATCH,
    run: Run | None = None,
) -> Measurement:
    """Run the combined graph and the original, on the probe rows together and one by one.

    Args:
        attributions: names of the attribution outputs.
        probes: [rows, …] for each input.
        most: largest batch within the memory budget; if smaller than the probe rows, each row runs alone.
        run: the combined graph in another runtime than ONNX Runtime, which still runs the original.

    Raises:
        InvalidModelError: if ONNX Runtime does not run the original.
        UnsupportedModelError: if the original model itself mixes the rows of a batch.
        CheckFailedError: if it has no finite answer on any probe row, or the combined graph does not run.
    """
    model = ir.from_proto(source)
    comparable, halves = on_cpu(model)
    graph = outline(combined)
    rows = max(len(p) for p in probes.values() if p.ndim)
    inputs = {v.name: probes[v.name] for v in source.graph.input if v.name in probes}
    original, outputs = _run_original(source if comparable is model else comparable, inputs)
    runner = with_open_gate(run or Runner(combined), graph)
    singles, latency_ms = _one_by_one(runner, probes, rows)
    answers = runner(probes) if most >= rows else _join_rows(singles)
    _demand_separate_rows(original, inputs, outputs, rows, halves.rounding)
    sound = _sound_rows(outputs, rows) if GAP in answers else np.ones(rows, bool)
    explained = {name: answers[name] for name in (*attributions, EXPLAINED_VALUE)}
    outputs_error, gap = _outputs_error(outputs, answers), _gap(answers, sound) if GAP in answers else None
    own_rounding = fused_integers = 0.0
    if outputs_error > OUTPUTS_LIMIT or (gap is not None and gap > GAP_LIMIT and GAP_ERROR not in answers):
        unfused = Runner(comparable, users_model=True, fuse_integers=False)(inputs)
        own_rounding, fused_integers = (
            _own_rounding(comparable, inputs, unfused),
            _outputs_error(outputs, unfused),
        )
    measured = Measurements(
        rows=rows,
        outputs_error=outputs_error,
        rounding=halves.rounding,
        own_rounding=own_rounding,
        fused_integers=fused_integers,
        completeness_gap=gap,
        gap_of_a_row=_gap_of_a_row(answers, sound) if gap else None,
        gap_rounding=_gap_rounding(answers, sound, max(own_rounding - halves.rounding, fused_integers))
        if gap
        else 0.0,
        gap_in_standard_errors=_gap_in_errors(answers, sound) if GAP_ERROR in answers else None,
        rows_error=_batch_error(singles, explained) if most >= rows else None,
        nodes=count_nodes(graph),
        model_bytes=model_bytes(graph),
        latency_ms=latency_ms,
        max_batch=_max_batch(runner, probes, latency_ms / 1e3, most),
    )
    return Measurement(measured, answers, runner, original)


def _run_original(model: onnx.ModelProto | ir.Model, probes: Arrays) -> tuple[Runner, dict[str, np.ndarray]]:
    """Run the model as ONNX Runtime optimises it; return it with its answers.

    Raises:
        InvalidModelError: if it does not run; the text says whether the optimisation is at fault.
    """
    try:
        original = Runner(model, threads=threads_of_few_runs(model), users_model=True)
        return original, original(probes)
    except InvalidModelError as error:
        Runner(model, optimise=False, users_model=True)(probes)
        raise InvalidModelError(
            f"{error}. ONNX Runtime {ort.__version__} runs the model without graph optimisations, so one "
            "of the optimisations breaks it, here and on a server. Try another version of ONNX Runtime, "
            "or export the model with other operators or Transposes around the named node."
        ) from error


def storage_error(exact: Runner, checked: Measurement, attributions: Sequence[str], probes: Arrays) -> float:
    """Return the largest error of attributions through float16, over the largest attribution without it."""
    answers = _join_rows([exact(_row(probes, i)) for i in range(checked.measured.rows)])
    return max(relative_error(checked.answers[name], answers[name]) for name in attributions)


def _one_by_one(runner: Run, probes: Arrays, rows: int) -> tuple[list[dict[str, np.ndarray]], float]:
    """Return the answers to each row alone, and the median milliseconds of a row.

    Slow graphs run no row twice.
    """
    answers, times = [], []
    for i in range(rows):
        start = time.perf_counter()
        answers.append(runner(_row(probes, i)))
        times.append(time.perf_counter() - start)
    if sum(times) < LATENCY_SECONDS:  # the first runs of a graph are not its typical ones
        times = []
        for _ in range(LATENCY_RUNS):
            start = time.perf_counter()
            runner(_row(probes, 0))
            times.append(time.perf_counter() - start)
    return answers, float(np.median(times) * 1e3)


def _join_rows(singles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the answers to single rows to a batch's; one without rows (a ZipMap's list) is the first row's."""
    return {
        name: np.concatenate([s[name] for s in singles])
        if isinstance(value, np.ndarray) and value.ndim
        else value
        for name, value in singles[0].items()
    }


def _batch_error(singles: Sequence[Arrays], answers: Arrays) -> float:
    return max(
        relative_error(single[name], value[i : i + 1], value)
        for i, single in enumerate(singles)
        for name, value in answers.items()
    )


def _max_batch(runner: Run, probes: Arrays, seconds: float, most: int) -> int:
    """Return the largest batch, a power of two, that fits in memory and answers within BATCH_SECONDS."""
    batch = 1
    while 2 * batch <= most and 2 * seconds <= BATCH_SECONDS:
        if seconds < PROPORTIONAL_SECONDS:
            seconds = _seconds_of_run(runner, probes, 2 * batch)
            if seconds > BATCH_SECONDS:
                break
        else:
            seconds *= 2
        batch *= 2
    return batch


def _seconds_of_run(runner: Run, probes: Arrays, count: int) -> float:
    """Return the seconds of one run of `count` rows."""
    rows = {name: np.resize(p, (count, *p.shape[1:])) if p.ndim else p for name, p in probes.items()}
    start = time.perf_counter()
    runner(rows)
    return time.perf_counter() - start


def _row(probes: Arrays, i: int) -> dict[str, np.ndarray]:
    return {name: rows[i : i + 1] if rows.ndim else rows for name, rows in probes.items()}


def relative_error(a: np.ndarray, b: np.ndarray, scale_of: np.ndarray | None = None) -> float:
    """Return the largest |a − b| over the largest |b| (or |scale_of|); infinite if one alone is finite."""
    if b.dtype.kind not in "iub" and not is_float(b.dtype):
        return 0.0 if np.array_equal(a, b) else float("inf")
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    reference = b if scale_of is None else np.asarray(scale_of, np.float64)
    scale = np.abs(reference[np.isfinite(reference)]).max(initial=0.0) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / scale)


def _outputs_error(original: Arrays, combined: Arrays) -> float:
    tensors = {name: value for name, value in original.items() if isinstance(value, np.ndarray)}
    return max((relative_error(combined[name], value) for name, value in tensors.items()), default=0.0)


def _own_rounding(original: ir.Model, probes: Arrays, outputs: Arrays) -> float:
    """Return the model's own rounding: how far its outputs differ if ONNX Runtime computes them otherwise.

    ONNX Runtime then computes in another order, unfused, or with weights rounded otherwise. If one value
    follows from many that almost cancel, more than float32's rounding is lost.

    Args:
        outputs: the outputs of the model without layers on whole numbers, which round by design.
    """
    other = [_rounded_otherwise(original, seed) for seed in range(DRAWS)]
    answers = [Runner(model, users_model=True, fuse_integers=False)(probes) for model in other]
    answers.append(Runner(original, optimise=False, users_model=True)(probes))
    errors = [_outputs_error(outputs, other) for other in answers]
    return max((error for error in errors if np.isfinite(error)), default=0.0)


def _rounded_otherwise(model: ir.Model, seed: int) -> ir.Model:
    """Return a copy in which each weight of a product is itself or a neighbour among its type's numbers."""
    copy, random = model.clone(), np.random.default_rng(seed)
    products = [node for node in copy.graph.all_nodes() if node.op_type in _PRODUCTS]
    for value in dict.fromkeys(v for node in products for v in node.inputs if v is not None):
        array = None if value.const_value is None else value.const_value.numpy()
        if array is not None and is_float(array.dtype):
            ends = [array.dtype.type(-np.inf), array, array.dtype.type(np.inf)]
            towards = np.choose(random.integers(0, 3, array.shape), ends)
            value.const_value = ir.Tensor(np.nextafter(array, towards), name=value.name)
    return copy


def _demand_separate_rows(
    original: Runner, probes: Arrays, outputs: Arrays, rows: int, rounding: float
) -> None:
    tensors = {n: v for n, v in outputs.items() if isinstance(v, np.ndarray) and is_float(v.dtype)}
    batched = {n: v for n, v in tensors.items() if v.ndim and len(v) == rows}
    singles = [original(_row(probes, i), list(batched)) for i in range(rows) if batched]
    batched = {n: v for n, v in batched.items() if len(singles[0][n]) == 1}  # no loop's lists
    error = _batch_error(singles, batched) if batched else 0.0
    if error > max(ROWS_LIMIT, OUTPUT_ROUNDINGS * rounding):
        raise UnsupportedModelError(
            "the model mixes the rows of a batch: its answers to a batch differ from its answers to "
            f"single rows ({error:.1e} of the largest value). So no explanation of a single row exists. "
            "Export the model in evaluation mode, with the batch on axis 0."
        )


def _sound_rows(outputs: Arrays, rows: int) -> np.ndarray:
    """Mark the rows to which the model has finite answers; a logarithm of a probe may not be finite."""
    sound = np.ones(rows, bool)
    for value in outputs.values():
        if isinstance(value, np.ndarray) and is_float(value.dtype) and value.shape[:1] == (rows,):
            sound &= np.isfinite(value.reshape(rows, -1)).all(axis=1)
    if not sound.any():
        raise CheckFailedError(
            "the model's answers to its references are not finite. Look for NaN or infinity in its "
            "weights, or for references outside the range of the training data."
        )
    return sound


def _gap(results: Arrays, sound: np.ndarray) -> float | None:
    """Return the larger of two gaps: on rows near the references, and on all rows, each over its difference.

    Rows near the references need a difference of their own: that of a row a unit away is too large for them.
    """
    about = sound & (np.arange(len(sound)) < NEAR)
    gaps = [gap for gap in (_gap_of(results, about), _gap_of(results, sound)) if gap is not None]
    return float(np.max(gaps)) if gaps else None


def _gap_of(results: Arrays, rows: np.ndarray) -> float | None:
    """Return the largest gap over the largest difference it should explain; 0 for the output's rounding.

    NaN if a gap is not finite, infinite if there is a gap but no difference to explain, and None if there
    is neither: a network that is constant near its references has a difference of a few roundings, on which
    complete and incomplete rules look alike.
    """
    gap, difference = results[GAP][rows].astype(np.float64), _difference(results, rows)
    if not np.isfinite(gap).all():
        return float("nan")
    noise = _noise(results, rows)
    largest = np.abs(gap).max(initial=0.0)
    if largest <= noise:
        return 0.0 if difference > noise else None
    return float(largest / difference) if difference else float("inf")


def _gap_of_a_row(results: Arrays, sound: np.ndarray) -> float | None:
    """Return the median over rows of |gap| over the row's own difference, the largest of all targets.

    Rows whose output and gap are both rounding do not count; None if no row counts.
    """
    gap = np.abs(results[GAP][sound].astype(np.float64))
    explained = results[EXPLAINED_VALUE][sound].astype(np.float64)
    base = results[BASE_VALUE][sound].astype(np.float64) if BASE_VALUE in results else 0.0
    difference, noise = np.abs(explained - base), _noise(results, sound)
    telling = np.maximum(gap, difference) > noise
    relative = np.divide(gap, difference, out=np.full_like(gap, np.inf), where=difference > 0)
    medians = [float(np.median(of[t])) for of, t in zip(relative.T, telling.T, strict=True) if t.any()]
    return max((m for m in medians if np.isfinite(m)), default=None)


def layer_gap(results: Arrays, attributions: str) -> float | None:
    """Return the gap of a layer on the way, from its attributions [N, T, …]; see `_gap`."""
    explained = results[EXPLAINED_VALUE].astype(np.float64)
    base = results[BASE_VALUE].astype(np.float64) if BASE_VALUE in results else 0.0
    layer = results[attributions].astype(np.float64)
    gap = explained - base - layer.reshape(*explained.shape, -1).sum(-1)
    return _gap({**results, GAP: gap.astype(results[GAP].dtype)}, np.isfinite(gap).all(axis=1))


def _difference(results: Arrays, sound: np.ndarray) -> float:
    """Return the largest |explained − base|."""
    explained = results[EXPLAINED_VALUE][sound].astype(np.float64)
    base = results[BASE_VALUE][sound].astype(np.float64) if BASE_VALUE in results else np.zeros(1)
    return float(np.abs(explained - base).max(initial=0.0))


def _gap_rounding(results: Arrays, sound: np.ndarray, rounding: float) -> float:
    """Return the outputs' relative rounding as a share of the difference that attributions add up to."""
    explained, difference = np.abs(results[EXPLAINED_VALUE][sound]), _difference(results, sound)
    return max(rounding, 0.0) * float(explained.max(initial=0)) / difference if difference else 0.0


def _noise(results: Arrays, sound: np.ndarray) -> float:
    """Return the gap that rounding alone may leave.

    A multiplier of almost 0 leaves √tiny if all values are 0.
    """
    explained = np.abs(results[EXPLAINED_VALUE][sound].astype(np.float64)).max(initial=0.0)
    info = np.finfo(results[GAP].dtype)
    return float(GAP_NOISE * info.eps * explained + np.sqrt(info.tiny))


def _gap_in_errors(results: Arrays, sound: np.ndarray) -> float:
    """Return the largest gap in standard errors of its own; rounding counts as none."""
    gap, error = (np.abs(results[name][sound].astype(np.float64)) for name in (GAP, GAP_ERROR))
    noise = _noise(results, sound)
    excess = np.maximum(gap - noise, 0)
    return float((excess / np.where(excess > 0, np.maximum(error, noise), 1.0)).max(initial=0.0))
