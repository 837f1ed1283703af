"""Which stage of a template a request is: by its header, by its tool, or by what every such request holds."""

from __future__ import annotations

from dynbranch.domain.template import Stage, StageKind, Template


class Recogniser:
    """Compiled once per template; one search of constants per untagged request."""

    def __init__(self, template: Template) -> None:
        self._by_name = {stage.name: stage for stage in template.stages}
        self._tools = [stage for stage in template.stages if stage.kind is StageKind.TOOL]
        self._chats = [stage for stage in template.stages if stage.kind is StageKind.CHAT]
        self._constants = {
            stage.name: tuple(part.encode() for part in stage.constants) for stage in template.stages
        }

    def stage_of(self, kind: StageKind, target: str, body: bytes, declared: str = "") -> Stage | None:
        """``declared`` is the stage header, ``target`` the tool's name. None: no stage, or more than one that
        it could be."""
        said = self._by_name.get(declared)
        if said is not None and said.kind is kind and (kind is StageKind.CHAT or said.target == target):
            return said
        match kind:
            case StageKind.TOOL:
                possible = [stage for stage in self._tools if stage.target == target]
                if len(possible) == 1:
                    return possible[0]
            case StageKind.CHAT:
                possible = self._chats
        fitting = [stage for stage in possible if holds_in_order(body, self._constants[stage.name])]
        # What says more is meant: a short request's constants may all stand in a long one too.
        said_most = max((self._length(stage) for stage in fitting), default=0)
        longest = [stage for stage in fitting if self._length(stage) == said_most]
        return longest[0] if len(longest) == 1 else None

    def _length(self, stage: Stage) -> int:
        return sum(map(len, self._constants[stage.name]))


def holds_in_order(body: bytes, constants: tuple[bytes, ...]) -> bool:
    """The first begins the body, the last ends it, the others stand between them in their order."""
    if not constants:
        return False
    first, last = constants[0], constants[-1]
    if not body.startswith(first):
        return False
    place = len(first)
    for part in constants[1:-1]:
        place = body.find(part, place)
        if place < 0:
            return False
        place += len(part)
    if len(constants) == 1:
        return place == len(body)
    return body.endswith(last) and place + len(last) <= len(body)
