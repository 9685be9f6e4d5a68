"""The engine of coalition methods: they call the model with some features replaced by a reference's."""

from collections.abc import Sequence
from dataclasses import replace

from rationale.errors import InvalidReferencesError
from rationale.lowering import Lowered
from rationale.methods.coalitions.emit import emit
from rationale.methods.coalitions.method import CoalitionMethod, Game
from rationale.methods.coalitions.target import choose_target
from rationale.methods.engine import Canvas, Engine, Selection, demand_no_layers
from rationale.methods.feature_names import with_named_features
from rationale.methods.leaves import Leaf, raw_leaves
from rationale.methods.players import NOBODY, coalition_game
from rationale.schema.request import CompileRequest


class CoalitionEngine(Engine[CoalitionMethod, Game]):
    """An engine that calls the unchanged model and needs no rules."""

    def leaves(
        self, lowered: Lowered, method: CoalitionMethod, inputs: Sequence[str] | None
    ) -> tuple[Leaf, ...]:
        return raw_leaves(lowered, inputs)

    def select(
        self, lowered: Lowered, method: CoalitionMethod, request: CompileRequest
    ) -> Selection[CoalitionMethod, Game]:
        """Choose the players and the explained output.

        Raises:
            InvalidOptionError: if the request names layers or concepts, which need a walk, or has too many
                players.
        """
        demand_no_layers(method, request)
        if method.reference_set is None:
            raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
        lowered, target = choose_target(lowered, method, request)
        selection = with_named_features(Selection(lowered, target, method, None, Game(NOBODY)), request)
        game = coalition_game(lowered, selection.target.leaves, selection.target.players)
        method.coalitions(game.players)
        return replace(selection, choice=Game(game))

    def emit(self, canvas: Canvas[CoalitionMethod, Game]) -> None:
        """Add a Scan over rows that calls the model for coalitions of players."""
        emit(canvas)


COALITIONS = CoalitionEngine()
