"""Options of `rationale compile`, each with its help."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rationale.conversion.files import ALLOW_PICKLE

_of_methods = partial(typer.Option, rich_help_panel="Options of some methods")
_of_machine = partial(typer.Option, rich_help_panel="Options for the machine that serves it")

Model = Annotated[
    Path,
    typer.Argument(
        help="The model: .onnx, or a fitted one that is converted first: XGBoost's .json or .ubj, "
        "LightGBM's .txt, CatBoost's .cbm, or a .joblib or .pkl (with --allow-pickle).",
        metavar="MODEL",
    ),
]
Name = Annotated[
    str, typer.Option(help="What it is served as: the entries NAME and NAME_explain.", metavar="NAME")
]
Method = Annotated[
    str,
    typer.Option(
        help="deepshap, gradient, input-x-gradient, integrated-gradients, expected-gradients, "
        "smoothgrad, lrp, attnlrp, cplrp, treeshap for forests and boosted trees; or, for any model "
        "whatever is in it, exactshap (up to 12 features) and permutationshap; auto takes what is exact "
        "for the model, and says which and why. docs/methods.md says which one when."
    ),
]
References = Annotated[
    Path | None,
    typer.Option(
        help="Rows with which a decision is compared: .npz (an array for each input), .npy, .csv or "
        ".parquet. deepshap, exactshap, permutationshap and expected-gradients need them; 50 to 200 "
        "typical rows are usual. integrated-gradients takes zeros without them, treeshap --covers.",
        metavar="FILE",
    ),
]
OpenReferences = Annotated[
    int | None,
    typer.Option(
        help="Take up to K references with each request instead of keeping some in the graph: the entry "
        "is NAME_explain_open. --references are then examples for the check, and not kept.",
        metavar="K",
    ),
]
Targets = Annotated[
    str | None,
    typer.Option(
        help="Which elements of the output to explain: indices such as 0,3, contrasts such as 1-0 (why "
        "class 1 rather than 0), 'all', or 'predicted' (each row's own largest). Default: the only "
        "element, 1 of two (an output [N, 2]), else predicted."
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        help="The tensor to explain: an output, or an inner tensor by its name in the file, with the "
        "index of an element if need be (probabilities[1]). Default: the first float output.",
        metavar="TENSOR",
    ),
]
Logits = Annotated[
    bool,
    typer.Option(
        "--logits", help="Explain what the output's last Sigmoid, Softmax or LogSoftmax is taken of."
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="An input to attribute to, or an inner tensor; repeat for several. Default: every float "
        "input, else the token ids.",
        metavar="TENSOR",
    ),
]
Layers = Annotated[
    list[str] | None,
    typer.Option(
        "--layers",
        help="An inner tensor whose attributions the graph answers too, or 'all' for every layer; "
        "repeat for several.",
        metavar="TENSOR",
    ),
]
Concepts = Annotated[
    str | None,
    typer.Option(
        help="An inner tensor, and for how many of its channels to answer what the inputs contribute to "
        "each: those that are most relevant for the row.",
        metavar="TENSOR=COUNT",
    ),
]
ConceptAxis = Annotated[
    int | None,
    typer.Option(help="The axis of that tensor on which its channels lie. Default: 1.", metavar="AXIS"),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        help="A library of kernels (.so) that ONNX Runtime loads for operators of the model's own; it is "
        "code, and is copied into the entries. Repeat for several. docs/own-operators.md says more.",
        metavar="LIBRARY",
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        envvar=ALLOW_PICKLE,
        help="Read a model from a pickle (.joblib, .pkl). A pickle is a program that runs as it is read: "
        "only for files that you trust.",
    ),
]
AllowParity = Annotated[
    float | None,
    typer.Option(
        help="Of a fitted model: how far its ONNX model may be from it, of the range of a column of the "
        "output, such as 0.1. Default: 0.01. It is recorded in the manifest.",
        metavar="SHARE",
    ),
]
Missing = Annotated[
    float | None,
    typer.Option(
        help="Of an XGBoost file: the number that means a missing value, where it was fitted with "
        "missing=NUMBER, which no file holds. Default: only what is no number.",
        metavar="NUMBER",
    ),
]
Categories = Annotated[
    Path | None,
    typer.Option(
        help="Of a fitted model: a table whose rows hold each category, such as the training data, because "
        "CatBoost keeps no names of categories. Default: the references.",
        metavar="FILE",
        dir_okay=False,
    ),
]
Size = Annotated[
    list[str] | None,
    typer.Option(
        help="A length that the model leaves open, such as sequence=128; repeat for several. Default: as "
        "long as the references. Without references one can stay open: sequence=1..128.",
        metavar="NAME=LENGTH",
    ),
]
Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Feature names, by commas; they also choose the columns of a table that has more. Of "
        "several inputs: INPUT=A,B,C, repeated for each; a table is divided among them so. Default: the "
        "headers of the reference file.",
        metavar="[INPUT=]A,B,C",
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        help="Features that are explained together: housing=own,rent,free, or job=job_* for all that "
        "begin so; repeat for several. Under treeshap, exactshap and permutationshap a group is one "
        "player, else it is the sum of its features.",
        metavar="NAME=A,B,C",
    ),
]
Decision = Annotated[
    Path | None,
    typer.Option(
        help="A decision profile (decision.yaml): threshold, reason codes, groups; the gateway then "
        "decides at POST /v1/models/NAME:decide. docs/decision-profile.md says more.",
        metavar="FILE",
    ),
]
Compare = Annotated[
    list[str] | None,
    typer.Option(
        help="With --decision: references of another baseline, by which the same model is explained in "
        "an entry beside, NAME_explain_DIGEST; repeat for several. Callers of :decide and `rationale "
        "decisions report` then learn which reasons stay. Each takes as long as the compile itself.",
        metavar="NAME=FILE",
    ),
]
Draws = Annotated[
    int,
    typer.Option(
        help="With --decision: as --compare, for so many sets drawn with replacement from --references "
        "(by --seed): 10 show what the choice of these very rows does.",
        min=0,
        max=1000,
    ),
]
Steps = Annotated[
    int | None,
    _of_methods(help="integrated-gradients: points on the path from a reference. Default: 50."),
]
Samples = Annotated[
    int | None,
    _of_methods(
        help="expected-gradients: draws of a reference and a point (default 200); smoothgrad: noisy "
        "copies (default 50)."
    ),
]
Permutations = Annotated[
    int | None,
    _of_methods(
        help="permutationshap: pairs of orders in which features join; a row costs 2 · features · pairs "
        "· references rows of the model. Default: 10."
    ),
]
Sigma = Annotated[
    float | None,
    _of_methods(help="smoothgrad: standard deviation of the noise, in the input's own units."),
]
Seed = Annotated[int | None, _of_methods(help="Seed of the draws, those of --draws too. Default: 0.")]
StandardError = Annotated[
    bool,
    _of_methods(
        "--standard-error",
        help="Also return how far each attribution may be off because it is a mean over few references "
        "or draws.",
    ),
]
Composite = Annotated[
    str | None,
    _of_methods(
        help="lrp: the preset of rules; EpsilonPlus (default), EpsilonAlpha2Beta1, EpsilonPlusFlat, "
        "EpsilonAlpha2Beta1Flat, EpsilonGammaBox (needs --low and --high), ExcitationBackprop, "
        "GuidedBackprop or Deconvnet. --rule refines it.",
        metavar="NAME",
    ),
]
Rule = Annotated[
    list[str] | None,
    _of_methods(
        help="lrp: a rule for some layers, such as Conv=gamma:0.25, name:head.*=epsilon:0.1, "
        "'first=zbox(low=-2, high=2)' or 'last 2=zero'; repeat for several, the last match wins. "
        "Installed packages may bring more rules (entry points of rationale.lrp_rules).",
        metavar="SELECTOR=RULE",
    ),
]
Low = Annotated[float | None, _of_methods(help="lrp: the least value of an input, for zbox.")]
High = Annotated[float | None, _of_methods(help="lrp: the largest value of an input, for zbox.")]
Epsilon = Annotated[
    float | None,
    _of_methods(help="attnlrp, cplrp: what is added to denominators; it absorbs relevance. Default: 1e-6."),
]
Covers = Annotated[
    Path | None,
    _of_methods(
        help="treeshap without references: rows by which it is counted how many reach each node of the "
        "trees, best those of the training; a file as --references takes.",
        metavar="FILE",
    ),
]
Space = Annotated[
    str | None,
    _of_methods(
        help="treeshap: output, what the trees add up to (default), or probability: what LOGISTIC makes "
        "of that, by attributions to each reference that are rescaled."
    ),
]
Interactions = Annotated[
    bool,
    _of_methods("--interactions", help="treeshap: also return the interaction of each two features."),
]
Provider = Annotated[
    str,
    _of_machine(
        help="Where it will run, cpu or cuda: an operator is computed in the way that is fastest there."
    ),
]
Runtime = Annotated[
    str,
    _of_machine(
        help="What will load it, onnxruntime, openvino, tensorrt or any: the graph avoids what others "
        "than ONNX Runtime get wrong or lack; docs/runtimes.md says what."
    ),
]
Threads = Annotated[int | None, _of_machine(help="Threads one run may use. Default: this machine's.", min=1)]
MemoryBudget = Annotated[
    str,
    _of_machine(
        help="Memory for references and one row's work together. Where it is too little, references are "
        "taken a chunk at a time: slower, but any number of them fits.",
        metavar="SIZE",
    ),
]
Storage = Annotated[
    str, _of_machine(help="How precomputed references are kept: float32, or float16 at half the size.")
]
OneShot = Annotated[
    bool,
    _of_machine(
        "--one-shot",
        help="One entry instead of two: a BOOL input `explain` says for which rows to explain.",
    ),
]
