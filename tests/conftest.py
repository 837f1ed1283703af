"""What holds for every test: properties have no deadline, since a busy machine is no fault of theirs."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("dynbranch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dynbranch")
