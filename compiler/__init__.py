"""Rationale's compiler: an ONNX model in, one graph with its prediction and its explanation out.

    from compiler import DeepShap, compile_model

    compiled = compile_model("credit.onnx", DeepShap(references))
    compiled.explain(applicants)["applicant_attributions"]  # [N, T, features]
    compiled.write("model_repository", "credit")

Names are imported when they are first used: the service reads manifests without loading the compiler.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime reads it when it is imported (docs/security.md)

if TYPE_CHECKING:
    from compiler.artefact.compiled import Compiled, Explanation
    from compiler.compile import compile_model
    from compiler.deployment import Deployment
    from compiler.errors import (
        CheckFailedError,
        InvalidModelError,
        InvalidOptionError,
        InvalidReferencesError,
        LargeReferencesError,
        RationaleError,
        RepositoryError,
        UnsupportedModelError,
    )
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
    from compiler.methods.lrp.rules import (
        AlphaBeta,
        Epsilon,
        Flat,
        Gamma,
        GeneralizedGamma,
        Own,
        Pass,
        Taylor,
        WSquare,
        ZBox,
        Zero,
        ZPlus,
    )
    from compiler.references.reference_set import OpenReferences

__all__ = [
    "AlphaBeta",
    "AttnLrp",
    "CheckFailedError",
    "Compiled",
    "CpLrp",
    "DeepShap",
    "Deployment",
    "Epsilon",
    "ExpectedGradients",
    "Explanation",
    "Flat",
    "Gamma",
    "GeneralizedGamma",
    "Gradient",
    "IntegratedGradients",
    "InvalidModelError",
    "InvalidOptionError",
    "InvalidReferencesError",
    "LargeReferencesError",
    "Lrp",
    "Manifest",
    "OpenReferences",
    "Own",
    "Pass",
    "RationaleError",
    "RepositoryError",
    "SmoothGrad",
    "Taylor",
    "UnsupportedModelError",
    "WSquare",
    "ZBox",
    "ZPlus",
    "Zero",
    "compile_model",
]

_HOME = {
    "AlphaBeta": "compiler.methods.lrp.rules",
    "AttnLrp": "compiler.methods",
    "CheckFailedError": "compiler.errors",
    "Compiled": "compiler.artefact.compiled",
    "CpLrp": "compiler.methods",
    "DeepShap": "compiler.methods",
    "Deployment": "compiler.deployment",
    "Epsilon": "compiler.methods.lrp.rules",
    "ExpectedGradients": "compiler.methods",
    "Explanation": "compiler.artefact.compiled",
    "Flat": "compiler.methods.lrp.rules",
    "Gamma": "compiler.methods.lrp.rules",
    "GeneralizedGamma": "compiler.methods.lrp.rules",
    "Gradient": "compiler.methods",
    "IntegratedGradients": "compiler.methods",
    "InvalidModelError": "compiler.errors",
    "InvalidOptionError": "compiler.errors",
    "InvalidReferencesError": "compiler.errors",
    "LargeReferencesError": "compiler.errors",
    "Lrp": "compiler.methods",
    "Manifest": "compiler.manifest",
    "OpenReferences": "compiler.references.reference_set",
    "Own": "compiler.methods.lrp.rules",
    "Pass": "compiler.methods.lrp.rules",
    "RationaleError": "compiler.errors",
    "RepositoryError": "compiler.errors",
    "SmoothGrad": "compiler.methods",
    "Taylor": "compiler.methods.lrp.rules",
    "UnsupportedModelError": "compiler.errors",
    "WSquare": "compiler.methods.lrp.rules",
    "ZBox": "compiler.methods.lrp.rules",
    "ZPlus": "compiler.methods.lrp.rules",
    "Zero": "compiler.methods.lrp.rules",
    "compile_model": "compiler.compile",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
