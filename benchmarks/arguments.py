"""What the commands here have in common on the command line."""

import argparse
from collections.abc import Iterable

from compiler.bench.cases import MODELS


def parser_of(description: str | None, models: Iterable[str] = MODELS) -> argparse.ArgumentParser:
    """Of a command that takes a network of `rationale bench` and threads."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=models)
    parser.add_argument("--threads", type=positive, default=2, help="of every system (2)")
    return parser


def positive(text: str) -> int:
    """A whole number from 1 on. Raises ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)
