"""The console's modules in Node.js: their pure functions are held to tables of cases without a browser."""

import atexit
import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rationale.pictures.browser import FILES as SHARED
from rationale_service.console.page import FILES
from tests.needs import need

_SCRIPT = """
import { readFileSync } from "node:fs";
const revived = (key, value) => (value === "NaN" ? NaN : value);
const { given, modules, body } = JSON.parse(readFileSync(0, "utf8"), revived);
globalThis.document = { baseURI: "http://localhost/console/" };
const found = {};
for (const name of modules) Object.assign(found, await import(`${process.argv[1]}/${name}`));
const answer = await new Function("given", "own", `return (async () => { ${body} })()`)(given, found);
console.log(JSON.stringify(answer, (key, value) => (Number.isNaN(value) ? "NaN" : value)));
"""


@cache
def modules() -> Path:
    """Lay both folders of modules over each other, as the gateway serves them."""
    to = Path(mkdtemp(prefix="console-modules-"))
    atexit.register(shutil.rmtree, to, ignore_errors=True)
    for folder in (SHARED, FILES):
        shutil.copytree(folder, to, dirs_exist_ok=True)
    (to / "package.json").write_text('{"type": "module"}')
    return to


def in_node(names: list[str], body: str, argument: Any = None) -> Any:
    """Run the body of a function in Node.js: `own` holds what the modules export, `argument` is given.

    NaN is written as the text "NaN", both ways.
    """
    program_input = json.dumps({"given": argument, "modules": names, "body": body})
    command = [need("Node.js"), "--input-type=module", "-e", _SCRIPT, str(modules())]
    process = subprocess.run(command, input=program_input, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
