"""The players that receive attributions: single features, or groups of features."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from rationale.errors import InvalidOptionError, near, quoted
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.lowering import Lowered
from rationale.methods.leaves import Leaf

_REGISTER = 8  # numbers in a vector register


@dataclass(frozen=True, eq=False)
class Players:
    """Groups of features, followed by the ungrouped features of the same inputs.

    Attributes:
        names: [P], all different.
        members: [P], the names of each player's features.
        player_of: int64 [elements], the player of each element of a row, by explained tensor that has one.
    """

    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    player_of: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class CoalitionGame:
    """The players of a game for the explained output.

    Attributes:
        players: the number of players.
        player_of: the player of each element of a row, 0 to players − 1, by explained tensor.
    """

    players: int
    player_of: Mapping[str, np.ndarray]


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
    tensor_of = {feature: tensor for tensor, names in features.items() for feature in names}
    members = {str(name): _members(name, words, tensor_of) for name, words in groups.items()}
    group_of: dict[str, str] = {}
    for name, features_of_group in members.items():
        for feature in features_of_group:
            if group_of.setdefault(feature, name) != name:
                raise InvalidOptionError(
                    f"feature {feature!r} is in the groups {group_of[feature]!r} and {name!r}: leave it in "
                    "one."
                )
    touched = {tensor_of[feature] for feature in group_of}
    for name in {*members} & {*features} - touched:
        raise InvalidOptionError(
            f"group {name!r} has the name of an explained input, but groups none of its features: choose "
            "another name."
        )
    grouped = {tensor: names for tensor, names in features.items() if tensor in touched}
    members |= {f: (f,) for names in grouped.values() for f in names if f not in group_of}
    number_of = {name: i for i, name in enumerate(members)}
    return Players(
        tuple(members),
        tuple(members.values()),
        {
            tensor: np.asarray([number_of[group_of.get(feature, feature)] for feature in names], np.int64)
            for tensor, names in grouped.items()
        },
    )


def coalition_game(lowered: Lowered, leaves: Sequence[Leaf], players: Players | None) -> CoalitionGame:
    """Return the game.

    The players of `players` come first; each element of any other tensor is a player.
    """
    player_of, count = {}, len(players.names) if players else 0
    for leaf in leaves:
        row = lowered.specs[leaf.tensor][0][1:]
        if players and leaf.name in players.player_of:
            player_of[leaf.tensor] = players.player_of[leaf.name].reshape(row)
            continue
        player_of[leaf.tensor] = np.arange(count, count + prod(row)).reshape(row)
        count += prod(row)
    return CoalitionGame(count, player_of)


def _members(name: object, words: object, tensor_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the features of one group; each must exist and be named once."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError(f"group {name!r}: a group's name must be a word.")
    if name in tensor_of:
        raise InvalidOptionError(f"group {name!r} has the name of a feature: choose another name.")
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise InvalidOptionError(f"group {name!r}: give a list of the names of its features, not {words!r}.")
    names = [feature for word in words for feature in _matching_features(name, word, tensor_of)]
    if not names:
        raise InvalidOptionError(f"group {name!r} is empty: name its features, or leave it out.")
    if repeated := sorted(feature for feature, times in Counter(names).items() if times > 1):
        raise InvalidOptionError(f"group {name!r} names {repeated} twice: name each feature once.")
    return tuple(names)


def _matching_features(group: str, word: object, tensor_of: Mapping[str, str]) -> list[str]:
    """Return the feature with that name, or all features that begin with the text before a `*`."""
    if word in tensor_of:
        return [str(word)]
    matches = [f for f in tensor_of if f.startswith(str(word)[:-1])] if str(word).endswith("*") else []
    if matches:
        return matches
    raise InvalidOptionError(
        f"group {group!r}: no explained feature has the name {word!r}{near(str(word), tensor_of)}. There "
        f"are {quoted(tensor_of)}."
    )


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
    flat = []
    for tensor, of in players.player_of.items():
        x = op.reshape(values[tensor], (1, of.size))
        flat.append(x if x.dtype == dtype else op.Cast(x, to=int(dtype)))
    numbers = flat[0] if len(flat) == 1 else op.Concat(*flat, axis=1)
    player_of = np.concatenate(list(players.player_of.values()))
    elements = np.split(np.argsort(player_of, kind="stable"), np.cumsum(np.bincount(player_of))[:-1])
    counts = map(len, elements)
    widths = [1 if count == 1 else -(-count // _REGISTER) * _REGISTER for count in counts]
    numbers = op.Concat(numbers, op.row_constant(np.zeros((1, 1), dtype.numpy())), axis=1)
    parts, player_order = [], list[int]()
    for width in sorted({*widths}):
        chosen = [player for player, w in enumerate(widths) if w == width]
        index = np.full((len(chosen), width), len(player_of))  # index of the 0 after all features
        for row, player in zip(index, chosen, strict=True):
            row[: len(elements[player])] = elements[player]
        sums = op.Gather(numbers, index.reshape(-1), axis=1)
        if width > 1:
            sums = op.ReduceSum(op.reshape(sums, (1, *index.shape)), [2], keepdims=0)
        parts.append(sums)
        player_order += chosen
    if len(parts) == 1:
        return parts[0]
    return op.Gather(op.Concat(*parts, axis=1), np.argsort(player_order), axis=1)
