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
    from compiler.conversion.convert import Converted, convert
    from compiler.decisions.comparisons import Comparisons
    from compiler.errors import (
        CheckFailedError,
        ExtensionError,
        InvalidModelError,
        InvalidOptionError,
        InvalidProfileError,
        InvalidReferencesError,
        LargeReferencesError,
        RationaleError,
        RepositoryError,
        UnsupportedModelError,
    )
    from compiler.explain.methods import (
        AttnLrp,
        Auto,
        CpLrp,
        DeepShap,
        ExactShap,
        ExpectedGradients,
        Gradient,
        IntegratedGradients,
        Lrp,
        PermutationShap,
        SmoothGrad,
        TreeShap,
    )
    from compiler.explain.walk.lrp.rules import (
        STABILISER,
        AlphaBeta,
        Epsilon,
        Flat,
        Gamma,
        GeneralizedGamma,
        Group,
        Own,
        Pass,
        RelevanceRule,
        Taylor,
        Term,
        WSquare,
        ZBox,
        Zero,
        ZPlus,
    )
    from compiler.explanations.arrow import batches_schema, explain_batches
    from compiler.graph.ops import Ops
    from compiler.graph.tensor import Tensor
    from compiler.machine import Deployment
    from compiler.manifest import Manifest
    from compiler.profile import DecisionProfile
    from compiler.references.reference_set import OpenReferences
    from compiler.request import Concepts
    from compiler.rules.rule import Kind, Selection, Trait, Weights, rule

__all__ = [
    "STABILISER",
    "AlphaBeta",
    "AttnLrp",
    "Auto",
    "CheckFailedError",
    "Comparisons",
    "Compiled",
    "Concepts",
    "Converted",
    "CpLrp",
    "DecisionProfile",
    "DeepShap",
    "Deployment",
    "Epsilon",
    "ExactShap",
    "ExpectedGradients",
    "Explanation",
    "ExtensionError",
    "Flat",
    "Gamma",
    "GeneralizedGamma",
    "Gradient",
    "Group",
    "IntegratedGradients",
    "InvalidModelError",
    "InvalidOptionError",
    "InvalidProfileError",
    "InvalidReferencesError",
    "Kind",
    "LargeReferencesError",
    "Lrp",
    "Manifest",
    "OpenReferences",
    "Ops",
    "Own",
    "Pass",
    "PermutationShap",
    "RationaleError",
    "RelevanceRule",
    "RepositoryError",
    "Selection",
    "SmoothGrad",
    "Taylor",
    "Tensor",
    "Term",
    "Trait",
    "TreeShap",
    "UnsupportedModelError",
    "WSquare",
    "Weights",
    "ZBox",
    "ZPlus",
    "Zero",
    "batches_schema",
    "compile_model",
    "convert",
    "explain_batches",
    "rule",
]

_HOME = {
    name: module
    for module, names in {
        "compiler.decisions.comparisons": "Comparisons",
        "compiler.artefact.compiled": "Compiled Explanation",
        "compiler.compile": "compile_model",
        "compiler.conversion.convert": "Converted convert",
        "compiler.machine": "Deployment",
        "compiler.errors": "CheckFailedError ExtensionError InvalidModelError InvalidOptionError "
        "InvalidProfileError InvalidReferencesError LargeReferencesError RationaleError RepositoryError "
        "UnsupportedModelError",
        "compiler.explanations.arrow": "batches_schema explain_batches",
        "compiler.manifest": "Manifest",
        "compiler.explain.methods": "AttnLrp Auto CpLrp DeepShap ExactShap ExpectedGradients Gradient "
        "IntegratedGradients Lrp PermutationShap SmoothGrad TreeShap",
        "compiler.explain.walk.lrp.rules": "STABILISER AlphaBeta Epsilon Flat Gamma GeneralizedGamma Group "
        "Own Pass RelevanceRule Taylor Term WSquare ZBox ZPlus Zero",
        "compiler.profile": "DecisionProfile",
        "compiler.references.reference_set": "OpenReferences",
        "compiler.graph.ops": "Ops",
        "compiler.graph.tensor": "Tensor",
        "compiler.rules.rule": "Kind Selection Trait Weights rule",
        "compiler.request": "Concepts",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
