"""infra/kubernetes/: manifests match the schemas of Kubernetes, and name commands, settings and routes that exist."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.helpers import command_lines, variables
from vitrine.api import permissions

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "kubernetes"
VERSIONS = ("1.29", "1.37")
"""The oldest and the newest release of Kubernetes that the manifests are checked against."""

UID = 10001  # the user of the Dockerfile
RUNNER_PATHS = {"/live", "/ready", "/metrics"}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(FOLDER.glob("*.yaml")):
        if file.name != "kustomization.yaml":
            yield from ((file.name, one) for one in yaml.safe_load_all(file.read_text("utf-8")))


MANIFESTS = list(documents())
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for _, one in MANIFESTS if one["kind"] == kind}


PODS = {name: one["spec"]["template"] for kind in ("Deployment", "Job") for name, one in of_kind(kind).items()}
SECRETS: dict[str, set[str]] = {
    **{name: set(one["stringData"]) for name, one in of_kind("Secret").items()},
    "vitrine-tls": {"tls.crt", "tls.key"},  # of the type kubernetes.io/tls
}


def container(pod: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return found


def environment(pod: Mapping[str, Any]) -> dict[str, str]:
    shared = [of_kind("ConfigMap")[one["configMapRef"]["name"]]["data"] for one in container(pod)["envFrom"]]
    own = {one["name"]: one["value"] for one in container(pod)["env"]}
    return {name: value for values in (*shared, own) for name, value in values.items()}


def files(pod: Mapping[str, Any]) -> set[str]:
    """Paths in the container of what its volumes contain."""
    found: set[str] = set()
    places = {one["name"]: one["mountPath"] for one in container(pod)["volumeMounts"]}
    for volume in pod["spec"]["volumes"]:
        if secret := volume.get("secret"):
            keys = SECRETS[secret["secretName"]]
            items = {one["key"]: one["path"] for one in secret.get("items", [])} or {key: key for key in keys}
            assert items.keys() <= keys
            found |= {f"{places[volume['name']]}/{path}" for path in items.values()}
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("file", "manifest"), MANIFESTS, ids=lambda one: one if isinstance(one, str) else one["kind"])
def test_a_manifest_matches_the_schema_of_kubernetes(file: str, manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_kustomization_has_every_manifest_but_the_template_of_the_secret() -> None:
    names = {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert set(KUSTOMIZATION["resources"]) == names
    (image,) = KUSTOMIZATION["images"]
    assert {container(pod)["image"] for pod in PODS.values()} == {image["name"]}
    assert image["newTag"] == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.mark.promise("K17")
def test_the_template_of_the_secret_holds_no_value() -> None:
    (secret,) = of_kind("Secret").values()
    assert set(secret["stringData"].values()) == {""}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_a_pod_runs_a_command_with_settings_that_exist(pod: dict[str, Any]) -> None:
    command_lines.parse(container(pod)["args"])
    given = environment(pod)
    assert [name for name in given if not variables.is_known(name)] == []
    named = {value for value in given.values() if value.startswith("/")}
    assert named == files(pod)


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_a_pod_has_no_rights(pod: dict[str, Any]) -> None:
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert {pod["spec"]["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {UID}
    assert f"USER {UID}\n" in (ROOT / "Dockerfile").read_text("utf-8")
    assert not pod["spec"]["automountServiceAccountToken"]
    rights = container(pod)["securityContext"]
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container(pod)["resources"]["limits"]


@pytest.mark.parametrize("name", ["vitrine-api", "vitrine-runner"])
def test_probes_ask_for_routes_that_answer_without_a_token(name: str) -> None:
    inside = container(PODS[name])
    open_routes = {path for (_, path), role in permissions.HEALTH.items() if role is None} | RUNNER_PATHS
    ports = {one["name"]: str(one["containerPort"]) for one in inside["ports"]}
    served = environment(PODS[name])
    for probe in ("readinessProbe", "livenessProbe"):
        request = inside[probe]["httpGet"]
        assert request["path"] in open_routes
        setting = "VITRINE_METRICS_PORT" if request["path"] in RUNNER_PATHS else "VITRINE_API_PORT"
        assert served[setting] == ports[request["port"]]
        assert (request.get("scheme") == "HTTPS") == ("VITRINE_TLS_CERT" in served and setting == "VITRINE_API_PORT")


def test_selectors_find_pods_and_ports() -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in PODS.items()}
    ports = {name: {one["name"] for one in container(pod).get("ports", [])} for name, pod in PODS.items()}
    for name, one in of_kind("Deployment").items():
        assert one["spec"]["selector"]["matchLabels"] == labels[name]
    for name, one in of_kind("Service").items():
        assert one["spec"]["selector"] == labels[name]
        assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports[name]
    for name, one in of_kind("NetworkPolicy").items():
        assert one["spec"]["podSelector"]["matchLabels"] == labels[name]
        assert {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]} <= ports[name]


def test_a_browser_stays_with_the_process_that_built_its_page() -> None:
    for name, one in of_kind("Service").items():
        several = of_kind("Deployment")[name]["spec"]["replicas"] > 1
        assert (one["spec"].get("sessionAffinity") == "ClientIP") == several


def test_the_name_of_the_service_is_one_under_which_the_api_may_be_called() -> None:
    assert set(of_kind("Service")) <= set(environment(PODS["vitrine-api"])["VITRINE_ALLOWED_HOSTS"].split(","))
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    assert re.search(r"kubectl apply --kustomize infra/kubernetes", page)
