"""One line that has the calls of a process, or of some of its clients, say who asks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from dynbranch.tagging import agentscope, autogen, langgraph
from dynbranch.tagging.http_clients import Hooked, Tagger, hook_every_client, http_clients
from dynbranch.tagging.outcomes import Outcomes
from dynbranch.tagging.patches import Patches
from dynbranch.tagging.tags import Tags

FRAMEWORKS: Final = ("langgraph", "autogen", "agentscope")


class Attachment:
    """What ``attach`` has done, until it is detached; as a context manager, until the block ends."""

    def __init__(self, tagger: Tagger, hooked: Hooked, patches: Patches, heard: langgraph.Listening | None):
        self._tagger = tagger
        self._hooked = hooked
        self._patches = patches
        self._heard = heard

    @property
    def outcomes(self) -> Outcomes:
        """What the gateways answered to everything that is attached here."""
        return self._tagger.outcomes

    def detach(self) -> None:
        """All is as it was. Once is enough, and twice is no error."""
        self._patches.undo()
        self._hooked.remove_all()
        if self._heard is not None:
            self._heard.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


def attach(
    gateway: str | Iterable[str],
    *clients: Any,
    workflow_type: str = "",
    agent: str = "",
    steps: bool = True,
    frameworks: Iterable[str] = FRAMEWORKS,
) -> Attachment:
    """Have requests to a gateway say which workflow, agent and stage they are of.

    ``gateway`` is an address, ``http://host:port``, or several: no other host is told anything. ``clients``
    are clients of the openai or anthropic SDK, of httpx2 or httpx, or models of a framework that hold one of
    them. Without any, every client of the process is meant, those too that are made later.

    ``workflow_type`` and ``agent`` stand where nobody says another. Of the ``frameworks`` those that are
    installed tell theirs: they are imported now. Without ``steps``, a stage is called as its node or agent
    is; with it, the number of the step follows.

    Raises ValueError for an address that is none and a framework that is unknown, TypeError for a client that
    has no HTTP client in it.
    """
    gateways = [gateway] if isinstance(gateway, str) else list(gateway)
    wanted = frozenset(frameworks)
    if unknown := wanted.difference(FRAMEWORKS):
        raise ValueError(f"no framework that is known: {', '.join(sorted(unknown))}")
    tagger = Tagger(gateways, Tags(workflow_type, agent=agent))
    found = [each for client in clients for each in http_clients(client)]
    hooked, patches, heard = Hooked(tagger), Patches(), None
    for name in FRAMEWORKS:
        if name not in wanted:
            continue
        try:
            match name:
                case "langgraph":
                    heard = langgraph.listen(steps=steps)
                case "autogen":
                    autogen.listen(patches, steps=steps)
                case _:
                    agentscope.listen(patches, steps=steps)
        except (ImportError, AttributeError) as problem:
            # An agent that may not even use it goes on.
            warnings.warn(f"this {name} tells nothing: {problem}", RuntimeWarning, stacklevel=2)
    for client in found:
        hooked.add(client)
    if not clients:
        hook_every_client(hooked, patches)
    return Attachment(tagger, hooked, patches, heard)
