"""What is measured: networks, sizes, and which peers; no torch is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from compiler.errors import InvalidOptionError

OURS, FORWARD, TORCH, COMPILED, SHAP, CAPTUM = (
    "ours",
    "ort-forward",
    "torch",
    "torch-compile",
    "shap",
    "captum",
)
PEERS = (FORWARD, TORCH, COMPILED, SHAP, CAPTUM)
NEEDS = {SHAP: "shap", CAPTUM: "captum"}  # beside torch and torchvision
# What a row is called, by its axes: the credit network's features, a transformer's tokens, an image.
SIZES = {1: "{0}-256-256-2", 2: "{0} tokens", 3: "{1}²"}


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        model: its name on the command line; shape: of one row; references: K; rows: N.
    """

    model: str
    shape: tuple[int, ...]
    references: int
    rows: int = 1

    @property
    def label(self) -> str:
        size = SIZES[len(self.shape)].format(*self.shape)
        rows = f", N={self.rows}" if self.rows > 1 else ""
        return f"{self.model} {size}, K={self.references}{rows}"


CASES = (
    Case("vgg19", (3, 112, 112), 10),
    Case("resnet50", (3, 224, 224), 10),
    Case("densenet201", (3, 128, 128), 10),
    Case("efficientnetb0", (3, 128, 128), 10),
    Case("transformer", (16, 64), 10),
    Case("credit", (24,), 100),
    Case("credit", (24,), 1000),
    Case("credit", (24,), 100, 64),
)
MODELS = tuple(dict.fromkeys(case.model for case in CASES))


@dataclass(frozen=True)
class Settings:
    """How it is measured.

    Attributes:
        repeats: rounds in which every system has its turn; threads: of each system; seed: of weights and
            rows; memory: whether peak memory is measured too, in processes of their own.
    """

    repeats: int = 9
    threads: int = 2
    seed: int = 0
    peers: tuple[str, ...] = PEERS
    memory: bool = False


def choose_cases(models: Sequence[str], references: int | None, rows: int | None) -> list[Case]:
    """The cases of these models, with other sizes where they are given.

    Raises:
        InvalidOptionError: a model that there is none of.
    """
    _known("model", models, MODELS)
    chosen = [case for case in CASES if not models or case.model in models]
    sized = [
        replace(case, references=references or case.references, rows=rows or case.rows) for case in chosen
    ]
    return list(dict.fromkeys(sized))


def choose_peers(text: str | None) -> tuple[str, ...]:
    """The peers in a list by commas; all where there is none, and none where it is empty.

    Raises:
        InvalidOptionError: a peer that there is none of, or whose package is not installed.
    """
    peers = PEERS if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
    _known("peer", peers, PEERS)
    needed = ["torch", "torchvision", *(NEEDS[peer] for peer in peers if peer in NEEDS)]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InvalidOptionError(
            f"rationale bench needs {', '.join(missing)}: pip install 'rationale[bench]'"
        )
    return tuple(peer for peer in PEERS if peer in peers)


def _known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidOptionError(f"no {kind} {name!r}: choose from {', '.join(known)}.")
