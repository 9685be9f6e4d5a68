"""How long batches take, learned from those that ran."""

from collections.abc import Iterable

_FORGET = 0.95  # weight of what was known when one more batch is seen: about the last twenty count
_SURPRISE = 4.0  # times what was expected: more of one batch is a stall, and says little of the next
_SURE = 5.0  # batches after which there are expectations
_LEAST_SPREAD = 1e-3  # of batch sizes, relative to their mean square: below it a slope would be noise


class LatencyModel:
    """A line through the recent batches of one entry: seconds = fixed + rows · slope, by least squares.

    Batches that were all of one size tell no slope; larger ones then count as no slower, so that the first
    of them is tried and teaches it.
    """

    def __init__(self) -> None:
        self._count = self._rows = self._seconds = self._rows_rows = self._rows_seconds = 0.0
        self._line: tuple[float, float] | None = None

    @property
    def known(self) -> bool:
        return self._count > 0

    def learn(self, batches: Iterable[tuple[int, float]]) -> None:
        """Takes (rows, seconds) of batches that ran before as a first estimate."""
        for rows, seconds in batches:
            self.observe(rows, seconds)

    def observe(self, rows: int, seconds: float) -> None:
        if self._count > _SURE and rows * self._count <= self._rows:  # of a usual size
            seconds = min(seconds, _SURPRISE * self.estimate(rows))
        self._count = _FORGET * self._count + 1
        self._rows = _FORGET * self._rows + rows
        self._seconds = _FORGET * self._seconds + seconds
        self._rows_rows = _FORGET * self._rows_rows + rows * rows
        self._rows_seconds = _FORGET * self._rows_seconds + rows * seconds
        self._line = None  # last: who asks meanwhile is told of the batches before

    def estimate(self, rows: int) -> float:
        """Seconds for a batch of `rows`; 0.0 where nothing is known. Any thread may ask, one observes."""
        line = self._line
        if line is None:
            line = self._line = self._fit()
        fixed, slope = line
        return fixed + rows * slope

    def _fit(self) -> tuple[float, float]:
        if not self.known:
            return 0.0, 0.0
        mean_rows, mean_seconds = self._rows / self._count, self._seconds / self._count
        square = self._rows_rows / self._count
        spread = square - mean_rows**2
        if spread < _LEAST_SPREAD * square:
            return mean_seconds, 0.0
        slope = (self._rows_seconds / self._count - mean_rows * mean_seconds) / spread
        slope = min(max(slope, 0.0), mean_seconds / mean_rows)  # neither part of a duration is negative
        return mean_seconds - slope * mean_rows, slope
