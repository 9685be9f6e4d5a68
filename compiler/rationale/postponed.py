"""Imports that wait until they are used: sympy, which onnx_ir has for arithmetic with symbolic dimensions.

It is a third of what `compile_model` would load, and no compile does such arithmetic.
"""

import copy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader

TYPE_CHECKING = False  # typing, and importlib.abc, would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

POSTPONED = frozenset({"onnx_ir._symbolic_shapes", "sympy"})


class _NoOpLoader:
    """Loads a module that is loaded already."""

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
        return sys.modules[spec.name]

    def exec_module(self, module: "ModuleType") -> None:
        """Leave the module as it is."""


class _Finder:
    """Finds the modules of POSTPONED, each to be executed when its first attribute is read."""

    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        if name in POSTPONED:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = LazyLoader(spec.loader)
            return spec
        if target is None and name in sys.modules and name.partition(".")[0] in POSTPONED:
            # `import sympy.core` reads the path of sympy, which executes it, and that imported sympy.core.
            spec = copy.copy(sys.modules[name].__spec__)
            if spec is not None:
                spec.loader = _NoOpLoader()  # type: ignore[assignment]  # importlib calls its two methods alone
            return spec
        return None


def postpone() -> None:
    """Let this process import them lazily, unless they are imported already."""
    sys.meta_path.insert(0, _Finder())
