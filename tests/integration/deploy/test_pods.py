"""Each service as its pod has it: its environment, its packages and no others, its probes, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from dynbranch.runtime.config import SERVICES
from grpc_health.v1 import health_pb2, health_pb2_grpc
from unit.deploy import product
from unit.deploy.manifests import ROOT, Environment, Manifest, built
from unit.deploy.settings_lints import services

RUNNER = Path(__file__).with_name("only_locked.py")
NOBODY = "127.0.0.1:9"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def here(service: str, environment: Environment, folder: Path) -> dict[str, str]:
    """The pod's environment with the addresses and folders of this machine."""
    prefix = f"DYNBRANCH_{service.upper()}_"
    peers = {f"{prefix}{name.upper()}" for name in product.PEERS.get(service, ())}
    changed = {
        f"{prefix}LISTEN": "127.0.0.1:0",
        f"{prefix}DATA_DIR": str(folder / "store"),
        f"{prefix}TEMPLATES": str(folder),
        f"{prefix}LEARNED": str(folder / "learned.json"),
        f"{prefix}ENGINE_URL": f"http://{NOBODY}",
        "DYNBRANCH_METRICS_PORT": "0",
        **dict.fromkeys(peers, NOBODY),
    }
    given = {name: changed.get(name, value) for name, value in environment.values.items()}
    return {"PATH": os.environ["PATH"], **given}


def pod_of(service: str, kustomization: str) -> tuple[Manifest, Environment]:
    ((container, environment),) = [
        (container, environment)
        for _, container, of, environment in services(built(kustomization))
        if of == service
    ]
    return container, environment


@asynccontextmanager
async def started(service: str, environment: dict[str, str], folder: Path) -> AsyncIterator[str]:
    """The address of the service. It must end well when told."""
    lock = ROOT / "services" / service / "requirements.lock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, RUNNER, lock, f"dynbranch.{service}"),
        env=environment,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        ready = json.loads(line)
        assert ready["service"] == service
        yield ready["address"]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answer_of(probe: Manifest, address: str) -> int:
    """The health that gRPC tells, or the status of HTTP."""
    if "grpc" in probe:
        async with grpc.aio.insecure_channel(address) as channel:
            request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
            status: int = (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)).status
            return status
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{probe['httpGet']['path']}") as response,
    ):
        return response.status


@pytest.mark.parametrize("service", ["controller", "csl"])
async def test_a_service_without_peers_is_ready(service: str, tmp_path: Path) -> None:
    container, environment = pod_of(service, "base")
    async with started(service, here(service, environment, tmp_path), tmp_path) as address:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert await answer_of(container[kind], address) == SERVING
    kept = {"controller": "learned.json", "csl": "store"}[service]
    assert (tmp_path / kept).exists(), "what is to outlive the pod is on its volume"


@pytest.mark.parametrize("kustomization", ["base", "overlays/existing-vllm"])
async def test_an_agent_without_its_engine_lives_and_is_not_ready(kustomization: str, tmp_path: Path) -> None:
    container, environment = pod_of("engine_agent", kustomization)
    here_ = here("engine_agent", environment, tmp_path)
    here_.pop("DYNBRANCH_ENGINE_AGENT_ADVERTISE")
    async with started("engine_agent", here_, tmp_path) as address:
        assert await answer_of(container["startupProbe"], address) == SERVING
        assert await answer_of(container["livenessProbe"], address) == SERVING
        assert await answer_of(container["readinessProbe"], address) == NOT_SERVING


async def test_a_gateway_without_its_peers_lives_and_is_not_ready(tmp_path: Path) -> None:
    container, environment = pod_of("gateway", "base")
    async with started("gateway", here("gateway", environment, tmp_path), tmp_path) as address:
        assert await answer_of(container["startupProbe"], address) == 200
        assert await answer_of(container["livenessProbe"], address) == 200
        assert await answer_of(container["readinessProbe"], address) == 503
        assert await answer_of({"httpGet": {"path": "/metrics"}}, address) == 200


async def run(lock: str, *words: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, RUNNER, ROOT / "services" / lock / "requirements.lock", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode()


async def test_a_package_of_another_service_is_not_there() -> None:
    code, output = await run("controller", "dynbranch.csl")
    assert code != 0
    assert "rocksdict is not in the lock file" in output


async def test_the_image_of_the_store_has_the_commands_of_the_jobs(tmp_path: Path) -> None:
    code, output = await run(
        "csl", "dynbranch.cli.main", "csl", "backup", str(tmp_path / "no"), str(tmp_path / "to")
    )
    assert code == 1
    assert "Traceback" not in output and "no" in output


@pytest.mark.parametrize("service", SERVICES)
async def test_the_command_line_tells_an_image_its_settings(service: str) -> None:
    code, output = await run(service, "dynbranch.cli.main", "settings", service, "--json")
    assert code == 0, output
