"""The probe rows of an entry and their expected answers, which prove any runtime that loads it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import onnx
import onnxruntime as ort

from rationale.artifact.checks.measure import Measurement
from rationale.artifact.checks.probes import ROWS
from rationale.errors import CheckFailedError, InvalidModelError
from rationale.graph.runtime.session import (
    Run,
    Runner,
    SerializedGraph,
    model_bytes,
    outline,
    threads_of_few_runs,
    with_open_gate,
)
from rationale.methods.outputs import BASE_VALUE, EXPLAINED_VALUE, GAP, GAP_ERROR
from rationale.schema.machine import processor
from rationale.schema.manifest import DATATYPES, Measurements, is_float
from rationale.schema.probes import (
    MOST_ELEMENTS,
    WARNED,
    ProbeInput,
    ProbeOutput,
    Probes,
    values,
)

BRIEF_MS = 15.0  # limit for all probe rows together; a slower graph has one
SLOW_MS = 1000.0  # a row that takes longer is not computed in a second way
_EVALUATED_MS, _EVALUATED_BYTES = 1.0, 1 << 20  # the evaluator takes a second for these
_VALUES = (BASE_VALUE, EXPLAINED_VALUE, GAP, GAP_ERROR)  # all in the unit of the explained output
Arrays = Mapping[str, np.ndarray]
FittedAnswers = Callable[[Arrays], Mapping[str, np.ndarray]]


def probe_count(measured: Measurements, most: int) -> int:
    """Return the number of probe rows: more than one only if each is short."""
    return ROWS if most >= ROWS and ROWS * measured.latency_ms <= BRIEF_MS else 1


def expected_probes(
    source: onnx.ModelProto,
    graph: SerializedGraph,
    measurement: Measurement,
    rows: Sequence[Arrays],
    fitted: FittedAnswers | None = None,
) -> tuple[Probes | None, tuple[str, ...]]:
    """Return the probe rows of a graph with their expected answers, and warnings for the user.

    The model's own outputs are the fitted model's if there is one, else those of ONNX's reference evaluator
    for a small model; all others are ONNX Runtime's answers here. If the evaluator contradicts ONNX
    Runtime, its answers are not taken: it is wrong about some operators (LRN, LSTM, sets of trees …).

    Args:
        source: the plain model.
        measurement: the check's measurement of the model and the graph.
        rows: candidate rows, [n, …] for each input; the first with finite answers are taken.
        fitted: the fitted model's answers to such rows, by output.
    """
    measured = measurement.measured
    feeds, answers = _first_finite_answers(measurement.run, rows)
    if not answers:
        return None, ()
    names = [v.name for v in source.graph.output if v.name in answers]
    probes = Probes(
        source="runtime",
        runtime=f"ONNX Runtime {ort.__version__} on {processor()}",
        inputs=tuple(_inputs(feeds)),
        outputs=tuple(_outputs(answers)),
    )
    inputs = {v.name: feeds[v.name] for v in source.graph.input if v.name in feeds}
    further_answers = [measurement.original(inputs)]
    if measured.latency_ms <= SLOW_MS:
        with suppress(CheckFailedError):  # some operators have no kernel but the one they are fused into
            unoptimised = Runner(graph, optimise=False, threads=threads_of_few_runs(outline(graph)))
            further_answers.append(with_open_gate(unoptimised, outline(graph))(feeds))
    differences = [min(probes.compare(other).value, 1.0) for other in further_answers]
    probes = probes.model_copy(update={"kernels": max(*differences, measured.rounding)})
    if fitted is not None:
        expected = {name: array for name, array in fitted(feeds).items() if name in names}
        return _confirm(probes, expected, "fitted model") or probes, ()
    is_small = measured.latency_ms <= _EVALUATED_MS and model_bytes(source) <= _EVALUATED_BYTES
    if is_small and not measured.rounding:  # the evaluator rounds half precision at other places
        expected = _reference_answers(source, inputs, names)
        confirmed = _confirm(probes, expected, "reference evaluator")
        difference = probes.compare(expected)
        contradicted = confirmed is None and difference.is_broken
        if contradicted and any(node.domain == "ai.onnx.ml" for node in source.graph.node):
            return probes, (
                f"ONNX's reference evaluator and ONNX Runtime {ort.__version__} disagree on this model: "
                f"{difference.output!r} differs by {difference.value:.2g} of its range. Either can be "
                "wrong: compare its answers with those of the original model.",
            )
        probes = confirmed or probes
    return probes, ()


def _first_finite_answers(
    run: Run, rows: Sequence[Arrays]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the first set of rows with finite answers, reduced to those rows, and the answers."""
    for feeds in rows:
        try:
            answers = {n: a for n, a in run(feeds).items() if isinstance(a, np.ndarray) and a.ndim}
        except (CheckFailedError, InvalidModelError):  # such as floats that are ids of a small table
            continue
        count = max(len(a) for a in feeds.values() if a.ndim)
        if any(len(a) != count for a in answers.values()):
            continue
        finite = np.ones(count, bool)
        for array in answers.values():
            if is_float(array.dtype):
                finite &= np.isfinite(array.astype(np.float64)).reshape(count, -1).all(axis=1)
        if finite.any():
            finite_feeds = {name: array[finite] if array.ndim else array for name, array in feeds.items()}
            return finite_feeds, {name: array[finite] for name, array in answers.items()}
    return {}, {}


