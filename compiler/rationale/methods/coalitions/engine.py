"""Coalitions: any model, called with some features from the row and all others from a reference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rationale.errors import InvalidReferencesError
from rationale.lowering import Lowered
from rationale.methods.coalitions.emit import emit
from rationale.methods.coalitions.method import Game
from rationale.methods.coalitions.target import choose_target
from rationale.methods.engine import Canvas, Engine, Part, Selection, demand_no_layers
from rationale.methods.feature_names import named
from rationale.methods.leaves import Leaf, raw_leaves
from rationale.methods.players import coalition_game
from rationale.schema.request import CompileRequest


class CoalitionEngine(Engine):
    """No rule is needed: the model is called as it is."""

    def leaves(self, lowered: Lowered, method: Any, inputs: Sequence[str] | None) -> tuple[Leaf, ...]:
        return raw_leaves(lowered, inputs)

    def select(self, lowered: Lowered, method: Any, request: CompileRequest) -> Selection:
        """Choose who plays, for which output.

        Raises:
            InvalidOptionError: besides, layers or concepts, which only a walk meets; too many players.
        """
        demand_no_layers(method, request)
        if method.reference_set is None:
            raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
        lowered, target = choose_target(lowered, method, request)
        selection = named(Selection(lowered, target, method, None, Part()), request)
        game = coalition_game(lowered, selection.target.leaves, selection.target.players)
        method.coalitions(game.players)
        return replace(selection, part=Game(game))

    def emit(self, canvas: Canvas) -> None:
        """Call the model for coalitions of players, in a Scan over rows."""
        emit(canvas, self.outputs(canvas.selection))


COALITIONS = CoalitionEngine()
