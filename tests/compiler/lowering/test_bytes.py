"""The limit of a value's bytes, by its type: at the limit, and one element more."""

import onnx_ir as ir
import pytest

from rationale.errors import UnsupportedModelError
from rationale.lowering.sizes import LARGEST, check_sizes
from tests.compiler.models import parsed

GRAPH = ir.from_proto(parsed("g (float[N, 2] x) => (float[N, 2] y) { y = Identity (x) }", {}))


@pytest.mark.parametrize(
    ("dtype", "each"),
    [
        (ir.DataType.FLOAT, 4),
        (ir.DataType.DOUBLE, 8),
        (ir.DataType.FLOAT16, 2),
        (ir.DataType.INT64, 8),
        (ir.DataType.UINT8, 1),
        (ir.DataType.BOOL, 1),
        (ir.DataType.STRING, 8),  # a pointer
        (ir.DataType.INT4, 0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["x", "y"])
def test_a_value_of_the_largest_size_is_taken(dtype: ir.DataType, each: float, name: str) -> None:
    most = int(LARGEST / each)
    check_sizes(GRAPH, {name: ((1, most), dtype)})
    more = most + max(1, int(1 / each))
    with pytest.raises(UnsupportedModelError, match=f"'{name}' takes .* for one row"):
        check_sizes(GRAPH, {name: ((1, more), dtype)})


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.STRING], ids=str)
def test_an_empty_value_has_any_shape(dtype: ir.DataType) -> None:
    check_sizes(GRAPH, {"x": ((1, 0, LARGEST), dtype)})
