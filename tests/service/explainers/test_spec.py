"""Explainers' options, as the compiler takes them or refuses them."""

import pytest

from rationale import extensions
from rationale_service.errors import InvalidExplainerError
from rationale_service.models.explainers.spec import ExplainerSpec, MethodOptions
from tests.compiler.packages import Packages, packages

__all__ = ["packages"]  # a fixture, found by its name


def lrp(**options: object) -> ExplainerSpec:
    return ExplainerSpec(method="lrp", options=MethodOptions.model_validate(options))


def test_lrp_rules_in_both_spellings() -> None:
    rules = ["Conv=gamma:0.25", "Gemm=gamma(gamma=0.25)", "first=zbox(low=-1, high=1)"]
    assert lrp(rule=rules).requested(referenced=False).options["rule"] == rules
    for rule, says in (
        ("first=zbox(low=-1)", "low and high must be given together"),
        ("first=zbox(low=open('/etc/passwd'))", "parameters are literals"),
        ("first=box", "there are zero, epsilon"),
    ):
        with pytest.raises(InvalidExplainerError, match=says):
            lrp(rule=[rule]).requested(referenced=False)


def test_another_version_of_a_package_is_another_explainer(packages: Packages) -> None:
    spec = lrp(rule=["Conv=gamma:0.25"])
    digests = {spec.digest("model", None)}
    for version in ("1.2", "1.3"):
        packages.install_absolute(version)
        assert spec.digest("model", None) in digests  # a process does not change its mind
        extensions.packages.cache_clear()
        digests.add(spec.digest("model", None))
    assert len(digests) == 3
