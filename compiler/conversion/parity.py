"""How far an ONNX model is from the fitted model that it was made of."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from compiler.errors import UnsupportedModelError
from compiler.manifest import Parity
from compiler.runtime.session import Runner, is_float

LIMIT = 1e-4  # of the output's range: float32 sums of a few hundred trees differ by a hundredth of that


def measure(
    proto: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    answers: Sequence[np.ndarray | None],
    model: str,
    converter: str,
) -> Parity:
    """Compares what both answer for the same rows.

    Args:
        feeds: rows [K, …] for each input of the ONNX model.
        answers: what the fitted model says of them, for each output in order: labels [K], or numbers [K] or
            [K, …]; None for an output that it has not.

    Raises:
        UnsupportedModelError: outputs of other shapes.
    """
    got = list(Runner(proto, given=True)(feeds).values())
    count = len(next(iter(feeds.values())))
    missing = np.zeros(count, bool)
    for array in feeds.values():
        if is_float(array.dtype):
            missing |= np.isnan(array.reshape(count, -1)).any(axis=1)
    errors, span = np.zeros(count), 0.0
    labels: int | None = None
    for found, due in zip(got, answers, strict=False):
        if due is None:
            continue
        if not is_float(found.dtype):
            labels = (labels or 0) + int((_plain(found) != _plain(np.asarray(due))).sum())
            continue
        a, b = _matching(np.asarray(found, np.float64), np.asarray(due, np.float64), model)
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b)).max(axis=1, initial=0)
        errors = np.maximum(errors, np.where(np.isnan(error), np.inf, error))
        span = max(span, _span(b))
    row = int(errors.argmax())
    return Parity(
        model=model,
        converter=converter,
        rows=count,
        error=float(errors[row]),
        output_range=span,
        row=row,
        labels=labels,
        missing_rows=int(missing.sum()),
        missing_error=float(errors[missing].max()) if missing.any() else None,
    )


def said(parity: Parity) -> str:
    """In one line."""
    labels = "" if parity.labels is None else f"; {parity.labels or 'no'} labels differ"
    missing = ""
    if parity.missing_error is not None:
        missing = f"; {parity.missing_error:.1e} on the {parity.missing_rows} with missing values"
    return (
        f"parity: {parity.model} as ONNX ({parity.converter}) differs by {parity.error:.1e} at most on "
        f"{parity.rows} references, {parity.relative:.1e} of its output's range{missing}{labels}"
    )


def warnings_of(parity: Parity) -> tuple[str, ...]:
    """What a user has to know, where it is more than rounding."""
    if parity.relative <= LIMIT and not parity.labels:
        return ()
    return (
        f"the ONNX model is not quite the {parity.model} that it was converted from: at row {parity.row} of "
        f"the references they differ by {parity.error:.3g}, {parity.relative:.2g} of the output's range of "
        f"{parity.output_range:.3g}"
        + ("" if parity.labels is None else f", and {parity.labels} of {parity.rows} labels differ")
        + ". What is served and explained is the ONNX model.",
    )


def _matching(found: np.ndarray, due: np.ndarray, model: str) -> tuple[np.ndarray, np.ndarray]:
    """Both as [K, C]; a booster says the probability of class 1 alone where its ONNX model says both."""
    a, b = found.reshape(len(found), -1), due.reshape(len(due), -1)
    if a.shape[1] == 2 and b.shape[1] == 1:
        a = a[:, 1:]
    if a.shape != b.shape:
        raise UnsupportedModelError(
            f"{model}: its ONNX model answers {list(found.shape)} where it answers {list(due.shape)} itself: "
            "the converter does not know this kind of model. Convert it yourself, and compile that file."
        )
    return a, b


def _span(numbers: np.ndarray) -> float:
    """Largest less smallest; where all are equal, how large they are."""
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return 0.0
    return float(np.ptp(finite)) or float(np.abs(finite).max())


def _plain(labels: np.ndarray) -> np.ndarray:
    """Texts, whatever type each side has them in."""
    flat = labels.reshape(len(labels), -1)
    if flat.dtype.kind in "iufb":
        return flat.astype(np.float64)
    return flat.astype(str)
