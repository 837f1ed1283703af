"""How commands that run a stack end: on a signal, or on a failure that a person can understand."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import openai
import typer
from dynbranch.cli.failures import CliFailure
from dynbranch.demo.harness import ToolFailed
from dynbranch.demo.processes import ProcessDied, StartTimedOut
from dynbranch.demo.run import WriteFailed


@contextmanager
def failures_explained() -> Iterator[None]:
    """Raises CliFailure for what can go wrong while a stack runs."""
    try:
        yield
    except ProcessDied as error:
        raise CliFailure(str(error)) from None
    except StartTimedOut as error:
        raise CliFailure(str(error), "A slow or busy machine may need a second try.") from None
    except (WriteFailed, ToolFailed, openai.APIError) as error:
        raise CliFailure(f"a request failed: {error}", "The services' logs say more.") from None
    except KeyboardInterrupt:
        typer.echo("dynbranch: stopped", err=True)
        raise typer.Exit(130) from None


@contextmanager
def stops_on_signals() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: everything that was started is stopped in order."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
