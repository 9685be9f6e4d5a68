"""The part of the manual that is generated: `mkdocs.yml` calls it as a hook, `make docs` builds the site.

Generated are the references of the API (from docstrings), of the command line, of the settings (from their
fields), of the gateway's routes (from its OpenAPI document), of the manifest and of the decision profile
(from their schemas), and the history of benchmarks. Pages outside of `docs/` come into the site too, and so
do the files that pages link to.
"""

import ast
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from rationale.distribution import version

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OTHER_PAGES = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/credit/README.md",
    "examples/notebooks/README.md",
    "examples/own_operator/README.md",
)
# Pages of the reference of the API, with the packages whose public names they hold.
API = {
    "compile": ("Compile, explain, load", ("compile", "artifact", "conversion", "references", "explainer")),
    "methods": ("Methods", ("methods",)),
    "decisions": ("Decisions", ("decisions", "profiles")),
    "portfolios": ("Many rows", ("portfolios",)),
    "operators": ("Operators and rules of your own", ("graph", "rules")),
    "schema": ("Requests and answers", ("schema",)),
    "errors": ("Errors", ("errors",)),
}
# Documented modules outside `rationale`'s own names, with the page that they come on.
MODULES = {
    "rationale.testing": "operators",
    "rationale.spark": "portfolios",
    "rationale.ray": "portfolios",
    "rationale.dask": "portfolios",
    "rationale.mlflow": "portfolios",
}
# Headings of the reference of settings, each before the field of its name, and units by the end of a name.
SETTINGS = {
    "repository": "The repository and what is kept",
    "host": "Ports and processes",
    "device": "Where models run",
    "request_timeout_s": "Bounds of requests",
    "max_loaded_explainers": "Explainers made over the API",
    "tls_cert": "TLS, keys and rates",
    "console": "Web pages",
    "log_level": "Logs, metrics and traces",
    "audit": "The audit trail",
}
UNITS = {
    "_per_s": "requests a second",
    "_s": "seconds",
    "_bytes": "bytes",
    "_months": "months",
    "_ratio": "a share",
    "port": "a port",
}
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the header."""
    config.site_name = f"Rationale {version()}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the pages outside of `docs/`, and the files that pages link to."""
    for path, text in {**api_pages(), **reference_pages(), **history_pages()}.items():
        files.append(File.generated(config, path, content=text))
    for name in OTHER_PAGES:
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    for path in sorted(set(_linked_files())):
        name = f"project/{path.relative_to(ROOT)}.txt"
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links that leave `docs/` at their copies in the site."""
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix("project/") if uri.startswith("project/") else DOCS / uri

    def moved(match: re.Match[str]) -> str:
        target = _in_site(source, match[2])
        return (
            match[0] if target is None else f"{match[1]}{os.path.relpath(target, Path(uri).parent)}{match[3]}"
        )

    return _LINK.sub(moved, markdown)


def _in_site(source: Path, link: str) -> str | None:
    """Return the place in the site of a link's target, or None if no such file is there."""
    target = _target(source, link)
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    if not target.is_file():
        return None
    name = str(target.relative_to(ROOT))
    return (
        f"project/{name}"
        if name in OTHER_PAGES
        else "index.md"
        if name == "README.md"
        else f"project/{name}.txt"
    )


def _target(source: Path, link: str) -> Path:
    """Return the file that a page's link leads to; of a folder, its README.md."""
    target = Path(os.path.normpath(source.parent / link))
    return target / "README.md" if target.is_dir() else target


def _linked_files() -> Iterator[Path]:
    """Yield the files outside of `docs/` that pages link to, without those that are pages of the site."""
    for source in [*DOCS.rglob("*.md"), *(ROOT / name for name in OTHER_PAGES)]:
        for match in _LINK.finditer(source.read_text(encoding="utf-8")):
            if str(_in_site(source, match[2])).endswith(".txt"):
                yield _target(source, match[2])


# --- the reference of the API -----------------------------------------------------------------------------


def public_names() -> dict[str, str]:
    """Return the module of each public name of `rationale`, as the stub declares it."""
    stub = ast.parse((ROOT / "compiler/rationale/__init__.pyi").read_text(encoding="utf-8"))
    found = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"rationale.{node.module}" for node in found for alias in node.names}


