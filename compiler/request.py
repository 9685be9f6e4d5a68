"""What a compile is asked for in plain values, as a command line or an API has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.deployment import HERE, Deployment
from compiler.errors import InvalidOptionError

if TYPE_CHECKING:
    from compiler.artefact.comparisons import Comparisons
    from compiler.artefact.compiled import Compiled
    from compiler.lowering.lengths import Size
    from compiler.memory.fit import Progress
    from compiler.methods import Method
    from compiler.references.tables import Columns, Table
    from compiler.selection.path import Concepts, Layers
    from compiler.selection.targets import Targets


@dataclass(frozen=True)
class CompileRequest:
    """A method by its name on the command line, its options, and what to explain by which inputs.

    Attributes:
        options: of the method, by their Python names (`standard_error`); those that are None were not given.
        features: their names, or each input's, which also choose the columns of a table of references.
        open_references: K, where references come with each request and those given are examples.
        allow_pickle: whether the model's file may be a pickle, which is a program.
        missing: of an XGBoost file, the number that means a missing value.
        compare, draws, draws_seed: `Comparisons`, with files of references.

    The others are the arguments of `compile_model`.
    """

    method: str = "deepshap"
    options: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = None
    targets: "Targets" = None
    inputs: Sequence[str] | None = None
    sizes: Mapping[str, "Size"] = field(default_factory=dict)
    features: "Columns" = None
    deployment: Deployment = HERE
    open_references: int | None = None
    logits: bool = False
    layers: "Layers" = ()
    concepts: "Concepts | None" = None
    custom_ops: Sequence[str | Path] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    allow_pickle: bool = False
    decision: Path | None = None
    compare: Mapping[str, Path] = field(default_factory=dict)
    draws: int = 0
    draws_seed: int = 0
    allow_parity: float | None = None
    missing: float | None = None

    def check(self, *, referenced: bool) -> None:
        """Looks at the method and its options alone, without a model.

        Args:
            referenced: whether references will be given.

        Raises:
            InvalidOptionError: an unknown method, or options that it does not take, lacks, or cannot use.
        """
        from compiler.methods.options import make_method

        make_method(self.method, np.zeros((1, 1)) if referenced else None, self.options)

    def compile(
        self, model: Path, references: Path | None = None, progress: "Progress | None" = None
    ) -> "Compiled":
        """Compiles `model`, ONNX or a fitted model's file, with the references in a file.

        Raises:
            RationaleError: as `compile_model`, `read_fitted` and `read_rows` do.
        """
        from compiler.compile import compile_model

        read = read_model(model, self.features, allow_pickle=self.allow_pickle, missing=self.missing)
        names = None if read.fitted else self.features
        method, table = self._method(references, read)
        if table is not None and not read.labelled:
            names = self.features or table.columns
        compiled = compile_model(
            read.model,
            method,
            output=self.output,
            logits=self.logits,
            targets=self.targets,
            inputs=self.inputs,
            sizes=self.sizes,
            layers=self.layers,
            concepts=self.concepts,
            custom_ops=self.custom_ops,
            groups=self.groups,
            feature_names=names,
            decision=self.decision,
            comparisons=self._comparisons(replace(read, columns=read.columns or names)),
            deployment=self.deployment,
            progress=progress,
            allow_parity=self.allow_parity,
        )
        if table is not None and table.stands_for is not None and self.open_references is None:
            warnings = (*compiled.manifest.warnings, *table.stands_for.warnings(compiled.manifest))
            compiled.manifest = compiled.manifest.model_copy(update={"warnings": warnings})
        return compiled

    def _comparisons(self, read: "ReadModel") -> "Comparisons | None":
        """None where none are asked for."""
        from compiler.artefact.comparisons import Comparisons

        baselines = {name: self._method(file, read)[0] for name, file in self.compare.items()}
        asked = Comparisons(baselines, self.draws, self.draws_seed)
        return asked if baselines or self.draws else None

    def _method(self, references: Path | None, read: "ReadModel") -> "tuple[Method, Table | None]":
        """The method, and what the file of references, or covers, holds."""
        from compiler.methods.options import COVERS, REFERENCES, check_options, make_method
        from compiler.references.reference_set import OpenReferences
        from compiler.references.tables import read_rows

        k, covers = self.open_references, self.options.get(COVERS)
        file = references or (covers if isinstance(covers, Path) and k is None else None)
        if file is None:
            return make_method(self.method, None if k is None else OpenReferences(k), self.options), None
        given = {key for key, value in self.options.items() if value is not None}
        check_options(self.method, {REFERENCES, *given} if references else given)  # before a file is read
        table = read_rows(file, read.columns, read.texts)
        options = {**self.options, **self._weights(file, table)}
        rows = read.labelled_rows(table)
        if references is None:
            return make_method(self.method, None, {**options, COVERS: rows}), table
        return make_method(self.method, rows if k is None else OpenReferences(k, rows), options), table

    def _weights(self, file: Path, table: "Table") -> dict[str, Any]:
        """Of the rows, where they have any and the method asks."""
        from compiler.methods.options import METHODS, WEIGHTS

        weights = table.unequal_weights
        if weights is None or self.open_references is not None:
            return {}
        if not METHODS[self.method].knows(WEIGHTS):
            raise InvalidOptionError(
                f"{file}: its rows have weights (centroids?), which --method {self.method} does not take; "
                "deepshap and treeshap do. Give rows of equal weight."
            )
        return {WEIGHTS: weights}


@dataclass(frozen=True)
class ReadModel:
    """A model's file, and how tables of rows are read for it.

    Attributes:
        model: the path of an ONNX model, or a fitted model of another library.
        columns: of a table, that are taken; None takes all.
        texts: those that hold text.
        labelled: whether its columns are found by their names rather than by position.
    """

    model: Any
    fitted: bool
    columns: "Columns"
    texts: frozenset[str]
    labelled: bool

    def labelled_rows(self, table: "Table") -> Any:
        """Its rows, by the columns' names where the model is read so.

        A fitted model takes arrays [K, 1] by name, as files hold columns of words beside numbers, as a table.
        """
        from compiler.references.frames import Labelled

        rows = table.given
        if self.labelled and table.columns is not None and isinstance(rows, np.ndarray):
            return Labelled(rows, table.columns)
        if self.fitted and isinstance(rows, dict) and {a.shape for a in rows.values()} == {(table.count, 1)}:
            return Labelled(np.concatenate([a.astype(object) for a in rows.values()], axis=1), list(rows))
        return rows


def read_model(
    model: Path,
    features: "Columns" = None,
    *,
    allow_pickle: bool = False,
    missing: float | None = None,
) -> ReadModel:
    """
    Args:
        features, missing: as of `CompileRequest`.

    Raises:
        RationaleError: as `read_fitted` does. An ONNX model is not looked at here.
    """
    from compiler.conversion.convert import features_of
    from compiler.conversion.files import is_fitted_file, read_fitted
    from compiler.references.of_model import columns_of_inputs, text_columns

    if is_fitted_file(model):
        fitted = read_fitted(model, allow_pickle=allow_pickle, missing=missing)
        known = features_of(fitted)
        columns = features or known.names
        return ReadModel(fitted, True, columns, text_columns(columns, known.texts), labelled=True)
    if missing is not None:
        raise InvalidOptionError(f"--missing is for XGBoost's files, and {model} is none.")
    single, texts = columns_of_inputs(model)
    columns = features or single
    return ReadModel(model, False, columns, text_columns(columns, texts), labelled=columns is not features)


def parse_targets(text: str | None) -> "Targets":
    """ "0,3,1-0", "all" or "predicted"; None is the default. Raises InvalidOptionError."""
    words: dict[str | None, Targets] = {None: None, "all": "all", "predicted": "predicted"}
    if text is None or text in words:
        return words[text]
    try:
        return [part.strip() if "-" in part.strip()[1:] else int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidOptionError(
            f"--targets {text!r}: give indices and contrasts such as 1-0 by commas, 'all' or 'predicted'."
        ) from error


def parse_compare(given: Sequence[str]) -> dict[str, Path]:
    """ "all_applicants=all.npz": files of references by the name of a baseline. Raises InvalidOptionError."""
    found: dict[str, Path] = {}
    for text in given:
        name, _, file = text.partition("=")
        if not name or not file or name in found:
            raise InvalidOptionError(
                f"--compare {text!r}: give a name and a file, such as all_applicants=all.npz, each name once."
            )
        found[name] = Path(file)
    return found


def parse_composite(text: str | None) -> "str | Path | None":
    """A preset's name as it is, FILE.toml as a path."""
    return Path(text) if text is not None and text.lower().endswith(".toml") else text


