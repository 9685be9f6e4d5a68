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
        default_factory=list, max_length=_MOST_TENSORS, description="none: all outputs"
    )
    parameters: RequestParameters = Field(
        default_factory=dict,
        max_length=_MOST_PARAMETERS,
        description="`binary_data_output`: answer with binary tensors; `timeout`: microseconds until 504; to "
        "explain, `explainer` and `reference_set`: names of those to use, none for the default; "
        "`compare_with`: ids of recorded decisions, by commas, each the only reference of a row, or one for "
        "all",
    )


class OutputTensor(BaseModel):
    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = Field(None, description="`binary_data_size` where the data is binary")
    data: list[bool | int | float | str] | None = Field(None, description="flat, in row-major order")


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None = Field(None, description="the request's own, if it had one")
    parameters: Parameters | None = Field(
        None, description="of an explanation: `method`, `explanation`, its digest, and `references`, theirs"
    )
    outputs: list[OutputTensor]


class ServerMetadata(BaseModel):
    name: str = "rationale"
    version: str
    extensions: list[str]
    backend: str = Field(description="what runs the models: onnxruntime, in this process, or triton")
    devices: list[str] = Field(
        description="where the loaded models run: cpu, cuda:0 …; empty with Triton, which alone knows"
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
    devices: list[str] = Field(description="where it runs: cpu, cuda:0 …; empty while it is not loaded here")


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
    explainer: str | None = Field(None, description="to explain: which of the model's; none for the default")
    reference_set: str | None = Field(None, description="to explain: against which set that is kept here")
    references: list[Row] | None = Field(
        None, description="to explain: against which rows, written as instances are; a few"
    )
    reference_weights: list[float] | None = Field(None, description="of the references; none for equal ones")
    compare_with: list[Row] | None = Field(
        None,
        description="to explain: the only reference of each instance, or one for all; rows, or ids of "
        "recorded decisions of the model (scope audit)",
    )


_DRIFT = Field(
    None,
    description="how far the model's answers to its probe rows are from those that are due, of their range, "
    "if it is served all the same (RATIONALE_ALLOW_DRIFT); else absent",
)


class Predictions(BaseModel):
    predictions: list[Row] = Field(
        description="a list per row; {output: list} for a model of several outputs"
    )
    drift: float | None = _DRIFT
    warnings: list[str] | None = Field(
        None, description="rows with texts that the model takes as unknown; absent if there are none"
    )


class _Explanation(BaseModel):
    """Members that the method does not give are absent. With several targets: `targets`, a list of these."""

    target: int | str | None = Field(
        description="flat index into a row of the explained output, or a contrast such as '1-0'; null where "
        "it follows from an output that the model does not return"
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
    name: str | None = Field(description="among the model's explainers; null for one without a name")
    method: str
    digest: str = Field(description="of the explanation: of model, references, options and compiler")
    explained_output: str = Field(
        description="the tensor that value, base value and attributions are of: an output of the model, or a "
        "tensor behind one, such as the margin of a probability of trees"
    )
    references: str | None = Field(None, description="digest of the set that the request brought or named")


class Explanations(Predictions):
    explanations: list[Explanation | SeveralTargets]
    explainer: AnsweringExplainer = Field(description="what made the explanations")


class Applicants(BaseModel):
    instances: list[Instance] = Field(
        description="objects by feature name (or input name), with the features that knock-outs look at"
    )
    stability: bool | None = Field(
        None,
        description="whether to tell which reasons stay by other references, which takes as many runs more; "
        "of a model compiled with --compare or --draws",
    )
    recourse: bool | None = Field(
        None,
        description="whether to tell which changes would have changed the decision: a search for each row, "
        "of up to a second",
    )
    application_ids: list[str | None] | None = Field(
        None, description="your own id of each instance's application, by which decisions are found again"
    )
    language: str | None = Field(
        None,
        description="language of the reasons' texts, one of the profile's; by default its first, which the "
        "audit trail keeps",
    )
    dry_run: bool | None = Field(
        None, description="whether to tell what would be decided, and to record nothing: not with a key"
    )


class Reason(BaseModel):
    code: str = Field(description="of the profile; of a feature without one, its name")
    text: str
    feature: str = Field(description="feature or group; of several that share the code, the largest")
    value: Scalar | dict[str, Scalar] = Field(
        description="the feature's, null where it is missing; of a group by member"
    )
    attribution: float | None = Field(description="of all `features`; null where a knock-out declines")
    share: float | None = Field(description="of all adverse attributions, 0 to 1; null as `attribution`")
    features: list[str] = Field(description="all that share the code, largest first")
    unit: str | dict[str, str | None] | None = Field(
        None, description="of the value, as the profile calls it; of a group by member"
    )
    category: str | dict[str, str | None] | None = Field(
        None, description="what the profile calls the value; of a group by member"
    )
    shown: str | None = Field(None, description="the value in these words, as a notice prints it")
    tied: bool = Field(description="as large as the next reason, given or not")
    uncertain: bool = Field(
        description="nearer to the next reason, or to nothing, than its attribution's standard error"
    )
    survival: dict[str, bool | float] | None = Field(
        None,
        description="if the request asks for stability: whether the code is a principal reason by each other "
        "baseline, by its name, and in which share of `draws`",
    )


class FlipPoint(BaseModel):
    feature: str = Field(description="feature, or group of one-hot columns")
    value: Scalar = Field(
        description="nearest to the applicant's at which the decision is another; of a group, the member "
        "that is 1"
    )
    to: Literal["approve", "refer", "decline"] = Field(description="the decision there")
    region: list[float | None] | None = Field(
        description="least and greatest number around it with that decision; null is an open end"
    )
    exact: bool = Field(description="whether no nearer value exists")


class Plan(BaseModel):
    """Changes that together lead to an approval; the entry has decided on them."""

    changes: dict[str, Scalar] = Field(description="new value of each changed feature")
    regions: dict[str, list[float | None]] = Field(
        description="least and greatest number that each may have, whatever the others are within theirs; "
        "null is an open end"
    )
    cost: float = Field(description="sum of the changes, each by its usual size; see docs/recourse.md")
    score: float
    decision: Literal["approve", "refer", "decline"]


class Recourse(BaseModel):
    flip_points: list[FlipPoint] = Field(description="of each feature alone that has one")
    plans: list[Plan] = Field(description="cheapest first; none of an approval")
    search: Literal["complete", "heuristic"] = Field(
        description="complete: there is provably no plan within the profile's rules"
    )
    note: str | None = Field(description="why there are no plans")


class DecisionDigests(BaseModel):
    """SHA-256 each."""

    model: str
    references: str | None
    explainer: str = Field(description="of model, references, options and compiler")
    profile: str


class Difference(BaseModel):
    """After minus before."""

    explained_value: float
    attributions: dict[str, float] = Field(description="of every feature or group")


class Decision(BaseModel):
    """`explained_value` = `base_value` + the sum of `attributions` + `completeness_gap`."""

    id: str | None = Field(description="in the audit trail; null of a dry run, which is not in it")
    application_id: str | None = Field(None, description="as the request gave it")
    decision: Literal["approve", "refer", "decline"]
    score: float
    threshold: float
    explained_value: float = Field(description="the score, or its margin where the profile says so")
    base_value: float | None = Field(description="mean explained value of the references")
    reasons: list[Reason] = Field(description="principal reasons, largest first; none of an approval")
    attributions: dict[str, float] = Field(description="of every feature or group")
    standard_errors: dict[str, float] | None = Field(
        None, description="of the attributions, where they are means and the entry was compiled to tell"
    )
    completeness_gap: float | None
    warnings: list[str] = Field(description="what a reader of the reasons has to know")
    digests: DecisionDigests
    reviews: str | None = Field(None, description="the first decision of the case that it reviews")
    reviewer: str | None = Field(None, description="who corrected the inputs, where it reviews a decision")
    difference: Difference | None = Field(
        None, description="by how much it differs from the decision that it reviews"
    )
    recourse: Recourse | None = Field(
        None, description="if the request asks for it; null in the trail if the inputs are not kept"
    )
    drift: float | None = _DRIFT


class Decisions(BaseModel):
    decisions: list[Decision] = Field(description="in the order of the instances")


class ModelList(BaseModel):
    models: list[str]
    explainable: list[str] = Field(description="those of them that have an explainer")


class ModelStatus(ModelReady):
    explainable: bool
    method: str | None = None
    targets: list[int | str] | str | None = Field(
        None, description="flat indices into the explained output's row, or contrasts such as '1-0'"
    )
    features: dict[str, list[str] | None] = Field(
        description="by input: the names an instance may use; null where features have none"
    )


class Alive(BaseModel):
    status: str = Field("alive", examples=["alive"])


class IndexRequest(BaseModel):
    ready: bool = Field(False, description="list those alone that can answer now")


class IndexItem(BaseModel):
    name: str
    version: str
    state: Literal["READY", "LOADING", "UNAVAILABLE"]
    reason: str = Field(
        description="why it cannot answer; of one that can, what is wrong with the files that took its place"
    )


class LoadRequest(BaseModel):
    parameters: Parameters = Field(
        default_factory=dict, description="none is offered; `unload_dependents` may be there, and false"
    )


class ConfigTensor(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    data_type: str = Field(examples=["TYPE_FP32"])
    dims: list[int] = Field([], description="without the batch axis; -1 is any size")


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
    ns: int = Field(description="of all of them together, in nanoseconds")


class InferStatistics(BaseModel):
    """Of requests: each that was answered counts once in `success` and in every phase."""

    success: Duration = Field(description="answered requests, from the first byte to the answer")
    fail: Duration = Field(description="refused and failed requests; their time is not kept")
    compute_input: Duration = Field(description="reading, decoding and checking the request")
    queue: Duration = Field(description="waiting to be run")
    compute_infer: Duration = Field(description="running, with the requests that shared the batch")
    compute_output: Duration = Field(description="checking and encoding the answer")


class ModelStatistics(BaseModel):
    """Since the start. The explainers of a model are counted together."""

    name: str
    version: str
    inference_count: int = Field(description="rows that were run")
    execution_count: int = Field(description="batches that were run")
    inference_stats: InferStatistics


class StatisticsList(BaseModel):
    model_stats: list[ModelStatistics]
