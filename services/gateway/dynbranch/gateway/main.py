"""The gateway as a process."""

from __future__ import annotations

import asyncio

from dynbranch.clients.controller import GrpcController
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.server import HttpServer, allow_open_files, connection_policy
from dynbranch.gateway.tenants import load_tenants
from dynbranch.runtime import scheduling
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.config import load_settings
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.tasks import Tasks


async def serve(started: Started) -> None:
    settings = load_settings(GatewaySettings, service="gateway")
    if settings.take_turns:
        scheduling.take_turns()
    controller = GrpcController(settings.controller) if settings.controller and settings.enabled else None
    peers = Peers(
        csl=GrpcCsl(settings.csl) if settings.csl and settings.enabled else None,
        controller=controller,
        connect=GrpcEngineAgent,
        branches=controller,
    )
    gateway = Gateway(
        settings,
        peers,
        load_tenants(settings.tenants),
        clock=SystemClock(),
        new_id=new_id,
        registry=started.registry,
    )
    try:
        async with gateway:
            await _serve_http(started, settings, gateway)
    finally:
        for peer in (peers.csl, peers.controller):
            if peer is not None:
                await peer.close()


async def _serve_http(started: Started, settings: GatewaySettings, gateway: Gateway) -> None:
    allow_open_files(settings.max_connections)
    server = HttpServer(
        gateway.app,
        listen=settings.listen,
        grace_s=settings.stop_grace_s,
        policy=connection_policy(settings),
        refused=gateway.metrics.refused,
    )
    async with Tasks() as tasks:
        serving = tasks.spawn(server.serve_until_told(), name="http server")
        started.ready(server.address)
        try:
            await started.until_stopped(gateway.tasks, tasks)
        finally:
            gateway.readiness.stopping = True
            server.should_exit = True
            await asyncio.wait((serving,))


def main() -> None:
    run_service("gateway", serve)
