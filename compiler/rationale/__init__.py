"""Rationale: an ONNX model in, one graph with its prediction and its explanation out.

    from rationale import DeepShap, compile_model

    compiled = compile_model("credit.onnx", DeepShap(references))
    compiled.explain(applicants)["applicant_attributions"]  # [N, T, features]
    compiled.write("model_repository", "credit")

`__init__.pyi` declares the names. A name's module is imported when the name is first used.
"""

import os

import lazy_loader

from rationale.postponed import postpone

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime reads it when it is imported (docs/security.md)

postpone()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
