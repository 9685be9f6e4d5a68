"""Rationale's compiler: an ONNX model in, one graph with its prediction and its explanation out.

    from compiler import DeepShap, compile_model

    compiled = compile_model("credit.onnx", DeepShap(references))
    compiled.explain(applicants)["applicant_attributions"]  # [N, T, features]
    compiled.write("model_repository", "credit")

Names are imported when they are first used: the service reads manifests without loading the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.compile import compile_model
    from compiler.compiled import Compiled, Explanation
    from compiler.deployment import Deployment
    from compiler.errors import RationaleError
    from compiler.manifest import Manifest
    from compiler.methods import (
        AttnLrp,
        CpLrp,
        DeepShap,
        ExpectedGradients,
        Gradient,
        IntegratedGradients,
        Lrp,
        SmoothGrad,
    )
    from compiler.references import OpenReferences

__all__ = [
    "AttnLrp",
    "Compiled",
    "CpLrp",
    "DeepShap",
    "Deployment",
    "ExpectedGradients",
    "Explanation",
    "Gradient",
    "IntegratedGradients",
    "Lrp",
    "Manifest",
    "OpenReferences",
    "RationaleError",
    "SmoothGrad",
    "compile_model",
]

_HOME = {
    "AttnLrp": "compiler.methods",
    "Compiled": "compiler.compiled",
    "CpLrp": "compiler.methods",
    "DeepShap": "compiler.methods",
    "Deployment": "compiler.deployment",
    "ExpectedGradients": "compiler.methods",
    "Explanation": "compiler.compiled",
    "Gradient": "compiler.methods",
    "IntegratedGradients": "compiler.methods",
    "Lrp": "compiler.methods",
    "Manifest": "compiler.manifest",
    "OpenReferences": "compiler.references",
    "RationaleError": "compiler.errors",
    "SmoothGrad": "compiler.methods",
    "compile_model": "compiler.compile",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
