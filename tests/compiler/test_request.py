"""A compile as plain values: what the command line and the gateway share."""

from collections.abc import Iterable
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rationale import DeepShap, Gamma, Gradient, IntegratedGradients, Lrp, TreeShap, compile_model
from rationale.artifact.recheck import check_entry
from rationale.compile import compile_request
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.from_files import check_method, compile_files
from rationale.methods.engine import request_of
from rationale.methods.methods import make_method, method_of
from rationale.schema.machine import Deployment
from rationale.schema.manifest import Manifest
from rationale.schema.methods import METHODS, OPTIONS, REFERENCES, WEIGHTS, takers
from rationale.schema.request import CompileRequest, Concepts, parse_features
from rationale.tables.files import read_rows
from rationale.tables.frames import Frame
from rationale_service.cli.main import app
from rationale_service.models.explainers.spec import ExplainerSpec

CREDIT = Path(__file__).parents[2] / "examples" / "credit"


@pytest.mark.parametrize(
    ("given", "referenced", "fault"),
    [
        ({"method": "magic"}, False, "--method 'magic'"),
        ({}, False, "needs --references"),
        ({"method": "gradient"}, True, "takes no --references"),
        ({"options": {"sigma": 1.0}}, True, "takes no --sigma"),
        ({"method": "smoothgrad"}, False, "needs --sigma"),
        ({"method": "lrp", "options": {"composite": "None"}}, False, "None"),
        ({"method": "integrated-gradients", "options": {"steps": 0}}, False, "steps"),
    ],
)
def test_options_are_checked_without_a_model(given: dict[str, Any], referenced: bool, fault: str) -> None:
    with pytest.raises(InvalidOptionError, match=fault):
        check_method(CompileRequest(**given), referenced=referenced)


def test_sound_options_pass() -> None:
    check_method(CompileRequest(), referenced=True)
    asked = CompileRequest(method="integrated-gradients", options={"steps": 8, "sigma": None})
    check_method(asked, referenced=False)
    method = method_of(asked)
    assert isinstance(method, IntegratedGradients)
    assert (method.steps, method.references) == (8, 0)


ROWS = np.arange(6.0).reshape(2, 3)
METHODS_MADE = [
    make_method(
        name, ROWS if REFERENCES in row.needs else None, {"sigma": 0.5} if "sigma" in row.needs else {}
    )
    for name, row in METHODS.items()
] + [
    DeepShap(ROWS, weights=[1, 3], standard_error=True),
    TreeShap(covers=ROWS, interactions=True),
    Lrp("EpsilonAlpha2Beta1", rules=[("Conv", Gamma(0.5))], low=-1.0, high=2.0),
]


@pytest.mark.parametrize("method", METHODS_MADE, ids=lambda m: m.name)
def test_a_method_is_made_again_from_its_request(method: Any) -> None:
    """Through JSON, as a manifest keeps it."""
    request = CompileRequest.model_validate_json(request_of(method).model_dump_json())
    again = method_of(request, method.reference_set, method.reference_weights)
    assert (type(again), again.options, again.engine) == (type(method), method.options, method.engine)
    assert request_of(again) == request


@pytest.mark.parametrize("name", METHODS)
def test_the_options_of_a_method_are_the_parameters_that_make_it(name: str) -> None:
    entry = METHODS[name]
    module, _, make = entry.path.partition(":")
    parameters = signature(getattr(import_module(module), make)).parameters
    required = {key for key, parameter in parameters.items() if parameter.default is Parameter.empty}
    assert {*entry.needs, *entry.takes, *entry.preset} == set(parameters)
    assert {*entry.needs} == required - entry.preset.keys()
    assert {*entry.needs, *entry.takes} - {REFERENCES, WEIGHTS} <= OPTIONS.keys()


def test_every_option_is_of_a_method() -> None:
    assert [option for option in OPTIONS if not takers(option)] == []


def test_what_was_asked_for_is_in_the_manifest() -> None:
    """A recompile of it is the same explanation."""
    references = read_rows(CREDIT / "references.csv")
    rows = Frame.of_rows(references.rows, references.columns)
    groups = {"loan": ["loan_amount", "term_months"]}
    first = compile_model(CREDIT / "credit.onnx", DeepShap(rows), targets=range(1), groups=groups)
    request = CompileRequest.model_validate_json(first.manifest.request.model_dump_json())
    again = compile_request(CREDIT / "credit.onnx", method_of(request, references.rows), request)
    assert request.targets == [0]
    assert request.features == {"applicant": list(references.columns or ())}
    assert again.manifest.request == first.manifest.request
    assert again.manifest.digests == first.manifest.digests


def test_garbage_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidOptionError, match="logits 'perhaps'"):
        compile_model(CREDIT / "credit.onnx", Gradient(), logits="perhaps")
    with pytest.raises(InvalidOptionError, match="of type str, and is not a Method"):
        compile_model(CREDIT / "credit.onnx", "deepshap")


@pytest.mark.parametrize(
    ("given", "features"),
    [
        ([], None),
        ([" a, b "], ["a", "b"]),
        (["a,x=b"], ["a", "x=b"]),
        (["x=a, b"], {"x": ["a", "b"]}),
        (["x=c=1,b", "y=d"], {"x": ["c=1", "b"], "y": ["d"]}),
    ],
)
def test_features(given: list[str], features: object) -> None:
    assert parse_features(given) == features


