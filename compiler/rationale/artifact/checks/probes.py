"""Rows for a compile's measurements, and the row with which a server warms up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir

from rationale.errors import InvalidModelError, InvalidOptionError
from rationale.graph.runtime.session import Runner
from rationale.lowering.precision import on_cpu
from rationale.methods.engine import Method
from rationale.methods.leaves import Leaf
from rationale.references.reference_set import ReferenceSet
from rationale.references.request_time import WEIGHTS, references_name
from rationale.schema.machine import Deployment
from rationale.schema.manifest import is_float

NEAR = 3  # probe rows about the references: one of them, one near one, one at random
ROWS = NEAR + 1  # and one a unit away: where the only reference is zeros, the others hardly move an output
_NEAR = (0.0, 0.3, 1.0, 1.0)  # share of redrawn ids in each probe row
_DIGITS = 10  # ids are drawn below this if no table limits them
_ENDS = (0.05, 0.95)  # quantiles of the rows between which a synthetic number is drawn
_ROUNDED = 4  # digits of a synthetic number
_SHARE = 0.3  # relative shift of a number that all rows share

Arrays = Mapping[str, np.ndarray]


def probe_rows(model: onnx.ModelProto, rows: Arrays, *, unit: bool = True) -> dict[str, np.ndarray]:
    """Return [ROWS, …] for each input of a model: around an input's own `rows` if it has any.

    Unknown integers are 1, which is a valid mask, length or index for most models.

    Args:
        unit: True if the last row is a unit away from these; else it is as near as the row before.
    """
    random = np.random.default_rng(0)
    initializers = {t.name for t in model.graph.initializer}
    return {
        v.name: _probe(random, v.type.tensor_type, rows.get(v.name), unit)
        for v in model.graph.input
        if v.name not in initializers
    }


def _probe(
    random: np.random.Generator, tensor: onnx.TypeProto.Tensor, rows: np.ndarray | None, unit: bool
) -> np.ndarray:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = tuple(d.dim_value or 1 for d in tensor.shape.dim)
    size = (ROWS, *shape[1:]) if shape else ()
    if not is_float(dtype):
        return _probe_integers(size, dtype, rows)
    if rows is None:
        return random.standard_normal(size).astype(dtype)
    pick = rows[np.arange(ROWS) % len(rows)].astype(np.float64)
    finite = np.isfinite(rows)  # references of trees may miss values
    counted = finite | ~finite.any(axis=0)
    middle = np.mean(rows, axis=0, dtype=np.float64, where=counted)
    spread = np.sqrt(np.mean((rows - middle) ** 2, axis=0, dtype=np.float64, where=counted))
    spread = np.nan_to_num(spread) + 1e-3 * (1 + np.abs(rows[finite]).mean(dtype=np.float64))
    noise = random.standard_normal(pick.shape)
    steps = np.stack([0 * spread, 0.1 * spread, spread, np.maximum(spread, 1.0) if unit else spread])
    away = np.sign(noise[NEAR:]) * np.maximum(np.abs(noise[NEAR:]), 0.5)  # one feature alone moves too
    noise[NEAR:] = away if unit else noise[NEAR:]
    row = pick + noise * steps
    if (rows[finite] >= 0).all() and (rows[finite] > 0).any():  # amounts, counts, codes: never negative
        row[NEAR:] = np.abs(row[NEAR:])
    return np.asarray(row, dtype)


def _probe_integers(size: tuple[int, ...], dtype: np.dtype, rows: np.ndarray | None) -> np.ndarray:
    """Return the rows; if they are too few, repeat their ids at other positions."""
    if dtype.kind == "O" and (rows is None or not size):
        return np.full(size, "", object)
    if rows is None or not size:
        return np.ones(size, dtype) if size and dtype.kind in "iub" else np.zeros(size, dtype)
    if len(rows) >= ROWS:
        return rows[:ROWS].astype(dtype)
    rolled = [np.roll(rows[i % len(rows)].reshape(-1), i // len(rows)) for i in range(ROWS)]
    return np.stack(rolled).reshape(size).astype(dtype)


def probe_ids(leaves: Sequence[Leaf], row: Sequence[int], rows: np.ndarray | None) -> np.ndarray:
    """Return [ROWS, *row] ids that the tables have: a reference, one with some redrawn, one at random."""
    random = np.random.default_rng(0)
    sizes = [s.size for s in leaves if s.size is not None]
    drawn = random.integers(0, min(sizes, default=_DIGITS), (ROWS, *row))
    if rows is None:
        return np.asarray(drawn)
    pick = rows[np.arange(ROWS) % len(rows)].astype(np.int64)
    share = np.reshape(_NEAR, (ROWS, *(1 for _ in row)))
    return np.where(random.random(pick.shape) < share, drawn, pick)


def sound_probes(
    source: onnx.ModelProto, combined: onnx.ModelProto, rows: Arrays, *, unit: bool
) -> dict[str, np.ndarray]:
    """Return `probe_rows`, with zeros for unknown integers if ones have no finite answer."""
    probes = probe_rows(combined, rows, unit=unit)
    guessed = [n for n, p in probes.items() if p.ndim and p.dtype.kind in "iub" and n not in rows]
    if not guessed or _answers(source, probes):
        return probes
    return {name: np.zeros_like(p) if name in guessed else p for name, p in probes.items()}


def _answers(source: onnx.ModelProto, probes: Arrays) -> bool:
    comparable, _ = on_cpu(ir.from_proto(source))
    try:
        answers = Runner(comparable, users_model=True)(probes)
    except InvalidModelError:
        return False
    floats = [a for a in answers.values() if isinstance(a, np.ndarray) and is_float(a.dtype)]
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in floats)


def sample_rows(
    model: onnx.ModelProto, references: ReferenceSet | None, probes: Arrays
) -> dict[str, np.ndarray]:
    """Return an artificial row of each input: the references' (weighted) mean, zeros elsewhere.

    Integers and texts have no mean: theirs is the first probe row, which the model is known to take.
    """
    rows = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        reference_rows = None if references is None else references.arrays.get(value.name)
        shape = tuple(d.dim_value or 1 for d in tensor.shape.dim)
        if value.name in probes and not is_float(dtype) and shape:
            rows[value.name] = probes[value.name][:1]
        elif tensor.elem_type == onnx.TensorProto.STRING:
            rows[value.name] = np.full(shape, "", object)
        elif reference_rows is not None and references is not None:
            finite = np.ma.masked_invalid(
                reference_rows.astype(np.float64)
            )  # references of trees may miss values
            mean = np.ma.average(finite, axis=0, weights=_broadcast(references.weights, finite))
            rows[value.name] = np.ma.filled(mean, 0.0)[None].astype(dtype)
        else:
            rows[value.name] = np.zeros(shape, dtype)
    return rows


def _broadcast(weights: np.ndarray | None, to: np.ndarray) -> np.ndarray | None:
    """Return [K] weights for arrays [K, …]."""
    return None if weights is None else np.broadcast_to(weights.reshape(-1, *[1] * (to.ndim - 1)), to.shape)


def check_open(method: Method, deployment: Deployment) -> None:
    """Raise InvalidOptionError for options that need the references when the graph is made."""
    wrong = {
        **dict.fromkeys(method.features_with_fixed_references, True),
        "--one-shot": deployment.one_shot,
        "--storage float16": deployment.storage != "float32",
    }
    for fault, is_present in wrong.items():
        if is_present:
            raise InvalidOptionError(
                f"open references do not go with: {fault}. Compile with a reference set."
            )


def with_open_probes(probes: Arrays, references: ReferenceSet | None) -> dict[str, np.ndarray]:
    """Return the probe rows, each with references and weights of its own, the last of which is 0."""
    if references is None or not references.is_open:
        return dict(probes)
    random = np.random.default_rng(0)
    weights = random.random((ROWS, references.count)) + 0.1
    weights[:, -1] *= references.count == 1
    rolled = {
        references_name(name): np.stack([np.roll(array, i, axis=0) for i in range(ROWS)])
        for name, array in references.arrays.items()
    }
    return {**probes, **rolled, WEIGHTS: weights.astype(references.weights_dtype)}


def synthetic_probes(
    probes: Arrays, known_rows: Arrays, references: ReferenceSet | None, count: int
) -> dict[str, np.ndarray]:
    """Return artificial rows [count, …] for each input.

    Args:
        probes: the rows of the check, from which inputs without known rows are taken.
        known_rows: rows [K, …] of the other inputs.
        references: the reference set; open references are drawn as the rows are.
    """
    rows = {name: array[:count] if array.ndim else array for name, array in probes.items()}
    rows |= {n: synthetic_rows(a, count, seed) for seed, (n, a) in enumerate(known_rows.items()) if n in rows}
    if references is None or not references.is_open:
        return rows
    drawn = {n: synthetic_rows(a, references.count, len(a)) for n, a in references.arrays.items()}
    reference_rows = with_open_probes({}, replace(references, arrays=drawn))
    return {**rows, **{name: array[:count] for name, array in reference_rows.items()}}


def synthetic_rows(rows: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return rows [count, …] drawn feature by feature from `rows` [K, …].

    A number lies between two neighbours among the given ones, and is whole if all of them are. Ids and
    texts are taken from the given ones, each feature from another row. Values are missing as often as there.
    """
    random = np.random.default_rng(seed)
    if not is_float(rows.dtype):
        picks = random.integers(0, len(rows), (count, *rows.shape[1:]))
        return np.take_along_axis(rows, picks, axis=0)
    values = rows.astype(np.float64)
    if len(values) == 1:
        noise = random.standard_normal((count, *values.shape[1:]))
        drawn = values + noise * np.where(values != 0, _SHARE * np.abs(values), 1.0)
        return _round_digits(drawn).astype(rows.dtype)
    ordered = np.sort(values, axis=0)  # missing values come last
    present = np.isfinite(ordered).sum(axis=0)
    place = random.uniform(*_ENDS, (count, *values.shape[1:])) * (len(values) - 1)
    below = np.minimum(np.floor(place).astype(int), len(values) - 2)
    low, high = (np.take_along_axis(ordered, below + step, axis=0) for step in (0, 1))
    high = np.where(np.isfinite(high), high, low)
    drawn = low + (place - below) * (high - low)
    is_integer = (np.isnan(values) | (values == np.round(values))).all(axis=0)
    drawn = np.where(is_integer, np.round(drawn), np.clip(_round_digits(drawn), low, high))
    return np.where(place > present - 1, np.nan, drawn).astype(rows.dtype)


def _round_digits(values: np.ndarray) -> np.ndarray:
    """Round to a few significant digits: the rows stand in a file."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(np.abs(values)))
    unit = 10.0 ** (np.where(np.isfinite(exponent), exponent, 0) - _ROUNDED + 1)
    return np.asarray(np.round(values / unit) * unit)


def with_open_sample(sample: Arrays, references: ReferenceSet | None) -> dict[str, np.ndarray]:
    """Return the sample row, with the mean of the examples for its references: nobody's rows."""
    if references is None or not references.is_open:
        return dict(sample)
    k = references.count
    middles = {
        references_name(name): np.repeat(_middle(array)[None], k, axis=1)
        for name, array in references.arrays.items()
    }
    return {**sample, **middles, WEIGHTS: np.full((1, k), 1 / k, references.weights_dtype)}


def _middle(rows: np.ndarray) -> np.ndarray:
    """Return the mean [1, …] of rows that may miss values; the smallest value of texts and whole numbers."""
    if is_float(rows.dtype):
        means = np.ma.masked_invalid(rows).mean(axis=0, keepdims=True)
        return np.asarray(np.ma.filled(means, 0), rows.dtype)
    return np.sort(rows, axis=0)[:1]
