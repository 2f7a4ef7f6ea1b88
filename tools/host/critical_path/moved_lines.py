"""Find the lines of a program that edits between two recordings have moved. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from whystall.tools.host.critical_path.world import World

# forward (train.py:41)
_LINE = re.compile(r"(.*\([^()]*):(\d+)\)")
_Places = dict[str, dict[int, set[str]]]


def moved_lines(before: World, after: World) -> dict[str, str]:
    """Return by what line of `after` the lines are to be named at which threads of `before` wait, where they moved.

    The lines of a function at which threads wait in one of the recordings only are matched in their order, if there are
    as many of them in both and each pair has a kind of wait in common.
    """
    places = [_places(world) for world in (before, after)]
    moved: dict[str, str] = {}
    for function in places[0].keys() & places[1].keys():
        one, other = (known[function] for known in places)
        old, new = sorted(one.keys() - other.keys()), sorted(other.keys() - one.keys())
        if len(old) == len(new) and all(one[a] & other[b] for a, b in zip(old, new, strict=True)):
            moved |= {f"{function}:{a})": f"{function}:{b})" for a, b in zip(old, new, strict=True)}
    return moved


def moved_text(moved: Mapping[str, str]) -> str:
    """Return the first of the lines that moved as text."""
    first = sorted(moved.items())[:3]
    return ", ".join(f"{old} -> {_number(new)}" for old, new in first) + (", ..." if len(moved) > len(first) else "")


def without_number(line: str) -> str:
    """Return a line without its number: the function and the file."""
    return _LINE.sub(r"\1)", line)


def _number(line: str) -> str:
    found = _LINE.fullmatch(line)
    return found[2] if found else line


def _places(world: World) -> _Places:
    """Return the kinds of waits at each line, by function and file."""
    found: _Places = defaultdict(dict)
    for line in world.lines.values():
        for wait in line.waits:
            if place := _LINE.fullmatch(wait.place.line):
                found[place[1]].setdefault(int(place[2]), set()).add(world.kind(line, wait).code)
    return found
