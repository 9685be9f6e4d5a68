"""What is measured: networks, sizes, and which peers; no torch is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from rationale.distribution import install
from rationale.errors import InvalidOptionError

OURS, FORWARD, SHAP, CAPTUM = "ours", "ort-forward", "shap", "captum"
PEERS = (FORWARD, SHAP, CAPTUM)
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
        """As in `credit 24-256-256-2, K=100, N=64`; N = 1 is not told."""
        return f"{self._network}, K={self.references}{self._batch}"

    @property
    def label_without_references(self) -> str:
        """What cases that differ in K alone have in common."""
        return f"{self._network}{self._batch}"

    @property
    def _network(self) -> str:
        return f"{self.model} {SIZES[len(self.shape)].format(*self.shape)}"

    @property
    def _batch(self) -> str:
        return f", N={self.rows}" if self.rows > 1 else ""


CASES = (
    Case("vgg19", (3, 112, 112), 10),
    Case("resnet50", (3, 224, 224), 10),
    Case("densenet201", (3, 128, 128), 10),
    Case("efficientnetb0", (3, 128, 128), 10),
    Case("transformer", (16, 64), 10),
    Case("credit", (24,), 100),
    Case("credit", (24,), 1000),
    Case("credit", (24,), 100, 64),
    Case("credit-softmax", (24,), 100),
    Case("credit-softmax", (24,), 1000),
)
MODELS = tuple(dict.fromkeys(case.model for case in CASES))


@dataclass(frozen=True)
class Settings:
    """How it is measured.

    Attributes:
        repeats: rounds in which every system has its turn; threads: of each system.
        as_installed: whether memory is allocated as the system does it by itself, for all systems.
    """

    repeats: int = 9
    threads: int = 2
    peers: tuple[str, ...] = PEERS
    as_installed: bool = False


def choose_cases(models: Sequence[str], references: Sequence[int], rows: int | None) -> list[Case]:
    """Return the cases of these models, with other sizes where they are given.

    Raises:
        InvalidOptionError: a model that there is none of.
    """
    _known("model", models, MODELS)
    chosen = [case for case in CASES if not models or case.model in models]
    sized = [
        replace(case, references=count, rows=rows or case.rows)
        for case in chosen
        for count in references or (case.references,)
    ]
    return list(dict.fromkeys(sized))


def parse_references(text: str | None) -> tuple[int, ...]:
    """Numbers K by commas, in order; none where there is no text.

    Raises:
        InvalidOptionError: something else.
    """
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InvalidOptionError(f"--references takes whole numbers from 1 on, by commas, not {text!r}.")
    return tuple(sorted({int(part) for part in parts}))


def choose_peers(text: str | None) -> tuple[str, ...]:
    """Return the peers in a list by commas; none where it is empty; all where there is no list.

    Raises:
        InvalidOptionError: a peer that there is none of, or that is not installed.
    """
    peers = PEERS if text is None else [part.strip() for part in text.split(",") if part.strip()]
    _known("peer", peers, PEERS)
    needed = ["torch", "torchvision", *(NEEDS[peer] for peer in peers if peer in NEEDS)]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InvalidOptionError(f"rationale bench needs {', '.join(missing)}: {install('bench')}")
    return tuple(peer for peer in PEERS if peer in peers)


def _known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidOptionError(f"no {kind} {name!r}: choose from {', '.join(known)}.")
