"""`1/probes.json`: rows that an entry answers before it is trusted, with the expected answers.

The compiler writes them next to the graph. Whoever loads the entry (a check, the gateway, an exported page)
runs the rows and compares. So another runtime, another processor or a damaged file shows itself before a
decision. `inputs` is a request of the Open Inference Protocol, and `outputs` is its answer.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from rationale.errors import RepositoryError
from rationale.schema.manifest import FLOATS, NEWER, Frozen, first_fault

FILE = "probes.json"
ALLOW = "RATIONALE_ALLOW_DRIFT"  # the setting that lets broken entries answer
WARNED = 1e-5  # of an output's range: float32 in another order differs by a hundredth of that
BROKEN = 1e-3  # of an output's range: beyond, it is another answer
KERNELS = 2  # times the difference that was measured between kernels of one machine
ROUNDINGS = 8  # of an output's largest number; they count as no difference
MOST_ELEMENTS = 1024  # compared elements of a row of one output, evenly spaced
_EPSILON = {"FP16": 2.0**-10, "BF16": 2.0**-7, "FP32": 2.0**-23, "FP64": 2.0**-52}


class ProbeInput(Frozen):
    """A tensor of the request. `data` is flat, in row-major order; null is a missing value."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any]

    @property
    def array(self) -> np.ndarray:
        """The rows [N, …]; texts are Python's."""
        return _array(self.data, self.datatype).reshape(self.shape)


class ProbeOutput(Frozen):
    """An output's expected answer: [N, positions], flat; null is a number that is not finite."""

    name: str
    datatype: str
    positions: tuple[int, ...] | None = Field(
        None, description="compared elements of a row; None: all of them"
    )
    scale: float = Field(gt=0, description="range of the output; differences are divided by it")
    data: list[Any]

    @property
    def rounding(self) -> float | None:
        """The largest difference of floats that counts as none."""
        if self.datatype not in FLOATS:
            return None
        largest = max((abs(value) for value in self.data if value is not None), default=0.0)
        return ROUNDINGS * _EPSILON[self.datatype] * largest

    def difference(self, answer: np.ndarray) -> float:
        """Return the largest difference of an answer [N, …] from the expected one, over the range.

        For texts, and numbers that are no floats, return the share of elements that differ.
        """
        answered: np.ndarray = (
            np.asarray(answer).reshape(len(answer), -1) if np.ndim(answer) else np.zeros((0, 0))
        )
        if self.positions is not None:
            if answered.shape[1] <= max(self.positions):
                return float("inf")
            answered = answered[:, list(self.positions)]
        expected = _array(self.data, self.datatype)
        if answered.size != expected.size:
            return float("inf")
        answered = answered.reshape(-1)
        if self.datatype not in FLOATS:
            return float(np.mean([_plain(a) != _plain(b) for a, b in zip(answered, expected, strict=True)]))
        answered, expected = answered.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(expected)
        if not np.array_equal(np.isfinite(answered), finite):
            return float("inf")
        largest = np.abs(answered[finite] - expected[finite]).max(initial=0.0)
        return float(max(largest - (self.rounding or 0.0), 0.0) / self.scale)


class ProbeDifference(Frozen):
    """The largest difference of answers from the expected ones, and its output."""

    value: float = Field(description="difference as a share of the output's range")
    output: str
    limit: float = Field(description="difference above which the entry is broken")
    warned: float = Field(description="difference above which the user gets a warning")

    @property
    def is_broken(self) -> bool:
        return not self.value <= self.limit

    @property
    def is_notable(self) -> bool:
        return not self.value <= self.warned

    def describe(self, runtime: str, made_by: str) -> str:
        """Describe it in a sentence: `runtime` answers now, `made_by` answered at compile time."""
        return (
            f"{runtime} answers its probe rows otherwise than is due: {self.output!r} differs by "
            f"{self.value:.2g} of its range ({self.limit:.1g} is the most; compiled with {made_by})"
        )


