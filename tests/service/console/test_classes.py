"""How pages call targets, and which scores are those of the classes."""

from typing import Any

import pytest

from tests.service.console.node import in_node

NAMES = ["kept", "lost", "sent back"]


@pytest.mark.parametrize(
    ("size", "names", "target", "due", "in_list"),
    [
        (1, [], 0, "y", "y"),
        (1, NAMES[:2], 0, "y", "y"),
        (3, [], 0, "y [0]", "y [0]"),
        (3, [], "2-0", "y [2-0]", "y [2-0]"),
        (3, NAMES, 0, "y of class kept", "kept"),
        (3, NAMES, "2-0", "y of class sent back against kept", "sent back against kept"),
        (3, NAMES, "predicted", "y", "y"),
    ],
)
def test_a_target_is_called_by_its_class(
    size: int, names: list[str], target: Any, due: str, in_list: str
) -> None:
    given = {"own": {"output": "y", "size": size, "classNames": names}, "target": target}
    body = "return [own.elementName(given.own, given.target), own.optionName(given.own, given.target)];"
    assert in_node(["pictures/classes.js"], body, given) == [due, in_list]


def test_a_target_of_no_class_is_called_by_its_output() -> None:
    given = {"output": "y", "size": 3, "classNames": NAMES}
    assert in_node(["pictures/classes.js"], "return own.elementName(given, null);", given) == "y"


def model(outputs: dict[str, int], explained: str, size: int, **more: Any) -> dict[str, Any]:
    named = [{"name": name, "shape": [count], "datatype": "FP32"} for name, count in outputs.items()]
    return {"output": explained, "output_shape": [size], "outputs": named, **more}


@pytest.mark.parametrize(
    ("output", "prediction", "expected"),
    [
        (model({"p": 3}, "p", 3, probabilities=["p"]), [0.2, 0.5, 0.3], 1),
        (model({"p": 3}, "p", 3), [-2.0, -5.0, -1.0], 2),
        (model({"p": 3}, "p", 3), [0.4, 0.4, 0.2], 0),  # of two the first, as an ArgMax has it
        (  # of trees the margin is explained, and the probabilities are answered
            model({"label": 1, "p": 3}, "p_margin", 3, probabilities=["p"]),
            {"label": ["lost"], "p": [0.2, 0.5, 0.3]},
            1,
        ),
        (model({"p": 1}, "p", 1, probabilities=["p"]), [0.2], None),
        (model({"p": 2}, "p", 2, probabilities=["p"]), [0.2, 0.8], None),  # one says the other
        (model({"p": 2}, "p", 2, probabilities=["p"], class_names=["good", "bad"]), [0.2, 0.8], 1),
        (model({"label": 3}, "hidden", 3), ["a", "b", "c"], None),
    ],
)
def test_the_predicted_class_has_the_largest_score(
    output: dict[str, Any], prediction: Any, expected: int | None
) -> None:
    body = "return own.predictedClass(given.model, given.prediction);"
    assert in_node(["score.js"], body, {"model": output, "prediction": prediction}) == expected


@pytest.mark.parametrize(
    ("given", "prediction", "due"),
    [
        (
            model({"p": 3}, "p", 3, probabilities=["p"]),
            [0.2, 0.5, 0.3],
            {"values": [0.2, 0.5, 0.3], "isShare": True},
        ),
        (model({"m": 3}, "m", 3), [-2.0, 5.0, 1.0], {"values": [-2, 5, 1], "isShare": False}),
        *(  # both are answered, in either order, and probabilities are what people read
            (
                model(outputs, "m", 3, probabilities=["p"]),
                {"m": [-2.0, 5.0, 1.0], "p": [0.2, 0.5, 0.3]},
                {"values": [0.2, 0.5, 0.3], "isShare": True},
            )
            for outputs in ({"p": 3, "m": 3}, {"m": 3, "p": 3})
        ),
        (  # of probabilities of other elements none belongs to the classes
            model({"p": 2, "m": 3}, "m", 3, probabilities=["p"]),
            {"m": [-2.0, 5.0, 1.0], "p": [0.2, 0.8]},
            {"values": [-2, 5, 1], "isShare": False},
        ),
    ],
)
def test_classes_are_told_by_probabilities_if_there_are_any(
    given: dict[str, Any], prediction: Any, due: dict[str, Any]
) -> None:
    body = "return own.classScores(given.model, given.prediction);"
    assert in_node(["score.js"], body, {"model": given, "prediction": prediction}) == due


@pytest.mark.parametrize(
    ("space", "output", "due"),
    [("output", "p", True), ("output", "q", False), ("margin", "p", False), ("margin", "q", False)],
)
def test_when_the_score_is_what_is_explained(space: str, output: str, due: bool) -> None:
    decision = {
        "output": output,
        "index": 0,
        "space": space,
        "threshold": 0.5,
        "adverse": "above",
        "refer": None,
    }
    body = 'return own.ruleOf({ output: "p", outputs: [], decision: given }, null, 0).explained;'
    assert in_node(["score.js"], body, decision) is due
