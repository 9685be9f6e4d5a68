"""The parts that all pages share: the style, and modules of elements, forms, numbers in words and bars."""

from pathlib import Path

FILES = Path(__file__).parent / "files"
