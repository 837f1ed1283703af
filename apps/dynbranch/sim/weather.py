"""What goes wrong in one run, and how often. Drawn from the seed, so that every run has a climate of its own:
faults that never meet in one climate meet in another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Weather:
    """Shares are of messages, requests or executions; ``..._every_s`` is a mean in virtual seconds, 0 is
    never.
    """

    delay_ms: float = 2.0
    """Mean delay of a message. The distribution has a long tail, so messages overtake each other."""
    slow_share: float = 0.0
    slow_ms: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    break_stream: float = 0.0
    csl_crash_every_s: float = 0.0
    power_loss_share: float = 0.0
    agent_crash_every_s: float = 0.0
    gateway_crash_every_s: float = 0.0
    engine_loss_every_s: float = 0.0
    flush_ms: float = 4.0
    """What it takes the store to make its writes durable."""
    down_s: float = 0.2
    csl_dead: bool = False
    """The store never starts."""
    engine_failure: float = 0.0
    leave: float = 0.0
    no_cache: float = 0.0
    resend: float = 0.0
    """Demands that are sent again, with the same id, when no answer came soon."""
    write_every_s: float = 0.1
    whole_write: float = 0.05
    unversioned_reads: bool = True
    """Harnesses declare reads without a version, which then count from the workflow's first arrival."""
    execution_ms: float = 20.0
    lease_ttl_ms: int = 200
    max_entries: int = 1000
    max_versions: int = 1000
    slice_nodes: int = 128
    plan_nodes: int = 64
    entry_ttl_ms: int = 0
    detach_grace_ms: int = 0
    names: int = 3
    """Stages of each kind: few, so that they are contended."""
    clients: int = 6

    def calm(self) -> Weather:
        """The same world without faults, for its end."""
        return replace(
            self,
            slow_share=0.0,
            drop=0.0,
            duplicate=0.0,
            break_stream=0.0,
            csl_crash_every_s=0.0,
            agent_crash_every_s=0.0,
            gateway_crash_every_s=0.0,
            engine_loss_every_s=0.0,
            engine_failure=0.0,
            leave=0.0,
        )


FAIR = Weather()


def draw_weather(rng: Random) -> Weather:
    """Each kind of trouble is there in about half of the runs."""

    def maybe(most: float, chance: float = 0.5) -> float:
        return rng.uniform(0.0, most) if rng.random() < chance else 0.0

    power_loss = maybe(1.0)
    return Weather(
        delay_ms=rng.choice((0.3, 2.0, 8.0)),
        slow_share=maybe(0.1),
        slow_ms=rng.choice((50.0, 300.0, 2000.0)),
        drop=maybe(0.05),
        duplicate=maybe(0.15),
        break_stream=maybe(0.03),
        csl_crash_every_s=rng.choice((0.0, 0.0, 0.3, 2.0)),
        flush_ms=rng.choice((4.0, 50.0)),
        power_loss_share=power_loss,
        agent_crash_every_s=rng.choice((0.0, 0.0, 2.0, 8.0)),
        gateway_crash_every_s=rng.choice((0.0, 0.0, 3.0)),
        engine_loss_every_s=rng.choice((0.0, 0.0, 3.0)),
        down_s=rng.choice((0.01, 0.2, 1.0)),
        csl_dead=rng.random() < 0.03,
        engine_failure=maybe(0.1),
        leave=maybe(0.3),
        no_cache=maybe(0.1),
        resend=maybe(0.5),
        write_every_s=rng.choice((0.02, 0.1, 0.5)),
        whole_write=maybe(0.3),
        execution_ms=rng.choice((5.0, 20.0, 80.0)),
        lease_ttl_ms=rng.choice((60, 200, 2000)),
        max_entries=rng.choice((3, 8, 1000)),
        max_versions=rng.choice((4, 1000)),
        slice_nodes=rng.choice((1, 3, 128)),
        plan_nodes=rng.choice((1, 2, 64)),
        entry_ttl_ms=rng.choice((0, 0, 300)),
        detach_grace_ms=rng.choice((0, 0, 30)),
        names=rng.choice((1, 2, 4)),
        clients=rng.choice((3, 6, 12)),
    )
