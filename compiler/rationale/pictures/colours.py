"""The colours of all pictures: for attributions, and for low and high values of a feature."""

import numpy as np

RAISES, LOWERS = "#d6604d", "#4393c3"  # red and blue that most colour-blind people tell apart
LOW, HIGH = "#8d63c4", "#c77700"  # violet and orange, so that nobody takes a high value for one that raises


def rgb(colour: str) -> np.ndarray:
    """Return red, green and blue of "#rrggbb", from 0 to 255."""
    return np.asarray([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.float64)


def blend(colour: str, other: str, share: float) -> str:
    """Return a colour mixed with a share of another one, as "#rrggbb"."""
    mixed = rgb(colour) + (rgb(other) - rgb(colour)) * share
    return "#" + "".join(f"{round(component):02x}" for component in mixed)
