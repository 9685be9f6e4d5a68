"""The result of a compile."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rationale.artifact.checks.proof import demand_proof
from rationale.artifact.columns import answer_columns
from rationale.artifact.comparisons import CompiledComparison
from rationale.artifact.shap_explanation import shap_explanation
from rationale.decisions.decide import Decision
from rationale.decisions.decided import Undecided, decide_inputs, find_knock_out_cells
from rationale.errors import InvalidOptionError, quoted, reason_of
from rationale.graph.runtime.session import (
    ModelFile,
    Run,
    Runner,
    SerializedGraph,
    kernels_of,
    outline,
    with_open_gate,
)
from rationale.pictures.picture import (
    TARGETS,
    TOP,
    Picture,
    Tokens,
    answer_html,
    answer_picture,
    compiled_html,
)
from rationale.recourse.entry import RunEntry, recourse_finder, recourse_of_rows
from rationale.recourse.recourse import Recourse
from rationale.references.request_time import pair_references
from rationale.schema.manifest import LayerRule, Manifest, is_float
from rationale.schema.probes import Probes
from rationale.tables.frames import as_texts, columns_in_order, divide_columns, frame_of, index_of


def demand_texts(manifest: Manifest, inputs: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidOptionError for the first text that the fitted model refuses."""
    for row, fault in manifest.refused_texts(inputs):
        raise InvalidOptionError(f"row {row}: {fault}. Correct it, or drop such rows.")


