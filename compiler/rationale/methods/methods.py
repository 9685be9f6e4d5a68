"""A method made from its name and options, for the command line and manifests."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy.typing as npt

from rationale.errors import InvalidOptionError
from rationale.methods.engine import Method, References
from rationale.schema.methods import COVERS, METHODS, REFERENCES, WEIGHTS, check_options
from rationale.schema.request import CompileRequest


def make_method(name: str, references: References | None, options: Mapping[str, Any]) -> Method:
    """Make the method of that name.

    Args:
        references: the rows to compare with, or None.
        options: values by Python name (`standard_error`); None means that the user did not give the option.

    Raises:
        InvalidOptionError: if there is no such method, it lacks a required option, it does not take an
            option, or a value makes no sense.
    """
    arguments = {key: value for key, value in options.items() if value is not None}
    if references is not None:
        arguments[REFERENCES] = references
    check_options(name, arguments)
    module, _, make = METHODS[name].path.partition(":")
    method: Method = getattr(import_module(module), make)(**{**METHODS[name].preset, **arguments})
    return method


def method_of(
    request: CompileRequest, references: References | None = None, weights: npt.ArrayLike | None = None
) -> Method:
    """Make the method that a request names, with other references.

    Raises:
        InvalidOptionError: if the method is not in the table, or needs references.
    """
    if request.method not in METHODS:
        raise InvalidOptionError(f"the method {request.method!r} cannot be made from its manifest")
    options = dict(request.options)
    if references is None and REFERENCES in METHODS[request.method].needs:
        raise InvalidOptionError("a recompile needs the references: give --references FILE")
    if references is not None and weights is not None:
        options[WEIGHTS] = weights
    if options.pop("path_dependent", False):
        options[COVERS], references = references, None
    return make_method(request.method, references, options)
