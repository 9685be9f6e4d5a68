"""The compiler with constants folded and checks run by the interpreter, in float64."""

from contextlib import AbstractContextManager

from rationale.testing.engine import computing_by
from tests.references.interpreter import run64


def computing_in_float64() -> AbstractContextManager[None]:
    return computing_by(run64)