class Explanation(dict[str, np.ndarray]):
    """The combined graph's outputs by name: predictions, attributions, base value, gap.

    Attributes:
        index: a data frame's labels of the rows; empty if it only counts them.
    """

    def __init__(
        self,
        outputs: Mapping[str, np.ndarray],
        manifest: Manifest,
        inputs: Mapping[str, np.ndarray],
        index: Sequence[object] = (),
    ) -> None:
        super().__init__(outputs)
        self.manifest = manifest
        self.inputs = dict(inputs)
        self.index = index

    def __missing__(self, name: str) -> np.ndarray:
        raise KeyError(f"{name!r}: the arrays are {quoted(self)}; to_frame() has a column for each feature")

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each row with texts that the fitted model takes as unknown or missing."""
        return tuple(self.manifest.warned_rows(self.inputs))

    def to_shap(self, target: int | None = None, inputs: Sequence[str] | None = None) -> Any:
        """Return a `shap.Explanation`, for SHAP's own plots.

        Its values are [N, F] for one target, [N, F, T] for several.

        As in SHAP's own explainers, all targets are on the last axis: a plot takes `[:, :, 1]` or, by name,
        `[:, :, "7"]`. The features of several inputs stand side by side, so that the base value and all of
        them add up to the output.

        Args:
            target: a single target, by its position among the targets.
            inputs: explained inputs, by default all. Images and other arrays go one at a time, in the shape
                that they have (SHAP's image plot wants channels last). If features are in groups, "group"
                stands for the inputs that these touch.

        Raises:
            InvalidOptionError: if there is no such target or input, an array stands beside others, or shap is
                not installed.
        """
        return shap_explanation(self, self.inputs, self.manifest, target, inputs)

    def to_frame(self, library: Any = "pandas") -> Any:
        """Return a data frame with a line for each row and target.

        Its columns are `row`, `target`, values such as `explained_value`, and the attribution of each
        feature by its name, as `rationale explain --save` writes them.

        Args:
            library: "pandas", "polars" or "pyarrow", or another that narwhals knows.

        Raises:
            InvalidOptionError: if narwhals does not know the library, it is not installed, or there are too
                many features for columns.
        """
        import narwhals.stable.v2 as nw

        try:
            return nw.from_dict(answer_columns(self).columns, backend=library).to_native()
        except ModuleNotFoundError as error:
            raise InvalidOptionError(f"a frame of {library} needs it: pip install {library}.") from error
        except (AssertionError, ValueError) as error:  # narwhals before 2.28 asserts
            raise InvalidOptionError(f"to_frame({library!r}): {reason_of(error)}.") from error

    def plot(
        self,
        rows: int | Iterable[int] | None = None,
        *,
        targets: int = TARGETS,
        top: int = TOP,
        tokens: Tokens = None,
    ) -> Picture:
        """Draw the explanation: a notebook shows the picture, and its `save` writes it to a file.

        Tables are waterfalls from the base value to the score, images heatmaps, and token ids shaded tokens.

        Args:
            rows: rows to draw, from 0 on; by default the mean |attribution| and the spread over all of them,
                and the first three. Titles count from 1, as reports do, and have a data frame's own labels.
            targets: the largest number of targets of a row; those of the largest value are drawn.
            top: number of features with a bar of their own; the others share one.
            tokens: the tokens' texts, in the order of their ids, or a file: a tokenizer.json, or a text
                file with a token a line. By default the picture shows ids.

        Raises:
            InvalidOptionError: if a row does not exist, a number is below 1, or a file cannot be read.
        """
        return answer_picture(self, rows, targets, top, tokens)

    def _repr_html_(self) -> str:
        return answer_html(self)


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """A combined model.

    Attributes:
        graph: the combined model, in memory or in a file.
        manifest: its description; `explanation.json`.
        source: the plain model, with a symbolic batch.
        sample: one row of each input, for a server's warmup.
        custom_ops: libraries of kernels.
        conversion: the ONNX model's distance from the fitted model it was converted from, in words.
        comparisons: the same model explained by other references.
        probes: rows that every runtime must answer as expected; None if there are none.
        is_proven: True if the graph has answered them in this process; a compile sets it.
    """

    graph: SerializedGraph
    manifest: Manifest
    source: onnx.ModelProto
    sample: Mapping[str, np.ndarray]
    custom_ops: tuple[Path, ...] = ()
    conversion: str | None = None
    comparisons: tuple[CompiledComparison, ...] = ()
    probes: Probes | None = None
    is_proven: bool = True

    def __repr__(self) -> str:
        manifest = self.manifest
        targets = manifest.targets if isinstance(manifest.targets, tuple) else (manifest.targets,)
        explained = f"{manifest.explained_output}[{', '.join(map(str, targets))}]"
        return f"Compiled({explained} by {manifest.method.name}, {manifest.measured.nodes} nodes)"

    def _repr_html_(self) -> str:
        return compiled_html(self.manifest, self.conversion)

    def with_warnings(self, warnings: Sequence[str]) -> "Compiled":
        """Return the same model with more warnings."""
        update = {"warnings": (*self.manifest.warnings, *warnings)}
        return replace(self, manifest=self.manifest.model_copy(update=update))

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The combined graph, without the gate of a one-shot entry. A large one is read on demand."""
        return self.graph.load() if isinstance(self.graph, ModelFile) else self.graph

    @cached_property
    def run(self) -> Run:
        """`run(inputs, outputs)`: a function that runs the combined graph here and explains every row.

        Raises:
            CheckFailedError: if a stored graph answers its probe rows wrongly; see `loaded`.
        """
        return self.loaded()

    def loaded(self, threads: int | None = None) -> Run:
        """Load the combined graph; see `run`.

        Args:
            threads: threads of each run; None takes all cores.

        Raises:
            CheckFailedError: if it was read from a repository and its answers to the probe rows are wrong.
        """
        with kernels_of(self.custom_ops):
            run = with_open_gate(Runner(self.graph, threads=threads), outline(self.graph))
        if self.probes is not None and not self.is_proven:
            demand_proof(self.probes, run)
        return run

    def explain(
        self,
        x: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        *,
        compare_with: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
    ) -> Explanation:
        """Run the combined graph here.

        Args:
            x: rows [N, …] of the only input, or a mapping from input name to rows. Columns of a table such as
                a DataFrame are matched with the features by name, and one table may hold several inputs.
            compare_with: one row for each row of `x`, or one for all: the only reference of that row. The
                references must be an input of the graph (`OpenReferences`).

        Raises:
            InvalidOptionError: if names, shapes or dtypes do not fit the model.
        """
        inputs = self.fit(x, compare_with)
        demand_texts(self.manifest, inputs)
        return Explanation(self.run(inputs), self.manifest, inputs, index_of(x))

    def decide(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> list[Decision | Undecided]:
        """Decide rows here by the decision profile of the entry, each by itself, as `:decide` does.

        It records nothing: `rationale decide --audit` and the gateway record decisions.

        Args:
            x: rows, as for `explain`. If only a knock-out reads a column, the table or mapping holds it too.

        Returns:
            For each row the decision with its reasons, or the cause why there is none (`Undecided.fault`).

        Raises:
            InvalidOptionError: if the model was compiled without a profile; or the rows do not fit it.
        """
        inputs, cells = self._decided_inputs(x)
        return list(decide_inputs(self.manifest, self.run, inputs, cells))

    def _decided_inputs(self, x: Any) -> tuple[dict[str, np.ndarray], dict[str, list[Any]]]:
        """Return rows of each input, and cells of the columns that only knock-outs read."""
        manifest = self.manifest
        if manifest.decision is None:
            raise InvalidOptionError(
                "the model has no decision profile: compile it with decision=… (--decision decision.yaml)."
            )
        x = frame_of(x) or x  # read once: a query may answer otherwise the next time
        decision_only = {rule.feature for rule in manifest.decision.profile.knock_outs}
        decision_only -= {spec.name for spec in manifest.inputs}
        rows = {n: a for n, a in x.items() if n not in decision_only} if isinstance(x, Mapping) else x
        inputs = self.fit(rows)
        return inputs, find_knock_out_cells(manifest, inputs, x)

    def recourse(self, x: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> list[Recourse]:
        """Return flip points and plans for each row, the changes that flip its decision.

        Args:
            x: rows, as for `decide`.

        Raises:
            InvalidOptionError: if the model was compiled without a profile; or the rows do not fit it.
        """
        return [found for _, found in self.decisions_with_recourse(*self._decided_inputs(x))]

    def decisions_with_recourse(
        self, inputs: Mapping[str, np.ndarray], cells: Mapping[str, Sequence[Any]]
    ) -> Iterator[tuple[Decision | Undecided, Recourse]]:
        """Yield the decision on each row and its recourse, one after the other.

        Args:
            inputs: rows of each input, [N, …].
            cells: the columns that only knock-outs read; see `artifact.applicants`.
        """
        entry = RunEntry(self.manifest, Runner(self.source, users_model=True), self.run)
        yield from recourse_of_rows(recourse_finder(self.manifest, self.source), entry, inputs, cells)

    def rules(self) -> tuple[LayerRule, ...]:
        """Return the rule of LRP, AttnLRP or CP-LRP that each operator got, from the inputs to the output.

        Each prints as a line such as `Conv conv1: zplus`. Operators that only move values have none; other
        methods take no such rules, and have none at all.
        """
        return self.manifest.rules

    def fit(
        self,
        x: npt.ArrayLike | Mapping[str, npt.ArrayLike],
        compare_with: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None,
    ) -> dict[str, np.ndarray]:
        """Return rows of every input in the model's dtypes; raise InvalidOptionError for others.

        Args:
            compare_with: see `explain`.
        """
        names, references = {spec.name for spec in self.manifest.inputs}, self.manifest.open_references
        if compare_with is None:
            return self._fit_inputs(x, names | (references.names if references else set()))
        if references is None:
            raise InvalidOptionError(
                "compare_with: this graph contains its references. Compile the model again with "
                "OpenReferences(1) (--open-references 1), so that each request can bring a reference."
            )
        inputs = self._fit_inputs(x, names)
        if isinstance(compare_with, Mapping):  # inputs that are not explained keep each row's own values
            ignored = names - references.inputs.keys()
            compare_with = {name: rows for name, rows in compare_with.items() if name not in ignored}
        partners = self._fit_inputs(compare_with, set(references.inputs))
        demand_texts(self.manifest, partners)
        count = len(next(iter(partners.values())))
        rows = max(len(a) for a in inputs.values() if a.ndim)
        if count not in (1, rows):
            raise InvalidOptionError(
                f"compare_with has {count} rows, but {rows} rows are explained: give one for each, or one "
                "for all."
            )
        repeated = {name: np.repeat(a, rows // count, axis=0) for name, a in partners.items()}
        return inputs | pair_references(references, repeated)

    def _fit_inputs(self, x: Any, names: set[str]) -> dict[str, np.ndarray]:
        specs = {v.name: v.type.tensor_type for v in outline(self.graph).graph.input if v.name in names}
        by_input = dict(x) if isinstance(x, Mapping) else self._by_input(x, list(specs))
        if set(by_input) != set(specs):
            raise InvalidOptionError(
                f"inputs {sorted(map(str, by_input))} are given; the model takes {sorted(specs)}: give a "
                "mapping from each name to its rows (a .npz file)."
            )
        words = {name for name, tensor in specs.items() if tensor.elem_type == onnx.TensorProto.STRING}
        rows = {name: self._by_feature(name, by_input[name], words=name in words) for name in specs}
        missing = self.manifest.takes_missing
        arrays = {name: _fit(name, rows[name], tensor, name in missing) for name, tensor in specs.items()}
        counts = {name: len(a) for name, a in arrays.items() if a.ndim}
        if len(set(counts.values())) > 1:
            raise InvalidOptionError(f"every input needs the same number of rows, not {counts}.")
        length, shapes = self.manifest.open_length, {name: a.shape for name, a in arrays.items()}
        if length is not None and (fault := length.fault(shapes)):
            raise InvalidOptionError(f"{fault}.")
        return arrays

    def _by_input(self, x: Any, inputs: Sequence[str]) -> dict[str, Any]:
        """Return rows by input, of the only one or of a table for several."""
        frame = frame_of(x)
        if len(inputs) == 1:
            return {inputs[0]: frame or x}
        if frame is None:
            raise InvalidOptionError(
                f"the rows have no names, but the model takes {len(inputs)} inputs ({quoted(inputs)}): give "
                "a table such as a DataFrame, or a mapping from each name to its rows (a .npz file)."
            )
        single = {spec.name: (spec.name,) for spec in self.manifest.inputs if spec.is_column}
        feature_names = {e.tensor.name: e.given_names for e in self.manifest.explained if e.given_names}
        columns: dict[str, Sequence[str] | None] = {n: feature_names.get(n, single.get(n)) for n in inputs}
        return dict(divide_columns(frame, columns, (), lambda text: InvalidOptionError(f"the rows: {text}")))

    def _by_feature(self, name: str, rows: Any, *, words: bool) -> Any:
        """Return a table's columns in the order of an input's features; anything else as it is."""
        frame = frame_of(rows)
        if frame is None:
            return rows
        explained = next((e for e in self.manifest.explained if e.tensor.name == name), None)
        names = explained.feature_names if explained else None
        if explained and explained.given_names is None and set(map(str, frame.labels)) != set(names or ()):
            names = None  # nobody gave them: by position
        missing = explained is not None and explained.takes_missing
        return columns_in_order(
            frame, names, lambda text: InvalidOptionError(f"{name!r}: {text}"), words=words, missing=missing
        )

    def write(self, repository: str | Path, name: str) -> Path:
        """Write `NAME/` and `NAME_explain/` into a Triton model repository, each at once or not at all.

        If references are an input, the latter is `NAME_explain_open/`.
        A one-shot model is written as `NAME/` alone, and an earlier `NAME_explain/` is removed.
        Comparisons go with them, as `NAME_explain_<digest>/`.

        Returns:
            The folder of the entry that explains.

        Raises:
            RepositoryError: if Triton does not take the name, or the folder cannot be written.
        """
        # Imported here: a process that only reads an entry needs none of the compiler.
        from rationale.artifact.repository.write import write_entries

        with kernels_of(self.custom_ops):
            return write_entries(
                self.source,
                self.graph,
                self.manifest,
                self.sample,
                self.probes,
                Path(repository),
                name,
                self.custom_ops,
                self.comparisons,
            )

    def write_explainer(self, entry: Path, model: str) -> None:
        """Write the combined graph alone, as one of several explainers of `model`.

        Args:
            entry: the folder to create; its name is the entry's. A failure may leave a part of it.

        Raises:
            RepositoryError: if the folder is there already, or cannot be written.
        """
        from rationale.artifact.repository.write import write_explainer

        manifest = self.manifest.model_copy(update={"model": model, "graphs": {}})
        with kernels_of(self.custom_ops):
            write_explainer(self.graph, manifest, self.sample, self.probes, entry, self.custom_ops)


def _fit(name: str, rows: npt.ArrayLike, tensor: onnx.TypeProto.Tensor, missing: bool) -> np.ndarray:
    """Return rows [N, …] in the dtype of an input.

    Args:
        missing: True if NaN is allowed, for a missing value.

    Raises:
        InvalidOptionError: if there is another shape, no row, or a value that is no number or too large.
    """
    try:
        array = np.asarray(rows)
    except ValueError as error:
        raise InvalidOptionError(f"{name!r} is not an array: rows differ in length ({error}).") from error
    dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    if len(dims) == 1 and array.shape[1:] == (1,):
        array = array[:, 0]  # a table's column
    if dims[1:] == [1] and array.ndim == 1:
        array = array[:, None]  # texts, or numbers, in a list
    fits = array.ndim == len(dims) and all(
        want in (None, have) for want, have in zip(dims[1:], array.shape[1:], strict=True)
    )
    if not fits or array.size == 0:
        want = ", ".join(["N", *("any" if d is None else str(d) for d in dims[1:])][: len(dims)])
        raise InvalidOptionError(f"{name!r} has shape {list(array.shape)}; the model takes [{want}], N ≥ 1.")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if array.dtype.kind not in ("UTO" if dtype.kind == "O" else "fiub") and not is_float(array.dtype):
        raise InvalidOptionError(f"{name!r} holds {array.dtype}; the model takes {dtype}.")
    return _texts(name, array.astype(object)) if dtype.kind == "O" else _cast(name, array, dtype, missing)


def _texts(name: str, array: np.ndarray) -> np.ndarray:
    """Return texts alone: ONNX Runtime would take None for the text "None". A missing one is empty."""
    texts = as_texts(array)
    for position, value in np.ndenumerate(texts):
        if not isinstance(value, str):
            raise InvalidOptionError(f"{name!r} holds {value!r} at {list(position)}, which is not text.")
    return texts


def _cast(name: str, array: np.ndarray, dtype: np.dtype, missing: bool) -> np.ndarray:
    """Cast an array: floats are rounded; integers and booleans must survive unchanged."""
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    intact = np.isfinite(cast) | (missing & (array != array)) if is_float(dtype) else cast == array
    if not intact.all():
        position = tuple(int(i) for i in np.argwhere(~intact)[0])
        fault = f"which cannot be explained as {dtype}. Impute, scale"
        if array[position] != array[position]:
            fault = "a missing value (an empty cell of a table), which this model does not take. Impute"
        raise InvalidOptionError(
            f"{name!r} holds {array[position]} at {list(position)}, {fault} or drop such rows."
        )
    return cast
