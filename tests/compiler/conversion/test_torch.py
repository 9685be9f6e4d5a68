"""torch modules, compiled as they are."""

import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from rationale import DeepShap, Gradient, InvalidOptionError, UnsupportedModelError, compile_model, convert
from rationale.errors import reason_of
from tests.tolerances import COMPLETE_32, PARITY_32

RANDOM = np.random.default_rng(0)
REFERENCES = {"x": RANDOM.normal(size=(6, 5)), "other": RANDOM.normal(size=(6, 3))}
APPLICANTS = {"x": RANDOM.normal(size=(4, 5)), "other": RANDOM.normal(size=(4, 3))}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 7), torch.nn.Linear(3, 7)
        self.last, self.drop = torch.nn.Linear(7, 2), torch.nn.Dropout()

    def forward(
        self, x: torch.Tensor, other: torch.Tensor, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        total = self.drop(torch.relu(self.first(x) + self.second(other)))
        y: torch.Tensor = self.last(total)
        return y if scale is None else y * scale


def test_a_module_of_two_inputs() -> None:
    torch.manual_seed(0)
    net = Net()
    compiled = compile_model(net, DeepShap(REFERENCES), targets="all")
    assert compiled.conversion is not None
    assert compiled.conversion.startswith("parity: tests.Net as ONNX (torch ")
    assert net.training
    answer = compiled.explain(APPLICANTS)
    with torch.no_grad():
        expected = net.eval()(*(torch.from_numpy(a).float() for a in APPLICANTS.values())).numpy()
    np.testing.assert_allclose(answer["output"], expected, atol=PARITY_32)
    assert answer["other_attributions"].shape == (4, 2, 3)
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * np.abs(expected).max()
    assert str(Path(__file__).parent) not in str(compiled.model)


def test_one_reference_leaves_the_batch_open() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU())
    answer = compile_model(net, DeepShap(REFERENCES["x"][:1])).explain(APPLICANTS["x"])
    assert answer["input_attributions"].shape == (4, 1, 5)


def test_an_example_for_a_method_without_references() -> None:
    net = torch.nn.Linear(5, 3)
    compiled = compile_model(convert(net, torch.zeros(3, 5)), Gradient(), targets=[1])
    expected = np.broadcast_to(net.weight.detach().numpy()[1], (4, 1, 5))
    np.testing.assert_allclose(
        compiled.explain(APPLICANTS["x"])["input_attributions"], expected, atol=PARITY_32
    )


def test_who_has_no_torchvision_hears_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torchvision" else found(name, *rest)
    )
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    logger.addHandler(caplog.handler)
    try:
        convert(torch.nn.Linear(5, 3), REFERENCES["x"])
        logger.warning("another warning")
    finally:
        logger.removeHandler(caplog.handler)
    said = {record.getMessage() for record in caplog.records if record.name == logger.name}
    assert said == {"another warning"}


def test_what_cannot_be_converted() -> None:
    with pytest.raises(InvalidOptionError, match=r"'input'.*convert\(module, example\)"):
        compile_model(torch.nn.Linear(5, 3), Gradient())
    with pytest.raises(InvalidOptionError, match=r"'x', 'other', 'scale'.* mapping"):
        compile_model(Net(), DeepShap(REFERENCES["x"]))
    with pytest.raises(InvalidOptionError, match=r"'x', 'other', 'scale'.*'x'"):
        convert(Net(), {"x": REFERENCES["x"]})
    with pytest.raises(InvalidOptionError, match=r"<U1 \[1, 5\]"):
        convert(torch.nn.Linear(5, 3), np.array([["a"] * 5]))
    with pytest.raises(UnsupportedModelError, match=r"torch\.Linear: torch .*\(2x4 and 5x3\).*rows such as"):
        convert(torch.nn.Linear(5, 3), np.zeros((2, 4)))
    assert reason_of(RuntimeError("\x1b[96mThis is step 1/3\x1b[0m of\nit.")) == "This is step 1/3 of it"
