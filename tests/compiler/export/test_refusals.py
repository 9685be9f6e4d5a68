"""Entries that cannot be a page, and where onnxruntime-web comes from: what is wrong, and what to do."""

import base64
import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rationale import Compiled, DeepShap, Gradient, OpenReferences, compile_model
from rationale.errors import UnsupportedModelError
from rationale.export import fit, web
from rationale.schema.manifest import CustomOps
from rationale_service.cli.main import app
from tests.compiler.models import cnn, mlp, parsed, rows, with_floats_in

RUNTIME = web.WebRuntime("1.30.0", "", b"")
FLAGS = ("--repository", "repository", "--html", "out/page.html")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["export", *arguments])


def assert_refused(result: Result, words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert not Path("out").exists()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def written(compiled: Compiled, name: str = "m") -> None:
    compiled.write("repository", name)


def package(
    folder: Path, script: str = "var a,b,c;export{a as env,b as Tensor,c as InferenceSession};", **over: Any
) -> Path:
    """A folder as npm unpacks it, with files of a few bytes."""
    (folder / "dist").mkdir(parents=True)
    package_json(folder, **over)
    (folder / web.SCRIPT).write_text(script)
    (folder / web.WASM).write_bytes(b"\0asm\1\0\0\0")
    return folder


def package_json(folder: Path, version: str = web.VERSION) -> None:
    (folder / "package.json").write_text(json.dumps({"name": web.PACKAGE, "version": version}))


# --- entries ----------------------------------------------------------------------------------------------


def tokens() -> Compiled:
    text = """g (int64[N, 4] ids) => (float[N, 1] y) {
        e = Gather (table, ids)
        m = ReduceMean <keepdims = 0> (e, axis)
        y = MatMul (m, w)
    }"""
    weights = {"table": rows(9, 3), "axis": np.array([1]), "w": rows(3, 1)}
    return compile_model(parsed(text, weights), Gradient(times_input=True))


def half() -> Compiled:
    return compile_model(with_floats_in(mlp(), np.float16), Gradient())


def inner() -> Compiled:
    return compile_model(mlp(), Gradient(), inputs=["h1"])


def secretive() -> Compiled:
    profile = {"output": "y[1]", "threshold": 0.5, "adverse": "above", "never_disclose": ["x[2]"]}
    return compile_model(mlp(), DeepShap(rows(4, 5)), decision=profile)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: compile_model(cnn(), Gradient()), "x holds tokens, or is an image or another array"),
        (tokens, "rationale explain --html page.html draws such rows"),
        (lambda: compile_model(mlp((201, 3)), Gradient()), "it has more than 200 features"),
        (half, "its inputs hold FP16"),
        (inner, "h1 is explained, but is not an input"),
        (secretive, "says never to disclose x[2]"),
    ],
    ids=["image", "tokens", "many", "half", "inner", "secretive"],
)
def test_entries_that_cannot_be_a_page(place: Path, make: Callable[[], Compiled], words: str) -> None:
    written(make())
    assert_refused(call("m", *FLAGS, "--onnxruntime-web", str(package(place / "web"))), words)


def test_references_that_come_with_a_request(place: Path) -> None:
    written(compile_model(mlp(), DeepShap(OpenReferences(3))))
    named = call("m_explain_open", *FLAGS, "--onnxruntime-web", str(package(place / "web")))
    assert_refused(named, "its references come with each request")


def test_all_that_is_wrong_is_said_at_once() -> None:
    compiled = compile_model(mlp(), DeepShap(rows(4, 5)))
    memory = compiled.manifest.memory.model_copy(update={"needed": 2 << 30})
    library = CustomOps(file="ops.so", sha256="0")
    manifest = compiled.manifest.model_copy(update={"memory": memory, "custom_ops": (library,)})
    with pytest.raises(UnsupportedModelError) as error:
        fit.check_fits("m", manifest, compiled.model, web.WebRuntime("1.17.3", "", b""))
    for words in ("(1) it needs a library of kernels", "2048 MiB of memory", "needs onnxruntime-web 1.18"):
        assert words in str(error.value)


@pytest.mark.parametrize(("version", "fits"), [("1.17.3", False), ("1.18.0", True), ("1.19.2", True)])
def test_the_least_runtime_of_a_graph_runs_it(version: str, fits: bool) -> None:
    compiled = compile_model(mlp(), DeepShap(rows(4, 5)))
    runtime = web.WebRuntime(version, "", b"")
    with (
        nullcontext() if fits else pytest.raises(UnsupportedModelError, match=r"needs onnxruntime-web 1\.18")
    ):
        fit.check_fits("m", compiled.manifest, compiled.model, runtime)


def test_own_operators() -> None:
    compiled = compile_model(mlp(), DeepShap(rows(4, 5)))
    compiled.model.graph.node[0].domain = "bank.example"
    with pytest.raises(UnsupportedModelError, match=r"\bbank\.example\b"):
        fit.check_fits("m", compiled.manifest, compiled.model, RUNTIME)


