"""Attribution methods: frozen dataclasses that say where rules are called."""

from compiler.methods.auto import Auto
from compiler.methods.base import Method
from compiler.methods.deepshap import DeepShap
from compiler.methods.gradients import ExpectedGradients, Gradient, IntegratedGradients, SmoothGrad
from compiler.methods.lrp.attnlrp import AttnLrp, CpLrp
from compiler.methods.lrp.lrp import Lrp
from compiler.methods.permutation import ExactShap, PermutationShap
from compiler.methods.treeshap import TreeShap

__all__ = [
    "AttnLrp",
    "Auto",
    "CpLrp",
    "DeepShap",
    "ExactShap",
    "ExpectedGradients",
    "Gradient",
    "IntegratedGradients",
    "Lrp",
    "Method",
    "PermutationShap",
    "SmoothGrad",
    "TreeShap",
]
