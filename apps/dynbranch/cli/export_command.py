"""``export``: what a running stack has decided on, as files for others to look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer
from dynbranch.cli.failures import CliFailure
from dynbranch.cli.gateway_calls import ask
from dynbranch.cli.places import find

if TYPE_CHECKING:
    from dynbranch.controller.core.pricing.prices import PriceCurves

_PATH = "/dynbranch/v1/branches"
_MOST = 1000
_TIMEOUT_S = 4.0


def export_admissions(output: Path, gateway: str | None, controller: str, price_curve: Path | None) -> None:
    """A line a branch whose candidates were priced. Raises CliFailure."""
    from dynbranch.bench.admission_export import OtherPrices, snapshot_of
    from dynbranch.bench.admission_snapshots import snapshot_json

    curves, rows, unpriced, others = _curves(price_curve), [], 0, ""
    told = asyncio.run(_of_controller(controller)) if controller else _of_gateway(find(gateway).gateway)
    for branch in told:
        try:
            snapshot = snapshot_of(branch, curves)
        except OtherPrices as error:
            others = str(error)
            continue
        if snapshot is None:
            unpriced += 1
        else:
            rows.append(json.dumps(snapshot_json(snapshot), ensure_ascii=False))
    if others and not rows:
        raise CliFailure(f"the controller has other prices: {others}", "--price-curve names its curve file.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise CliFailure(f"{output} can not be written: {error.strerror}") from None
    typer.echo(f"{len(rows)} snapshots written to {output}; {unpriced} branches priced nothing")
    if others:
        typer.echo(f"some branches had other prices, and are left out: {others}")


def _of_gateway(gateway: str) -> Iterator[dict[str, Any]]:
    """The newest that it lists, oldest first."""
    for row in reversed(ask(gateway, _PATH)["data"]):
        yield ask(gateway, f"{_PATH}/{quote(row['branch'], safe='')}")


async def _of_controller(address: str) -> list[dict[str, Any]]:
    from dynbranch.clients.controller import GrpcController
    from dynbranch.clients.ports import Unreachable
    from dynbranch.domain.errors import NotFound

    client, found = GrpcController(address), []
    try:
        listed = await client.list_branches(workflow_id="", at_most=_MOST, timeout_s=_TIMEOUT_S)
        for row in reversed(listed):
            try:
                told = await client.inspect_branch(row.branch_id, timeout_s=_TIMEOUT_S)
            except NotFound:
                # It was the oldest, and went meanwhile.
                continue
            found.append(json.loads(told))
    except Unreachable as error:
        raise CliFailure(f"no controller answers at {address}: {error}") from None
    finally:
        await client.close()
    return found


def _curves(file: Path | None) -> PriceCurves:
    from dynbranch.controller.core.pricing.prices import curves_from, prior_curves

    if file is None:
        return prior_curves()
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return curves_from(document)
    except (OSError, ValueError, AttributeError) as error:
        raise CliFailure(f"{file} is no curve file: {error}") from None
