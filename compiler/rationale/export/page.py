"""`rationale export`: an entry as one page, with the graph, ONNX Runtime for browsers, and no server."""

import base64
import gzip
import json
import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import open_entry
from rationale.artifact.names import check_name
from rationale.artifact.repository.folder import write
from rationale.artifact.rows import check_table, read_table
from rationale.decisions.rows import attribution_keys, margin_output, score_location
from rationale.distribution import version
from rationale.errors import InvalidOptionError
from rationale.export.fields import fields
from rationale.export.fit import TYPES, check_fits, check_size
from rationale.export.web import WebRuntime, find_runtime
from rationale.pictures.browser import FILES as SHARED
from rationale.pictures.markup import csp_hash
from rationale.references.reference_set import spreads
from rationale.schema.form import feature_names
from rationale.schema.manifest import EXPLAIN, EXPLAIN_SUFFIX, FILE_NAME, Manifest, Spread
from rationale.schema.probes import Probes

FILES = Path(__file__).parent / "files"
KIND = ".html"
# The page fetches, sends and frames nothing, and runs only this script and this style.
_POLICY = (
    "default-src 'none'; script-src '{script}' 'wasm-unsafe-eval'; style-src '{style}'; connect-src 'none'; "
    "base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r"^import \{[^}]*\} from \"([\w./]+)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?function |class |const |let )", re.MULTILINE)


def export_page(
    repository: Path, name: str, out: Path, folder: Path | None = None, ranges: Path | None = None
) -> list[str]:
    """Write an entry as a page and return lines about its content.

    Args:
        out: the file to write, which ends in .html.
        folder: folder of the npm package onnxruntime-web; see `find_runtime`.
        ranges: file of rows that set the sliders' ranges instead of the references; the page contains none
            of them.

    Raises:
        UnsupportedModelError: if the entry cannot be a page; the error lists all faults.
        InvalidOptionError, InvalidReferencesError, RepositoryError: if an argument or the entry is invalid.
    """
    if out.suffix.lower() != KIND:
        raise InvalidOptionError(f"--html {out}: choose a name that ends in {KIND}.")
    explain = repository / f"{check_name(name)}{EXPLAIN_SUFFIX}"
    check_size(explain if (explain / FILE_NAME).is_file() else repository / name)
    compiled = open_entry(repository, name)
    runtime = find_runtime(folder)
    check_fits(name, compiled.manifest, compiled.model, runtime)
    references = compiled.manifest.references
    feature_spreads = _spreads_of(ranges, compiled) if ranges else references.spreads if references else ()
    facts = describe_page(compiled, feature_spreads)
    page = build_page(facts, compiled.model.SerializeToString(), runtime)
    write(out.parent, {out.name: page}, "--html")
    return list(_summary(out, page, compiled.manifest, runtime))


def _spreads_of(file: Path, compiled: Compiled) -> tuple[Spread, ...]:
    manifest = compiled.manifest
    table = read_table(file, manifest)
    check_table(str(file), table, manifest)
    arrays = compiled.fit(table.rows)
    texts = {spec.name for spec in manifest.inputs if spec.datatype == "BYTES"}
    rows = {name: array.astype(str) if name in texts else array for name, array in arrays.items()}
    return spreads(rows, feature_names(manifest), None)


def _summary(out: Path, page: bytes, manifest: Manifest, runtime: WebRuntime) -> Sequence[str]:
    lines = [
        f"wrote {out}: {len(page) / 1e6:.1f} MB, with onnxruntime-web {runtime.version}. It opens from disk, "
        "computes in the browser, and sends nothing."
    ]
    if manifest.references is not None:
        lines.append(
            f"The graph contains what {manifest.method.name} needs of its {manifest.references.count} "
            "references, which may be people's rows: give the page only to people who may see them, or "
            "compile with references that are not people's rows (docs/references.md)."
        )
    if manifest.decision is not None:
        lines.append("It holds the decision profile too: threshold, knock-outs, codes and texts.")
    return lines


# -- facts of the page -------------------------------------------------------------------------------------


