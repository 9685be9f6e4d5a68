"""Rationale: an ONNX model in, one graph with its prediction and its explanation out.

    from rationale import DeepShap, compile_model

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
    from rationale.artifact.compiled import Compiled, Explanation
    from rationale.compile import compile_model
    from rationale.conversion.convert import Converted, convert
    from rationale.decisions.comparisons import Comparisons
    from rationale.errors import (
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
    from rationale.graph.ops import Ops
    from rationale.graph.tensor import Tensor
    from rationale.methods.methods import (
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
    from rationale.methods.propagation.lrp.rules import (
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
    from rationale.portfolios.arrow import batches_schema, explain_batches
    from rationale.references.reference_set import OpenReferences
    from rationale.rules.rule import Kind, Selection, Trait, Weights, rule
    from rationale.schema.machine import Deployment
    from rationale.schema.manifest import Manifest
    from rationale.schema.profile import DecisionProfile
    from rationale.schema.request import Concepts

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
        "rationale.decisions.comparisons": "Comparisons",
        "rationale.artifact.compiled": "Compiled Explanation",
        "rationale.compile": "compile_model",
        "rationale.conversion.convert": "Converted convert",
        "rationale.schema.machine": "Deployment",
        "rationale.errors": "CheckFailedError ExtensionError InvalidModelError InvalidOptionError "
        "InvalidProfileError InvalidReferencesError LargeReferencesError RationaleError RepositoryError "
        "UnsupportedModelError",
        "rationale.portfolios.arrow": "batches_schema explain_batches",
        "rationale.schema.manifest": "Manifest",
        "rationale.methods.methods": "AttnLrp Auto CpLrp DeepShap ExactShap ExpectedGradients Gradient "
        "IntegratedGradients Lrp PermutationShap SmoothGrad TreeShap",
        "rationale.methods.propagation.lrp.rules": "STABILISER AlphaBeta Epsilon Flat Gamma GeneralizedGamma "
        "Group Own Pass RelevanceRule Taylor Term WSquare ZBox ZPlus Zero",
        "rationale.schema.profile": "DecisionProfile",
        "rationale.references.reference_set": "OpenReferences",
        "rationale.graph.ops": "Ops",
        "rationale.graph.tensor": "Tensor",
        "rationale.rules.rule": "Kind Selection Trait Weights rule",
        "rationale.schema.request": "Concepts",
    }.items()
    for name in names.split()
}


if not TYPE_CHECKING:  # a type checker would take every name to exist

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'rationale' has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
