"""The bodies of requests and answers, for the OpenAPI page and for the validation of OIP requests."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, WithJsonSchema, create_model

from rationale.schema.outputs import BY_FEATURE, VALUES, OutputKind

# Shapes for readers of the OpenAPI document and generators of clients; to Python they are any JSON.
# These check nothing: the decoders check the values.
_SCALARS = [{"type": "number"}, {"type": "boolean"}, {"type": "string"}]
_NESTED = {"type": "array", "items": {"anyOf": [*_SCALARS, {"type": "array", "items": {}}]}}


def _object(of: list[dict[str, Any]], **named_members: str) -> WithJsonSchema:
    """Describe an object with members of the types `of`; `named_members` members have their own JSON type."""
    properties = {name: {"type": kind} for name, kind in named_members.items()}
    return WithJsonSchema(
        {"type": "object", "properties": properties, "additionalProperties": {"anyOf": of}}
        if named_members
        else {"type": "object", "additionalProperties": {"anyOf": of}}
    )


Nested = Annotated[Any, WithJsonSchema(_NESTED)]
Parameters = Annotated[dict[str, Any], _object(_SCALARS)]
InputParameters = Annotated[dict[str, Any], _object(_SCALARS, binary_data_size="integer")]
OutputParameters = Annotated[dict[str, Any], _object(_SCALARS, binary_data="boolean")]
RequestParameters = Annotated[
    dict[str, Any],
    _object(
        _SCALARS,
        binary_data_output="boolean",
        timeout="integer",
        explainer="string",
        reference_set="string",
        compare_with="string",
    ),
]
ByFeature = Annotated[dict[str, Any], _object([{"type": "number"}, _NESTED])]
# A row of an input or output: its value or values, or values of several by name.
Row = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"anyOf": [*_SCALARS, _NESTED]}},
                _NESTED,
                *_SCALARS,
            ]
        }
    ),
]

Scalar = Annotated[Any, WithJsonSchema({"anyOf": [*_SCALARS, {"type": "null"}]})]
Instance = Annotated[
    Any,
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"anyOf": [*_SCALARS, {"type": "null"}, _NESTED]}}
    ),
]


_MOST_TENSORS = 10_000  # a table may have an input for each column
_MOST_PARAMETERS = 100


class _StrictMessage(BaseModel):
    """Unknown members pass, as OIP demands; known ones have exactly their JSON type."""

    model_config = ConfigDict(strict=True)


class InputTensor(_StrictMessage):
    name: str
    shape: Annotated[list[int], FailFast()] = Field(
        description="with the batch axis first", examples=[[2, 3]]
    )
    datatype: str = Field(examples=["FP32"])
    parameters: InputParameters = Field(
        default_factory=dict,
        max_length=_MOST_PARAMETERS,
        description="`binary_data_size`: the bytes of this input after the JSON",
    )
    data: Nested = Field(
        None, description="flat in row-major order, or nested", examples=[[1, 2, 3, 4, 5, 6]]
    )


class RequestedOutput(_StrictMessage):
    name: str
    parameters: OutputParameters = Field(
        default_factory=dict,
        max_length=_MOST_PARAMETERS,
        description="`binary_data`: as raw bytes after the JSON",
    )


class InferRequest(_StrictMessage):
    id: str = ""
    inputs: list[InputTensor] = Field(max_length=_MOST_TENSORS)
    outputs: list[RequestedOutput] = Field(
        default_factory=list, max_length=_MOST_TENSORS, description="empty for all outputs"
    )
    parameters: RequestParameters = Field(
        default_factory=dict,
        max_length=_MOST_PARAMETERS,
        description=(
            "`binary_data_output`: answer with binary tensors; `timeout`: microseconds until 504. To "
            "explain: `explainer` and `reference_set`, names (without them the default); `compare_with`, "
            "ids of recorded decisions, separated by commas: one as the only reference of each row, or "
            "one for all rows"
        ),
    )


class OutputTensor(BaseModel):
    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = Field(None, description="`binary_data_size`, if the data is binary")
    data: list[bool | int | float | str] | None = Field(None, description="flat, in row-major order")


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None = Field(None, description="the request's id, if it had one")
    parameters: Parameters | None = Field(
        None,
        description=(
            "for an explanation: `method`, `explanation` (its digest) and `references` (their digest)"
        ),
    )
    outputs: list[OutputTensor]


class ServerMetadata(BaseModel):
    name: str = "rationale"
    version: str
    extensions: list[str]
    backend: str = Field(description="runs the models: onnxruntime in this process, or triton")
    devices: list[str] = Field(
        description=(
            "devices of the loaded models: cpu, cuda:0 …; empty with Triton, because only Triton knows them"
        )
    )


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="-1 is any size; the batch axis comes first")


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    devices: list[str] = Field(
        description="devices that it runs on: cpu, cuda:0 …; empty while it is not loaded here"
    )


class Live(BaseModel):
    live: bool


class Ready(BaseModel):
    ready: bool


class ModelReady(Ready):
    name: str


class Problem(BaseModel):
    """RFC 9457. `error` repeats title and detail for clients of the Open Inference Protocol."""

    type: str = Field(examples=["urn:rationale:problem:invalid-input"])
    title: str
    status: int
    detail: str
    instance: str = Field(description="the path of the request")
    error: str


class Instances(BaseModel):
    instances: list[Row] = Field(
        description="objects by feature name (or input name), or plain arrays for a model of one input"
    )
    explainer: str | None = Field(
        None, description="to explain: one of the model's explainers; without it the default"
    )
    reference_set: str | None = Field(None, description="to explain: name of a stored reference set")
    references: list[Row] | None = Field(
        None, description="to explain: a few reference rows, written like instances"
    )
    reference_weights: list[float] | None = Field(
        None, description="weights of `references`; without them all are equal"
    )
    compare_with: list[Row] | None = Field(
        None,
        description=(
            "to explain: the only reference of each instance, or one for all. Rows, or ids of the model's "
            "recorded decisions (scope audit)"
        ),
    )


_DRIFT = Field(
    None,
    description=(
        "difference between the model's answers to its probe rows and the expected ones, relative to "
        "their range. Absent unless the gateway serves such a model (RATIONALE_ALLOW_DRIFT)"
    ),
)


class Predictions(BaseModel):
    predictions: list[Row] = Field(
        description="a list per row; {output: list} if the model has several outputs"
    )
    drift: float | None = _DRIFT
    warnings: list[str] | None = Field(
        None, description="rows with texts that the model does not know; absent if there are none"
    )


class _Explanation(BaseModel):
    """Members that the method does not give are absent. With several targets: `targets`, a list of these."""

    target: int | str | None = Field(
        description=(
            "flat index into a row of the explained output, or a contrast such as '1-0'; null if it "
            "depends on an output that the model does not return"
        )
    )


def _member(kind: OutputKind) -> tuple[Any, Any]:
    """Return the type and the field of a kind of output; every explanation has a value and attributions."""
    of = float if kind.axes == "NT" else ByFeature
    is_always = kind.name in ("explained_value", "attributions")
    return of if is_always else of | None, Field(... if is_always else None, description=kind.meaning)


_members: dict[str, Any] = {kind.member or kind.name: _member(kind) for kind in (*VALUES, *BY_FEATURE)}
Explanation = create_model("Explanation", __base__=_Explanation, __doc__=_Explanation.__doc__, **_members)


class SeveralTargets(BaseModel):
    targets: list[Explanation]


class AnsweringExplainer(BaseModel):
    name: str | None = Field(description="its name among the model's explainers, or null")
    method: str
    digest: str = Field(description="digest of model, references, options and compiler")
    explained_output: str = Field(
        description=(
            "the tensor of explained value, base value and attributions: an output of the model, or a "
            "tensor inside it, such as the margin behind a probability"
        )
    )
    references: str | None = Field(
        None, description="digest of the references in the request, or of the set that it names"
    )


class Explanations(Predictions):
    explanations: list[Explanation | SeveralTargets]
    explainer: AnsweringExplainer = Field(description="the explainer of this answer")


class Applicants(BaseModel):
    instances: list[Instance] = Field(
        description=(
            "objects by feature name (or input name), including the features that knock-out rules read"
        )
    )
    stability: bool | None = Field(
        None,
        description=(
            "true: say which reasons stay the same with other references. Each of these costs one more "
            "run. Needs a model compiled with --compare or --draws"
        ),
    )
    recourse: bool | None = Field(
        None,
        description=(
            "true: say which changes would have changed the decision. Each row needs a search of up to a "
            "second"
        ),
    )
    application_ids: list[str | None] | None = Field(
        None, description="your own id of each instance's application, to find its decisions later"
    )
    language: str | None = Field(
        None,
        description=(
            "language of the reasons' texts, one of the profile's; by default the first. The audit trail "
            "keeps the texts of the first"
        ),
    )
    dry_run: bool | None = Field(
        None, description="true: compute the decision and record nothing. Not with an idempotency key"
    )


class Reason(BaseModel):
    code: str = Field(description="the profile's code, or the feature's name if the profile gives none")
    text: str
    feature: str = Field(
        description=("feature or group; if several share the code, the one with the largest attribution")
    )
    value: Scalar | dict[str, Scalar] = Field(
        description="value of the feature, null if it is missing; by member for a group"
    )
    attribution: float | None = Field(description="sum over `features`; null if a knock-out rule declines")
    share: float | None = Field(
        description="part of the sum of all adverse attributions, 0 to 1; null if `attribution` is"
    )
    features: list[str] = Field(description="all features with this code, largest attribution first")
    unit: str | dict[str, str | None] | None = Field(
        None, description="unit of the value in the profile; by member for a group"
    )
    category: str | dict[str, str | None] | None = Field(
        None, description="the profile's name for the value; by member for a group"
    )
    shown: str | None = Field(
        None, description="the value with title, unit and category, as a notice prints it"
    )
    tied: bool = Field(description="as large as the next reason, even if that one is left out")
    uncertain: bool = Field(
        description=(
            "its lead over the next reason, or over 0, is within the standard error of its attribution"
        )
    )
    survival: dict[str, bool | float] | None = Field(
        None,
        description=(
            "with `stability`: for each comparison by name, whether this code is still a principal "
            "reason; for `draws`, in which share of the draws"
        ),
    )


class FlipPoint(BaseModel):
    feature: str = Field(description="feature, or group of one-hot columns")
    value: Scalar = Field(
        description=(
            "nearest value to the applicant's at which the decision changes; for a group, the member that "
            "is 1"
        )
    )
    to: Literal["approve", "refer", "decline"] = Field(description="the decision there")
    region: list[float | None] | None = Field(
        description="lowest and highest number around it with that decision; null is an open end"
    )
    exact: bool = Field(description="true: there is provably no nearer value")


class Plan(BaseModel):
    """Changes that together lead to an approval; the entry has decided on them."""

    changes: dict[str, Scalar] = Field(description="new value of each changed feature")
    regions: dict[str, list[float | None]] = Field(
        description=(
            "lowest and highest number of each changed feature, for any values of the others within their "
            "regions; null is an open end"
        )
    )
    cost: float = Field(
        description="sum of the changes, each relative to its usual size; see docs/recourse.md"
    )
    score: float
    decision: Literal["approve", "refer", "decline"]


class Recourse(BaseModel):
    flip_points: list[FlipPoint] = Field(
        description="one for each feature that can change the decision alone"
    )
    plans: list[Plan] = Field(description="cheapest first; none for an approval")
    search: Literal["complete", "heuristic"] = Field(
        description="complete: if there are no plans, the profile's rules provably allow none"
    )
    note: str | None = Field(description="the reason why there are no plans")


class DecisionDigests(BaseModel):
    """SHA-256 each."""

    model: str
    references: str | None
    explainer: str = Field(description="digest of model, references, options and compiler")
    profile: str


class Difference(BaseModel):
    """After minus before."""

    explained_value: float
    attributions: dict[str, float] = Field(description="by feature or group")


class Decision(BaseModel):
    """`explained_value` = `base_value` + the sum of `attributions` + `completeness_gap`."""

    id: str | None = Field(description="its id in the audit trail; null for a dry run")
    application_id: str | None = Field(None, description="from the request")
    decision: Literal["approve", "refer", "decline"]
    score: float
    threshold: float
    explained_value: float = Field(description="the score, or its margin if the profile says `space: margin`")
    base_value: float | None = Field(description="mean explained value of the references")
    reasons: list[Reason] = Field(description="principal reasons, largest first; none for an approval")
    attributions: dict[str, float] = Field(description="by feature or group")
    standard_errors: dict[str, float] | None = Field(
        None,
        description=(
            "of the attributions, if they are means and the entry was compiled with standard errors"
        ),
    )
    completeness_gap: float | None
    warnings: list[str] = Field(description="what a reader of the reasons must know")
    digests: DecisionDigests
    reviews: str | None = Field(None, description="id of the first decision of the case, if this is a review")
    reviewer: str | None = Field(None, description="the person who corrected the inputs, if this is a review")
    difference: Difference | None = Field(None, description="difference from the decision that it reviews")
    recourse: Recourse | None = Field(
        None, description="with `recourse`; null in the trail if the inputs are not kept"
    )
    drift: float | None = _DRIFT


class Decisions(BaseModel):
    decisions: list[Decision] = Field(description="in the order of the instances")


class ModelList(BaseModel):
    models: list[str]
    explainable: list[str] = Field(description="the models that have an explainer")


class ModelStatus(ModelReady):
    explainable: bool
    method: str | None = None
    targets: list[int | str] | str | None = Field(
        None, description="flat indices into the explained output's row, or contrasts such as '1-0'"
    )
    features: dict[str, list[str] | None] = Field(
        description="feature names by input; null if the features have no names"
    )


class Alive(BaseModel):
    status: str = Field("alive", examples=["alive"])


class IndexRequest(BaseModel):
    ready: bool = Field(False, description="true: list only models that can answer now")


class IndexItem(BaseModel):
    name: str
    version: str
    state: Literal["READY", "LOADING", "UNAVAILABLE"]
    reason: str = Field(
        description=("the reason why it cannot answer; for a ready model, what is wrong with its new files")
    )


class LoadRequest(BaseModel):
    parameters: Parameters = Field(
        default_factory=dict, description="no parameter has an effect; `unload_dependents` must be false"
    )


class ConfigTensor(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    data_type: str = Field(examples=["TYPE_FP32"])
    dims: list[int] = Field([], description="shape without the batch axis; -1 is any size")


class ModelConfig(BaseModel):
    """Triton's `ModelConfig`: the members here, and whatever else the entry's config.pbtxt sets."""

    model_config = ConfigDict(extra="allow")

    name: str
    backend: str | None = None
    platform: str | None = None
    max_batch_size: int
    input: list[ConfigTensor]
    output: list[ConfigTensor]


class Duration(BaseModel):
    count: int
    ns: int = Field(description="total time in nanoseconds")


class InferStatistics(BaseModel):
    """Of requests: each that was answered counts once in `success` and in every phase."""

    success: Duration = Field(description="answered requests, from the first byte to the answer")
    fail: Duration = Field(description="refused and failed requests; their time is not kept")
    compute_input: Duration = Field(description="reading, decoding and checking the request")
    queue: Duration = Field(description="waiting in the queue")
    compute_infer: Duration = Field(description="running the batch")
    compute_output: Duration = Field(description="checking and encoding the answer")


class ModelStatistics(BaseModel):
    """Since the start. The explainers of a model are counted together."""

    name: str
    version: str
    inference_count: int = Field(description="rows")
    execution_count: int = Field(description="batches")
    inference_stats: InferStatistics


class StatisticsList(BaseModel):
    model_stats: list[ModelStatistics]