def describe_page(compiled: Compiled, feature_spreads: Sequence[Spread]) -> dict[str, Any]:
    """Return the facts of an entry that the page needs, as JSON."""
    manifest = compiled.manifest
    embedded = manifest.decision
    keys, position = attribution_keys(manifest), 0
    attributed = []
    for item in manifest.attributed:
        count = int(np.prod(item.tensor.shape, dtype=int))
        attributed.append(
            {
                "output": item.attributions,
                "error": item.standard_error,
                "others": item.others_by_feature,
                "keys": keys[position : position + count],
            }
        )
        position += count
    return {
        "name": manifest.model,
        "output": manifest.explained_output,
        "method": manifest.method.name,
        "targets": [*manifest.targets] if manifest.targets != "predicted" else ["predicted"],
        "probabilities": manifest.probabilities,
        "class_names": manifest.class_names,
        "elements": int(np.prod(manifest.explained_shape, dtype=int)),
        "inputs": [
            {"name": spec.name, "type": TYPES[spec.datatype], "shape": [1, *spec.shape]}
            for spec in manifest.inputs
        ],
        "switch": EXPLAIN if manifest.one_shot else None,
        "fields": [*fields(manifest, compiled.sample, feature_spreads)],
        "texts": {
            name: {"known": rule.known, "refuses": rule.others == "refused"}
            for name, rule in manifest.texts_by_feature.items()
        },
        "attributed": attributed,
        "groups": manifest.groups,
        "outputs": {
            "explained": manifest.explained_value,
            "base": manifest.base_value,
            "gap": manifest.completeness_gap,
            "others": manifest.other_values,
            **dict(zip(("score", "element"), score_location(manifest), strict=True)),
            "margin": None if embedded is None else margin_output(manifest),
            "classes": _classes_at(manifest),
        },
        "decided": None
        if embedded is None
        else {"profile": embedded.profile.model_dump(mode="json"), "tolerance": embedded.tolerance},
        "references": manifest.references.count if manifest.references else None,
        "probes": _probes_of(compiled.probes),
        "digest": manifest.digests.explanation,
        "tools": f"Rationale {version()}",
    }


def _classes_at(manifest: Manifest) -> str | None:
    """Return the output with a score per class, probabilities if possible; None without classes."""
    count = int(np.prod(manifest.explained_shape, dtype=int))
    if count < 2 or (count == 2 and not manifest.class_names):
        return None
    sizes = {spec.name: int(np.prod(spec.shape, dtype=int)) for spec in manifest.outputs}
    matching = (
        name for name in (*manifest.probabilities, manifest.explained_output) if sizes.get(name) == count
    )
    return next(matching, None)


def _probes_of(probes: Probes | None) -> dict[str, Any] | None:
    """Return the probe rows that the page answers first, and the differences allowed."""
    if probes is None:
        return None
    return {
        "rows": probes.rows,
        "limit": probes.limit,
        "warned": probes.warned,
        "inputs": [tensor.model_dump() for tensor in probes.inputs],
        "outputs": [{**output.model_dump(), "rounding": output.rounding} for output in probes.outputs],
    }


# -- the page ----------------------------------------------------------------------------------------------


def build_page(facts: dict[str, Any], graph: bytes, runtime: WebRuntime) -> bytes:
    """Return the page: a policy, a style, data blocks and one script."""
    modules_text = "\n".join(bundle_modules("main.js").values())
    script = f"\n{runtime.script}\n{{\n{modules_text}}}\n"  # a block keeps its names apart from the runtime's
    style = "".join(file.read_text("utf-8") for file in (SHARED / "shared.css", FILES / "page.css"))
    policy = _POLICY.format(script=csp_hash(script), style=csp_hash(style))
    facts = {**facts, "runtime": f"ONNX Runtime Web {runtime.version}"}
    shown = facts["decided"]["profile"]["output"] if facts["decided"] else facts["output"]
    parts = {
        "TITLE": escape(f"{facts['name']}: {shown}"),
        "POLICY": policy,
        "STYLE": style,
        "FACTS": json.dumps(facts).replace("<", "\\u003c"),  # so that no text in it ends the element
        "LICENCE": escape((FILES / "onnxruntime-web.txt").read_text("utf-8")),
        "GRAPH": base64.b64encode(gzip.compress(graph, 9, mtime=0)).decode(),
        "WASM": base64.b64encode(runtime.wasm).decode(),
        "SCRIPT": script,
    }
    template = (FILES / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template).encode()


def bundle_modules(name: str) -> dict[str, str]:
    """Return the texts of a module and its imports as parts of one script, imports first."""
    path = FILES / name
    text = (path if path.is_file() else SHARED / name).read_text("utf-8")
    texts: dict[str, str] = {}
    for other in _IMPORT.findall(text):
        imported = os.path.normpath(Path(name).parent / other)
        texts |= {each: body for each, body in bundle_modules(imported).items() if each not in texts}
    return {**texts, name: _EXPORT.sub("", _IMPORT.sub("", text))}
