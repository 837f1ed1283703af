"""The controller's settings. Each is a variable DYNBRANCH_CONTROLLER_<NAME>."""

from __future__ import annotations

from typing import Annotated

from dynbranch.controller.core.branches.admission import PolicyName
from dynbranch.controller.core.branches.controls import Controls
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.reservations import Placement, Quota
from dynbranch.controller.core.journal import Limits
from dynbranch.controller.predicting import DEADLINE_MS
from dynbranch.controller.running import Timings
from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings


def _pairs(value: object) -> object:
    """``name=value`` with commas, as a variable has it."""
    if not isinstance(value, str):
        return value
    pairs = [pair.rpartition("=") for pair in value.split(",") if pair.strip()]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise ValueError("write name=value, with commas between")
    return {name.strip(): one.strip() for name, _, one in pairs}


class ControllerSettings(BaseSettings):
    listen: str = Field("127.0.0.1:0", description="host:port to serve on; port 0 takes any free one")
    drain_s: float = Field(5.0, ge=0, description="how long running calls may take after the signal to stop")
    max_reporters: int = Field(Limits().reporters, ge=1, description="gateways remembered at a time")
    max_workflows: int = Field(Limits().workflows, ge=1, description="workflows remembered at a time")
    csl: str = Field("", description="the store, host:port; empty: nothing runs ahead")
    agents: list[str] = Field(
        default_factory=list, description="engine agents, host:port, comma-separated: where fills may run"
    )
    templates: str = Field("", description="folder of templates (*.yaml), read again when it changes")
    policy: PolicyName = Field(
        PolicyName.PRICED, description="what runs ahead: priced, always, static or off"
    )
    policies: Annotated[dict[str, PolicyName], BeforeValidator(_pairs)] = Field(
        default_factory=dict, description="others, by type, @tenant or type@tenant: routing=always,@acme=off"
    )
    engine_s: float | None = Field(
        None, ge=0, description="engine seconds that one tenant's fills may use an hour; none: no bound"
    )
    engine_s_of: Annotated[dict[str, float], BeforeValidator(_pairs)] = Field(
        default_factory=dict, description="the same by tenant: acme=600,other=0"
    )
    dryrun: bool = Field(False, description="decide and record, and let nothing run ahead")
    learned: str = Field(
        "", description="file of what admission learned and tenants have used; empty: both begin anew"
    )
    price_curve: str = Field(
        "", description="prices of the engines, a file of 'dynbranch calibrate'; empty: the built-in ones"
    )
    audit_seed: int = Field(0, ge=0, lt=2**63, description="which refused work runs all the same")
    action0: bool = Field(True, description="whether 'priced' refuses branches; false: for comparison")
    fixed_threshold: float | None = Field(
        None, ge=0, lt=1, description="probability above which a candidate runs, instead of its price"
    )
    exact_order: bool = Field(False, description="order up to 6 candidates exactly, not by repricing")
    fills: int = Field(3, ge=1, description="fills a branch, beside one for a choice that shows in a decode")
    fill_slots: int = Field(0, ge=0, description="fills on one engine; 0: the agent's own limit alone")
    fill_tokens: int = Field(
        0, ge=0, description="KV tokens that fills reserve on one engine; 0: the agent's own limit alone"
    )
    fill_placement: Placement = Field(
        Placement.PREFIX, description="prefix: where a fill's prompt begins alike; least_loaded."
    )
    stage_timeout_s: float = Field(Timings().stage_s, gt=0, description="the longest run of a stage ahead")
    predict_ms: float = Field(DEADLINE_MS, gt=0, description="the time that predictors have")
    workflow_ttl_s: float = Field(
        Bounds().workflow_ttl_s, gt=0, description="a workflow that is silent for so long has ended"
    )
    max_branches: int = Field(Bounds().branches, ge=1, description="branches at a time")
    draft_agent: str = Field("", description="engine agent of the predictor 'draft', host:port; empty: none")
    draft_model: str = Field("", description="its model; empty: the first that the agent serves")

    def limits(self) -> Limits:
        return Limits(reporters=self.max_reporters, workflows=self.max_workflows)

    def bounds(self) -> Bounds:
        return Bounds(workflow_ttl_s=self.workflow_ttl_s, branches=self.max_branches)

    def controls(self) -> Controls:
        return Controls(
            policy=self.policy,
            width=self.fills,
            policies=self.policies,
            engine_s=self.engine_s,
            engine_s_of=self.engine_s_of,
            dryrun=self.dryrun,
        )

    def quota(self) -> Quota:
        return Quota(self.fill_slots, self.fill_tokens, self.fill_placement)
