"""Kubernetes manifests as values: building them, and the questions that the lints ask of them."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
KUSTOMIZATIONS = ("base", "overlays/existing-vllm", "jobs/backup", "jobs/restore")
REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_]\w*)\)")
FIELDS = {"status.podIP": "10.0.0.1", "metadata.name": "pod-0", "metadata.namespace": "dynbranch"}
"""What a field of the pod is taken to be."""


def built(kustomization: str | Path) -> list[Manifest]:
    """What ``kubectl apply -k`` would apply, of a folder below deploy/k8s or of one by its full path."""
    kubectl = Path(sysconfig.get_path("scripts")) / "kubectl"
    command = (kubectl, "kustomize", ROOT / "deploy/k8s" / kustomization)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(objects: Sequence[Manifest], *kinds: str) -> Iterator[Manifest]:
    return (one for one in objects if one["kind"] in kinds)


def name_of(one: Manifest) -> str:
    return str(one["metadata"]["name"])


def namespace_of(one: Manifest) -> str:
    return str(one["metadata"].get("namespace", "default"))


def title(one: Manifest) -> str:
    return f"{one['kind']}/{name_of(one)}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's template, and the workload that makes pods from it."""

    owner: Manifest
    template: Manifest

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.template["spec"]
        return spec

    @property
    def labels(self) -> Mapping[str, str]:
        return self.template["metadata"].get("labels", {})

    @property
    def namespace(self) -> str:
        return namespace_of(self.owner)

    @property
    def title(self) -> str:
        return title(self.owner)

    @property
    def runs_on(self) -> bool:
        return self.owner["kind"] != "Job"

    @property
    def containers(self) -> list[Manifest]:
        """All, sidecars and other init containers first."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def ports(self) -> list[Manifest]:
        return [port for container in self.containers for port in container.get("ports", [])]

    def port_number(self, port: int | str) -> int | None:
        """The number of a container's port that is given by name or by number; None when there is none."""
        for one in self.ports:
            if port in (one["containerPort"], one.get("name")):
                return int(one["containerPort"])
        return None


def pods(objects: Sequence[Manifest]) -> list[Pod]:
    workloads = of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job")
    return [Pod(one, one["spec"]["template"]) for one in workloads]


def selects(selector: Manifest | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector (matchLabels, matchExpressions) takes in ``labels``. An empty one takes all."""
    selector = selector or {}
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(_holds(one, labels) for one in selector.get("matchExpressions", []))


def _holds(expression: Manifest, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise AssertionError(f"{expression['operator']} is no operator")


def service_pods(service: Manifest, objects: Sequence[Manifest]) -> list[Pod]:
    wanted = {"matchLabels": service["spec"].get("selector", {})}
    same = [pod for pod in pods(objects) if pod.namespace == namespace_of(service)]
    return [pod for pod in same if pod.runs_on and wanted["matchLabels"] and selects(wanted, pod.labels)]


@dataclass(frozen=True, slots=True)
class Environment:
    """What a container finds in its environment, and what keeps the manifest from saying so."""

    values: Mapping[str, str]
    problems: tuple[str, ...]


def environment(pod: Pod, container: Manifest, objects: Sequence[Manifest]) -> Environment:
    """As the kubelet makes it: a value is expanded from the entries before it, not from ``envFrom``."""
    maps = {name_of(one): one.get("data", {}) for one in of_kind(objects, "ConfigMap")}
    problems: list[str] = []
    whole: dict[str, str] = {}
    for source in container.get("envFrom", []):
        reference = source.get("configMapRef") or source["secretRef"]
        if "configMapRef" in source and reference["name"] in maps:
            whole.update(maps[reference["name"]])
        elif not reference.get("optional"):
            problems.append(f"takes its environment from {reference['name']}, which is not there")
    single: dict[str, str] = {}
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            value = _from_elsewhere(entry["name"], entry["valueFrom"], maps, problems)
        else:
            value, missing = expanded(entry.get("value", ""), single)
            problems += [f"{entry['name']} refers to $({one}), no entry before it" for one in missing]
        if value is not None:
            single[entry["name"]] = value
    return Environment({**whole, **single}, tuple(problems))


def _from_elsewhere(
    name: str, source: Manifest, maps: Mapping[str, Mapping[str, str]], problems: list[str]
) -> str | None:
    if "fieldRef" in source:
        return FIELDS.get(source["fieldRef"]["fieldPath"], "field")
    if "configMapKeyRef" in source:
        reference = source["configMapKeyRef"]
        value = maps.get(reference["name"], {}).get(reference["key"])
        if value is None and not reference.get("optional"):
            problems.append(f"{name} is key {reference['key']} of {reference['name']}, which is not there")
        return value
    if "secretKeyRef" in source and not source["secretKeyRef"].get("optional"):
        problems.append(f"{name} needs the secret {source['secretKeyRef']['name']}, which nothing makes")
    return None


def expanded(text: str, values: Mapping[str, str]) -> tuple[str, list[str]]:
    """``text`` with its $(NAME) replaced, and the names that have no value."""
    missing = [name for name in REFERENCE.findall(text) if name not in values]
    return REFERENCE.sub(lambda match: values.get(match[1], match[0]), text), missing
