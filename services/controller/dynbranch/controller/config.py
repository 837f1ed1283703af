"""The controller's settings. Each is a variable DYNBRANCH_CONTROLLER_<NAME>."""

from __future__ import annotations

from dynbranch.controller.core.journal import Limits
from pydantic import Field
from pydantic_settings import BaseSettings


class ControllerSettings(BaseSettings):
    listen: str = Field("127.0.0.1:0", description="host:port to serve on; port 0 takes any free one")
    drain_s: float = Field(5.0, ge=0, description="how long running calls may take after the signal to stop")
    max_reporters: int = Field(Limits().reporters, ge=1, description="gateways remembered at a time")
    max_workflows: int = Field(Limits().workflows, ge=1, description="workflows remembered at a time")

    def limits(self) -> Limits:
        return Limits(reporters=self.max_reporters, workflows=self.max_workflows)
