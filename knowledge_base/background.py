"""How much a word says: less, the more common it is in technical English in general (``catalog/background.txt``)."""

from __future__ import annotations

from functools import cache

from whystall.knowledge_base.data import catalog

_RAREST = 8  # level of a word that the table lacks
_LEAST = 0.1


def informativeness(stem: str) -> float:
    """Return the share of information of a word with `stem`, 0.1 to 1: its surprisal relative to a word that technical
    English lacks, so that "help" and "system" say little.
    """
    return max(_levels().get(stem, _RAREST) / _RAREST, _LEAST)


@cache
def _levels() -> dict[str, int]:
    found: dict[str, int] = {}
    for line in catalog("background.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            level, *stems = line.split()
            found |= dict.fromkeys(stems, int(level))
    return found
