"""What a decision profile asks of a compile, and what of it goes into the manifest."""

from dataclasses import replace
from typing import Any

import onnx

from compiler.manifest import Decided, Manifest
from compiler.methods import Method
from compiler.methods.treeshap import TreeShap
from compiler.profile import DecisionProfile
from compiler.selection.select import Question

TOLERANCE = 1e-4  # of the output's range


def question_of(
    profile: DecisionProfile, model: Any, method: Method, question: Question
) -> tuple[Method, Question]:
    """The method and the question, as the profile has them: output, target, groups and space."""
    targets = question.targets if profile.index is None else [profile.index]
    groups = {name: rule.members for name, rule in profile.groups.items()} or question.groups
    if isinstance(method, TreeShap) and profile.space == "output" and _is_logistic(model):
        method = replace(method, space="probability")
    logits = profile.space == "margin" and not isinstance(method, TreeShap)
    return method, replace(question, output=profile.tensor, targets=targets, groups=groups, logits=logits)


def decided_by(profile: DecisionProfile, manifest: Manifest) -> Manifest:
    """With the profile in it."""
    least, most = 0.0, 1.0
    decided = Decided(
        profile=profile,
        digest=profile.digest,
        output_range=(least, most),
        tolerance=profile.tolerance or TOLERANCE * (most - least),
    )
    return manifest.model_copy(update={"decision": decided})


def _is_logistic(model: Any) -> bool:
    """Whether its trees' scores become a probability by LOGISTIC."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
    return any(
        attribute.s == b"LOGISTIC"
        for node in proto.graph.node
        if node.op_type.startswith("TreeEnsemble")
        for attribute in node.attribute
        if attribute.name == "post_transform"
    )
