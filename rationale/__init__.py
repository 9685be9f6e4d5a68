"""Rationale: an ONNX model in, one graph with its prediction and its explanation out.

    from rationale import DeepShap, compile_model

    compiled = compile_model("credit.onnx", DeepShap(references))
    compiled.explain(applicants)["applicant_attributions"]  # [N, T, features]
    compiled.write("model_repository", "credit")

The names are those of `compiler`, imported when they are first used. `python -m rationale` is the command.
"""

from typing import TYPE_CHECKING, Any

import compiler
from compiler import __all__ as __all__

if TYPE_CHECKING:
    from compiler import *
else:  # unseen by type checkers, for which every name would exist

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'rationale' has no attribute {name!r}")
        return getattr(compiler, name)


def __dir__() -> list[str]:
    return list(__all__)
