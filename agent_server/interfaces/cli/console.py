"""Output of the command line: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from whystall.agent_server.interfaces import serialize as wire

if TYPE_CHECKING:
    from pydantic import BaseModel

Progress = Callable[[float, float, str], None]


_said: list[str] = []


def say(text: str) -> None:
    """Print text for people, at `deliver`."""
    _said.append(wire.inert(text).rstrip("\n") + "\n")


def say_as_is(text: str) -> None:
    """Print a document of an inert format, at `deliver`."""
    _said.append(text)


def say_json(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """Print a value for programs, at `deliver`."""
    _said.append(wire.dumps(value if isinstance(value, (dict, list)) else wire.structured(value)) + "\n")


def deliver() -> None:
    """Write the output of `say`. It is written whole or fails as a whole, outside of the command that made it."""
    text = "".join(_said)
    _said.clear()
    sys.stdout.write(text)
    sys.stdout.flush()


def note(line: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(wire.inert(" ".join(line.split("\n"))) + "\n")
    sys.stderr.flush()


@contextmanager
def progress() -> Iterator[Progress | None]:
    """Yield a progress bar on a terminal's standard error; None, and no output, anywhere else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(done: float, total: float, message: str) -> None:
            bar.update(task, completed=done, total=total or None, description=wire.inert(message))

        yield report
