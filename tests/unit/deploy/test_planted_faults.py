"""Each lint finds the faults that it is there for, and the schemas find theirs: one planted at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from unit.deploy import product
from unit.deploy.manifests import Manifest, built, name_of, title
from unit.deploy.test_manifests import LINTS, VERSION, whole

Plant = Callable[[list[Manifest]], None]


class Place:
    """Where a fault is planted. In its path "@x" is the element of a list that has the name x."""

    def __init__(self, object_title: str, *path: str | int) -> None:
        self._title = object_title
        self._path = path

    def parent(self, objects: list[Manifest]) -> tuple[Any, Any]:
        (here,) = [one for one in objects if title(one) == self._title or _unhashed(one) == self._title]
        *way, last = self._path
        for step in way:
            here = here[_index(here, step)]
        return here, _index(here, last) if isinstance(here, list) else last

    def set(self, value: object) -> Plant:
        def plant(objects: list[Manifest]) -> None:
            here, last = self.parent(objects)
            here[last] = value

        return plant

    def remove(self) -> Plant:
        def plant(objects: list[Manifest]) -> None:
            here, last = self.parent(objects)
            del here[last]

        return plant

    def rename(self, new: str) -> Plant:
        def plant(objects: list[Manifest]) -> None:
            here, last = self.parent(objects)
            here[new] = here.pop(last)

        return plant

    def append(self, value: object) -> Plant:
        def plant(objects: list[Manifest]) -> None:
            here, last = self.parent(objects)
            here[last] = [*here[last], value]

        return plant


def _unhashed(one: Manifest) -> str:
    """A generated map is named without the digest of its content."""
    return f"{one['kind']}/{name_of(one).rpartition('-')[0]}" if one["kind"] == "ConfigMap" else ""


def _index(here: Any, step: str | int) -> Any:
    if isinstance(step, str) and step.startswith("@"):
        (found,) = [i for i, one in enumerate(here) if one.get("name") == step[1:]]
        return found
    return step


def pod(owner: str, *path: str | int) -> Place:
    return Place(owner, "spec", "template", "spec", *path)


def container(owner: str, name: str, *path: str | int) -> Place:
    kind = "initContainers" if name == "vllm" else "containers"
    return pod(owner, kind, f"@{name}", *path)


def job(*path: str | int) -> Place:
    return pod("Job/csl-backup", "containers", 0, *path)


def config(name: str, key: str) -> Place:
    return Place(f"ConfigMap/{name}", "data", key)


def policy(name: str, *path: str | int) -> Place:
    return Place(f"NetworkPolicy/{name}", "spec", *path)


GATEWAY, CONTROLLER, CSL, ENGINE = (
    "Deployment/gateway",
    "StatefulSet/controller",
    "StatefulSet/csl",
    "StatefulSet/engine",
)
NAME = "app.kubernetes.io/name"

FAULTS: list[tuple[str, Plant, str]] = [
    # selectors
    ("selectors", Place(GATEWAY, "spec", "selector", "matchLabels", NAME).set("gate"), "does not select"),
    ("selectors", Place("Service/csl", "spec", "selector", NAME).set("store"), "selects no pods"),
    (
        "selectors",
        Place("PodDisruptionBudget/gateway", "spec", "selector", "matchLabels", NAME).set("gw"),
        "no pods",
    ),
    ("selectors", policy("csl", "podSelector", "matchLabels", NAME).set("cls"), "selects no pods"),
    ("selectors", Place(ENGINE, "spec", "serviceName").set("engines"), "no headless service"),
    ("selectors", Place("Service/engine", "spec", "clusterIP").remove(), "no headless service"),
    (
        "selectors",
        pod(GATEWAY, "topologySpreadConstraints", 0, "labelSelector", "matchLabels", NAME).set("x"),
        "spreads",
    ),
    # service ports
    ("service ports", Place("Service/gateway", "spec", "ports", 0, "targetPort").set("web"), "port web"),
    ("service ports", Place("Service/csl", "spec", "ports", 0, "port").set(80), "headless"),
    ("service ports", container(CONTROLLER, "controller", "ports", "@grpc", "name").set("rpc"), "port grpc"),
    # addresses
    ("addresses", config("gateway", "DYNBRANCH_GATEWAY_CSL").set("store:7610"), "names no service"),
    ("addresses", config("gateway", "DYNBRANCH_GATEWAY_CSL").set("csl.other.svc:7610"), "names no service"),
    ("addresses", config("gateway", "DYNBRANCH_GATEWAY_CSL").set("csl:7611"), "does not have"),
    ("addresses", config("gateway", "DYNBRANCH_GATEWAY_CONTROLLER").remove(), "no controller"),
    ("addresses", config("engine-agent", "DYNBRANCH_ENGINE_AGENT_CSL").set("csl:80"), "does not have"),
    ("addresses", Place("Service/controller", "spec", "clusterIP").remove(), "virtual address"),
    ("addresses", Place(ENGINE, "spec", "replicas").set(2), "engine-1 is not listed"),
    (
        "addresses",
        config("gateway", "DYNBRANCH_GATEWAY_AGENTS").set("engine-0.engine:7620,engine-1.engine:7620"),
        "engine-1 is not there",
    ),
    (
        "addresses",
        policy("csl", "ingress", 0, "from", 1, "podSelector", "matchLabels", NAME).set("engines"),
        "closed to it",
    ),
    ("addresses", policy("engine", "ingress").set([]), "closed to it"),
    (
        "raw requests",
        config("gateway", "DYNBRANCH_GATEWAY_ENGINE_URL").set("http://vllm:8000"),
        "names no service",
    ),
    (
        "raw requests",
        config("gateway", "DYNBRANCH_GATEWAY_ENGINE_URL").set("http://engine-0.engine:8001"),
        "does not have",
    ),
    ("raw requests", policy("engine-raw", "ingress").set([]), "closed to it"),
    # commands
    ("commands", job("args", 1).set("save"), "save"),
    ("commands", job("args").append("--quick"), "--quick"),
    ("commands", job("args").append("more"), "more"),
    ("commands", job("args").set(["csl", "backup", "/a"]), "Missing argument"),
    ("commands", job("env").set([]), "$(POD_NAME)"),
    ("commands", container(CSL, "csl", "args").set(["--fast"]), "takes no arguments"),
    (
        "commands",
        container(CSL, "csl", "command").set(["python", "-m", "dynbranch.store"]),
        "starts no service",
    ),
    ("commands", container(ENGINE, "vllm", "args", 0).set("$(MODEL_NAME)"), "$(MODEL_NAME)"),
    # variables
    (
        "variables",
        config("gateway", "DYNBRANCH_GATEWAY_REUSE").rename("DYNBRANCH_GATEWAY_REUSES"),
        "DYNBRANCH_GATEWAY_REUSES",
    ),
    ("variables", config("gateway", "DYNBRANCH_GATEWAY_REUSE").set("always"), "DYNBRANCH_GATEWAY_REUSE"),
    ("variables", config("csl", "DYNBRANCH_CSL_MAX_ENTRIES").set("many"), "DYNBRANCH_CSL_MAX_ENTRIES"),
    (
        "variables",
        config("csl", "DYNBRANCH_GATEWAY_CSL").set("csl:7610"),
        "nothing reads DYNBRANCH_GATEWAY_CSL",
    ),
    (
        "variables",
        config("tracing", "OTEL_TRACES_SAMPLER").rename("OTEL_TRACE_SAMPLER"),
        "OTEL_TRACE_SAMPLER",
    ),
    (
        "variables",
        container(ENGINE, "agent", "env", "@MODEL", "valueFrom", "configMapKeyRef", "key").set("NAME"),
        "key NAME",
    ),
    ("variables", container(ENGINE, "agent", "env", "@POD_IP").remove(), "$(POD_IP)"),
    (
        "variables",
        container(CSL, "csl", "envFrom", 0, "configMapRef", "name").set("csl-settings"),
        "csl-settings",
    ),
    (
        "variables",
        container(ENGINE, "vllm", "env", "@HF_TOKEN", "valueFrom", "secretKeyRef", "optional").remove(),
        "secret hugging-face",
    ),
    # listening
    ("listening", config("csl", "DYNBRANCH_CSL_LISTEN").set("127.0.0.1:7610"), "can not be reached"),
    ("listening", config("csl", "DYNBRANCH_CSL_LISTEN").set("0.0.0.0:7611"), "port 7611"),
    ("listening", config("csl", "DYNBRANCH_CSL_LISTEN").remove(), "can not be reached"),
    ("listening", config("controller", "DYNBRANCH_METRICS_HOST").remove(), "its metrics can not be reached"),
    ("listening", config("controller", "DYNBRANCH_METRICS_PORT").remove(), "metrics are off"),
    # probes
    ("probes", container(CSL, "csl", "readinessProbe", "grpc", "port").set(7600), "port 7600"),
    ("probes", container(CSL, "csl", "livenessProbe", "grpc", "service").set("alive"), "health of alive"),
    (
        "probes",
        container(ENGINE, "agent", "livenessProbe", "grpc", "service").remove(),
        "liveness for readiness",
    ),
    ("probes", container(GATEWAY, "gateway", "readinessProbe", "httpGet", "path").set("/ready"), "/ready"),
    (
        "probes",
        container(GATEWAY, "gateway", "livenessProbe", "httpGet", "path").set("/readyz"),
        "end the process",
    ),
    ("probes", container(GATEWAY, "gateway", "livenessProbe", "httpGet", "port").set("web"), "port web"),
    ("probes", container(ENGINE, "vllm", "startupProbe").remove(), "has only"),
    ("probes", container(ENGINE, "vllm", "ports", 0, "containerPort").set(7620), "two ports 7620"),
    (
        "probes",
        Place(CSL, "spec", "template", "metadata", "annotations", "prometheus.io/port").set("9090"),
        "9090",
    ),
    # volumes and storage
    ("volumes", container(CSL, "csl", "volumeMounts", "@store", "name").set("data"), "mounts data"),
    ("volumes", Place(ENGINE, "spec", "volumeClaimTemplates").set([]), "mounts models"),
    ("storage", config("csl", "DYNBRANCH_CSL_DATA_DIR").set("/tmp/store"), "not below"),
    ("storage", config("csl", "DYNBRANCH_CSL_DATA_DIR").set("/var/lib/dynbranch"), "not below"),
    ("storage", config("controller", "DYNBRANCH_CONTROLLER_LEARNED").remove(), "begins anew"),
    ("storage", config("controller", "DYNBRANCH_CONTROLLER_LEARNED").set("/tmp/learned.json"), "not below"),
    ("storage", Place(CSL, "spec", "replicas").set(2), "one writer"),
    (
        "storage",
        Place(CSL, "spec", "volumeClaimTemplates", 0, "spec", "accessModes").set(["ReadWriteMany"]),
        "two pods",
    ),
    (
        "storage",
        Place(CSL, "spec", "persistentVolumeClaimRetentionPolicy", "whenScaled").set("Delete"),
        "deleted with it",
    ),
    ("storage", Place(CSL, "kind").set("Deployment"), "two stores"),
    ("storage", pod(CSL, "securityContext", "fsGroupChangePolicy").remove(), "change owner"),
    (
        "storage",
        pod("Job/csl-backup", "volumes", "@store", "persistentVolumeClaim", "claimName").set("store"),
        "claim store",
    ),
    # the rest
    ("termination", pod(GATEWAY, "terminationGracePeriodSeconds").set(30), "is killed after 30 s"),
    ("termination", pod(CSL, "terminationGracePeriodSeconds").set(10), "is killed after 10 s"),
    ("resources", container(CSL, "csl", "resources", "requests", "cpu").remove(), "requests no cpu"),
    ("resources", container(ENGINE, "vllm", "resources", "limits").remove(), "no limit of memory"),
    ("hardening", pod(CSL, "securityContext", "runAsNonRoot").remove(), "as root"),
    ("hardening", container(ENGINE, "vllm", "securityContext", "runAsUser").set(0), "as root"),
    (
        "hardening",
        container(CSL, "csl", "securityContext", "allowPrivilegeEscalation").remove(),
        "gain privileges",
    ),
    ("hardening", container(CSL, "csl", "securityContext", "capabilities").remove(), "keeps capabilities"),
    (
        "hardening",
        container(CSL, "csl", "securityContext", "readOnlyRootFilesystem").set(False),
        "own file system",
    ),
    ("hardening", pod(CSL, "securityContext", "seccompProfile").remove(), "seccomp"),
    ("hardening", pod(CSL, "automountServiceAccountToken").remove(), "token"),
    ("hardening", pod(CSL, "enableServiceLinks").remove(), "variable for every service"),
    ("hardening", pod(CSL, "hostNetwork").set(True), "hostNetwork"),
    ("hardening", pod(CSL, "volumes").append({"name": "x", "hostPath": {"path": "/"}}), "path of the node"),
    ("images", container(ENGINE, "vllm", "image").set("vllm/vllm-openai"), "not pinned"),
    ("images", container(ENGINE, "vllm", "image").set("vllm/vllm-openai:latest"), "not pinned"),
    ("images", container(CSL, "csl", "image").set("registry:5000/dynbranch-csl:0.0.9"), "0.0.9"),
    ("policies", policy("csl", "ingress", 0, "ports", 0, "port").set("rpc"), "port rpc"),
    (
        "policies",
        policy("csl", "ingress", 0, "from", 0, "podSelector", "matchLabels", NAME).set("gw"),
        "not there",
    ),
]


@pytest.fixture(scope="module")
def sound() -> list[Manifest]:
    return whole("jobs/backup")


@pytest.mark.parametrize(
    ("lint", "plant", "told"), FAULTS, ids=[f"{lint}: {told}" for lint, _, told in FAULTS]
)
def test_a_planted_fault_is_found(sound: list[Manifest], lint: str, plant: Plant, told: str) -> None:
    objects = copy.deepcopy(sound)
    plant(objects)
    lines = list(LINTS[lint](objects))
    assert any(told in line for line in lines), lines


def test_several_agents_under_one_name_are_found(sound: list[Manifest]) -> None:
    objects = copy.deepcopy(sound)
    Place(ENGINE, "spec", "replicas").set(2)(objects)
    config("gateway", "DYNBRANCH_GATEWAY_AGENTS").set("engine:7620")(objects)
    assert any("2 pods under one name" in line for line in LINTS["addresses"](objects))


def test_a_pod_without_a_policy_is_found(sound: list[Manifest]) -> None:
    objects = [one for one in sound if one["kind"] != "NetworkPolicy" or name_of(one) == "csl"]
    assert any("Deployment/gateway is open to everybody" in line for line in LINTS["policies"](objects))


def test_every_lint_has_a_fault() -> None:
    assert {lint for lint, _, _ in FAULTS} == set(LINTS)


SCHEMA_FAULTS = (
    container(GATEWAY, "gateway", "readinessProbe").rename("readynessProbe"),
    Place(CSL, "spec", "replicas").set("one"),
    pod(CSL, "terminationGracePeriodSeconds").rename("terminationGracePeriod"),
    container(CSL, "csl", "ports", 0, "containerPort").set("grpc"),
    config("csl", "DYNBRANCH_CSL_MAX_ENTRIES").set(1_000_000),
)


@pytest.mark.parametrize("plant", SCHEMA_FAULTS)
def test_the_schemas_find_misspelt_fields_and_wrong_types(plant: Plant) -> None:
    objects = built("base")
    plant(objects)
    with pytest.raises(kubernetes_validate.ValidationError):
        for one in objects:
            kubernetes_validate.validate(one, VERSION, strict=True)


@pytest.mark.parametrize(
    "words",
    [
        ("dynbranch", "csl", "check", "/data"),
        ("dynbranch", "csl", "restore", "/backup", "/data"),
        ("dynbranch", "gateway"),
        ("dynbranch", "csl"),
        ("python", "-m", "dynbranch.engine_agent"),
    ],
)
def test_commands_that_exist_are_let_through(words: tuple[str, ...]) -> None:
    assert product.command_refusal(words) is None


@pytest.mark.parametrize(
    "words", [("dynbranch",), ("dynbranch", "store"), ("sh", "-c", "true"), ("python", "-m", "http")]
)
def test_commands_that_do_not_exist_are_refused(words: tuple[str, ...]) -> None:
    assert product.command_refusal(words)
