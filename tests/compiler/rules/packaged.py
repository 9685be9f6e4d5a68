"""Installed packages that bring rules, as `importlib.metadata` finds them: written for one test."""

import os
import subprocess
import sys
from pathlib import Path

SNAKE = '''
from rationale import Kind, rule


@rule("Snake", domain="example", kind=Kind.POINTWISE)
def snake(op, x, *, alpha=1.0):
    """y = x + sin²(αx)/α;  dy/dx = 1 + sin 2αx."""
    sine = op.Sin(op.Mul(x, alpha))

    def snake_pullback(m):
        return op.Mul(m, op.Add(op.Sin(op.Mul(x, 2 * alpha)), 1.0))

    return op.Add(x, op.Div(op.Mul(sine, sine), alpha)), snake_pullback
'''
DEFINITION = """
    <domain: "example", opset_import: ["": 17]> Snake <alpha: float = 1.0> (x) => (y) {
        a = Constant <value_float: float = @alpha> ()
        scaled = Mul (x, a)
        sine = Sin (scaled)
        square = Mul (sine, sine)
        share = Div (square, a)
        y = Add (x, share)
    }
"""
MODEL = """
    <ir_version: 8, opset_import: ["": 17, "example": 1]>
    network (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {0.4, -0.7, 1.1}> {
        s = example.Snake <alpha = 0.7> (x)
        y = MatMul (s, w)
    }
"""


def installed(folder: Path, name: str, code: str) -> Path:
    """A package of one module, with its metadata beside it as an installer leaves it."""
    module, metadata = name.replace("-", "_"), folder / f"{name.replace('-', '_')}-2.5.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    (metadata / "entry_points.txt").write_text(f"[rationale.rules]\n{name} = {module}\n")
    return folder


def python(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process in which the packages of `folder` are installed."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
