"""Layers: values on the way from the inputs to the output whose attributions are asked for."""

from collections.abc import Sequence

from compiler.errors import InvalidOptionError
from compiler.explain.call import Call
from compiler.explain.walk.backward import readers_of
from compiler.explain.walk.path import Path
from compiler.rules.rule import Trait


def layers_asked(path: Path, output: str, calls: Sequence[Call]) -> tuple[str, ...]:
    """Return the names of the values whose attributions are requested in addition to the inputs'.

    "all" are the outputs of operators with weights and of products of two values (attention), and the
    explained output.
    """
    if path.layers != "all":
        return path.layers
    names = [c.outputs[0] for c in calls if _is_layer(c) and c.x.y.rank]
    return tuple(dict.fromkeys((*names, output)))


def _is_layer(call: Call) -> bool:
    traits = call.rule.traits
    return call.rule.layer_form is not None or (Trait.PRODUCT in traits and Trait.ELEMENTWISE not in traits)


def layers_walked(
    kept: Sequence[str], calls: Sequence[Call], steps: Sequence[Call], *, named: bool
) -> tuple[str, ...]:
    """Return the layers as the method's walk has them.

    A value inside of what the method joins has no attribution.

    Args:
        calls, steps: the operators before and after the method joined some of them.
        named: by the user; else the value behind what is joined stands for one inside.

    Raises:
        InvalidOptionError: a layer was named that the method joins with another.
    """
    walked = {name for step in steps for name in step.outputs}
    readers = readers_of(calls)
    found = []
    for name in kept:
        end = name
        while end not in walked and len(readers[end]) == 1:
            end = readers[end][0].outputs[0]
        if name not in walked and named:
            instead = f": name {end!r} instead" if end in walked else ""
            raise InvalidOptionError(
                f"layer {name!r} has no attribution of its own, since the method joins its operator with "
                f"those behind it{instead}."
            )
        if end in walked:
            found.append(end)
    return tuple(dict.fromkeys(found))
