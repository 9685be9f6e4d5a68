"""What the commands here have in common on the command line."""

import argparse
from collections.abc import Iterable
from functools import partial

from rationale.bench.cases import MODELS, Case, choose_cases


def parser_of(
    description: str | None, models: Iterable[str] = MODELS, *, many: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of a command that takes a network and threads, or `many` of `models`: [] for all."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if many:
        parser.add_argument("models", nargs="*", type=partial(_one_of, tuple(models)), metavar="MODEL")
    else:
        parser.add_argument("model", choices=tuple(models))
        parser.add_argument("--threads", type=positive, default=2, help="of every system (2)")
    return parser


def case_of(asked: argparse.Namespace) -> Case:
    """Return the case of `rationale bench` for its network, and its `--references` where they are given."""
    references = getattr(asked, "references", None)
    return choose_cases([asked.model], [references] if references else [], None)[0]


def _one_of(models: tuple[str, ...], text: str) -> str:
    """Return a model's name; `choices` of argparse would refuse that none is given."""
    if text not in models:
        raise argparse.ArgumentTypeError(f"choose from {', '.join(models)}, not {text!r}")
    return text


def positive(text: str) -> int:
    """A whole number from 1 on. Raises ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)


def numbers(text: str) -> list[int]:
    """Whole numbers from 1 on, by commas. Raises ArgumentTypeError."""
    return [positive(part) for part in text.split(",")]
