"""Doctor's report as text for a terminal."""

from __future__ import annotations

import textwrap
from unicodedata import east_asian_width

from whystall.agent_server.doctor.report_model import Check, Health, State
from whystall.agent_server.doctor.serving import FILES, NONE
from whystall.prompts.doctor import doctor_words, say

_WIDTH = 100
_STATE = 9


def report(health: Health, lang: str = "en") -> str:
    """Return `health` in lines of at most 100 columns; only commands may be longer."""
    width = max(len(check.name) for check in health.checks) + 2
    lines: list[str] = []
    group = None
    fixes: dict[str, str] = {}
    for check in health.checks:
        if check.group != group:
            group = check.group
            lines += [""] * bool(lines) + [say(lang, f"groups.{group}")]
        lines += _check(check, width, lang, fixes)
        fixes.setdefault(check.fix, check.name)
    lines += ["", say(lang, "groups.engines"), *_engines(health, lang), "", say(lang, "groups.tools")]
    return "\n".join([*lines, *_tools(health, lang)])


def _check(check: Check, width: int, lang: str, fixes: dict[str, str]) -> list[str]:
    states = doctor_words(lang)["states"]
    indent = " " * (2 + _STATE + width)
    head = f"  {_padded(states[check.state.value], _STATE)}{check.name:<{width}}"
    lines = _wrapped(check.found, head, indent)
    if check.state is not State.OK:
        if check.means:
            lines += _wrapped(check.means, indent, indent)
        if check.fix:
            same = fixes.get(check.fix)
            text = say(lang, "report.same_fix", name=same) if same else say(lang, "report.fix", fix=check.fix)
            lines.append(indent + text)
    return lines


def _engines(health: Health, lang: str) -> list[str]:
    names = list(dict.fromkeys([*health.order, *health.engines]))
    indent = " " * (2 + _STATE)
    lines: list[str] = []
    for name in names:
        reason = health.refused.get(name)
        text = say(lang, "report.runs") if reason is None else say(lang, "report.refused", why=reason)
        lines += _wrapped(text, f"  {name:<{_STATE}}", indent)
    return lines if health.engines else [*lines, say(lang, "report.no_engine")]


def _tools(health: Health, lang: str) -> list[str]:
    """Group tools with the same engine and reasons; the reasons in an engine's own line are not repeated."""
    blocks: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for tool, engine in health.tools.items():
        why = health.why.get(tool, {})
        special = tuple((name, reason) for name, reason in why.items() if health.refused.get(name) != reason)
        blocks.setdefault((engine, special), []).append(tool)
    order = [*health.order, FILES, NONE]
    indent = " " * (2 + _STATE)
    lines: list[str] = []
    for (engine, special), tools in sorted(
        blocks.items(), key=lambda item: (order.index(item[0][0]) if item[0][0] in order else 0, len(item[0][1]))
    ):
        label = {FILES: say(lang, "report.files"), NONE: say(lang, "none")}.get(engine, engine)
        lines += _wrapped(", ".join(tools), f"  {_padded(label, _STATE)}", indent)
        for name, reason in special:
            lines += _wrapped(say(lang, "report.not_better", engine=name, why=reason), indent, indent + "  ")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """Wrap `text` at 100 columns after `first`, with `rest` before further lines; Chinese breaks anywhere."""
    if all(ord(character) < 0x2E80 for character in text):
        return textwrap.wrap(
            text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        ) or [first.rstrip()]
    lines, line = [], first
    for word in _words(text):
        if _columns(line) + _columns(word.rstrip()) > _WIDTH and line.strip():
            lines.append(line.rstrip())
            line = rest + word.lstrip()
        else:
            line += word
    return [*lines, line.rstrip()]


def _words(text: str) -> list[str]:
    """Split `text` where a line may break: after spaces, and around wide characters."""
    pieces: list[str] = []
    for character in text:
        wide = east_asian_width(character) in "WF"
        closing = character in "，。；：、）"
        if pieces and not pieces[-1].endswith(" ") and (closing or not (wide or _wide(pieces[-1][-1]))):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


def _wide(character: str) -> bool:
    return east_asian_width(character) in "WF"


def _columns(text: str) -> int:
    return sum(2 if _wide(character) else 1 for character in text)


def _padded(text: str, width: int) -> str:
    return text + " " * max(1, width - _columns(text))