def test_an_explainer_is_written_alone(tmp_path: Path) -> None:
    """A second explainer beside the first, of another method, under a name of its own."""
    asked = CompileRequest(method="integrated-gradients", options={"steps": 3}, features=None)
    compiled = compile_files(asked, CREDIT / "credit.onnx", CREDIT / "references.csv")
    compiled.write(tmp_path, "credit")
    compiled.write_explainer(tmp_path / "credit_explain_0123", "credit")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["credit", "credit_explain", "credit_explain_0123"]
    entries = [tmp_path / entry for entry in ("credit_explain_0123", "credit_explain")]
    one, other = (Manifest.read(entry / "explanation.json") for entry in entries)
    assert one.graphs.keys() == {"credit_explain_0123/1"}  # the plain model is not written with it
    assert one.graphs["credit_explain_0123/1"] == other.graphs["credit_explain/1"]
    assert one.model_copy(update={"graphs": other.graphs}) == other
    assert 'name: "credit_explain_0123"' in (tmp_path / "credit_explain_0123" / "config.pbtxt").read_text()
    with pytest.raises(RepositoryError, match="cannot be written"):
        compiled.write_explainer(tmp_path / "credit_explain_0123", "credit")
    error = check_entry(tmp_path, "credit").measured.rows_error
    assert error is not None
    assert error < 1e-5


DEPLOYMENT = "deployment"
# Fields of a request by what an option, or the API, calls them where that is another name.
CALLED = {
    "--input": "inputs",
    "--size": "sizes",
    "--group": "groups",
    "--concept-axis": "concepts",
    "concept_axis": "concepts",
    "--seed": "draws_seed",
    "reference_set": "references",
    **dict.fromkeys(
        "--provider --runtime --threads --memory-budget --storage --one-shot".split(), "deployment"
    ),
    **dict.fromkeys(("memory_budget", "storage"), "deployment"),
}
BESIDE = {"name", "repository", "references", "model", "default", "help"}  # where it lies, not what it is
ONLY_BY_COMMAND = {
    "custom_ops",
    "allow_pickle",
    "allow_parity",
    "missing",
    "categories",
    "decision",
    "compare",
    "draws",
    "draws_seed",
}


def fields_of(names: Iterable[str]) -> set[str]:
    """The fields that options stand for; those of methods are `options`."""
    plain = {CALLED.get(name, name.removeprefix("--").replace("-", "_")) for name in names}
    return {"options" if name in OPTIONS else name for name in plain} - BESIDE


def test_the_command_line_and_the_api_ask_for_the_fields_of_a_request() -> None:
    command = get_command(app).commands["compile"]  # type: ignore[attr-defined]  # a group of commands
    options = {max(parameter.opts, key=len) for parameter in command.params}
    fields = set(CompileRequest.model_fields)
    assert fields_of(options) == fields
    assert fields_of(ExplainerSpec.model_fields) == fields - ONLY_BY_COMMAND
    described = [name for name, field in CompileRequest.model_fields.items() if not field.description]
    assert described == []


HERE = Path(__file__)  # any file
# What a request has of options, each at another value than its default.
PASSED: list[tuple[list[str], str, Any]] = [
    (["--method", "gradient"], "method", "gradient"),
    (["--output", "y"], "output", "y"),
    (["--logits"], "logits", True),
    (["--targets", "0,2"], "targets", [0, 2]),
    (["--input", "a", "--input", "b"], "inputs", ["a", "b"]),
    (["--features", "a,b"], "features", ["a", "b"]),
    (["--group", "g=a,b"], "groups", {"g": ["a", "b"]}),
    (["--size", "s=1..8"], "sizes", {"s": (1, 8)}),
    (["--layers", "all"], "layers", "all"),
    (["--concepts", "c=3", "--concept-axis", "2"], "concepts", Concepts("c", 3, 2)),
    (["--open-references", "7"], "open_references", 7),
    (["--allow-parity", "0.5"], "allow_parity", 0.5),
    (["--missing", "-9"], "missing", -9.0),
    (["--categories", str(HERE)], "categories", HERE),
    (["--custom-ops", str(HERE)], "custom_ops", (HERE,)),
    (["--allow-pickle"], "allow_pickle", True),
    (["--decision", str(HERE)], "decision", HERE),
    (["--compare", f"a={HERE}"], "compare", {"a": HERE}),
    (["--draws", "3"], "draws", 3),
    (["--draws", "3", "--seed", "5"], "draws_seed", 5),
    (["--method", "smoothgrad", "--seed", "5"], "options", {"seed": 5}),
    (["--method", "smoothgrad", "--sigma", "0.5"], "options", {"sigma": 0.5}),
    (["--provider", "cuda"], "deployment", Deployment(provider="cuda")),
    (["--runtime", "tensorrt"], "deployment", Deployment(runtime="tensorrt")),
    (["--threads", "3"], "deployment", Deployment(threads=3)),
    (["--memory-budget", "512MB"], "deployment", Deployment(memory_budget=512 << 20)),
    (["--storage", "float16"], "deployment", Deployment(storage="float16")),
    (["--one-shot"], "deployment", Deployment(one_shot=True)),
]


@pytest.mark.parametrize(
    ("given", "field", "value"), PASSED, ids=lambda each: str(each)[:40] * isinstance(each, list)
)
def test_an_option_is_passed_on(
    given: list[str], field: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def ask(request: CompileRequest, *_: object) -> None:
        requests.append(request)
        raise InvalidOptionError("asked")

    monkeypatch.setattr("rationale.from_files.compile_files", ask)
    result = CliRunner().invoke(app, ["compile", str(HERE), "--name", "m", *given])
    assert "error: asked" in result.stderr
    (request,) = requests
    got = getattr(request, field)
    if field == "options":
        got = {name: got[name] for name in value}
    assert got == value
    assert value != getattr(CompileRequest(), field)


def test_every_option_of_a_request_is_among_those_that_are_passed_on() -> None:
    assert {field for _, field, _ in PASSED} == {*CompileRequest.model_fields}
