"""Networks, sizes, and the options that the commands share; it imports no torch."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rationale.errors import RationaleError

OURS, FORWARD, WALK, SHAP, CAPTUM = "ours", "ort-forward", "walk", "shap", "captum"
PREDICTION, CONTRIBUTIONS, SHAPIQ, WOODELF = "prediction", "contributions", "shapiq", "woodelf"
KERNEL, PORTABLE, OPENVINO = "kernel", "portable", "openvino"
OF_NETWORKS = (FORWARD, WALK, SHAP, CAPTUM)  # if none are named
OF_TREES = (PREDICTION, FORWARD, CONTRIBUTIONS, SHAP, SHAPIQ, WOODELF)
PEERS = tuple(dict.fromkeys((*OF_NETWORKS, *OF_TREES, KERNEL, PORTABLE, OPENVINO)))
MODULES = {SHAP: "shap", CAPTUM: "captum.attr"}  # to import
BOOSTERS = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}
# Labels by the axes of a row: a network's features, a transformer's tokens, an image.
SIZES = {1: "{0}-256-256-2", 2: "{0} tokens", 3: "{1}²"}


@dataclass(frozen=True)
class BenchmarkCase:
    """One case of the benchmark.

    Attributes:
        model: its name on the command line; shape: of one row; references: K; rows: N.
    """

    model: str
    shape: tuple[int, ...]
    references: int
    rows: int = 1

    @property
    def label(self) -> str:
        """Return a label as `credit 24-256-256-2, K=100, N=64`; N = 1 is left out."""
        batch = f", N={self.rows}" if self.rows > 1 else ""
        return f"{self._network}, K={self.references}{batch}"

    @property
    def _network(self) -> str:
        return self.model if self.model in BOOSTERS else f"{self.model} {self._size}"

    @property
    def _size(self) -> str:
        return SIZES[len(self.shape)].format(*self.shape)


CASES = (
    BenchmarkCase("vgg16", (3, 224, 224), 10),
    BenchmarkCase("vgg19", (3, 112, 112), 10),
    BenchmarkCase("resnet50", (3, 224, 224), 10),
    BenchmarkCase("densenet169", (3, 128, 128), 10),
    BenchmarkCase("densenet201", (3, 128, 128), 10),
    BenchmarkCase("efficientnetb0", (3, 128, 128), 10),
    BenchmarkCase("efficientnetb1", (3, 128, 128), 10),
    BenchmarkCase("transformer", (16, 64), 10),
    BenchmarkCase("bert-base", (128, 768), 10),
    BenchmarkCase("credit", (24,), 100),
    BenchmarkCase("credit", (24,), 1000),
    BenchmarkCase("credit", (24,), 100, 64),
    BenchmarkCase("credit-softmax", (24,), 100),
    BenchmarkCase("credit-softmax", (24,), 1000),
    *(
        BenchmarkCase(name, (50,), count, rows)
        for name in BOOSTERS
        for count in (100, 1000)
        for rows in (1, 64)
    ),
)
MODELS = tuple(dict.fromkeys(case.model for case in CASES))
NETWORKS = tuple(name for name in MODELS if name not in BOOSTERS)


def choose_cases(
    models: Sequence[str] = (),
    references: Sequence[int] = (),
    rows: Sequence[int] = (),
    size: int | None = None,
) -> list[BenchmarkCase]:
    """Return the cases of these models (all by default), with the given sizes in place of their own."""
    sized = [
        replace(case, references=count, rows=n, shape=_resized(case.shape, size))
        for case in CASES
        if not models or case.model in models
        for count in references or (case.references,)
        for n in rows or (case.rows,)
    ]
    return list(dict.fromkeys(sized))


def _resized(shape: tuple[int, ...], size: int | None) -> tuple[int, ...]:
    return (shape[0], size, size) if size and len(shape) == 3 else shape


# -- command lines -------------------------------------------------------------------------------------


def parser_of(
    description: str | None, models: Iterable[str] = NETWORKS, *, many: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of a command that takes a network and threads, or `many` of `models`: [] for all."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if many:
        parser.add_argument("models", nargs="*", type=one_of(tuple(models)), metavar="MODEL")
    else:
        parser.add_argument("model", choices=tuple(models))
        parser.add_argument("--threads", type=positive, default=2, help="of every system (2)")
    return parser


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn this project's errors into a line on stderr and exit status 2."""
    try:
        yield
    except RationaleError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser of a name; `choices` of argparse would refuse an empty list."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"choose from {', '.join(choices)}, not {text!r}")
        return text

    return parse


def names(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a parser of names by commas."""
    return lambda text: [one_of(choices)(name.strip()) for name in text.split(",") if name.strip()]


def positive(text: str) -> int:
    """Return a whole number from 1 on; raise ArgumentTypeError for anything else."""
    if not text.strip().isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)


def numbers(text: str) -> list[int]:
    """Return whole numbers from 1 on, by commas, in order; raise ArgumentTypeError for anything else."""
    return sorted({positive(number) for number in text.split(",")})
