"""Samples of RNN, GRU and LSTM, with their rows first (layout 1)."""

from typing import Any

import numpy as np

from rationale.testing import Sample, Var

SIZE, WIDTH = 3, 2  # of a state, and of a step's input
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def parameters(kind: str, ways: int, seed: int = 0) -> list[np.ndarray]:
    """W [D, G·H, I], R [D, G·H, H] and B [D, 2·G·H]."""
    random, gates = np.random.default_rng(seed), _GATES[kind] * SIZE
    shapes = [(ways, gates, WIDTH), (ways, gates, SIZE), (ways, 2 * gates)]
    return [random.uniform(-1, 1, shape) for shape in shapes]


def _sample(
    kind: str, note: str, *arguments: Any, ways: int = 1, bias: bool = True, **attributes: Any
) -> Sample:
    w, r, b = parameters(kind, ways)
    direction = {"direction": "bidirectional"} if ways == 2 else {}
    operands = [Var((4, WIDTH)), w, r, b if bias else None, *arguments]
    attributes = {"hidden_size": SIZE, "layout": 1, **direction, **attributes}
    return Sample(kind, operands, attributes, note=note)


def recurrent_samples() -> list[Sample]:
    state, two_states = Var((1, SIZE)), Var((2, SIZE))
    peepholes = np.random.default_rng(1).uniform(-1, 1, (1, 3 * SIZE))
    return [
        _sample("RNN", "plain"),
        _sample(
            "RNN",
            "Affine, states",
            None,
            state,
            activations=["Affine"],
            activation_alpha=[0.7],
            activation_beta=[0.2],
        ),
        _sample("GRU", "plain"),
        _sample("GRU", "both ways, states", None, two_states, ways=2),
        _sample("GRU", "linear before reset", None, state, linear_before_reset=1),
        _sample("GRU", "linear before reset, no bias", bias=False, linear_before_reset=1),
        _sample("LSTM", "plain"),
        _sample("LSTM", "both ways, states", None, two_states, two_states, ways=2),
        _sample("LSTM", "peepholes", None, state, state, peepholes),
        _sample("LSTM", "coupled gates, backwards", None, state, state, input_forget=1, direction="reverse"),
    ]
