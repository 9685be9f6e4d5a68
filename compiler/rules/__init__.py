"""The rule table: importing this package fills it. See `compiler.rule`."""

from compiler.rules import (
    activation,
    arithmetic,
    conv,
    norm,
    pool,
    power,
    reduce,
    select,
    shape,
    softmax,
    standardise,
)

__all__ = [
    "activation",
    "arithmetic",
    "conv",
    "norm",
    "pool",
    "power",
    "reduce",
    "select",
    "shape",
    "softmax",
    "standardise",
]
