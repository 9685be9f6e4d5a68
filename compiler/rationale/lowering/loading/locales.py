"""The default locale of text normalisation, which images lack."""

from copy import deepcopy

import onnx
from onnx import helper

from rationale.lowering.bodies import all_node_lists
from rationale.schema.locales import DEFAULT, EVERYWHERE


def without_default_locale(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with C.UTF-8 for en_US.UTF-8; both change the case of every letter alike.

    A StringNormalizer that names no locale needs en_US.UTF-8, and ONNX Runtime loads no graph without it.
    """
    if not _normalizers(proto):
        return proto
    changed = deepcopy(proto)
    for node in _normalizers(changed):
        attributes = [a for a in node.attribute if a.name != "locale"]
        del node.attribute[:]
        node.attribute.extend([*attributes, helper.make_attribute("locale", EVERYWHERE)])
    return changed


def _normalizers(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    nodes = (node for nodes in all_node_lists(proto) for node in nodes if node.op_type == "StringNormalizer")
    return [node for node in nodes if _locale(node) == DEFAULT]


def _locale(node: onnx.NodeProto) -> str:
    return next((a.s.decode() or a.ref_attr_name for a in node.attribute if a.name == "locale"), DEFAULT)
