"""The curve file: what the controller reads, and for people what it was made from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dynbranch.calibration.curves import Stretch, kv_share
from dynbranch.calibration.plan import Level, Machine
from dynbranch.controller.core.pricing.prices import PriceCurves, curves_json
from dynbranch.domain.ids import UnixMs


def document_of(
    curves: PriceCurves,
    stretches: Mapping[Level, Stretch],
    machine: Machine,
    *,
    probe_tokens: int,
    alone_ms: float,
    at: UnixMs,
) -> dict[str, Any]:
    return {
        **curves_json(curves),
        "engine": {
            "model": machine.model,
            "slots": machine.slots,
            "kv_budget_tokens": machine.kv_budget_tokens,
        },
        "when": datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds"),
        "probe": {"tokens": probe_tokens, "alone_ms": round(alone_ms, 3)},
        "samples": [
            {
                "fills": one.level.fills,
                "context_tokens": one.level.context_tokens,
                "kv_share": round(kv_share(one.level, machine), 5),
                "stretch": round(one.median, 5),
                "middle_half": [round(one.low, 5), round(one.high, 5)],
                "rounds": one.n,
            }
            for one in stretches.values()
        ],
    }


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """At once: a controller that reads meanwhile reads the old file or the new. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
