"""What the controller tells others of templates and branches."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.domain.ids import BranchId, UnixMs


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """One template in force, as the text of its file."""

    workflow_type_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """All templates in force. ``revision`` changes whenever one of them does."""

    revision: int
    templates: tuple[TemplateSource, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchSummary:
    """One branch in a list. ``consumed`` counts its fills that a demand promoted, adopted or consumed."""

    branch_id: BranchId
    workflow_type_id: str
    workflow_id: str
    decision_point: str
    state: str
    opened: UnixMs
    candidates: int = 0
    fills: int = 0
    consumed: int = 0
