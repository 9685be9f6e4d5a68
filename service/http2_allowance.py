"""How often a peer may send what costs it next to nothing (CVE-2023-44487, CVE-2019-9512 and the like)."""

_BURST = 1000.0
_PER_S = 500.0


class Allowance:
    """A bucket of frames that fills with time."""

    __slots__ = ("_left", "_since_s")

    def __init__(self) -> None:
        self._left = _BURST
        self._since_s = 0.0

    def take(self, now_s: float) -> bool:
        """Whether one more frame is let through, at `now_s` of the event loop's clock."""
        self._left = min(_BURST, self._left + (now_s - self._since_s) * _PER_S) - 1
        self._since_s = now_s
        return self._left >= 0

    def add(self, frames: int) -> None:
        """Lets so many more through."""
        self._left = min(_BURST, self._left + frames)
