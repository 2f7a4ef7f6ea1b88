"""Rules for chat questions and commands (``words/intents.yaml``), compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

from whystall.prompts.files import read_file

_PART = re.compile(r"\{([a-z_]+)\}")
_GROUP = re.compile(r"\(\?P<([a-z]+)[0-9]*>")


@dataclass(frozen=True)
class Rule:
    """A rule. `changes`: the command changes something; `whole`: it must match the whole message."""

    intent: str
    changes: bool
    whole: bool
    needs_subject: bool
    any: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]

    def match(self, text: str) -> dict[str, str] | None:
        """Return the values of the named groups; None without a match."""
        if any(pattern.search(text) for pattern in self.unless):
            return None
        for pattern in self.any:
            found = pattern.fullmatch(text) if self.whole else pattern.search(text)
            if found is not None:
                named = found.groupdict()
                return {name.partition("__")[0]: value.strip() for name, value in named.items() if value}
        return None


@dataclass(frozen=True)
class IntentRules:
    """All rules. `before`, `after`: politeness around a message; `stop`: words that are no job names; `here`: this
    machine itself; `escalate`: that asks who is next if those on call do not suffice; `normal`: what is usual;
    `define`: that asks what a term means; `host`: the name of a host; `filler`: words that describe no ticket.
    """

    rules: tuple[Rule, ...]
    before: re.Pattern[str]
    after: re.Pattern[str]
    slow: re.Pattern[str]
    look: re.Pattern[str]
    work: re.Pattern[str]
    here: re.Pattern[str]
    escalate: re.Pattern[str]
    normal: re.Pattern[str]
    define: re.Pattern[str]
    host: re.Pattern[str]
    stop: frozenset[str]
    filler: frozenset[str]


@cache
def intent_rules() -> IntentRules:
    """Return the rules, compiled once."""
    data: dict[str, Any] = read_file("intents.yaml")
    parts: dict[str, str] = {}
    for name, text in data["parts"].items():
        parts[name] = _filled(text, parts)
    numbers = count()
    polite = data["politeness"]
    return IntentRules(
        rules=tuple(_rule(entry, parts, numbers) for entry in data["rules"]),
        before=_compiled("^(?:" + "|".join(polite["before"]) + ")", parts, numbers),
        after=_compiled("(?:" + "|".join(polite["after"]) + ")$", parts, numbers),
        slow=_compiled(parts["slow"], parts, numbers),
        look=_compiled(parts["look"], parts, numbers),
        work=_compiled(parts["work"], parts, numbers),
        here=_compiled(parts["here"], parts, numbers),
        escalate=_compiled(parts["escalate"], parts, numbers),
        normal=_compiled(parts["normal"], parts, numbers),
        define=_compiled(parts["define"], parts, numbers),
        host=_compiled(parts["host"], parts, numbers),
        stop=frozenset(word for line in data["stop"] for word in line.split()),
        filler=frozenset(word for line in data["filler"] for word in line.split()),
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
    """Compile `text` with its parts; groups are numbered, since a name may occur once in an expression."""
    filled = _GROUP.sub(lambda match: f"(?P<{match[1]}__{next(numbers)}>", _filled(text, parts))
    return re.compile(filled, re.IGNORECASE)


def _filled(text: str, parts: dict[str, str]) -> str:
    return _PART.sub(lambda match: parts[match[1]], text)
