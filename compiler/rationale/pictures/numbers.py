"""Numbers of reports as people read them: the rule of `browser/files/format.js`, in Python."""

import math
from collections.abc import Callable, Iterable

_LARGEST = 1e15  # from which on exponents are shorter than digits
_MOST_DECIMALS = 9
_NEGLIGIBLE = 1e-6  # of the largest effect: what is less has no say in how many decimals all have


def number(value: float, digits: int = 4) -> str:
    """Return a number alone: grouped, with about so many digits, by an exponent where it is tiny or huge."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= _LARGEST or 0 < size < 1e-4:
        return f"{value:.1e}"
    places = 2 if size >= 1000 else max(0, digits - (0 if size < 1 else _order(size)))
    written = f"{value:,.{places}f}"
    return _unsigned(written.rstrip("0").rstrip(".") if "." in written else written)


def writer(effects: Iterable[float], values: Iterable[float] = ()) -> Callable[[float], str]:
    """Return a function that writes numbers that stand together.

    All have as many decimals as let the smallest effect have a digit and the largest three.

    Args:
        effects: those that are shown.
        values: what else is shown; they choose the decimals where no effect does.
    """
    found = _decimals(effects)
    decimals = _decimals(values) or 0 if found is None else found

    def written(value: float) -> str:
        if not math.isfinite(value):
            return str(value)
        if value and (decimals > _MOST_DECIMALS or abs(value) >= _LARGEST):
            return f"{value:.1e}"
        return _unsigned(f"{value:,.{decimals}f}")

    return written


def signed(write: Callable[[float], str], value: float) -> str:
    """Return an effect: with its sign, unless it is written as nothing."""
    text = write(value)
    return f"+{text}" if value > 0 and any(digit in text for digit in "123456789") else text


def _decimals(numbers: Iterable[float]) -> int | None:
    sizes = [abs(float(one)) for one in numbers if one and math.isfinite(one)]
    if not sizes:
        return None
    largest = max(sizes)
    smallest = min(size for size in sizes if size >= largest * _NEGLIGIBLE)
    return max(0, -_order(smallest), 2 - _order(largest))


def _order(size: float) -> int:
    return math.floor(math.log10(size))


def _unsigned(text: str) -> str:
    """Return what is rounded to nothing without a sign."""
    return text if any(digit in text for digit in "123456789") else text.removeprefix("-")
