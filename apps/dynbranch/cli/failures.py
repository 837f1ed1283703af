"""Failures that a person can do something about: one line of what, one line of advice, exit status 1."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

P = ParamSpec("P")
R = TypeVar("R")


class CliFailure(Exception):
    """``advice`` says what to do."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


def for_people(command: Callable[P, R]) -> Callable[P, R]:
    """Turns a CliFailure into its two lines, and a package that is not installed into the extra that brings
    it. So does a file or folder that can not be used. Anything else is a bug and shows its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except CliFailure as failure:
            _say(failure)
            raise typer.Exit(1) from None
        except ModuleNotFoundError as error:
            from dynbranch.cli.installed import missing

            absent = missing(error.name or "", command.__name__.replace("_", "-"))
            if absent is None:
                raise
            _say(absent)
            raise typer.Exit(1) from None
        except OSError as error:
            if error.filename is None:
                raise
            unusable = f"{os.fsdecode(error.filename)} can not be used: {error.strerror}"
            _say(CliFailure(unusable, "See that it can be made, read and written, or name another place."))
            raise typer.Exit(1) from None

    return wrapped


def _say(failure: CliFailure) -> None:
    typer.secho(f"dynbranch: {failure.message}", fg=typer.colors.RED, err=True)
    if failure.advice:
        typer.echo(f"  {failure.advice}", err=True)