def parse_layers(given: Sequence[str]) -> "Layers":
    """ "all" alone, or names."""
    return "all" if list(given) == ["all"] else given


def parse_concepts(text: str | None, axis: int | None) -> "Concepts | None":
    """ "conv5=4": four channels of the tensor conv5. Raises InvalidOptionError."""
    from compiler.selection.path import Concepts

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


def parse_features(given: Sequence[str]) -> "Columns":
    """ "A,B,C", or "INPUT=A,B" for each of several inputs. Raises InvalidOptionError."""
    if not given or (len(given) == 1 and "=" not in given[0].split(",")[0]):
        return [name.strip() for name in given[0].split(",")] if given else None
    features: dict[str, list[str]] = {}
    for text in given:
        name, equals, names = text.partition("=")
        if not equals or "," in name or not name or name in features:
            raise InvalidOptionError(
                f"--features {text!r}: give names by commas once, or INPUT=A,B,C for each of several inputs."
            )
        features[name] = [part.strip() for part in names.split(",")]
    return features


def parse_groups(given: Sequence[str]) -> dict[str, list[str]]:
    """ "housing=own,rent,free" …: features by the name of their group. Raises InvalidOptionError."""
    groups: dict[str, list[str]] = {}
    for text in given:
        name, _, features = text.partition("=")
        if not name.strip() or not features.strip():
            raise InvalidOptionError(
                f"--group {text!r}: give a name and features by commas, such as housing=own,rent,free."
            )
        if name.strip() in groups:
            raise InvalidOptionError(f"--group {text!r}: {name.strip()!r} is given twice: name it once.")
        groups[name.strip()] = [feature.strip() for feature in features.split(",")]
    return groups


def parse_sizes(given: Sequence[str]) -> "dict[str, Size]":
    """ "sequence=128" or "sequence=1..128" …: lengths by name. Raises InvalidOptionError."""
    sizes: dict[str, Size] = {}
    for text in given:
        name, _, length = text.rpartition("=")
        ends = length.split("..")
        if not name or len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise InvalidOptionError(
                f"--size {text!r}: give a name and a whole number, such as sequence=128, or two between "
                "which it stays open: sequence=1..128."
            )
        sizes[name] = int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))
    return sizes
