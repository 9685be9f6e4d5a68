"""Readable numbers for reports: the rule of `browser/files/format.js`, in Python."""

import math
from collections.abc import Callable, Iterable

_LARGEST = 1e15  # size from which exponents are shorter than digits
_MOST_DECIMALS = 9
_NEGLIGIBLE = 1e-6  # share of the largest effect; smaller effects do not affect the number of decimals


def number(value: float, digits: int = 4, *, grouped_from: float = 1000) -> str:
    """Write one number: grouped, with about `digits` digits, and an exponent if it is tiny or huge."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= _LARGEST or 0 < size < max(1e-4, 10.0**-digits):
        return f"{value:.1e}"
    places = 2 if size >= 1000 else max(0, digits - (0 if size < 1 else _order(size)))
    written = f"{value:{',' if size >= grouped_from else ''}.{places}f}"
    return _unsigned(written.rstrip("0").rstrip(".") if "." in written else written)


def feature_value(value: float) -> str:
    """Write a number of a row: 1956 may be a year, so it gets no thousands separator."""
    return number(value, 6, grouped_from=10_000)


def score_text(value: float, is_share: bool) -> str:
    """Write a score alone, in percent if it is a probability."""
    return f"{number(100 * value, 3)}%" if is_share else number(value)


def writer(
    effects: Iterable[float], values: Iterable[float] = (), *, is_share: bool = False
) -> Callable[[float], str]:
    """Return a function that writes numbers of one group alike.

    All get enough decimals for one digit of the smallest effect and three of the largest.

    Args:
        effects: the effects that are shown.
        values: other numbers that are shown; they set the decimals if no effect does.
        is_share: they are probabilities, and differences of them: write percent, without the sign.
    """
    factor = 100 if is_share else 1
    effect_decimals = _decimals(factor * effect for effect in effects)
    decimals = effect_decimals
    if decimals is None:
        decimals = _decimals(factor * value for value in values) or 0

    def written(value: float) -> str:
        value *= factor
        if not math.isfinite(value):
            return str(value)
        if value and (decimals > _MOST_DECIMALS or abs(value) >= _LARGEST):
            return f"{value:.1e}"
        return _unsigned(f"{value:,.{decimals}f}")

    return written


def format_effect(write: Callable[[float], str], value: float) -> str:
    """Write an effect with its sign, unless it rounds to zero."""
    text = write(value)
    return f"+{text}" if value > 0 and any(digit in text for digit in "123456789") else text


def _decimals(numbers: Iterable[float]) -> int | None:
    sizes = [abs(float(value)) for value in numbers if value and math.isfinite(value)]
    if not sizes:
        return None
    largest = max(sizes)
    smallest = min(size for size in sizes if size >= largest * _NEGLIGIBLE)
    return max(0, -_order(smallest), 2 - _order(largest))


def _order(size: float) -> int:
    return math.floor(math.log10(size))


def _unsigned(text: str) -> str:
    """Remove the minus sign of a number that rounds to zero."""
    return text if any(digit in text for digit in "123456789") else text.removeprefix("-")
