"""The PyTorch baseline of a network: prepared, written, and compiled where that is faster."""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.torch.rules import ReluMaxPool, rule_of
from benchmarks.torch.walk import write_walk
from compiler.bench.networks import separated


@torch.no_grad()
def baseline(
    network: nn.Module, rows: Tensor, references: Tensor, *, portable: bool = False
) -> fx.GraphModule:
    """The explanation of `network`: a module from rows [N, …] to outputs [N, T] and the attributions of each
    row's predicted output, of the shape of the rows.

    Args:
        rows: an example of as many rows as it will take; references: [K, …].
        portable: for torch.compile, which brings its own operators.

    Raises:
        NotImplementedError: a layer it has no rule for.
    """
    prepared = _with_pools(_fused(separated(copy.deepcopy(network))))
    return write_walk(prepared, rule_of, rows, references, portable=portable, scales=_scales(prepared))


def _fused(network: fx.GraphModule) -> fx.GraphModule:
    """Convolutions with the normalisation that follows as their own weights."""
    for node in list(network.graph.nodes):
        norm = _module(network, node)
        before = node.args[0] if isinstance(norm, nn.BatchNorm2d) else None
        convolution = _module(network, before)
        if before is None or len(before.users) > 1 or not isinstance(convolution, nn.Conv2d):
            continue
        network.add_submodule(str(before.target), fuse_conv_bn_eval(convolution, norm))
        node.replace_all_uses_with(before)
        network.graph.erase_node(node)
    network.recompile()
    return network


def _with_pools(network: fx.GraphModule) -> fx.GraphModule:
    """ReLU and the max pool after it as one."""
    for node in list(network.graph.nodes):
        layer = _module(network, node)
        before = node.args[0] if isinstance(layer, nn.MaxPool2d) else None
        if before is None or len(before.users) > 1 or not isinstance(_module(network, before), nn.ReLU):
            continue
        own = ReluMaxPool(
            layer.kernel_size, layer.stride, layer.padding, layer.dilation, False, layer.ceil_mode
        )
        network.add_module(f"{node.name}_rectified", own)
        node.target = f"{node.name}_rectified"
        node.args = (before.args[0],)
        network.graph.erase_node(before)
    network.recompile()
    return network


def _scales(network: fx.GraphModule) -> dict[fx.Node, Tensor]:
    """The factors of BatchNorm → ReLU → Conv, which the convolution's backward weights take over.

    Keyed by the normalisation and by the ReLU.
    """
    found = {}
    for node in network.graph.nodes:
        norm, chain = _module(network, node), [node]
        while isinstance(norm, nn.BatchNorm2d) and len(chain) < 3 and len(chain[-1].users) == 1:
            chain.append(next(iter(chain[-1].users)))
        if len(chain) < 3:
            continue
        rectifier, layer = (_module(network, n) for n in chain[1:])
        if isinstance(rectifier, nn.ReLU) and isinstance(layer, nn.Conv2d) and layer.groups == 1:
            found[node] = found[chain[1]] = norm.weight / (norm.running_var + norm.eps).sqrt()
    return found


def _module(network: fx.GraphModule, node: object) -> Any:
    """The module that a node calls, if it calls one."""
    if isinstance(node, fx.Node) and node.op == "call_module":
        return network.get_submodule(str(node.target))
    return None
