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
from tests.service import handmade, patient
from tests.service.child import ready_line, serve

VALUES: list[list[str]] = [[], *(["--values", str(path)] for path in EXAMPLES)]
IDS = ["defaults", *(path.stem for path in EXAMPLES)]
FOREIGN = {"ServiceMonitor"}  # of operators, whose schemas Kubernetes does not have


@pytest.fixture(params=VALUES, ids=IDS)
def values(request: pytest.FixtureRequest) -> list[str]:
    options: list[str] = request.param
    return options


def deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (actual,) = (candidate for candidate in objects if candidate["kind"] == "Deployment")
    return actual


def containers(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        container["name"]: container
        for container in deployment(objects)["spec"]["template"]["spec"]["containers"]
    }


def test_it_is_sound(helm: Helm, values: list[str]) -> None:
    process = helm.run("lint", "--strict", str(CHART), *values)
    assert process.returncode == 0, process.stdout + process.stderr
    objects = helm.rendered(*values)
    assert len(objects) > 5
    for kubernetes_object in objects:
        if kubernetes_object["kind"] not in FOREIGN:
            kubernetes_validate.validate(kubernetes_object, "1.34", strict=True)
        assert kubernetes_object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_what_the_examples_are_about_is_there(helm: Helm) -> None:
    kinds = {
        path.stem: {document["kind"] for document in helm.rendered("--values", str(path))}
        for path in EXAMPLES
    }
    assert {"NetworkPolicy", "ServiceMonitor", "PodDisruptionBudget"} <= kinds["replicas"]
    assert "HorizontalPodAutoscaler" in kinds["triton-service"]
    assert list(containers(helm.rendered("--values", str(EXAMPLES[-1])))) == ["gateway", "triton"]


def test_pods_run_as_little_as_they_need(helm: Helm, values: list[str]) -> None:
    objects = helm.rendered(*values)
    spec = deployment(objects)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in containers(objects).values():
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert containers(objects)["gateway"]["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_pod_has_the_time_to_leave(helm: Helm) -> None:
    spec = deployment(helm.rendered("--set", "shutdownDelaySeconds=7,drainSeconds=40"))["spec"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 47
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_settings_and_flags_are_the_gateway_s(helm: Helm, values: list[str]) -> None:
    gateway = containers(helm.rendered(*values))["gateway"]
    names = [variable["name"].removeprefix(PREFIX).lower() for variable in gateway["env"]]
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
    assert {variable["name"]: variable["value"] for variable in sidecar["env"]} == triton_command.OPTIONS[
        "environment"
    ]
    assert sidecar["workingDir"] == "/entries"


def test_the_sidecar_is_reached_from_its_pod_alone(helm: Helm) -> None:
    objects = helm.rendered("--values", str(EXAMPLES[-1]))
    containers_by_name = containers(objects)
    assert f"--triton=127.0.0.1:{triton_command.PORTS['grpc']}" in containers_by_name["gateway"]["args"]
    assert "ports" not in containers_by_name["triton"]
    for probe in ("readinessProbe", "livenessProbe"):  # the kubelet asks the pod's address
        (url,) = (word for word in containers_by_name["triton"][probe]["exec"]["command"] if "://" in word)
        assert url.startswith(f"http://127.0.0.1:{triton_command.PORTS['http']}/v2/health/")


def test_a_network_policy_is_there_unless_it_is_switched_off(helm: Helm, values: list[str]) -> None:
    (policy,) = (document for document in helm.rendered(*values) if document["kind"] == "NetworkPolicy")
    ports = {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]}
    assert ports == {"http", "grpc", "admin"}
    off = helm.rendered(*values, "--set", "networkPolicy.enabled=false")
    assert "NetworkPolicy" not in {document["kind"] for document in off}


def test_the_repository_may_be_a_url(helm: Helm) -> None:
    gateway = containers(helm.rendered("--set", "models.url=s3://lender-models/production"))["gateway"]
    (rows_sent,) = [argument for argument in gateway["args"] if argument.startswith("--repository=")]
    url = rows_sent.removeprefix("--repository=")
    assert Settings(repository=url).repository_url == url == "s3://lender-models/production"


def test_its_probes_are_answered(helm: Helm, tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    gateway = containers(helm.rendered())["gateway"]
    paths = {gateway[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    with serve("--repository", str(tmp_path / "models"), "--port", "0") as child:
        url, _ = ready_line(child)
        assert {patient.get(f"{url}{path}").status_code for path in paths} == {200}


@pytest.mark.parametrize(
    ("value", "fault"),
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
def test_values_that_make_no_sense_are_refused(helm: Helm, value: str, fault: str) -> None:
    process = helm.run("template", "credit", str(CHART), "--set", value)
    assert process.returncode != 0
    assert fault in process.stderr


def test_its_version_is_the_package_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version()
