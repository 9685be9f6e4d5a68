"""The gradient and input × gradient of every network, against torch.autograd in float64."""

from rationale import Gradient, compile_model
from tests.peers.agreement import GRADIENT, error
from tests.peers.networks import case, each_export, exported
from tests.peers.others import autograd


@each_export
def test_gradient(name: str, exporter: str) -> None:
    sample = case(name)
    truth = autograd(sample.fresh(), sample.x)
    model = exported(name, exporter)
    plain = compile_model(model, Gradient(), targets="all").explain(sample.x)
    product = compile_model(model, Gradient(times_input=True), targets="all").explain(sample.x)
    assert error(plain["x_attributions"], truth) <= GRADIENT
    assert error(product["x_attributions"], truth * sample.x[:, None]) <= GRADIENT
    assert "completeness_gap" not in plain
    assert "base_value" not in plain
