"""An attribute that a node leaves out has ONNX's default, which files store in float32."""

import inspect

import numpy as np
import onnx

from rationale.lowering.rewrites.engine import rewritten_operators
from rationale.rules.rule import all_rules


def test_defaults_of_rules_and_rewrites_are_those_of_onnx() -> None:
    functions = [(*name, rewrite) for name, rewrite in rewritten_operators().items()]
    for rule in all_rules():
        forms = (rule.forward, rule.deeplift_form, rule.layer_form, rule.relevance_form)
        functions += [(rule.domain, rule.op_type, form) for form in forms if form is not None]
    compared = set()
    for domain, op_type, function in functions:
        if domain or not onnx.defs.has(op_type):
            continue
        attributes = onnx.defs.get_schema(op_type).attributes
        for name, parameter in inspect.signature(function).parameters.items():
            if isinstance(parameter.default, float) and name in attributes:
                default = attributes[name].default_value
                if default.type == onnx.AttributeProto.FLOAT:
                    assert parameter.default == float(np.float32(default.f)), f"{op_type}: {name}"
                    compared.add((op_type, name))
    assert {("GroupNormalization", "epsilon"), ("LRN", "alpha"), ("HardSigmoid", "alpha")} <= compared