def module_names(module: str) -> list[str]:
    """Return a module's public names: its `__all__`, else its public functions and classes."""
    path = ROOT / "compiler" / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(source.read_text(encoding="utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    found = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in found if not name.startswith("_")]


def api_pages() -> dict[str, str]:
    """Return the pages of the reference of the API by their place in the site.

    Raises:
        KeyError: if a public name's package has no page in `API`.
    """
    page_of = {package: page for page, (_, packages) in API.items() for package in packages}
    entries: dict[str, list[str]] = defaultdict(list)
    for name, module in public_names().items():
        entries[page_of[module.split(".")[1]]].append(_entry("rationale", name, module))
    for module, page in MODULES.items():
        entries[page].append(
            f"## {module}\n\n::: {module}\n    options: {{members: false, heading_level: 3}}\n"
        )
        entries[page] += [_entry(module, name, module, level=3) for name in module_names(module)]
    return {f"reference/api/{page}.md": f"# {API[page][0]}\n\n" + "\n".join(entries[page]) for page in API}


def _entry(module: str, name: str, source: str, level: int = 2) -> str:
    heading = f"{'#' * level} `{module}.{name}` {{#{module}.{name}}}"
    return f"{heading}\n\n::: {source}.{name}\n    options: {{heading_level: {level + 1}}}\n"


# --- the history of speed ---------------------------------------------------------------------------------


def history_pages(lines: str | None = None) -> dict[str, str]:
    """Return the page of benchmarks by release, and its picture.

    Args:
        lines: JSON lines, one for each release; by default those of `benchmarks/history.jsonl`.
    """
    from rationale.pictures.figures import levels
    from rationale.pictures.svg import svg

    text = (ROOT / "benchmarks/history.jsonl").read_text("utf-8") if lines is None else lines
    releases = [json.loads(line) for line in text.splitlines()]
    bars: dict[str, list[tuple[str, float]]] = defaultdict(list)
    rows = ["| figure | release | value | command |", "|---|---|---|---|"]
    for release in releases:
        for name, (value, command) in release["figures"].items():
            bars[name].append((f"{release['version']}, {release['date']}", value))
            rows.append(f"| {name} | {release['version']} | {value:g} | `{command}` |")
    drawn = svg(levels(name, "by release", values) for name, values in bars.items())
    head = "# Speed by release\n\n[Speed](performance.md) names the machine. Less is better, but for peers."
    picture = "![bars of each figure by release](pictures/history.svg)"
    return {
        "history.md": "\n".join([head, "", picture, "", *rows]),
        "pictures/history.svg": drawn.decode(),
    }


# --- the other references ---------------------------------------------------------------------------------


def reference_pages() -> dict[str, str]:
    """Return the references of command line, settings, routes, … by their place in the site."""
    from rationale.schema.manifest import Manifest
    from rationale.schema.profile import DecisionProfile

    document = openapi()
    return {
        "reference/command-line.md": command_line(),
        "reference/settings.md": settings(),
        "reference/rest.md": routes(document),
        "reference/openapi.json": json.dumps(document, indent=1),
        "reference/manifest.md": schema_page(
            "The manifest",
            "`explanation.json` lies beside an entry's graph. The compiler writes it, the gateway reads it.",
            Manifest.model_json_schema(),
        ),
        "reference/profile.md": schema_page(
            "Keys of the decision profile",
            "The schema of `decision.yaml`; [an example](../decision-profile.md) explains it.",
            DecisionProfile.model_json_schema(),
        ),
    }


def command_line() -> str:
    """Return the help of each command."""
    from typer import Context
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from rationale_service.cli.main import app

    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command), name="rationale")
    return text.replace("# `rationale`\n", "# Command line\n", 1)


