"""For agents written with an SDK or a framework: one line, and their calls say who asks.

    import dynbranch.client

    dynbranch.client.attach("http://127.0.0.1:8080")

    with dynbranch.client.workflow("reviews") as run:
        ...
        print(run.outcomes.counts)

Nothing is imported but the standard library, and what is installed of the SDKs and frameworks. See
docs/clients.md.
"""

from dynbranch.tagging.attaching import Attachment, attach
from dynbranch.tagging.outcomes import Outcome, Outcomes, outcome
from dynbranch.tagging.tags import Workflow, agent, carried, reads, stage, workflow

__all__ = [
    "Attachment",
    "Outcome",
    "Outcomes",
    "Workflow",
    "agent",
    "attach",
    "carried",
    "outcome",
    "reads",
    "stage",
    "workflow",
]