@pytest.mark.usefixtures("place")
def test_a_large_graph_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    monkeypatch.setattr(fit, "MOST_BYTES", 100)
    Path("repository/m_explain/1/model.onnx").write_bytes(b"no model" * 100)
    assert_refused(call("m", *FLAGS), "a page can contain at most 0 MiB")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent", *FLAGS), "no such entry"),
        (("../m", *FLAGS), "is not a model name"),
        (("m\0", *FLAGS), "is not a model name"),
        (("m", *FLAGS[:3], "page.pdf"), "choose a name that ends in .html"),
        (("m", *FLAGS, "--ranges", "absent.csv"), "absent.csv: cannot be read"),
        (("m", *FLAGS, "--ranges", "narrow.csv"), "1 columns, but the model takes 5 features"),
    ],
)
def test_what_is_typed_wrongly(place: Path, arguments: tuple[str, ...], words: str) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    Path("narrow.csv").write_text("a\n1\n2\n")
    assert_refused(call(*arguments, "--onnxruntime-web", str(package(place / "web"))), words)


def test_ranges_of_other_rows(place: Path) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    np.save("ranges.npy", np.linspace([100.0, 0, 0, 0, 0], [900.0, 1, 1, 1, 1], 9).astype(np.float32))
    result = call("m", *FLAGS, "--ranges", "ranges.npy", "--onnxruntime-web", str(package(place / "web")))
    assert result.exit_code == 0, result.output
    page = Path("out/page.html").read_text()
    first, *_ = json.loads(page.partition('id="facts">')[2].partition("</script>")[0])["fields"]
    assert (first["least"], first["most"], first["begin"]) == (100, 900, 500)


def test_a_page_that_cannot_be_written(place: Path) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    (place / "file").write_text("")
    web_folder = str(package(place / "web"))
    result = call(
        "m", "--repository", "repository", "--html", "file/page.html", "--onnxruntime-web", web_folder
    )
    assert_refused(result, "--html file: cannot be written")


# --- the runtime ------------------------------------------------------------------------------------------


def test_a_folder_and_node_modules_here(place: Path) -> None:
    runtime = web.find_runtime(package(place / "any"))
    assert runtime.script.endswith("const ort = { InferenceSession: c, Tensor: b, env: a };")
    assert "export" not in runtime.script
    package(place / "project/node_modules" / web.PACKAGE)
    assert web.find_runtime(place / "project") == runtime
    package(place / "node_modules" / web.PACKAGE, version="1.24.1")
    assert web.find_runtime(None).release == (1, 24)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "package.json").unlink(), "package.json: No such file or directory"),
        (lambda folder: (folder / "package.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "package.json").write_text("[]"), "is not the npm package onnxruntime-web"),
        (
            lambda folder: (folder / "package.json").write_text('{"name": "left-pad"}'),
            "is not the npm package",
        ),
        (lambda folder: package_json(folder, "1.22.0"), "versions before 1.24"),
        (lambda folder: package_json(folder, "latest"), "is not the npm package"),
        (lambda folder: (folder / web.WASM).unlink(), "ort-wasm-simd-threaded.wasm: No such file"),
        (
            lambda folder: (folder / web.WASM).write_bytes(b"version https://git-lfs"),
            "is not the npm package",
        ),
        (lambda folder: (folder / web.SCRIPT).write_text("export default 1"), "ort.wasm.bundle"),
        (lambda folder: (folder / web.SCRIPT).write_text("export{a as env}"), "ort.wasm.bundle"),
        (lambda folder: (folder / web.SCRIPT).write_bytes(b"\xff"), "is damaged"),
    ],
)
def test_folders_that_are_something_else(place: Path, damage: Callable[[Path], object], words: str) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    damage(package(place / "web"))
    result = call("m", *FLAGS, "--onnxruntime-web", "web")
    assert_refused(result, words)
    assert "npm install onnxruntime-web@" in result.stderr


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an npm before all others that is this script."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_no_npm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    monkeypatch.setenv("PATH", str(place))
    assert_refused(call("m", *FLAGS), "npm is not installed")


def test_npm_fails(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    npm(place / "bin", "echo no route to the registry >&2; exit 1", monkeypatch)
    assert_refused(call("m", *FLAGS), "no route to the registry")


def archive_of(folder: Path) -> str:
    """Pack a package as npm does; return its digest as npm's registry tells it."""
    with tarfile.open(folder.with_suffix(".tgz"), "w:gz") as archive:
        archive.add(folder, "package")
    content = folder.with_suffix(".tgz").read_bytes()
    return f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"


def test_npm_brings_another_package(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    archive_of(package(place / "web"))
    npm(place / "bin", f'for last; do :; done; cp {place}/web.tgz "$last"', monkeypatch)
    assert_refused(call("m", *FLAGS), f"onnxruntime-web {web.VERSION}: the digest is sha512-")


def test_npm_is_asked_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(compile_model(mlp(), DeepShap(rows(4, 5))))
    monkeypatch.setattr(web, "INTEGRITY", archive_of(package(place / "web")))
    npm(
        place / "bin",
        f'echo "$@" >> {place}/asked; for last; do :; done; cp {place}/web.tgz "$last"',
        monkeypatch,
    )
    for _ in range(2):
        result = call("m", *FLAGS)
        assert result.exit_code == 0, result.output
    (arguments,) = (place / "asked").read_text().splitlines()
    assert arguments.startswith(f"pack onnxruntime-web@{web.VERSION} ")
    assert "may be people's rows" in result.stdout
