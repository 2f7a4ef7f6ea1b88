"""Align names of one thing that differ between two profiles, before they are called new or gone.

Every alignment has a rule and is listed in the result: none is silent. `runtime`: one call of CUDA and of HIP.
`numbered`: kernels that TorchInductor numbers anew in each compilation (``triton_poi_fused_add_17``: category, fused
operators, number; torch/_inductor/codegen/triton.py) and Triton's suffixes of specialised arguments (``_0d1d2de``).
`hash`: symbols that end in a hash of the compiler. `tile`: matrix kernels of one library, type and layout with other
tile sizes. `layer`: repeated layers of a model, which are one with a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from whystall.tools.contract.result import Model
from whystall.tools.stacks.layers import layer_stem

RULES = ("runtime", "numbered", "hash", "tile", "layer")
_LISTED = 4
_PREFIX = r"(?P<prefix>(?:[GN]PU:)?)"
_RUNTIME = re.compile(r"(?:cuda|hip|cu)(?P<call>[A-Z]\w*?)(?:_v[0-9]+)?(?:_ptsz|_ptds)?")
_LAUNCH = re.compile(r"(?:Ext)?(?:Module)?LaunchKernel(?:Ex|ExC)?|LaunchByPtr")
_INDUCTOR = re.compile(_PREFIX + r"(?P<stem>triton_[a-z]{2,4}_fused_\w+?)_[0-9]+(?:_[0-9](?:d|de|c|[0-9])*)?")
_SPECIALISED = re.compile(_PREFIX + r"(?P<stem>\w+?)_0d1[0-9dec]*")
_HASH = re.compile(
    _PREFIX + r"(?P<stem>.*?[A-Za-z]\w*?)(?:17h|[._-])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}E?"
)
_TILE = re.compile(_PREFIX + r"(?P<stem>(?:cutlass|ampere|volta|turing|hopper|sm[0-9]+_xmma|Cijk)_\w+)")
_SIZES = re.compile(r"_(?:MT)?[0-9]+x[0-9]+(?:x[0-9]+)?(?=_|$)|_stage[s]?[0-9x]+|_align[0-9]+")
_LAYER = re.compile(r"nn\.Module: |.*\b(?:layers?|blocks?)[._][0-9]")


@dataclass(frozen=True)
class Aligned:
    """Names that are compared as one, `name`, by `rule`: those of the earlier and of the later profile."""

    rule: str
    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class AlignedRow(Model):
    """Names compared as one. `rule`: one of `RULES`; `name`: the common name, ``*`` for what differs;
    `before`, `after`: names on each side, at most a few, of `count_before` and `count_after`."""

    rule: str
    name: str
    before: list[str]
    after: list[str]
    count_before: int
    count_after: int


def align(one: Set[str], other: Set[str]) -> list[Aligned]:
    """Return what is one thing among the names of two profiles, sorted by rule and name."""
    names = (one, other)
    found: list[Aligned] = []
    for (rule, key), members in sorted(_by_key(one | other).items()):
        sides = [tuple(sorted(members & side)) for side in names]
        if rule == "layer":
            kept = len(members) > 1
        else:  # a name that both have stands for itself, unless its number means nothing
            if rule != "numbered":
                sides = [tuple(name for name in side if not (name in one and name in other)) for side in sides]
            kept = all(sides) and sides[0] != sides[1]
        if kept:
            shown = sides[1][0] if len(sides[0]) == len(sides[1]) == 1 else key
            found.append(Aligned(rule, shown, *sides))
    return found


def renaming(found: Iterable[Aligned]) -> dict[str, str]:
    """Return the common name of each aligned name."""
    return {name: one.name for one in found for name in (*one.before, *one.after)}


def rows_of(found: Iterable[Aligned]) -> list[AlignedRow]:
    """Return the rows that list what was aligned."""
    return [
        AlignedRow(
            rule=one.rule,
            name=one.name,
            before=list(one.before[:_LISTED]),
            after=list(one.after[:_LISTED]),
            count_before=len(one.before),
            count_after=len(one.after),
        )
        for one in found
    ]


def _by_key(names: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    keys: dict[tuple[str, str], set[str]] = {}
    for name in names:
        if found := next(_keys(name), None):
            keys.setdefault(found, set()).add(name)
    return keys


def _keys(name: str) -> Iterator[tuple[str, str]]:
    """Yield the (rule, key) that apply to `name`, the most certain first."""
    if found := _RUNTIME.fullmatch(name):
        call = "LaunchKernel" if _LAUNCH.fullmatch(found["call"]) else found["call"]
        yield "runtime", f"*{call}"
    if found := _INDUCTOR.fullmatch(name) or _SPECIALISED.fullmatch(name):
        yield "numbered", f"{found['prefix']}{found['stem']}_*"
    if found := _HASH.fullmatch(name):
        yield "hash", f"{found['prefix']}{found['stem']}.*"
    if (found := _TILE.fullmatch(name)) and (stem := _SIZES.sub("_*", found["stem"])) != found["stem"]:
        yield "tile", found["prefix"] + stem
    if _LAYER.match(name) and (stem := layer_stem(name)):
        yield "layer", stem
