"""`explanation.json`: the description of a combined graph for whoever serves it.

The compiler writes it and the service reads it; the two packages meet nowhere else.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rationale.errors import RepositoryError, near, quoted
from rationale.schema.outputs import OUTPUT_KINDS, VALUES, WHOLE
from rationale.schema.profile import DecisionProfile, parse_output
from rationale.schema.request import CompileRequest

FILE_NAME = "explanation.json"
EXPLAIN_SUFFIX = "_explain"
OPEN_SUFFIX = "_explain_open"  # for the entry whose references come with a request
PLANNED_NODES = (
    3_000  # above: ONNX Runtime's search for buffers to reuse takes time that grows with their square
)
EXPLAIN, EXPLAINED = "explain", "explained"  # a one-shot graph's own input and output
GROUPS = "group"  # name of all players together in place of a tensor's
_SAME_NAMES = ("BOOL", *(f"{u}INT{n}" for u in ("", "U") for n in (8, 16, 32, 64)))
DATATYPES = {  # OIP's names of the ONNX types that a protocol carries
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "STRING": "BYTES",
    **dict(zip(_SAME_NAMES, _SAME_NAMES, strict=True)),
}


_LONGEST = 80  # characters of a text in a sentence
FLOATS = frozenset({"FP16", "BF16", "FP32", "FP64"})
NEWER = "use the newer Rationale that wrote it"  # advice to a reader of an entry's files


def first_fault(error: ValidationError) -> str:
    """Return the place and the description of the first error."""
    first = error.errors()[0]
    where = ".".join(str(key) for key in first["loc"]) or "the file"
    return f"{where}: {first['msg']}"


def is_float(dtype: np.dtype) -> bool:
    """Tell whether it holds floats, including bfloat16, which numpy itself does not count as one."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def contrast_ends(contrast: str) -> tuple[int, int]:
    """Parse "1-0": the element that counts, and the one that it is contrasted with."""
    first, _, second = contrast.partition("-")
    return int(first), int(second)


def default_names(tensor: str, count: int) -> tuple[str, ...]:
    """Name features without names: x[0], x[1] and so on."""
    return tuple(f"{tensor}[{i}]" for i in range(count))


def in_digits(number: Any) -> str:
    """Return a number as categories write it: 1 for 1.0, and an empty text for a missing one."""
    if number != number:
        return ""
    return str(int(number)) if float(number).is_integer() else str(number)


