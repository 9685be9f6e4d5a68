"""What a graph is made for: values that make sense, and amounts of memory as people write them."""

from typing import Any

import pytest

from rationale import Deployment
from rationale.errors import InvalidOptionError
from rationale.schema.machine import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1500000", 1_500_000),
        ("2GB", 2 << 30),
        ("0.5 gib", 1 << 29),
        ("512M", 512 << 20),
        ("1kB", 1024),
        ("1023 bytes", 1023),
    ],
)
def test_an_amount_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KB"),
        (1023 << 10, "1023 KB"),
        (1 << 20, "1 MB"),
        (1000 << 20, "1000 MB"),
        (1 << 30, "1 GB"),
        (1.234 * (1 << 30), "1.23 GB"),
        (2500 << 30, "2500 GB"),
    ],
)
def test_an_amount_of_memory_is_shown_as_people_write_it(size: float, text: str) -> None:
    assert format_bytes(size) == text
    assert not size or parse_bytes(text) == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "two", "1PB", "1 2", "nan", "inf"])
def test_no_amount_of_memory(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="write 2GB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "options",
    [
        {"provider": "tpu"},
        {"storage": "int8"},
        {"runtime": "tvm"},
        {"threads": 0},
        {"memory_budget": 0},
        {"threads": True},
    ],
)
def test_no_machine(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        Deployment(**options)
