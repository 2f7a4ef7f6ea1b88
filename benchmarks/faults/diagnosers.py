"""The diagnosers that are named on the command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnoser:
    """A module of `adapters/` with arguments. `baseline`: something simple to compare with."""

    module: str
    arguments: tuple[str, ...] = ()
    baseline: bool = False


NAMED = {
    "rules": Diagnoser("whystall_rules"),
    "model": Diagnoser("whystall_model"),
    "mcp": Diagnoser("mcp_policy"),
    "mcp_text": Diagnoser("mcp_policy", ("--policy", "careful-text")),
    "most_common": Diagnoser("most_common", baseline=True),
    "largest_finding": Diagnoser("largest_finding", baseline=True),
    "pyspy_top": Diagnoser("pyspy_top", baseline=True),
    "path": Diagnoser("whystall_path", baseline=True),
}
"""Diagnosers by name, in the order of the report."""


def command(name: str) -> str:
    """Return the command line of a named diagnoser. Raises ValueError."""
    if name not in NAMED:
        raise ValueError(f"unknown diagnoser {name!r}; known: {', '.join(NAMED)}; or NAME=COMMAND")
    one = NAMED[name]
    return shlex.join([sys.executable, "-m", f"benchmarks.faults.adapters.{one.module}", *one.arguments])


def chosen(texts: Iterable[str]) -> dict[str, str]:
    """Return command lines by name, from texts such as ``rules,most_common`` or ``mine=./mine.sh --fast``.

    Without a name: whystall's rules. Raises ValueError.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, line = text.partition("=")
        if equals:
            found[name.strip()] = line
        else:
            found |= {one.strip(): command(one.strip()) for one in text.split(",") if one.strip()}
    return found or {"rules": command("rules")}


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of diagnosers in the order of the report, other ones first, by name."""
    order = list(NAMED)
    return sorted(set(names), key=lambda name: (order.index(name) + 1 if name in order else 0, name))


def is_baseline(name: str) -> bool:
    """Return whether a diagnoser is only there to compare with."""
    return name in NAMED and NAMED[name].baseline
