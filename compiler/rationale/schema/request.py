"""The request of a compile, in plain values, as command line, API and manifest have it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rationale.errors import InvalidOptionError
from rationale.schema.machine import HERE, Deployment
from rationale.schema.methods import METHODS

Size = int | tuple[int, int]  # one length, or all from the first to the second
Element = int | str
"""A flat index into the output's row; or a contrast, "1-0": element 1 less element 0."""
Targets = Sequence[Element] | Literal["all", "predicted"] | None
Layers = Sequence[str] | Literal["all"]
Columns = Sequence[str] | Mapping[str, Sequence[str]] | None
FeatureNames = Sequence[str] | Mapping[str, Sequence[str]]
Groups = Mapping[str, Sequence[str]]
Progress = Callable[[str, int, int], None]
"""A function of a stage, the finished part of it, and the whole."""


def silent(*_: object) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Concepts:
    """A question about the channels of one tensor.

    Achtibat et al., "From attribution maps to human-understandable explanations through concept relevance
    propagation", 2023.

    Args:
        layer: a tensor on the way to the output, by its name in the file.
        count: the number of channels with a heatmap of their own: those of the largest attributions by size.
        axis: the layer's channel axis; 1 for images, 2 for tokens [N, S, E].

    Raises:
        InvalidOptionError: if the count or the axis is no whole number.
    """

    layer: str
    count: int = 5
    axis: int = 1

    def __post_init__(self) -> None:
        for name, value in (("count", self.count), ("axis", self.axis)):
            whole_number(f"concepts of {self.layer!r}: {name}", value, 0)
            object.__setattr__(self, name, int(value))


class CompileRequest(BaseModel):
    """A method by its name on the command line, its options, and the targets and inputs to explain.

    A compile checks names, numbers of elements and lengths against its model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field("deepshap", description=f"explanation method: {', '.join(METHODS)}")
    options: dict[str, Any] = Field(
        {}, description="options of the method, by their Python names; None means not given"
    )
    output: str | None = Field(None, description="the tensor to explain; default: the first float output")
    logits: bool = Field(
        False, description="explain the scores before the output's last Sigmoid, Softmax or LogSoftmax"
    )
    targets: Any = Field(
        None,
        description="indices into the output's row, contrasts such as '1-0' (element 1 rather than 0), "
        "'all', or 'predicted': each row's own largest; default: the only element, 1 of two (an output "
        "[N, 2]), else predicted",
    )
    inputs: Any = Field(
        None, description="tensors to attribute to; default: every float input, else the token ids"
    )
    features: Any = Field(None, description="feature names, or those of each input")
    groups: Any = Field(
        {},
        description="features by the name of their group; group_attributions are those of the manifest's "
        "players",
    )
    sizes: Any = Field({}, description="lengths that the model leaves open: one, or the least and the most")
    layers: Any = Field([], description="inner tensors whose attributions the graph also returns, or 'all'")
    concepts: Concepts | None = Field(
        None, description="channels of an inner tensor: what the inputs contribute to each"
    )
    open_references: int | None = Field(
        None, description="K: take up to K references with each request, and keep none in the graph"
    )
    deployment: Deployment = Field(HERE, description="the machine that serves it")
    allow_parity: float | None = Field(
        None,
        description="for a fitted model: largest accepted difference from its ONNX model, as a share of a "
        "column's range",
    )
    missing: float | None = Field(
        None, description="for an XGBoost file: the number that means a missing value"
    )
    categories: Path | None = Field(
        None, exclude=True, description="for a fitted model: the file of rows that hold every category"
    )
    custom_ops: Any = Field((), exclude=True, description="libraries of kernels")
    allow_pickle: bool = Field(False, exclude=True, description="whether a model's file may be a pickle")
    decision: Path | None = Field(None, exclude=True, description="the file of a decision profile")
    compare: dict[str, Path] = Field(
        {}, exclude=True, description="files of other references to explain the model against, by name"
    )
    draws: int = Field(
        0, description="number of sets drawn from the references, to explain the model against each"
    )
    draws_seed: int = Field(0, description="seed of these draws")

    @field_validator("targets", "inputs", "features", "groups", "layers", "options", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return plain(value)

    @field_validator("concepts", mode="before")
    @classmethod
    def _check_concepts(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, Concepts | dict):
            raise InvalidOptionError(f"concepts {value!r}: give Concepts(layer, count).")
        return value

    @field_validator("sizes", mode="before")
    @classmethod
    def _lengths(cls, value: Any) -> Any:
        """Return a length, or a pair: the least and the most."""
        sizes = plain(value)
        pairs = sizes.items() if isinstance(sizes, dict) else ()
        return {k: tuple(v) if isinstance(v, list) else v for k, v in pairs} if pairs else sizes


def plain(value: Any) -> Any:
    """Return collections, arrays and NumPy's numbers as JSON has them; anything else unchanged."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def whole_number(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raise InvalidOptionError unless the value is a whole number within the limits."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        span = f"{least} to {most}" if most is not None else f"{least} or more"
        raise InvalidOptionError(f"{name} must be a whole number, {span}, not {value!r}.")