class Probes(Frozen):
    """Rows and expected answers of one entry."""

    version: Literal[1] = 1
    source: Literal["fitted model", "reference evaluator", "runtime"] = Field(
        description="source of the model's own outputs; all others come from `runtime`"
    )
    runtime: str = Field(description="runtime of the compile: version and processor")
    kernels: float = Field(
        0.0,
        description="largest difference between two computations of these answers by that runtime, as a "
        "share of an output's range; large for quantised layers",
    )
    files: dict[str, str] = Field({}, description="SHA-256 of each other file in the folder")
    inputs: tuple[ProbeInput, ...]
    outputs: tuple[ProbeOutput, ...]

    @property
    def rows(self) -> int:
        return next((i.shape[0] for i in self.inputs if i.shape), 1)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The rows by input."""
        return {tensor.name: tensor.array for tensor in self.inputs}

    def compare(self, answers: Mapping[str, np.ndarray]) -> ProbeDifference:
        """Compare answers, by output, with the expected ones; leave out an output without an answer."""
        differences = {o.name: o.difference(answers[o.name]) for o in self.outputs if o.name in answers}
        output = max(differences, key=lambda name: differences[name], default="")
        return ProbeDifference(
            value=differences.get(output, 0.0),
            output=output,
            limit=self.limit,
            warned=self.warned,
        )

    @property
    def limit(self) -> float:
        """The difference above which an entry is broken."""
        return max(BROKEN, KERNELS * self.kernels)

    @property
    def warned(self) -> float:
        """The difference above which the user is warned."""
        return max(WARNED, KERNELS * self.kernels)

    def of(self, outputs: Collection[str]) -> "Probes":
        """Return the probes of an entry that has these outputs alone."""
        return self.model_copy(update={"outputs": tuple(o for o in self.outputs if o.name in outputs)})

    def write(self, version: Path) -> None:
        """Write the probes into the folder of a version, whose other files are complete. Raise OSError."""
        whole = self.model_copy(update={"files": _other_digests(version)})
        (version / FILE).write_text(json.dumps(whole.model_dump(), allow_nan=False) + "\n", encoding="utf-8")

    def check_files(self, version: Path) -> None:
        """Raise RepositoryError if a file of the folder is not the one that was compiled."""
        digests = _other_digests(version)
        for name in sorted(self.files.keys() | digests.keys()):
            if self.files.get(name) != digests.get(name):
                fault = "is missing" if name not in digests else "is not the file that was compiled (SHA-256)"
                raise RepositoryError(f"{version / name}: {fault}. Compile it again, or copy it again.")

    @staticmethod
    def read(version: Path, *, promised: bool = False) -> "Probes | None":
        """Read the folder's probes; return None if there are none.

        Args:
            promised: whether the entry's manifest says that there are some.

        Raises:
            RepositoryError: if the file cannot be read, or is damaged; or if it is promised and missing.
        """
        path = version / FILE
        try:
            probes = Probes.model_validate_json(path.read_bytes())
            for tensor in probes.inputs:
                _ = tensor.array
            return probes
        except FileNotFoundError as error:
            if not promised:
                return None
            raise RepositoryError(f"{path}: is missing. Compile it again, or copy it again.") from error
        except OSError as error:
            raise RepositoryError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValidationError, ValueError, TypeError) as error:
            first = first_fault(error) if isinstance(error, ValidationError) else str(error).splitlines()[0]
            raise RepositoryError(
                f"{path}: does not hold probe rows ({first}). Compile the entry again, or {NEWER}."
            ) from error


def file_digests(version: Path) -> dict[str, str]:
    """Return SHA-256 of each file of a version's folder, by name, in the order of their names.

    Raises:
        RepositoryError: if a file cannot be read.
    """
    digests = {}
    try:
        for path in sorted(p for p in version.rglob("*") if p.is_file()):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(version).as_posix()] = digest
    except OSError as error:
        raise RepositoryError(f"{version}: cannot be read: {error.strerror}") from error
    return digests


def _other_digests(version: Path) -> dict[str, str]:
    """Return the digests of all files but the probes' own."""
    return {name: digest for name, digest in file_digests(version).items() if name != FILE}


def values(array: np.ndarray) -> list[Any]:
    """Return an array's elements for JSON, in the shortest digits that its type reads; None if not finite."""
    flat = array.reshape(-1)
    if array.dtype.kind in "iub":
        return [*flat.tolist()]
    if array.dtype.kind in "OUS":
        return [_plain(value) for value in flat]
    finite = np.isfinite(flat).tolist()
    return [float(str(value)) if is_finite else None for value, is_finite in zip(flat, finite, strict=True)]


def _array(data: Iterable[Any], datatype: str) -> np.ndarray:
    if datatype == "BYTES":
        return np.array([str(value) for value in data], object)
    if datatype in FLOATS:
        wide = np.array([np.nan if value is None else value for value in data], np.float64)
        return wide.astype(_float_type(datatype))
    return np.array(list(data), np.bool_ if datatype == "BOOL" else datatype.lower())


def _float_type(datatype: str) -> Any:
    if datatype == "BF16":
        import ml_dtypes  # here, since few models need it

        return ml_dtypes.bfloat16
    return f"float{datatype.removeprefix('FP')}"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value
