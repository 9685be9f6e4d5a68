"""The players that receive attributions: single features, or groups of features."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.lowering import Lowered
from rationale.methods.leaves import Leaf

_MOST_NAMED = 8  # features listed in a message
_TOGETHER = 8  # numbers in a vector register


@dataclass(frozen=True, eq=False)
class Players:
    """Groups of features, followed by the ungrouped features of the same inputs.

    Attributes:
        names: [P], all different.
        members: [P], the names of each player's features.
        of: int64 [elements], the player of each element of a row, by explained tensor with a grouped feature.
    """

    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    of: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class CoalitionGame:
    """The players of a game for the explained output.

    Attributes:
        players: the number of players.
        of: the player of each element of a row, 0 to players − 1, by explained tensor.
    """

    players: int
    of: Mapping[str, np.ndarray]


NOBODY = CoalitionGame(0, {})


def choose_players(groups: object, features: Mapping[str, Sequence[str]]) -> Players:
    """Return the players of all inputs that have a grouped feature.

    Args:
        groups: names of features by group name; a name that ends with `*` stands for all features that begin
            with the text before it.
        features: names of one row's elements by explained tensor, all different.

    Raises:
        InvalidOptionError: if `groups` is no mapping, a name is taken, a group is empty, a feature is
            unknown, or a feature is in two groups.
    """
    if not isinstance(groups, Mapping):
        raise InvalidOptionError(
            f"groups {groups!r}: give a mapping from each group's name to the names of its features."
        )
    known = {feature: tensor for tensor, names in features.items() for feature in names}
    members = {str(name): _members(name, given, known) for name, given in groups.items()}
    group_of: dict[str, str] = {}
    for name, own in members.items():
        for feature in own:
            if group_of.setdefault(feature, name) != name:
                raise InvalidOptionError(
                    f"feature {feature!r} is in the groups {group_of[feature]!r} and {name!r}: leave it in "
                    "one."
                )
    touched = {known[feature] for feature in group_of}
    for name in {*members} & {*features} - touched:
        raise InvalidOptionError(
            f"group {name!r} is called like an explained input that it has no part in: choose another name."
        )
    grouped = {tensor: names for tensor, names in features.items() if tensor in touched}
    members |= {f: (f,) for names in grouped.values() for f in names if f not in group_of}
    player = {name: i for i, name in enumerate(members)}
    return Players(
        tuple(members),
        tuple(members.values()),
        {
            tensor: np.asarray([player[group_of.get(feature, feature)] for feature in names], np.int64)
            for tensor, names in grouped.items()
        },
    )


def coalition_game(lowered: Lowered, leaves: Sequence[Leaf], players: Players | None) -> CoalitionGame:
    """Return the game.

    The players of `players` come first; each element of any other tensor is a player.
    """
    of, count = {}, len(players.names) if players else 0
    for leaf in leaves:
        row = lowered.specs[leaf.tensor][0][1:]
        if players and leaf.name in players.of:
            of[leaf.tensor] = players.of[leaf.name].reshape(row)
            continue
        of[leaf.tensor] = np.arange(count, count + prod(row)).reshape(row)
        count += prod(row)
    return CoalitionGame(count, of)


def _members(name: object, given: object, known: Mapping[str, str]) -> tuple[str, ...]:
    """Return the features of one group; each must exist and be named once."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError(f"group {name!r}: a group's name must be a word.")
    if name in known:
        raise InvalidOptionError(f"group {name!r} is called like a feature: choose another name.")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidOptionError(f"group {name!r}: give a list of the names of its features, not {given!r}.")
    found = [feature for word in given for feature in _meant(name, word, known)]
    if not found:
        raise InvalidOptionError(f"group {name!r} is empty: name its features, or leave it out.")
    if twice := sorted(feature for feature, times in Counter(found).items() if times > 1):
        raise InvalidOptionError(f"group {name!r} names {twice} twice: name each feature once.")
    return tuple(found)


def _meant(group: str, word: object, known: Mapping[str, str]) -> list[str]:
    """Return the feature with that name, or all features that begin with the text before a `*`."""
    if word in known:
        return [str(word)]
    found = [f for f in known if f.startswith(str(word)[:-1])] if str(word).endswith("*") else []
    if found:
        return found
    near = get_close_matches(str(word), known, 3)
    hint = f"Do you mean {' or '.join(map(repr, near))}?" if near else f"There are {_some(list(known))}."
    raise InvalidOptionError(f"group {group!r}: no explained feature is called {word!r}. {hint}")


def _some(names: Sequence[str]) -> str:
    more = ", …" * (len(names) > _MOST_NAMED)
    return ", ".join(map(repr, names[:_MOST_NAMED])) + more


# -- sums over the features of players ---------------------------------------------------------------------


def by_player(op: Ops, players: Players, values: Mapping[str, Tensor]) -> Tensor:
    """Return Σ over each player's features: row shape [1, P].

    Players with about equally many features are summed together. Each has an axis of its own, filled up with
    zeros to a multiple of eight. So a sum begins at the same place of a vector register in every row of a
    batch, and has the same bits in every row. A MatMul does not ensure this.

    Args:
        values: numbers of the features, by explained tensor: row shape [1, *its row].
    """
    dtype = next(iter(values.values())).dtype
    flat = [_cast(op, op.reshape(values[tensor], (1, of.size)), dtype) for tensor, of in players.of.items()]
    x = flat[0] if len(flat) == 1 else op.Concat(*flat, axis=1)
    of = np.concatenate(list(players.of.values()))
    elements = np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of))[:-1])
    widths = [1 if len(own) == 1 else -(-len(own) // _TOGETHER) * _TOGETHER for own in elements]
    x = op.Concat(x, op.row_constant(np.zeros((1, 1), dtype.numpy())), axis=1)
    parts, placed = [], list[int]()
    for width in sorted({*widths}):
        chosen = [p for p, own in enumerate(widths) if own == width]
        index = np.full((len(chosen), width), len(of))  # index of the 0 after all features
        for row, p in zip(index, chosen, strict=True):
            row[: len(elements[p])] = elements[p]
        part = op.Gather(x, index.reshape(-1), axis=1)
        if width > 1:
            part = op.ReduceSum(op.reshape(part, (1, *index.shape)), [2], keepdims=0)
        parts.append(part)
        placed += chosen
    if len(parts) == 1:
        return parts[0]
    return op.Gather(op.Concat(*parts, axis=1), np.argsort(placed), axis=1)


def _cast(op: Ops, x: Tensor, dtype: ir.DataType) -> Tensor:
    return x if x.dtype == dtype else op.Cast(x, to=int(dtype))
