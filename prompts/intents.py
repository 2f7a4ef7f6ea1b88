"""The ways in which people ask, as data (``words/intents.yaml``), ready to be matched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parent / "words" / "intents.yaml"
_PART = re.compile(r"\{([a-z_]+)\}")
_GROUP = re.compile(r"\(\?P<([a-z]+)[0-9]*>")


@dataclass(frozen=True)
class Rule:
    """One way to ask. `changes`: it is a command that changes something. `whole`: it is all that is said."""

    intent: str
    changes: bool
    whole: bool
    needs_subject: bool
    any: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]

    def match(self, text: str) -> dict[str, str] | None:
        """What was understood, by the names of groups; None where this is not meant."""
        if any(pattern.search(text) for pattern in self.unless):
            return None
        for pattern in self.any:
            found = pattern.fullmatch(text) if self.whole else pattern.search(text)
            if found is not None:
                named = found.groupdict()
                return {name.partition("__")[0]: value.strip() for name, value in named.items() if value}
        return None


@dataclass(frozen=True)
class Book:
    """All of it. `before`, `after`: politeness around what is said; `stop`: words that name no job."""

    rules: tuple[Rule, ...]
    before: re.Pattern[str]
    after: re.Pattern[str]
    slow: re.Pattern[str]
    look: re.Pattern[str]
    work: re.Pattern[str]
    stop: frozenset[str]


@cache
def book() -> Book:
    """The rules, compiled once."""
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load(_FILE.read_text("utf-8"), Loader=loader)  # noqa: S506 - both loaders are safe
    parts: dict[str, str] = {}
    for name, text in data["parts"].items():
        parts[name] = _filled(text, parts)
    numbers = count()
    polite = data["politeness"]
    return Book(
        rules=tuple(_rule(entry, parts, numbers) for entry in data["rules"]),
        before=_compiled("^(?:" + "|".join(polite["before"]) + ")", parts, numbers),
        after=_compiled("(?:" + "|".join(polite["after"]) + ")$", parts, numbers),
        slow=_compiled(parts["slow"], parts, numbers),
        look=_compiled(parts["look"], parts, numbers),
        work=_compiled(parts["work"], parts, numbers),
        stop=frozenset(word for line in data["stop"] for word in line.split()),
    )


def _rule(entry: dict[str, Any], parts: dict[str, str], numbers: count[int]) -> Rule:
    return Rule(
        intent=entry["intent"],
        changes=entry.get("changes", False),
        whole=entry.get("whole", False),
        needs_subject=entry.get("needs_subject", False),
        any=tuple(_compiled(text, parts, numbers) for text in entry["any"]),
        unless=tuple(_compiled(text, parts, numbers) for text in entry.get("unless", [])),
    )


def _compiled(text: str, parts: dict[str, str], numbers: count[int]) -> re.Pattern[str]:
    """`text` with its parts; each group gets a number, since one expression may not name two groups alike."""
    filled = _GROUP.sub(lambda match: f"(?P<{match[1]}__{next(numbers)}>", _filled(text, parts))
    return re.compile(filled, re.IGNORECASE)


def _filled(text: str, parts: dict[str, str]) -> str:
    return _PART.sub(lambda match: parts[match[1]], text)
