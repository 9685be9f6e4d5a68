"""Makes snake.onnx, a network with the operator, and references.npy and rows.npy: python make_model.py."""

from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).parent
DEFINITION = """
    <domain: "own", opset_import: ["": 21]> Snake <alpha: float = 1.0> (x) => (y) {
        given = Constant <value_float: float = @alpha> ()
        a = CastLike (given, x)
        scaled = Mul (x, a)
        sine = Sin (scaled)
        square = Mul (sine, sine)
        share = Div (square, a)
        y = Add (x, share)
    }
"""
NETWORK = """
    <ir_version: 10, opset_import: ["": 21, "own": 1]>
    network (float[N, 3] x) => (float[N, 1] y)
    <float[3, 2] w = {0.4, -0.7, 1.1, 0.3, -0.2, 0.9}, float[2, 1] v = {1.5, -0.8}> {
        h = MatMul (x, w)
        s = own.Snake <alpha = 0.7> (h)
        y = MatMul (s, v)
    }
"""


def network() -> onnx.ModelProto:
    """The operator's value is a function of the file: ONNX Runtime needs no kernel for it."""
    model = onnx.parser.parse_model(NETWORK)
    model.functions.append(onnx.parser.parse_function(DEFINITION))
    return model


def main(folder: Path = HERE) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 20, 3)).astype(np.float32)
    onnx.save(network(), folder / "snake.onnx")
    np.save(folder / "references.npy", rows[0])
    np.save(folder / "rows.npy", rows[1, :4])


if __name__ == "__main__":
    main()
