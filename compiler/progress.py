"""How long work says how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # called with a stage, how much of it is done, and how much it is


def silent(*_: object) -> None:
    """Show no progress."""