# -- texts of a command line -----------------------------------------------------------------------------


def parse_targets(text: str | None) -> Targets:
    """Parse "0,3,1-0", "all" or "predicted"; None is the default. Raise InvalidOptionError for others."""
    words: dict[str | None, Targets] = {None: None, "all": "all", "predicted": "predicted"}
    if text is None or text in words:
        return words[text]
    try:
        return [target.strip() if "-" in target.strip()[1:] else int(target) for target in text.split(",")]
    except ValueError as error:
        raise InvalidOptionError(
            f"--targets {text!r}: give indices and contrasts such as 1-0 by commas, 'all' or 'predicted'."
        ) from error


def parse_compare(texts: Sequence[str]) -> dict[str, Path]:
    """Parse "all_applicants=all.npz": files of references by the name of a baseline.

    Raises:
        InvalidOptionError: if a text has another form, or a name is given twice.
    """
    files: dict[str, Path] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not name or not file or name in files:
            raise InvalidOptionError(
                f"--compare {text!r}: give a name and a file, such as all_applicants=all.npz, each name once."
            )
        files[name] = Path(file)
    return files


def parse_layers(names: Sequence[str]) -> Layers:
    """Parse "all" alone, or names."""
    return "all" if list(names) == ["all"] else names


def parse_concepts(text: str | None, axis: int | None) -> Concepts | None:
    """Parse "conv5=4": four channels of the tensor conv5; raise InvalidOptionError for anything else."""
    if text is None:
        if axis is not None:
            raise InvalidOptionError("--concept-axis belongs to --concepts TENSOR=COUNT.")
        return None
    name, _, count = text.rpartition("=")
    if not name or not count.isdecimal():
        raise InvalidOptionError(
            f"--concepts {text!r}: give a tensor and how many channels, such as conv5=4."
        )
    return Concepts(name, int(count)) if axis is None else Concepts(name, int(count), axis)


def parse_features(texts: Sequence[str]) -> Columns:
    """Parse "A,B,C", or "INPUT=A,B" for each of several inputs; raise InvalidOptionError for others."""
    if not texts or (len(texts) == 1 and "=" not in texts[0].split(",")[0]):
        return [name.strip() for name in texts[0].split(",")] if texts else None
    features: dict[str, list[str]] = {}
    for text in texts:
        name, equals, names = text.partition("=")
        if not equals or "," in name or not name or name in features:
            raise InvalidOptionError(
                f"--features {text!r}: give names by commas once, or INPUT=A,B,C for each of several inputs."
            )
        features[name] = [feature.strip() for feature in names.split(",")]
    return features


def parse_groups(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse "housing=own,rent,free" …: features by the name of their group.

    Raises:
        InvalidOptionError: if a text has another form, or a name is given twice.
    """
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, _, features = text.partition("=")
        if not name.strip() or not features.strip():
            raise InvalidOptionError(
                f"--group {text!r}: give a name and features by commas, such as housing=own,rent,free."
            )
        if name.strip() in groups:
            raise InvalidOptionError(f"--group {text!r}: {name.strip()!r} is given twice: name it once.")
        groups[name.strip()] = [feature.strip() for feature in features.split(",")]
    return groups


def parse_sizes(texts: Sequence[str]) -> dict[str, Size]:
    """Parse "sequence=128" or "sequence=1..128" …: lengths by name; raise InvalidOptionError for others."""
    sizes: dict[str, Size] = {}
    for text in texts:
        name, _, length = text.rpartition("=")
        ends = length.split("..")
        if not name or len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise InvalidOptionError(
                f"--size {text!r}: give a name and a whole number, such as sequence=128, or a range that "
                "stays open: sequence=1..128."
            )
        sizes[name] = int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))
    return sizes
