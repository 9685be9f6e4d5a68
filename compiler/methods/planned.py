"""Methods that look at the whole path before they walk it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from compiler.graph.ops import Ops
from compiler.methods.base import Method
from compiler.walk.backward import Pull
from compiler.walk.call import Call


@runtime_checkable
class Planned(Protocol):
    """A method that joins operators into layers, or treats a layer by its place among the others."""

    def plan(self, op: Ops, calls: Sequence[Call]) -> tuple[Sequence[Call], Pull]:
        """The operators that the walk shall read, in topological order, and how each is pulled back."""


def plan(op: Ops, method: Method, calls: Sequence[Call]) -> tuple[Sequence[Call], Pull]:
    """The walk of a method: by default every operator as it is, one by one."""
    return method.plan(op, calls) if isinstance(method, Planned) else (calls, method.pull)