def _confirm(probes: Probes, expected: Arrays, source: str) -> Probes | None:
    """Return the probes with these expected answers; None if the runtime's answers differ."""
    if not expected or probes.compare(expected).value > WARNED:
        return None
    outputs = tuple(
        _output(o.name, expected[o.name], o.datatype, o.scale) if o.name in expected else o
        for o in probes.outputs
    )
    return probes.model_copy(update={"outputs": outputs, "source": source})


def _reference_answers(
    source: onnx.ModelProto, inputs: Arrays, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the answers of ONNX's reference evaluator; nothing if it fails."""
    from onnx.reference import ReferenceEvaluator  # here, since it is slow to import

    try:
        with np.errstate(all="ignore"):
            answers = ReferenceEvaluator(source).run(list(names), dict(inputs))
    except Exception:  # errors of many kinds: it does not know the operator, or this form of it
        return {}
    return {n: a for n, a in zip(names, answers, strict=True) if isinstance(a, np.ndarray) and a.ndim}


def _inputs(feeds: Arrays) -> list[ProbeInput]:
    return [
        ProbeInput(name=name, datatype=_datatype(array), shape=array.shape, data=values(array))
        for name, array in feeds.items()
    ]


def _outputs(answers: Arrays) -> list[ProbeOutput]:
    unit = _range(*(answers[name] for name in (BASE_VALUE, EXPLAINED_VALUE) if name in answers))
    return [
        _output(name, array, _datatype(array), unit if name in _VALUES else _range(array))
        for name, array in answers.items()
    ]


def _output(name: str, array: np.ndarray, datatype: str, scale: float) -> ProbeOutput:
    flat, positions = array.reshape(len(array), -1), None
    if flat.shape[1] > MOST_ELEMENTS:
        positions = tuple(np.linspace(0, flat.shape[1] - 1, MOST_ELEMENTS).astype(int).tolist())
        flat = flat[:, list(positions)]
    return ProbeOutput(name=name, datatype=datatype, positions=positions, scale=scale, data=values(flat))


def _range(*arrays: np.ndarray) -> float:
    """Return the difference of the largest and the smallest number; if all are equal, their size, or 1."""
    if not all(is_float(array.dtype) for array in arrays):
        return 1.0
    numbers = np.concatenate([array.astype(np.float64).reshape(-1) for array in arrays])
    return float(np.ptp(numbers) or np.abs(numbers).max(initial=0.0) or 1.0) if len(numbers) else 1.0


def _datatype(array: np.ndarray) -> str:
    if array.dtype.kind in "OUS":
        return DATATYPES["STRING"]
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return DATATYPES[onnx.TensorProto.DataType.Name(kind)]
