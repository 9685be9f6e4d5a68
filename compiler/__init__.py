"""Rationale's compiler: an ONNX model in, one graph with its prediction and its explanation out.

from compiler import DeepShap, compile_model

compiled = compile_model("credit.onnx", DeepShap(references))
compiled.explain(applicants)["applicant_attributions"]  # [N, T, features]
compiled.write("model_repository", "credit")
"""

from compiler import rules  # fills the rule table
from compiler.compile import compile_model
from compiler.compiled import Compiled, Explanation
from compiler.errors import RationaleError
from compiler.manifest import Manifest
from compiler.methods import DeepShap, Gradient

__all__ = [
    "Compiled",
    "DeepShap",
    "Explanation",
    "Gradient",
    "Manifest",
    "RationaleError",
    "compile_model",
    "rules",
]
