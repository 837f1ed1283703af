"""The manifests of deploy/k8s: valid by Kubernetes' own schemas, and in agreement with the code."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from unit.deploy import pod_lints, settings_lints, wiring_lints
from unit.deploy.manifests import KUSTOMIZATIONS, ROOT, Manifest, built, namespace_of, of_kind, title

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

VERSION = "1.37"
LINTS: dict[str, Callable[[Sequence[Manifest]], Iterator[str]]] = {
    "addresses": wiring_lints.addresses,
    "commands": pod_lints.commands,
    "hardening": pod_lints.hardening,
    "images": pod_lints.images,
    "listening": settings_lints.listening,
    "policies": wiring_lints.policies,
    "probes": pod_lints.probes,
    "raw requests": wiring_lints.raw_requests,
    "resources": pod_lints.resources,
    "selectors": wiring_lints.selectors,
    "service ports": wiring_lints.service_ports,
    "storage": settings_lints.storage,
    "termination": settings_lints.termination,
    "variables": settings_lints.variables,
    "volumes": pod_lints.volumes,
}


def whole(kustomization: str) -> list[Manifest]:
    """What would be in the cluster: a job runs beside the base."""
    beside = built("base") if kustomization.startswith("jobs/") else []
    return [*beside, *built(kustomization)]


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_the_schemas_of_kubernetes_hold(kustomization: str) -> None:
    for one in built(kustomization):
        kubernetes_validate.validate(one, VERSION, strict=True)


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_no_lint_finds_anything(kustomization: str) -> None:
    objects = whole(kustomization)
    assert not [f"{name}: {line}" for name, lint in LINTS.items() for line in lint(objects)]


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_everything_is_in_one_namespace(kustomization: str) -> None:
    outside = [
        title(one)
        for one in built(kustomization)
        if one["kind"] != "Namespace" and namespace_of(one) != "dynbranch"
    ]
    assert not outside


def test_an_existing_engine_needs_no_gpu_and_no_weights() -> None:
    (engine,) = [
        one
        for one in of_kind(built("overlays/existing-vllm"), "StatefulSet")
        if title(one) == "StatefulSet/engine"
    ]
    text = str(engine)
    assert "nvidia.com/gpu" not in text and "vllm-openai" not in text
    assert not engine["spec"].get("volumeClaimTemplates")


def test_the_overlay_that_the_guide_shows_is_sound(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "kubernetes.md").read_text()
    (shown,) = re.findall(r"```yaml\n# mine/kustomization.yaml\n(.*?)```", guide, flags=re.DOTALL)
    base = os.path.relpath(ROOT / "deploy/k8s/base", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(shown.replace("../deploy/k8s/base", base))
    objects = built(tmp_path)
    assert not [f"{name}: {line}" for name, lint in LINTS.items() for line in lint(objects)]
    text = str(objects)
    assert "registry.example.com/dynbranch-csl:0.1.0" in text and "'replicas': 2" in text