def names_of(tensor: str, feature_names: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    """Return the names of a tensor's features, as explanations and decisions have them."""
    return feature_names or ((tensor,) if count == 1 else default_names(tensor, count))


def unique_names(named: Mapping[str, tuple[str, ...] | None]) -> dict[str, tuple[str, ...]]:
    """Return tensors with names of their features, if no other tensor's features share one."""
    uses = Counter(feature for names in named.values() for feature in names or ())
    return {
        name: names for name, names in named.items() if names and all(uses[feature] == 1 for feature in names)
    }


class Frozen(BaseModel):
    """A part of the files next to a graph: it never changes, and accepts no unknown member."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(Frozen):
    """A tensor of the graph. `shape` leaves the batch axis out; −1 is a size known at run time only."""

    name: str
    datatype: str = Field(description="name in the Open Inference Protocol: FP32, INT64, BYTES …")
    shape: tuple[int, ...]

    @property
    def is_column(self) -> bool:
        """True if a row of it is one number or text: [N, 1], or [N]."""
        return self.shape in ((1,), ())


class Attributed(Frozen):
    """One output of attributions, [N, T, *tensor.shape]: those of an explained input, or of all players.

    `feature_names` and `at` are those of the input, or `feature_names` are those of the players.
    """

    tensor: TensorSpec
    attributions: str
    standard_error: str | None = None
    feature_names: tuple[str, ...] | None = None
    at: tuple[str, ...] | None = None
    of_players: bool = False
    others: dict[str, str] = {}

    @property
    def outputs(self) -> dict[str, str]:
        """Names of the outputs [N, T, *tensor.shape] by their kind."""
        main_outputs = {"attributions": self.attributions, "standard_error": self.standard_error}
        return {
            kind: name for kind, name in main_outputs.items() if name is not None
        } | self.others_by_feature

    @property
    def others_by_feature(self) -> dict[str, str]:
        """Names of further outputs of that shape by their kind."""
        return {kind: name for kind, name in self.others.items() if OUTPUT_KINDS[kind].axes == "NTF"}

    def names(self, count: int) -> tuple[str, ...]:
        """Name the `count` flattened features of a row: by given names, else x[0], x[1] and so on."""
        return self.feature_names or default_names(self.tensor.name, count)


class ExplainedInput(Frozen):
    """An explained tensor and the outputs that explain it.

    `tensor` is an input of the model or an inner tensor. An integer input is explained `at` the inner tensors
    that look up its elements, summed to one value for each of them.

    `attributions` is a float tensor [N, T, *tensor.shape], and so is `standard_error`, their standard errors,
    if the graph gives them. If a feature is in a group, the players' output holds both instead, and here they
    are None. `interactions` is a float tensor [N, T, F, F] of the flattened features of one row, whose sum
    over the last axis is the attributions. `feature_names` names these features in row-major order; None if
    they are too many to be named (images).
    """

    tensor: TensorSpec
    attributions: str | None
    at: tuple[str, ...] | None = None
    standard_error: str | None = None
    interactions: str | None = None
    feature_names: tuple[str, ...] | None = None
    takes_missing: bool = Field(
        default=False, description="whether NaN, or an empty text, may be sent: a missing value"
    )

    @property
    def given_names(self) -> tuple[str, ...] | None:
        """Names of a table's features, if someone gave them; None for defaults such as x[0]."""
        made_up = default_names(self.tensor.name, len(self.feature_names or ()))
        return None if self.feature_names == made_up or len(self.tensor.shape) != 1 else self.feature_names

    def attributed(
        self, attributions: str, standard_error: str | None = None, others: dict[str, str] | None = None
    ) -> Attributed:
        """Return an output of attributions of this input."""
        return Attributed(
            tensor=self.tensor,
            attributions=attributions,
            standard_error=standard_error,
            feature_names=self.feature_names,
            at=self.at,
            others=others or {},
        )


class Player(Frozen):
    """A group of features, or a feature that stands beside groups and is in none."""

    name: str
    features: tuple[str, ...] = Field(min_length=1, description="names of its members")
    kind: Literal["player", "sum"] = Field(
        description="player: its attribution is that of one player, whose features are present or absent "
        "together; sum: that of its features, added up"
    )


class ExplainedLayer(Frozen):
    """A tensor on the way: `attributions` is a float output [N, T, *tensor.shape]."""

    tensor: TensorSpec
    attributions: str
    completeness_gap: float | None = Field(
        description="largest |explained − base − Σ attributions| over largest |explained − base|, as the "
        "check measured it; None if paths lead past the layer, the method promises nothing, or the output "
        "does not move"
    )


class ExplainedConcepts(Frozen):
    """The channels of one tensor on the way, and each input's contributions to the most relevant ones."""

    tensor: TensorSpec
    axis: int = Field(description="the tensor's channel axis")
    count: int = Field(description="C: channels with heatmaps of their own, largest first")
    attributions: str = Field(description="name of the output [N, T, channels]")
    channels: str = Field(description="name of the output [N, T, C], INT64: the indices of these channels")
    heatmaps: dict[str, str] = Field(description="output [N, T, C, *shape of the input] by explained input")


class LayerRule(Frozen):
    """The rule of relevance propagation for one operator."""

    operator: str = Field(description="the operator's type, such as Conv")
    name: str = Field(description="name of the node")
    tensor: str = Field(
        description="tensor whose relevance the rule propagates: of joined operators, the last one's"
    )
    rule: str = Field(
        description="the rule as `--rule` takes it, such as gamma:0.25; or halves: half of R to each factor; "
        "or winner: R to the chosen input"
    )

    def __str__(self) -> str:
        return f"{self.operator} {self.name}: {self.rule}"


class MethodRecord(Frozen):
    name: str = Field(description="deepshap, gradient …")
    options: dict[str, Any] = Field(default_factory=dict)
    gap: str | None = Field(
        None,
        description="reason why attributions may miss the output's difference: rounding, quadrature, "
        "sampling or absorbed; None if the method promises no sum",
    )


class Extension(Frozen):
    """An extension that took part in the compile, from an installed package or a script."""

    group: str = Field(description="group of entry points: rationale.lrp_rules …")
    name: str = Field(description="name in requests")
    value: str = Field(description="module:attribute")
    package: str | None = Field(description="installed package; None if there is none")
    version: str | None = Field(description="version of the package")

    def __str__(self) -> str:
        return f"{self.name} of {self.package or self.value} {self.version or ''}".rstrip()


class Category(Frozen):
    value: str
    share: float = Field(description="share of the references, by their weights")


class Spread(Frozen):
    """The distribution of one feature's values over the references, without rows and combinations."""

    feature: str
    quantiles: tuple[float, ...] = Field(
        (),
        description="quantiles of a number at 0, 5 … 100% of the references with a value, by their weights",
    )
    whole: bool = Field(False, description="whether all of its numbers are whole")
    missing: float = Field(0.0, description="share of the references without a value")
    scale: float | None = Field(
        None,
        description="of a number: the size of a change that costs 1; the median absolute deviation, else the "
        "interquartile range, else the range, else 1",
    )
    categories: tuple[Category, ...] = Field((), description="most frequent values of a text, in that order")


class TreeScores(Frozen):
    """The tree ensemble of the plain model whose scores are the explained value, but for a constant."""

    output: str = Field(description="the tensor that the ensemble's node answers")
    column: int = Field(description="of the ensemble's scores")
    datatype: str = Field(description="of the numbers that the trees compare")
    features: tuple[str | None, ...] = Field(
        description="the feature that each feature of the trees is; null where they split by none"
    )


class References(Frozen):
    count: int = Field(ge=1, description="K: rows of the set after merging equal ones")
    given: int = Field(ge=1, description="rows of the set before merging")
    spreads: tuple[Spread, ...] = Field((), description="spread of each named feature of the model's inputs")
    base_value: tuple[float, ...] | None = Field(description="mean output over the references, per target")


class OpenReferenceInputs(Frozen):
    """References that come with a request: K of them for each row to explain, and their weights."""

    count: int = Field(ge=1, description="K: rows that the graph takes; fewer are filled up at weight 0")
    inputs: dict[str, TensorSpec] = Field(
        description="the graph's input [N, K, *shape] for the references of each explained input"
    )
    weights: TensorSpec = Field(description="the graph's input [N, K]: not negative, not all 0 in a row")

    @property
    def names(self) -> set[str]:
        """Inputs of the graph for references and weights."""
        return {self.weights.name, *(spec.name for spec in self.inputs.values())}


class OpenLength(Frozen):
    """A length that each request chooses, within the graph's limits; see docs/adr/0019."""

    name: str = Field(description="the length's name in the model")
    least: int = Field(ge=1)
    most: int = Field(ge=1)
    axes: tuple[tuple[str, int], ...] = Field(
        min_length=1, description="inputs and their axes with this length; axis 0 is the batch"
    )

    def fault(self, shapes: Mapping[str, Sequence[int]]) -> str | None:
        """Return the fault of inputs of these shapes, with advice; None for valid ones."""
        lengths = {f"{name}, axis {axis}": shapes[name][axis] for name, axis in self.axes}
        if len(set(lengths.values())) > 1:
            return f"the inputs differ in their length '{self.name}': {lengths}"
        length = next(iter(lengths.values()))
        if self.least <= length <= self.most:
            return None
        wider = f"{self.name}={min(self.least, length)}..{max(self.most, length)}"
        return (
            f"the rows have {self.name} = {length}, but the explanation was compiled for {self.least} to "
            f"{self.most}: send rows of such a length, or compile it with --size {wider}"
        )


class Digests(Frozen):
    """SHA-256, so that an answer can be reproduced.

    `explanation` is the digest of the other three; if the entry decides, of that and the names of features.
    """

    model: str
    references: str | None
    options: str
    explanation: str


class ChosenVariants(Frozen):
    """The emitted variants of operators that have several equal ones, and the machine that they suit."""

    provider: str = Field(description="execution provider of ONNX Runtime: cpu or cuda")
    threads: int = Field(description="threads of one run")
    runtime: str = Field(
        "onnxruntime", description="runtime that the graph targets: onnxruntime, openvino, tensorrt or any"
    )
    taken: dict[str, int] = Field(description='number of each in the graph, by "task: variant"')


class Measurements(Frozen):
    """The measurements of the check at compile time, on `rows` rows."""

    rows: int
    outputs_error: float = Field(description="largest |combined − original| over largest |original|")
    rounding: float = Field(
        0.0,
        description="relative rounding of a half-precision model's own numbers",
    )
    own_rounding: float = Field(
        0.0,
        description="relative change of the model's own outputs if ONNX Runtime computes in another order or "
        "rounds weights differently (measured if outputs_error or the gap is large)",
    )
    fused_integers: float = Field(
        0.0,
        description="relative change of the model's own outputs if ONNX Runtime runs layers between "
        "DequantizeLinear and QuantizeLinear on whole numbers (measured as own_rounding is)",
    )
    completeness_gap: float | None = Field(
        description="largest |gap| over largest |explained − base|; None if the method promises nothing, or "
        "the output does not move on the rows of the check"
    )
    gap_of_a_row: float | None = Field(
        None,
        description="median over rows of |gap| over |explained − base|, for the target where it is largest: "
        "unlike completeness_gap, it does not compare a row with larger outputs",
    )
    gap_rounding: float = Field(
        0.0,
        description="part of completeness_gap that may be rounding: own_rounding over the same difference",
    )
    gap_in_standard_errors: float | None = Field(
        None, description="largest |gap| over its standard error; None if the gap is no sampling error"
    )
    rows_error: float | None = Field(
        description="largest relative difference between a batch and its rows alone; None if the memory "
        "budget holds no batch"
    )
    runtime_error: float | None = Field(
        None,
        description="for an entry measured in another runtime: the largest relative difference of an answer "
        "from that of ONNX Runtime",
    )
    probe_rows: int = Field(
        0, description="rows in `1/probes.json`, which test a runtime before it serves the entry"
    )
    drift: float | None = Field(
        None,
        description="for an entry measured after its compile: the largest difference of its answers to the "
        "probe rows from the expected ones, as a share of an output's range",
    )
    nodes: int
    model_bytes: int
    latency_ms: float = Field(description="median time of one row on the machine that compiled")
    max_batch: int = Field(
        1, description="most rows of one request: they fit the memory budget and take at most a second there"
    )


class Memory(Frozen):
    """The graph's use of memory: bytes, estimated for a batch of one row; `work` grows with the batch."""

    budget: int = Field(description="limit of weights, precomputed references and work together")
    needed: int = Field(description="their sum, with the copies that ONNX Runtime makes of weights")
    weights: int = Field(description="constants of the model and of the backward pass")
    baked: int = Field(description="references, and values computed from them at compile time")
    work: int = Field(description="largest memory in use at once during a run")
    chunk: int | None = Field(None, description="references (or points) per pass; None: all of them")
    chunks: int = Field(1, description="number of passes in a run")
    recomputed: float = Field(
        0.0, description="share of the references' forward pass that each run computes again, 0 to 1"
    )
    storage: Literal["float32", "float16"] = "float32"
    storage_error: float | None = Field(
        None, description="largest change of attributions by float16 storage, over the largest of them"
    )


class Stopped(Frozen):
    """The tensor on the way at which attributions end: paths that go on from there have none."""

    node: str
    operator: str
    tensor: str = Field(description="the value whose attribution the node does not propagate")
    reason: str


class Texts(Frozen):
    """A fitted model's known texts, or numbers in digits, of one feature, and its treatment of others.

    In a graph a missing text is an empty one, and a missing number NaN.
    """

    known: tuple[str, ...]
    others: Literal["refused", "unknown"] = Field(
        description="treatment of any other text: refused, or taken as unknown or missing"
    )
    missing: bool = Field(description="whether the value may be missing")

    @cached_property
    def _accepted(self) -> frozenset[str | bytes]:
        return frozenset((*self.known, *(text.encode() for text in self.known)))

    def fault(self, text: str | bytes) -> str | None:
        """Return the fault of a value that the model refuses."""
        if text in self._accepted:
            return None
        if not text:
            return None if self.missing else "is missing, and the model takes no missing value there"
        if self.others == "unknown":
            return None
        shown = _decoded(text)
        return (
            f"is '{shown[:_LONGEST]}', a category that is not in the training data, and the model refuses "
            f"it{near(shown, list(self.known))}; it knows {quoted(self.known)}"
        )

    def warning(self, text: str | bytes) -> str | None:
        """Return a warning, without the value, about a value that the model takes as unknown."""
        if not text or self.others == "refused" or text in self._accepted:
            return None
        return "is a category that the model was not trained on: it takes it as unknown or missing"


def _decoded(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


RowKind = Literal[
    "references", "incomplete", "mixtures", "masked", "categories", "unknown_categories", "near_bounds"
]


class RowErrors(Frozen):
    """The largest error of the ONNX model on one kind of row."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    kind: RowKind = Field(
        description="references; incomplete: those of them with missing values; mixtures: features of one "
        "reference, the others of another; masked: references with values taken out; categories: references "
        "with each category that both models know; unknown_categories: with others; near_bounds: of all "
        "these, rows with a probability that the fitted model answers within 1e-5 of 0 or 1"
    )
    rows: int
    refused: bool = Field(False, description="whether the entry refuses such rows, as the models differ")
    error: float = Field(
        0, description="|ONNX − fitted| of a score or probability; Infinity if one model alone has a number"
    )
    relative: float = Field(
        0, description="the error as a share of `output_range`, by which this error is the largest"
    )
    output_range: float = Field(
        0,
        description="largest less smallest of what the fitted model answers in `column`, of probabilities "
        "2e-5 or more; of near_bounds, the way from its answer to 0 or 1",
    )
    output_largest: float = Field(0, description="largest |answer| of the fitted model there")
    column: str = Field("", description="of the outputs, such as probabilities[1]; empty without numbers")
    row: int = Field(0, description="the reference that the row is, or is made of")
    where: str = Field("", description="the row in words")
    labels: int | None = Field(description="rows whose label differs; None if the model has no label")


class Parity(Frozen):
    """The distance of the ONNX model from the fitted model that it was made from.

    Both answer the references, mixtures of them (the arguments of Shapley values), references without some
    values, and references with other categories.
    """

    model: str = Field(description="the fitted model's class: xgboost.XGBClassifier …")
    converter: str = Field(description="what made it ONNX, and its version")
    errors: tuple[RowErrors, ...] = Field(description="by kind of row, the references first")
    uncompared: tuple[str, ...] = Field(
        (), description="numeric outputs that the fitted model does not answer"
    )
    takes_missing: tuple[str, ...] = Field(
        (), description="inputs in which both take a missing value, as they were asked"
    )
    refuses_missing: tuple[str, ...] = Field(
        (), description="inputs in which a missing value is refused: the fitted model takes none, or differs"
    )
    missing_unknown: tuple[str, ...] = Field(
        (), description="features of other inputs that the fitted model needs for an answer"
    )
    texts: dict[str, tuple[Texts | None, ...]] = Field(
        {}, description="by input of categories: of each feature; None if it is no list of categories"
    )
    allowed: float | None = Field(
        None, description="largest allowed error as a share of a column's range, if the user gave one"
    )

    def errors_on(self, kind: RowKind, *, refused: bool = False) -> RowErrors | None:
        """Return the errors on one kind of row; None if there are no such rows."""
        return next((row for row in self.errors if (row.kind, row.refused) == (kind, refused)), None)

    @property
    def compared(self) -> tuple[RowErrors, ...]:
        """Errors on the rows that the entry answers, each row counted once."""
        return tuple(e for e in self.errors if not e.refused and e.kind not in ("incomplete", "near_bounds"))

    @property
    def worst(self) -> RowErrors:
        """The errors on the kind of row with the largest error by its column's range."""
        return max(self.compared, key=lambda errors: errors.relative)

    @property
    def relative(self) -> float:
        """The largest error as a share of its column's range."""
        return self.worst.relative

    @property
    def labels(self) -> int | None:
        """Rows whose label differs; None if the model has no label."""
        labels = [errors.labels for errors in self.compared if errors.labels is not None]
        return sum(labels) if labels else None


class CustomOps(Frozen):
    """A library of kernels that a server has to load for the graph; it lies beside `model.onnx`."""

    file: str
    sha256: str


class Comparison(Frozen):
    """Another entry that explains the same model by other references, to see which reasons stay."""

    name: str = Field(description="all_applicants, draw 1 …")
    kind: Literal["baseline", "draw"] = Field(
        description="baseline: rows of another policy; draw: as many rows, drawn from the same ones"
    )
    entry: str = Field(description="folder in the repository")
    explanation: str = Field(description="digest of its explanation")


class Classes(Frozen):
    """Classes for measuring drift: up to the first bound, between two bounds, and above the last."""

    bounds: tuple[float, ...]
    shares: tuple[float, ...] = Field(description="shares of the references: one more than there are bounds")


class EmbeddedProfile(Frozen):
    """A decision profile in an entry: the rules by which its answers become decisions."""

    profile: DecisionProfile
    digest: str = Field(description="SHA-256 of the profile")
    output_range: tuple[float, float] = Field(
        description="least and largest score: those of the closing Sigmoid or Softmax, else of the references"
    )
    tolerance: float = Field(description="completeness gap above which there are no reasons")
    margin: str | None = Field(
        None,
        description="name of the output [N, 1] whose Sigmoid in float64 is the score, if a bound of space "
        "'output' is near 0 or 1; for space 'margin' it is the explained value",
    )
    comparisons: tuple[Comparison, ...] = ()
    classes: dict[str, Classes] = Field(
        {},
        description="deciles of the attributions over the references, by feature or group; under '' those of "
        "the score. They measure the drift of decisions",
    )


class Manifest(Frozen):
    """The description of an entry: inputs, outputs, how it was compiled, and the measurements."""

    version: Literal[1] = 1
    model: str = Field(description="the plain model's entry, `NAME`")
    method: MethodRecord
    request: CompileRequest = Field(description="the request, with the names from tables")
    digests: Digests
    graphs: dict[str, str] = Field(
        {},
        description="SHA-256 of the graph, its weights and kernels, by version folder, such as `NAME/1` and "
        "`NAME_explain/1`; the audit trail records it",
    )
    one_shot: bool = Field(
        False,
        description="whether `NAME` is the only entry: its graph also takes BOOL `explain` [N, 1], the rows "
        "to explain, and answers BOOL `explained` [N, 1]; other rows are explained by zeros",
    )
    inputs: tuple[TensorSpec, ...] = Field(description="every input of the model")
    explained: tuple[ExplainedInput, ...]
    players: tuple[Player, ...] = Field(
        (), description="if features are in groups: the groups, then the other features of the same inputs"
    )
    group_attributions: str | None = Field(None, description="name of the output [N, T, players]")
    group_standard_error: str | None = Field(None, description="name of the output [N, T, players]")
    splits: dict[str, tuple[float, ...]] = Field(
        {},
        description="ascending numbers at which the trees' answer may change, by each feature that they read "
        "directly; between two of them the answer is the same",
    )
    layers: tuple[ExplainedLayer, ...] = Field(
        (), description="layers in order from the inputs to the output"
    )
    trees: TreeScores | None = Field(
        None, description="the trees whose scores are explained, if they read features unchanged"
    )
    concepts: ExplainedConcepts | None = None
    rules: tuple[LayerRule, ...] = Field(
        (),
        description="for lrp, attnlrp and cplrp: the rule of each operator that does not only move values",
    )
    outputs: tuple[TensorSpec, ...] = Field(description="the original model's outputs, unchanged")
    probabilities: tuple[str, ...] = Field(
        (), description="outputs that end in a function with values between 0 and 1"
    )
    explained_output: str = Field(description="the tensor that is explained")
    explained_shape: tuple[int, ...] = Field(description="shape of explained_output's row")
    class_names: tuple[str, ...] = Field(
        (), description="the model's label of each element of explained_output's row"
    )
    targets: tuple[int | str, ...] | Literal["predicted"] = Field(
        description="flat indices into explained_output's row, or contrasts: '1-0' is element 1 less "
        "element 0; 'predicted': each row's argmax (T = 1)"
    )
    base_value: str | None = Field(description="name of the output [N, T]; None if the method has none")
    explained_value: str = Field(description="name of the output [N, T]")
    completeness_gap: str | None = Field(description="name of the output [N, T]")
    completeness_gap_standard_error: str | None = Field(
        None, description="name of the output [N, T]; None if the gap is no sampling error"
    )
    other_outputs: dict[str, dict[str, str]] = Field(
        {},
        description="names of outputs that no member above has: by kind, and by the tensor that they "
        "explain; `group` stands for all players, an empty name for one number of each row and target. "
        "Absent if there are none",
    )
    references: References | None
    open_references: OpenReferenceInputs | None = Field(
        None, description="if references are inputs of the graph"
    )
    open_length: OpenLength | None = Field(
        None, description="a length that each request chooses, if there is one"
    )
    points: int | None = Field(
        None, description="references, points of paths, or draws for one row and target"
    )
    stopped: tuple[Stopped, ...] = Field(
        (), description="tensors at which attributions end before the inputs"
    )
    opset: int
    ir_version: int
    least_onnxruntime: str
    extensions: tuple[Extension, ...] = Field((), description="extensions from outside Rationale")
    tools: dict[str, str] = Field(description="versions of the tools that made the graph")
    custom_ops: tuple[CustomOps, ...] = Field((), description="kernel libraries of the model's own operators")
    decision: EmbeddedProfile | None = Field(None, description="the decision profile, if the entry decides")
    measured: Measurements
    parity: Parity | None = Field(None, description="None if the model was ONNX before the compile")
    variants: ChosenVariants
    memory: Memory
    notes: tuple[str, ...] = Field((), description="choices of the compile and their reasons; no problems")
    warnings: tuple[str, ...] = ()

    @field_validator("other_outputs")
    @classmethod
    def _check_kinds(cls, outputs: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        if unknown := sorted(outputs.keys() - OUTPUT_KINDS.keys()):
            raise ValueError(f"this version does not know the kinds of outputs {unknown}")
        return outputs

    @property
    def suffix(self) -> str:
        """The suffix of the entry that explains `NAME` unless a request names another one."""
        return EXPLAIN_SUFFIX if self.open_references is None else OPEN_SUFFIX

    @property
    def feature_names(self) -> dict[str, tuple[str, ...] | None]:
        """Names of features by explained tensor; None for a tensor whose features have none."""
        return {item.tensor.name: item.feature_names for item in self.explained}

    @property
    def takes_missing(self) -> frozenset[str]:
        """Names of the inputs in which NaN, or an empty text, is a missing value."""
        explained = {item.tensor.name: item.takes_missing for item in self.explained}
        names = {spec.name for spec in self.inputs if explained.get(spec.name, spec.datatype == "BYTES")}
        of_references = {} if self.open_references is None else self.open_references.inputs
        return frozenset(names | {of_references[name].name for name in names & of_references.keys()})

    @cached_property
    def places(self) -> dict[str, tuple[str, int]]:
        """The input and the flat index of each feature that an instance can name."""
        named = unique_names(self.feature_names)
        inputs = {spec.name for spec in self.inputs}
        return {
            feature: (tensor, index)
            for tensor, names in named.items()
            if tensor in inputs
            for index, feature in enumerate(names)
        }

    @property
    def texts_by_feature(self) -> dict[str, Texts]:
        """The texts, or numbers, that the fitted model knows, by feature."""
        return {name: rule for _, _, name, rule in self._text_rules()}

    def _text_rules(self) -> Iterator[tuple[str, int, str, Texts]]:
        """Yield an input, a column of it, the feature's name and the rule of its texts."""
        named = self.feature_names
        for tensor, rules in (self.parity.texts if self.parity else {}).items():
            names = names_of(tensor, named.get(tensor), len(rules))
            for i, rule in enumerate(rules):
                if rule is not None:
                    yield tensor, i, names[i], rule

    def refused_texts(self, inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[int, str]]:
        """Yield the row, and a sentence, for each text that the fitted model refuses.

        Args:
            inputs: inputs of the model, [N, …] each.
        """
        for row, feature, fault in self._odd_texts(inputs, refused=True):
            yield row, f"feature '{feature}' {fault}"

    def unknown_texts(self, inputs: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
        """Return for each row [N] a sentence for each text that the fitted model takes as unknown."""
        warnings: list[tuple[str, ...]] = [()] * len(next(iter(inputs.values())))
        for row, feature, warning in self._odd_texts(inputs, refused=False):
            warnings[row] += (f"feature '{feature}' {warning}",)
        return warnings

    def warned_rows(self, inputs: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Yield a sentence for each row with texts that the fitted model takes as unknown."""
        for row, warnings in enumerate(self.unknown_texts(inputs)):
            if warnings:
                yield f"row {row}: {'; '.join(warnings)}"

    def _odd_texts(
        self, inputs: Mapping[str, np.ndarray], *, refused: bool
    ) -> Iterator[tuple[int, str, str]]:
        """Yield the row, the feature and a description for each text that the fitted model does not know.

        Args:
            inputs: inputs of the model, [N, …] each.
            refused: yield those that it refuses; else those that it takes as unknown.
        """
        for tensor, i, name, rule in self._text_rules():
            if tensor not in inputs:
                continue
            column = inputs[tensor].reshape(len(inputs[tensor]), -1)[:, i]
            are_texts, judged = column.dtype.kind in "OSU", dict[Any, str | None]()
            for row, value in enumerate(column.tolist()):
                if value not in judged:
                    text = value if are_texts else in_digits(column.dtype.type(value))
                    judged[value] = rule.fault(text) if refused else rule.warning(text)
                if (sentence := judged[value]) is not None:
                    yield row, name, sentence

    @property
    def target_count(self) -> int:
        return 1 if self.targets == "predicted" else len(self.targets)

    @property
    def attributed(self) -> tuple[Attributed, ...]:
        """Every output whose attributions add up: those of explained inputs, and of all players."""
        inputs = (
            e.attributed(e.attributions, e.standard_error, self._other_names(e.tensor.name))
            for e in self.explained
            if e.attributions
        )
        if self.group_attributions is None:
            return tuple(inputs)
        players = Attributed(
            tensor=TensorSpec(name=GROUPS, datatype="FP32", shape=(len(self.players),)),
            attributions=self.group_attributions,
            standard_error=self.group_standard_error,
            feature_names=tuple(player.name for player in self.players),
            of_players=True,
            others=self._other_names(GROUPS),
        )
        return (*inputs, players)

    def _other_names(self, tensor: str) -> dict[str, str]:
        """Return the names of a tensor's `other_outputs`, by kind."""
        return {kind: names[tensor] for kind, names in self.other_outputs.items() if tensor in names}

    @property
    def values(self) -> dict[str, str]:
        """Names of the outputs [N, T], one number for each row and target, by their kind."""
        named = {kind.name: getattr(self, kind.name, None) for kind in VALUES}
        named["score_margin"] = self.decision.margin if self.decision else None
        return {kind: name for kind, name in named.items() if name is not None} | self.other_values

    @property
    def other_values(self) -> dict[str, str]:
        """Names of further outputs of that shape by their kind."""
        return self._other_names(WHOLE)

    @property
    def explanation_outputs(self) -> dict[str, tuple[int, ...]]:
        """Names of all outputs that explain the inputs, with the shape of one row."""
        count, shapes = self.target_count, dict[str, tuple[int, ...]]()
        for name in self.values.values():
            shapes[name] = (count,)
        for item in self.attributed:
            shapes |= dict.fromkeys(item.outputs.values(), (count, *item.tensor.shape))
        pairs = [names for kind, names in self.other_outputs.items() if OUTPUT_KINDS[kind].axes == "NTFF"]
        for explained in self.explained:
            outputs = [explained.interactions, *(names.get(explained.tensor.name) for names in pairs)]
            shape = (count, *[math.prod(explained.tensor.shape)] * 2)
            shapes |= dict.fromkeys((name for name in outputs if name is not None), shape)
        return shapes

    @property
    def given_names(self) -> dict[str, tuple[str, ...]] | None:
        """Names of features by explained input, if someone gave them."""
        return {e.tensor.name: names for e in self.explained if (names := e.given_names)} or None

    @property
    def explains_share(self) -> bool:
        """Tell whether the explained output is a probability, which pictures write in percent."""
        return self.explained_output in self.probabilities

    @property
    def decides_share(self) -> bool:
        """Tell whether the output that decisions compare with the threshold is a probability."""
        return (
            self.decision is not None and parse_output(self.decision.profile.output)[0] in self.probabilities
        )

    @property
    def groups(self) -> dict[str, list[str]]:
        """The requested groups: players other than a single feature of the same name."""
        return {p.name: list(p.features) for p in self.players if p.features != (p.name,)}

    @property
    def contrasts(self) -> tuple[str, ...]:
        """Targets that are differences of two elements."""
        return tuple(t for t in self.targets if isinstance(t, str)) if self.targets != "predicted" else ()

    def class_name(self, element: object) -> str | None:
        """Return the model's label of a target, of a contrast both ends; None if there is none."""
        ends = str(element).split("-")
        are_classes = all(end.isdecimal() and int(end) < len(self.class_names) for end in ends)
        return " against ".join(self.class_names[int(end)] for end in ends) if are_classes else None

    def to_json(self) -> str:
        exclude = set() if self.other_outputs else {"other_outputs"}
        return self.model_dump_json(indent=2, exclude=exclude) + "\n"

    @staticmethod
    def read(path: Path) -> "Manifest":
        """Read `explanation.json`.

        Raises:
            RepositoryError: if the file is missing, is no JSON, or is not a manifest of this version.
        """
        try:
            return Manifest.model_validate_json(path.read_bytes())
        except OSError as error:
            raise RepositoryError(f"{path}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise RepositoryError(
                f"{path}: not a manifest that this version can read ({first_fault(error)}). Compile the "
                f"entry again with `rationale compile`, or {NEWER}."
            ) from error
