"""The compiler's commands of `rationale`; the service adds its own."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rationale.cli import compile_options as option
from rationale.cli import decisions, entries, recourse, references
from rationale.schema.methods import takes_seed
from rationale.terminal import Panel, Repository, print_report, progress_bar, reporting_errors

if TYPE_CHECKING:
    from rationale.schema.request import CompileRequest

app = typer.Typer(
    name="rationale",
    help="Why did the model decide this? Rationale compiles an ONNX model into one graph that answers with "
    "the prediction and its explanation, and serves it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command("compile", rich_help_panel=Panel.EXPLAIN)
@option.with_method_options
def compile_command(
    model: option.Model,
    name: option.Name,
    method: option.Method = "deepshap",
    repository: Repository = Path("model_repository"),
    references: option.References = None,
    open_references: option.OpenReferences = None,
    decision: option.Decision = None,
    compare: option.Compare = None,
    draws: option.Draws = 0,
    targets: option.Targets = None,
    output: option.Output = None,
    logits: option.Logits = False,
    inputs: option.Inputs = None,
    layers: option.Layers = None,
    concepts: option.Concepts = None,
    concept_axis: option.ConceptAxis = None,
    features: option.Features = None,
    group: option.Group = None,
    size: option.Size = None,
    allow_pickle: option.AllowPickle = False,
    allow_parity: option.AllowParity = None,
    missing: option.Missing = None,
    categories: option.Categories = None,
    custom_ops: option.CustomOps = None,
    provider: option.Provider = "cpu",
    runtime: option.Runtime = "onnxruntime",
    threads: option.Threads = None,
    memory_budget: option.MemoryBudget = "4GB",
    storage: option.Storage = "float32",
    one_shot: option.OneShot = False,
    **method_options: Any,
) -> None:
    """Compile MODEL and its explanation into a model repository.

    Writes two entries that `rationale serve` and Triton serve as they are: NAME, the plain model, and
    NAME_explain, one graph that also returns attributions, base value and completeness gap. Nothing is
    written unless the graph reproduces the model and its attributions add up. With --one-shot both are one
    entry, NAME.

    Example: rationale compile credit.onnx --references approved.csv --name credit
    """
    options = {**locals(), **method_options}
    with reporting_errors():
        from rationale.artifact.names import check_name
        from rationale.from_files import compile_files

        check_name(name)
        request = _request(options, method_options)
        with progress_bar() as progress:
            compiled = compile_files(request, model, references, progress)
            entry = compiled.write(repository, name)
        if compiled.conversion is not None:
            print(compiled.conversion)
        print_report(compiled.manifest)
        print(f"wrote {entry}" if one_shot else f"wrote {entry.parent / name} and {entry}")
        if compiled.comparisons:
            kinds = [comparison.name for comparison in compiled.comparisons if comparison.kind == "baseline"]
            kinds += [f"{draws} draws of the references"] * bool(draws)
            print(f"wrote {len(compiled.comparisons)} comparisons: {', '.join(kinds)}")


def _request(values: Mapping[str, Any], method_options: Mapping[str, Any]) -> "CompileRequest":
    """Return the request that the options describe; raise InvalidOptionError if they make no sense."""
    from rationale.schema.machine import Deployment, parse_bytes
    from rationale.schema.request import (
        CompileRequest,
        parse_compare,
        parse_concepts,
        parse_features,
        parse_groups,
        parse_layers,
        parse_sizes,
        parse_targets,
    )

    options = {name: value for name, value in method_options.items() if value is not False and value != []}
    if values["draws"] and not takes_seed(values["method"]):
        options["seed"] = None  # it belongs to the draws alone
    same = CompileRequest.model_fields.keys() & values.keys() - {"targets", "layers", "concepts", "compare"}
    return CompileRequest(
        **{name: values[name] for name in same - {"features", "custom_ops"}},
        options=options,
        targets=parse_targets(values["targets"]),
        features=parse_features(values["features"] or []),
        groups=parse_groups(values["group"] or []),
        sizes=parse_sizes(values["size"] or []),
        layers=parse_layers(values["layers"] or []),
        concepts=parse_concepts(values["concepts"], values["concept_axis"]),
        custom_ops=tuple(values["custom_ops"] or ()),
        compare=parse_compare(values["compare"] or []),
        draws_seed=values["seed"] or 0,
        deployment=Deployment(
            values["provider"],
            values["threads"],
            parse_bytes(values["memory_budget"]),
            values["storage"],
            values["one_shot"],
            values["runtime"],
        ),
    )


app.add_typer(entries.app)
app.add_typer(references.app)
app.add_typer(recourse.app)
app.add_typer(decisions.app, name="decisions", rich_help_panel=Panel.DECIDE)


@app.command(
    "bench",
    rich_help_panel=Panel.LOOK_UP,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench_command(context: typer.Context) -> None:
    """Print the command that times explanations against the plain model, SHAP and captum.

    The benchmarks need torch and the peers' libraries, so they are in the repository and not in the wheel.
    The arguments are those of `python -m benchmarks`.

    Example: rationale bench credit --peers ort-forward,shap
    """
    command = shlex.join(["python", "-m", "benchmarks", *context.args])
    print(
        "The benchmarks are in this project's repository. In a checkout of it:\n\n"
        f"    pip install -e '.[bench]'\n    {command}\n\n"
        "`python -m benchmarks --help` lists models, sizes and peers, docs/performance.md the other commands."
    )
