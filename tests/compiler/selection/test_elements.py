"""An output with an index, as decision profiles write it."""

from typing import Any

import numpy as np
import pytest

from rationale import Auto, Compiled, ExactShap, InvalidOptionError, TreeShap, compile_model
from tests.compiler.models import mlp, rows
from tests.references import trees as forest

TREES = forest.random_trees(1, ("LEQ", "LT"), columns=3)
REFERENCES, X = forest.rows(1, 7), forest.rows(2, 4)


def compiled(output: str, method: Any = TreeShap, **options: Any) -> Compiled:
    return compile_model(
        forest.classifier(TREES, 3, post_transform="SOFTMAX"), method(REFERENCES), output=output, **options
    )


@pytest.mark.parametrize("method", [TreeShap, ExactShap, Auto])
@pytest.mark.parametrize("index", [0, 2])
def test_an_element_is_that_target(method: Any, index: int) -> None:
    named = compiled(f"p[{index}]", method).explain(X)
    expected = compiled("p", method, targets=[index]).explain(X)
    np.testing.assert_array_equal(named["x_attributions"], expected["x_attributions"])


def test_an_element_of_an_inner_tensor() -> None:
    model = mlp()
    inner = model.graph.node[0].output[0]
    references = rows(4, model.graph.input[0].type.tensor_type.shape.dim[1].dim_value)
    named = compile_model(model, ExactShap(references), output=f"{inner}[1]").manifest
    assert (named.explained_output, named.targets) == (inner, (1,))


def test_an_element_and_other_targets() -> None:
    with pytest.raises(InvalidOptionError, match=r"'p\[1\]'.*targets=\[2\]"):
        compiled("p[1]", targets=[2])


def test_no_such_element() -> None:
    with pytest.raises(InvalidOptionError, match=r"targets \[3\]: output 'p_margin' has indices 0 to 2"):
        compiled("p[3]")


def test_a_tensor_that_is_called_so() -> None:
    model = forest.regressor(TREES)
    model.graph.node[0].output[0] = model.graph.output[0].name = "y[1]"
    assert compile_model(model, TreeShap(REFERENCES), output="y[1]").manifest.targets == (0, 1, 2)
