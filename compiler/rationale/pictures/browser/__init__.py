"""Modules of JavaScript that all pages share: elements, numbers in words, bars."""

from pathlib import Path

FILES = Path(__file__).parent / "files"
