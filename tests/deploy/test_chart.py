"""The chart: linted, rendered, valid by Kubernetes' schemas; its probes and settings are the gateway's."""

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from rationale.distribution import version
from rationale_service.cli import triton as triton_command
from rationale_service.cli.main import FLAGS
from rationale_service.settings import PREFIX, Settings
from tests.deploy.helm import CHART, EXAMPLES, Helm
from tests.service import handmade as made
from tests.service import patient
from tests.service.child import ready_line, serve

VALUES: list[list[str]] = [[], *(["--values", str(path)] for path in EXAMPLES)]
IDS = ["defaults", *(path.stem for path in EXAMPLES)]
FOREIGN = {"ServiceMonitor"}  # of operators, whose schemas Kubernetes does not have


@pytest.fixture(params=VALUES, ids=IDS)
def values(request: pytest.FixtureRequest) -> list[str]:
    given: list[str] = request.param
    return given


def deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in objects if one["kind"] == "Deployment")
    return found


def containers(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in deployment(objects)["spec"]["template"]["spec"]["containers"]}


def test_it_is_sound(helm: Helm, values: list[str]) -> None:
    done = helm.run("lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout + done.stderr
    objects = helm.rendered(*values)
    assert len(objects) > 5
    for one in objects:
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, "1.34", strict=True)
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_what_the_examples_are_about_is_there(helm: Helm) -> None:
    kinds = {path.stem: {one["kind"] for one in helm.rendered("--values", str(path))} for path in EXAMPLES}
    assert {"NetworkPolicy", "ServiceMonitor", "PodDisruptionBudget"} <= kinds["replicas"]
    assert "HorizontalPodAutoscaler" in kinds["triton-service"]
    assert list(containers(helm.rendered("--values", str(EXAMPLES[-1])))) == ["gateway", "triton"]


def test_pods_run_as_little_as_they_need(helm: Helm, values: list[str]) -> None:
    objects = helm.rendered(*values)
    spec = deployment(objects)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for one in containers(objects).values():
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert containers(objects)["gateway"]["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_pod_has_the_time_to_leave(helm: Helm) -> None:
    spec = deployment(helm.rendered("--set", "shutdownDelaySeconds=7,drainSeconds=40"))["spec"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 47
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_settings_and_flags_are_the_gateway_s(helm: Helm, values: list[str]) -> None:
    gateway = containers(helm.rendered(*values))["gateway"]
    names = [one["name"].removeprefix(PREFIX).lower() for one in gateway["env"]]
    assert set(names) <= set(Settings.model_fields)
    assert len(names) == len(set(names))
    flags = {f"--{name.removesuffix('_s').replace('_', '-')}" for name in FLAGS}
    assert gateway["args"][0] == "serve"
    assert {argument.split("=")[0] for argument in gateway["args"][1:]} <= flags


def test_the_sidecar_is_the_triton_of_the_command(helm: Helm) -> None:
    sidecar = containers(helm.rendered("--values", str(EXAMPLES[-1]), "--set", "models.path=/entries"))[
        "triton"
    ]
    loopback = [f"--{end}-address=127.0.0.1" for end in triton_command.PORTS]
    recipe = [each.replace("=/models", "=/entries") for each in triton_command.COMMAND]
    assert sidecar["image"] == triton_command.IMAGE
    assert sidecar["args"] == [*recipe, *loopback]
    assert {one["name"]: one["value"] for one in sidecar["env"]} == triton_command.OPTIONS["environment"]
    assert sidecar["workingDir"] == "/entries"


def test_the_sidecar_is_reached_from_its_pod_alone(helm: Helm) -> None:
    objects = helm.rendered("--values", str(EXAMPLES[-1]))
    both = containers(objects)
    assert f"--triton=127.0.0.1:{triton_command.PORTS['grpc']}" in both["gateway"]["args"]
    assert "ports" not in both["triton"]
    for probe in ("readinessProbe", "livenessProbe"):  # the kubelet asks the pod's address
        (url,) = (one for one in both["triton"][probe]["exec"]["command"] if "://" in one)
        assert url.startswith(f"http://127.0.0.1:{triton_command.PORTS['http']}/v2/health/")


def test_a_network_policy_is_there_unless_it_is_switched_off(helm: Helm, values: list[str]) -> None:
    (policy,) = (one for one in helm.rendered(*values) if one["kind"] == "NetworkPolicy")
    ports = {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]}
    assert ports == {"http", "grpc", "admin"}
    off = helm.rendered(*values, "--set", "networkPolicy.enabled=false")
    assert "NetworkPolicy" not in {one["kind"] for one in off}


def test_the_repository_may_be_a_url(helm: Helm) -> None:
    gateway = containers(helm.rendered("--set", "models.url=s3://lender-models/production"))["gateway"]
    (given,) = [one for one in gateway["args"] if one.startswith("--repository=")]
    url = given.removeprefix("--repository=")
    assert Settings(repository=url).repository_url == url == "s3://lender-models/production"


def test_its_probes_are_answered(helm: Helm, tmp_path: Path) -> None:
    made.write_score(tmp_path / "models")
    gateway = containers(helm.rendered())["gateway"]
    paths = {gateway[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    with serve("--repository", str(tmp_path / "models"), "--port", "0") as child:
        url, _ = ready_line(child)
        assert {patient.get(f"{url}{path}").status_code for path in paths} == {200}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("replicaCount=0", "replicaCount"),
        ("replicas=3", "replicas"),
        ("triton.mode=elsewhere", "triton"),
        ("triton.mode=service", "triton"),
        ("state.secret=a", "artifacts"),
        ("state.artifacts=bucket", "artifacts"),
        ("models.url=bucket", "url"),
        ("models.url=s3://a/b,triton.mode=sidecar", "mode"),
        ("settings.lower=1", "lower"),
        ("service.httpPort=70000", "httpPort"),
    ],
)
def test_values_that_make_no_sense_are_refused(helm: Helm, given: str, fault: str) -> None:
    done = helm.run("template", "credit", str(CHART), "--set", given)
    assert done.returncode != 0
    assert fault in done.stderr


def test_its_version_is_the_package_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version()
