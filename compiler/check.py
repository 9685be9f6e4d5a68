"""What every compile measures before anything is written."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from compiler.errors import CheckFailedError, UnsupportedModelError
from compiler.manifest import Measured
from compiler.methods.base import Gap
from compiler.outputs import BASE_VALUE, EXPLAINED_VALUE, GAP, GAP_ERROR
from compiler.runtime import Runner

ROWS = 3  # probe rows: a reference, one near a reference, one at random
OUTPUTS_LIMIT = 1e-4  # relative to the largest value: far above float32's noise, far below a wrong graph
GAP_LIMIT, GAP_WARNING = 1e-2, 1e-4  # relative to the largest explained − base
AVERAGE_WARNING = 1e-2  # of quadrature and sampling errors, which a user chooses by steps and samples
GAP_ERRORS = 5  # standard errors: beyond 4 by chance once in 16,000 rows and targets, of many draws
GAP_NOISE = 8  # roundings of the output: the means and sums that form the gap
ROWS_LIMIT = 1e-3  # a batch against its rows alone; float32 sums in another order differ by about 1e-6

Arrays = Mapping[str, np.ndarray]


def measure(
    source: onnx.ModelProto, combined: onnx.ModelProto, attributions: Sequence[str], probes: Arrays
) -> Measured:
    """Runs the combined graph beside the original, on the probe rows together and one by one.

    Args:
        attributions: names of the attribution outputs.
        probes: [rows, …] for each input.

    Raises:
        UnsupportedModelError: the original model itself mixes the rows of a batch.
        CheckFailedError: it has no finite answer on any probe row.
    """
    runner, original = Runner(combined), Runner(source)
    together, alone = runner(probes), original(probes)
    rows = max(len(p) for p in probes.values() if p.ndim)
    explained = {name: together[name] for name in (*attributions, EXPLAINED_VALUE)}
    _demand_separate_rows(original, probes, alone, rows)
    sound = _sound_rows(alone, rows) if GAP in together else np.ones(rows, bool)
    return Measured(
        rows=rows,
        outputs_error=_outputs_error(alone, together),
        completeness_gap=_gap(together, sound) if GAP in together else None,
        gap_in_standard_errors=_gap_in_errors(together, sound) if GAP_ERROR in together else None,
        rows_error=max(_rows_error(runner, probes, explained, i) for i in range(rows)),
        nodes=len(combined.graph.node),
        model_bytes=combined.ByteSize(),
        latency_ms=_latency_ms(runner, _row(probes, 0)),
    )


def demand(measured: Measured, gap: Gap | None) -> tuple[str, ...]:
    """Warnings for the user.

    Args:
        gap: why the method's attributions may miss the output's difference.

    Raises:
        CheckFailedError: outputs differ, rows mix, or attributions do not add up.
    """
    if not measured.outputs_error <= OUTPUTS_LIMIT:
        raise CheckFailedError(
            f"the combined graph's outputs differ from the model's by {measured.outputs_error:.1e} "
            "(relative). Please report the model."
        )
    if not measured.rows_error <= ROWS_LIMIT:
        raise CheckFailedError(
            f"explaining a batch differs from explaining its rows one by one by {measured.rows_error:.1e} "
            "(relative): the model mixes the rows of a batch, or overflows on the probe rows."
        )
    if gap is None or measured.completeness_gap is None:
        return ()
    if np.isnan(measured.completeness_gap):
        raise CheckFailedError(
            "the completeness gap is not finite: the model overflows near the rows it was checked on. Give "
            "references within the range it was made for."
        )
    return _JUDGES[gap](measured, measured.completeness_gap)


def _judge_rounding(_: Measured, gap: float) -> tuple[str, ...]:
    if gap > GAP_LIMIT:
        raise CheckFailedError(
            f"attributions miss the output's difference by {gap:.1e} of it. The model overflows near its "
            "references, or a rule is not complete here: please report it."
        )
    if gap > GAP_WARNING:
        return (f"attributions add up to the output's difference within {gap:.1e} of it only",)
    return ()


def _judge_quadrature(_: Measured, gap: float) -> tuple[str, ...]:
    if gap > AVERAGE_WARNING:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only: raise the steps. "
            "Where that does not help, the model has steps (Round, Sign, comparisons), whose gradient is 0.",
        )
    return ()


def _judge_sampling(measured: Measured, gap: float) -> tuple[str, ...]:
    """A large gap says that the draws are few; one of many standard errors, that it is no accident."""
    errors = measured.gap_in_standard_errors
    if errors is not None and errors > GAP_ERRORS:
        return (
            f"attributions miss the output's difference by {errors:.1f} standard errors ({gap:.1e} of it): "
            "the samples are too few for their spread to be known, or the model has steps (Round, Sign, "
            "comparisons), whose gradient is 0.",
        )
    if gap > AVERAGE_WARNING:
        return (
            f"attributions add up to the output's difference within {gap:.1e} of it only, a sampling error: "
            "four times the samples halve it",
        )
    return ()


_JUDGES: dict[Gap, Callable[[Measured, float], tuple[str, ...]]] = {
    Gap.ROUNDING: _judge_rounding,
    Gap.QUADRATURE: _judge_quadrature,
    Gap.SAMPLING: _judge_sampling,
    Gap.ABSORBED: lambda *_: (),
}


def probe_rows(model: onnx.ModelProto, known: Arrays) -> dict[str, np.ndarray]:
    """[ROWS, …] for each input of a model: around the `known` rows of an input where there are any."""
    random = np.random.default_rng(0)
    initializers = {t.name for t in model.graph.initializer}
    return {
        v.name: _probe(random, v.type.tensor_type, known.get(v.name))
        for v in model.graph.input
        if v.name not in initializers
    }


def _probe(
    random: np.random.Generator, tensor: onnx.TypeProto.Tensor, known: np.ndarray | None
) -> np.ndarray:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = tuple(d.dim_value or 1 for d in tensor.shape.dim)
    size = (ROWS, *shape[1:]) if shape else ()
    if dtype.kind != "f":
        return np.zeros(size, dtype)
    if known is None:
        return random.standard_normal(size).astype(dtype)
    pick = known[np.arange(ROWS) % len(known)].astype(np.float64)
    spread = known.std(axis=0, dtype=np.float64) + 1e-3 * (1 + np.abs(known).mean(dtype=np.float64))
    step = np.zeros(ROWS)
    step[ROWS // 3 :], step[2 * ROWS // 3 :] = 0.1, 1.0
    noise = random.standard_normal(pick.shape) * spread
    return np.asarray(pick + noise * step.reshape(-1, *(1 for _ in size[1:])), dtype)


def _row(probes: Arrays, i: int) -> dict[str, np.ndarray]:
    return {name: rows[i : i + 1] if rows.ndim else rows for name, rows in probes.items()}


def relative_error(a: np.ndarray, b: np.ndarray, scale_of: np.ndarray | None = None) -> float:
    """Largest |a − b| over the largest |b| (or |scale_of|); infinite where only one of them is finite."""
    if b.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(a, b) else float("inf")
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    whole = b if scale_of is None else np.asarray(scale_of, np.float64)
    scale = np.abs(whole[np.isfinite(whole)]).max(initial=0.0) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / scale)


def _outputs_error(original: Arrays, combined: Arrays) -> float:
    tensors = {name: value for name, value in original.items() if isinstance(value, np.ndarray)}
    return max((relative_error(combined[name], value) for name, value in tensors.items()), default=0.0)


def _rows_error(runner: Runner, probes: Arrays, together: Arrays, i: int) -> float:
    alone = runner(_row(probes, i), list(together))
    return max(relative_error(alone[name], value[i : i + 1], value) for name, value in together.items())


def _demand_separate_rows(original: Runner, probes: Arrays, outputs: Arrays, rows: int) -> None:
    tensors = {n: v for n, v in outputs.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"}
    batched = {n: v for n, v in tensors.items() if v.ndim and len(v) == rows}
    error = max((_rows_error(original, probes, batched, i) for i in range(rows) if batched), default=0.0)
    if error > ROWS_LIMIT:
        raise UnsupportedModelError(
            f"the model mixes the rows of a batch: it answers a batch otherwise than its rows one by one "
            f"({error:.1e} of the largest value), so a row has no explanation of its own. Export it with the "
            "batch on axis 0 and in evaluation mode."
        )


def _sound_rows(outputs: Arrays, rows: int) -> np.ndarray:
    """The rows for which the model itself has finite answers; it may not, for the logarithm of a probe."""
    sound = np.ones(rows, bool)
    for value in outputs.values():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and len(value) == rows:
            sound &= np.isfinite(value.reshape(rows, -1)).all(axis=1)
    if not sound.any():
        raise CheckFailedError(
            "the model has no finite answer on its own references: look for NaN or infinity in its weights, "
            "or for references outside the range it was made for."
        )
    return sound


def _gap(results: Arrays, sound: np.ndarray) -> float:
    """The largest gap over the largest difference it should explain; 0 where it is the output's rounding.

    NaN where a gap is not finite, infinite where there is no difference that the gap could be a part of.
    A network that is constant near its references has a difference of a few roundings itself.
    """
    explained, gap = (results[name][sound].astype(np.float64) for name in (EXPLAINED_VALUE, GAP))
    base = results[BASE_VALUE][sound].astype(np.float64) if BASE_VALUE in results else np.zeros(1)
    difference = np.abs(explained - base).max(initial=0.0)
    if not np.isfinite(gap).all():
        return float("nan")
    noise = _noise(results, sound)
    largest = np.abs(gap).max(initial=0.0)
    if largest <= noise:
        return 0.0
    return float(largest / difference) if difference else float("inf")


def _noise(results: Arrays, sound: np.ndarray) -> float:
    """What rounding may leave of a gap."""
    explained = np.abs(results[EXPLAINED_VALUE][sound].astype(np.float64)).max(initial=0.0)
    return float(GAP_NOISE * np.finfo(results[GAP].dtype).eps * explained)


def _gap_in_errors(results: Arrays, sound: np.ndarray) -> float:
    """The largest gap in standard errors of its own; what is rounding counts as none."""
    gap, error = (np.abs(results[name][sound].astype(np.float64)) for name in (GAP, GAP_ERROR))
    noise = _noise(results, sound)
    beyond = np.maximum(gap - noise, 0)
    return float((beyond / np.where(beyond > 0, np.maximum(error, noise), 1.0)).max(initial=0.0))


def _latency_ms(runner: Runner, row: Arrays, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        runner(row)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)