def settings() -> str:
    """Return the page of all settings: variable, default, unit or values, meaning."""
    from rationale_service.cli.main import FLAGS, flag
    from rationale_service.configuration import OTHER_VARIABLES
    from rationale_service.settings import PREFIX, Settings

    head = ["| variable | default | unit or values | meaning |", "|---|---|---|---|"]
    lines = ["# Settings\n", "[How to set them](../settings.md): by flag, variable or file.\n"]
    lines.append('<div class="names" markdown>')
    for name, member in Settings.model_json_schema()["properties"].items():
        lines += [f"\n## {SETTINGS[name]}\n", *head] if name in SETTINGS else []
        variable = f"`{PREFIX}{name.upper()}`" + (f"<br>`{flag(name)}`" if name in FLAGS else "")
        lines.append(
            f"| {variable} | {_default(name, member)} | {_unit(name, member)} | {_described(member)} |"
        )
    lines += ["\n## Variables that are no settings\n", "| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in OTHER_VARIABLES.items()]
    return "\n".join([*lines, "\n</div>"])


def _default(name: str, member: Mapping[str, Any]) -> str:
    value = member.get("default")
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "`on`" if value else "`off`"
    size = f" ({_size(value)})" if name.endswith("_bytes") and value else ""
    text = ",".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value
    return f"`{text}`{size}"


def _size(count: int) -> str:
    power = min((count.bit_length() - 1) // 10, 3)
    return f"{count >> 10 * power} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def _unit(name: str, member: Mapping[str, Any]) -> str:
    """Return the unit and the bounds of a setting, or the words it may be."""
    kinds = [each for each in member.get("anyOf", [member]) if each.get("type") != "null"]
    kind: Mapping[str, Any] = kinds[0]
    words = re.fullmatch(r"\^\(([a-z|]+)\)\$", kind.get("pattern", ""))
    choices = kind.get("enum") or (words and words[1].split("|")) or ()
    choices = ("on", "off") if kind["type"] == "boolean" else choices
    if choices:
        return ", ".join(f"`{word}`" for word in choices)
    if kind["type"] not in ("integer", "number"):
        return ""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "a number")
    low, high = kind.get("minimum"), kind.get("maximum")
    if high is not None:
        return f"{unit}, {low:g} to {high:g}"
    if low:
        return f"{unit}, at least {_size(low) if name.endswith('_bytes') else low}"
    return f"{unit}, above 0" if "exclusiveMinimum" in kind else unit


def openapi() -> dict[str, Any]:
    """Return the gateway's OpenAPI document."""
    from rationale_service.app import create_app
    from rationale_service.engine.backends.onnxruntime import OnnxRuntimeBackend
    from rationale_service.settings import Settings

    settings = Settings(repository=ROOT / "model_repository")
    return create_app(settings, OnnxRuntimeBackend(settings.max_queue_size)).openapi()


def routes(document: Mapping[str, Any]) -> str:
    """Return the page of all routes, by tag, with the words of problems and the models of bodies."""
    from rationale_service.errors import ServiceError

    lines = [
        "# REST routes\n",
        "[`openapi.json`](openapi.json) is the same as a document for generators of clients. A gateway has "
        "it at `/openapi.json`, and pages to try it at `/docs`.\n",
    ]
    by_tag = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag[operation.get("tags", ["other"])[0]].append((f"{method.upper()} {path}", operation))
    for tag, operations in by_tag.items():
        lines.append(f"## {tag}\n")
        for title, operation in operations:
            lines += [f"### `{title}`\n", operation.get("description") or operation.get("summary", ""), ""]
            scopes = ", ".join(f"`{scope}`" for scope in operation.get("x-scopes", ()))
            lines += [f"Scopes: {scopes}\n"] if scopes else []
            parameters = operation.get("parameters", [])
            if parameters:
                lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
                lines += [
                    f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {_described(each)} |"
                    for each in parameters
                ]
                lines.append("")
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                lines.append(f"Body, `{kind}`: {_type(content.get('schema', {}))}\n")
            for status, answer in operation["responses"].items():
                schemas = [_type(content.get("schema", {})) for content in answer.get("content", {}).values()]
                lines.append(f"- {status} {_described(answer)} {' or '.join(dict.fromkeys(schemas))}")
            lines.append("")
    lines += [
        "## Problems\n",
        "Errors are problem documents; the last part of `type` is one of these words.\n",
    ]
    lines += ["| word | status | title |", "|---|---|---|", *sorted(set(_problems(ServiceError))), ""]
    return "\n".join([*lines, "## Models of bodies\n", *_models(document["components"]["schemas"], level=3)])


def _problems(kind: type[Any]) -> Iterator[str]:
    """Yield a row for each class of errors that a caller can meet."""
    yield f"| `{kind.slug}` | {kind.status} | {kind.title} |"
    for each in kind.__subclasses__():
        yield from _problems(each)


def schema_page(title: str, text: str, schema: Mapping[str, Any]) -> str:
    """Return a page with the members of a JSON schema and of the models in it."""
    head = [f"# {title}\n", text, "", schema.get("description", ""), "", *_members(schema)]
    return "\n".join([*head, *_models(schema["$defs"], level=2)])


def _models(schemas: Mapping[str, Any], level: int) -> Iterator[str]:
    for name, schema in schemas.items():
        yield f"{'#' * level} {name} {{#{_anchor(name)}}}\n"
        yield f"{schema.get('description', '')}\n"
        yield from _members(schema)


def _members(schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        yield f"{_type(schema)}\n"
        return
    yield from ("| member | type | default | meaning |", "|---|---|---|---|")
    required = schema.get("required", ())
    for name, member in schema["properties"].items():
        default = (
            "required"
            if name in required
            else f"`{json.dumps(member['default'])}`"
            if "default" in member
            else ""
        )
        yield f"| `{name}` | {_type(member)} | {default} | {_described(member)} |"
    yield ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[word]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_type(schema['additionalProperties'])}"
    kind = schema.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _anchor(name: str) -> str:
    return f"model-{name.lower()}"


def _described(node: Mapping[str, Any]) -> str:
    """Return a node's description as the text of a table's cell."""
    return " ".join(node.get("description", "").split()).replace("|", "\\|")
