"""Options of `rationale compile`, each with its help, in panels by a user's aims."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from rationale.conversion.files import ALLOW_PICKLE
from rationale.schema.methods import METHODS, OPTIONS, takers

_references = partial(typer.Option, rich_help_panel="References")
_explained = partial(typer.Option, rich_help_panel="What to explain")
_features = partial(typer.Option, rich_help_panel="Features and sizes")
_decisions = partial(typer.Option, rich_help_panel="Decisions")
_fitted = partial(typer.Option, rich_help_panel="Fitted models and models with own operators")
_machine = partial(typer.Option, rich_help_panel="The machine that serves it")
_METHODS_PANEL = "Options of some methods"

Model = Annotated[
    Path,
    typer.Argument(
        help="The model: .onnx, or a fitted one that is converted first: XGBoost's .json or .ubj, "
        "LightGBM's .txt, CatBoost's .cbm, a .joblib or .pkl (with --allow-pickle), or the folder of a "
        "classifier of Hugging Face.",
        metavar="MODEL",
    ),
]
Name = Annotated[
    str, typer.Option(help="The name to serve it by: the entries are NAME and NAME_explain.", metavar="NAME")
]
Method = Annotated[
    str,
    typer.Option(
        help=f"How to explain: {', '.join(METHODS)}. treeshap is for forests and boosted trees; exactshap "
        "(up to 12 features) and permutationshap explain any model; auto takes a method that is exact for "
        "the model, and says which and why. docs/methods says when to use which.",
        metavar="NAME",
    ),
]
References = Annotated[
    Path | None,
    _references(
        help="Rows to compare each explained row with: .npz (an array for each input), .npy, .csv, "
        ".parquet or .xlsx. deepshap, exactshap, permutationshap and expected-gradients need them; 50 to 200 "
        "typical rows are usual. Without them integrated-gradients takes zeros, and treeshap --covers.",
        metavar="FILE",
    ),
]
OpenReferences = Annotated[
    int | None,
    _references(
        help="Take up to K references with each request, and keep none in the graph: the entry is "
        "NAME_explain_open. --references are then examples for the check.",
        metavar="K",
    ),
]
Targets = Annotated[
    str | None,
    _explained(
        help="The elements of the output to explain: indices such as 0,3, contrasts such as 1-0 (why "
        "class 1 rather than 0), 'all', or 'predicted' (each row's own largest). Default: the only "
        "element, 1 of two (an output [N, 2]), else predicted.",
    ),
]
Output = Annotated[
    str | None,
    _explained(
        help="The tensor to explain: an output, or an inner tensor by its name in the file, with the "
        "index of an element if need be (probabilities[1]). Default: the first float output.",
        metavar="TENSOR",
    ),
]
Logits = Annotated[
    bool,
    _explained(
        "--logits", help="Explain the scores before the output's last Sigmoid, Softmax or LogSoftmax."
    ),
]
Inputs = Annotated[
    list[str] | None,
    _explained(
        "--input",
        help="An input to attribute to, or an inner tensor; repeat for several. Default: every float "
        "input, else the token ids.",
        metavar="TENSOR",
    ),
]
Layers = Annotated[
    list[str] | None,
    _explained(
        "--layers",
        help="An inner tensor whose attributions the graph also returns, or 'all' for every layer; "
        "repeat for several.",
        metavar="TENSOR",
    ),
]
Concepts = Annotated[
    str | None,
    _explained(
        help="An inner tensor and a number of channels: for the channels with the largest attributions in "
        "a row, the graph returns the inputs' contributions to each.",
        metavar="TENSOR=COUNT",
    ),
]
ConceptAxis = Annotated[
    int | None,
    _explained(help="The axis of that tensor on which its channels lie. Default: 1.", metavar="AXIS"),
]
CustomOps = Annotated[
    list[Path] | None,
    _fitted(
        "--custom-ops",
        help="A library of kernels (.so) that ONNX Runtime loads for operators of the model's own; it is "
        "code, and is copied into the entries. Repeat for several. docs/own-operators.md says more.",
        metavar="LIBRARY",
    ),
]
AllowPickle = Annotated[
    bool,
    _fitted(
        "--allow-pickle",
        envvar=ALLOW_PICKLE,
        help="Read a model from a pickle (.joblib, .pkl). A pickle is a program that runs when it is read: "
        "use this only for files that you trust.",
    ),
]
AllowParity = Annotated[
    float | None,
    _fitted(
        help="Largest accepted difference between a fitted model and its ONNX model, as a share of the range "
        "of an output's column, such as 0.1. Default: 0.01. It is recorded in the manifest.",
        metavar="SHARE",
    ),
]
Missing = Annotated[
    float | None,
    _fitted(
        help="For an XGBoost file: the number that means a missing value, if the model was fitted with "
        "missing=NUMBER, which no file holds. Default: only NaN.",
        metavar="NUMBER",
    ),
]
Categories = Annotated[
    Path | None,
    _fitted(
        help="For a fitted model: a table whose rows hold each category, such as the training data, because "
        "CatBoost keeps no names of categories. Default: the references.",
        metavar="FILE",
        dir_okay=False,
    ),
]
Size = Annotated[
    list[str] | None,
    _features(
        help="A length that the model leaves open, such as sequence=128; repeat for several. Default: as "
        "long as the references. Without references one can stay open: sequence=1..128.",
        metavar="NAME=LENGTH",
    ),
]
Features = Annotated[
    list[str] | None,
    _features(
        help="Feature names, by commas; they also choose the columns of a table that has more. For "
        "several inputs: INPUT=A,B,C, repeated for each; a table is divided among them. Default: the "
        "headers of the reference file.",
        metavar="[INPUT=]A,B,C",
    ),
]
Group = Annotated[
    list[str] | None,
    _features(
        help="Features that are explained together: housing=own,rent,free, or job=job_* for all that "
        "begin so; repeat for several. Under treeshap, exactshap and permutationshap a group is one "
        "player; under other methods it is the sum of its features.",
        metavar="NAME=A,B,C",
    ),
]
Decision = Annotated[
    Path | None,
    _decisions(
        help="A decision profile (decision.yaml): threshold, reason codes, groups; the gateway then "
        "decides at POST /v1/models/NAME:decide. docs/decision-profile.md says more.",
        metavar="FILE",
    ),
]
Compare = Annotated[
    list[str] | None,
    _decisions(
        help="With --decision: references of another baseline. The same model is explained against them in "
        "a further entry, NAME_explain_DIGEST; repeat for several. Callers of :decide and `rationale "
        "decisions report` then learn which reasons stay. Each set takes as long as the compile itself.",
        metavar="NAME=FILE",
    ),
]
Draws = Annotated[
    int,
    _decisions(
        help="With --decision: as --compare, for this many sets drawn with replacement from --references "
        "(by --seed). 10 sets show how much the reasons depend on the choice of rows.",
        min=0,
        max=1000,
    ),
]
Provider = Annotated[
    str,
    _machine(
        help="The processor that will run it, cpu or cuda: operators take the form that is fastest there."
    ),
]
Runtime = Annotated[
    str,
    _machine(
        help="The runtime that will load it: onnxruntime, openvino, tensorrt or any. The graph avoids "
        "operators that the runtime lacks or gets wrong (docs/runtimes.md)."
    ),
]
Threads = Annotated[
    int | None, _machine(help="Threads of one run. Default: all cores of this machine.", min=1)
]
MemoryBudget = Annotated[
    str,
    _machine(
        help="Memory for references and one row's work together. If it is too little, the graph takes "
        "references in chunks: slower, but any number of them fits.",
        metavar="SIZE",
    ),
]
Storage = Annotated[
    str, _machine(help="The type of precomputed references: float32, or float16 at half the size.")
]
OneShot = Annotated[
    bool,
    _machine(
        "--one-shot",
        help="One entry instead of two: a BOOL input `explain` says which rows to explain.",
    ),
]


def with_method_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the methods in its signature, which typer reads."""
    command_signature = signature(command, eval_str=True)
    fixed = [p for p in command_signature.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    generated = [_parameter(name) for name in OPTIONS]
    vars(command)["__signature__"] = command_signature.replace(parameters=[*fixed, *generated])
    return command


def _parameter(name: str) -> Parameter:
    option = OPTIONS[name]
    kind: Any = {bool: bool, list: list[str] | None}.get(option.kind, option.kind | None)
    flags = [f"--{name.replace('_', '-')}"]
    declared = typer.Option(
        False if option.kind is bool else None,
        *flags,
        help=f"{', '.join(takers(name))}: {option.help}",
        metavar=option.metavar,
        rich_help_panel=_METHODS_PANEL,
        show_default=False,
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=declared, annotation=kind)
