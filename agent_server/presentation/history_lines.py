"""The history of the watch as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whystall.agent_server.presentation.path_change_lines import path_text
from whystall.agent_server.presentation.template_values import TemplateValues
from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, plain_code
from whystall.prompts.quantities import quantity
from whystall.prompts.render import render, words
from whystall.tools.contract.result import ToolResult
from whystall.tools.history.data import WATCHED, HistoryData, WaitChange, WaitPlace

Name = Callable[[str], str]


def history_text(result: ToolResult[HistoryData], lang: Lang, limit: int | None = None) -> str:
    """Return rows, changes and blind spots, in at most `limit` characters: then fewer rows."""
    data = result.data
    blind = TemplateValues("txt", lang, result.coverage.target).blind([result.coverage])
    parts = len(data.path.rows) if data.path is not None else 0
    for most in range(max(len(data.rows), len(data.running), len(data.changes), parts), -1, -1):
        text = render(
            "history.txt",
            lang,
            h=data,
            target=target_text(result, lang, plain_code),
            rows=[(row, Safe(place_text(row, lang, plain_code))) for row in data.rows[:most]],
            left=data.left_out + len(data.rows) - len(data.rows[:most]),
            running=[(row, Safe(place_text(row, lang, plain_code))) for row in data.running[:most]],
            running_left=data.running_left_out + len(data.running) - len(data.running[:most]),
            changes=[(one, Safe(place_text(one, lang, plain_code)), Safe(change_text(one, lang)))
                     for one in data.changes[:most]],
            changes_left=data.changes_left_out + len(data.changes) - len(data.changes[:most]),
            path=path_text(data.path, lang, most),
            blind=blind,
            artifacts=result.artifacts,
        )  # fmt: skip
        if limit is None or len(text) <= limit:
            break
    return text


def target_text(result: ToolResult[HistoryData], lang: Lang, name: Name = str) -> Safe:
    """Return whose history it is."""
    target = result.coverage.target
    return Safe(words(lang)["history"]["all"] if target == WATCHED else name(target))


def place_text(place: WaitPlace, lang: Lang, name: Name = str) -> str:
    """Return who waits for what. `name` marks names in it."""
    return f"{who_text(place, lang, name)}{words(lang)['marks']['colon']}{what_text(place, lang, name)}"


def who_text(place: WaitPlace, lang: Lang, name: Name = str) -> str:
    """Return the role of the threads, and their job."""
    texts: dict[str, Any] = words(lang)["history"]
    who = texts["main" if place.main else "thread"].format(name(place.comm or "?"))
    return str(texts["of_job"].format(who=who, job=name(place.job)) if place.job else who)


def what_text(place: WaitPlace, lang: Lang, name: Name = str) -> str:
    """Return what they wait for, or that they run: state, system call, line, object, and who ended the waits."""
    texts: dict[str, Any] = words(lang)["history"]
    parts = [str(texts["states"][place.state])]
    for key, text in (("call", place.call), ("line", place.line), ("object", place.object)):
        if text:
            parts.append(texts[key].format(name(text)))
    if place.ended_by:
        kind, _, who = place.ended_by.partition(" ")
        parts.append(texts["ended"].format(texts["enders"][kind].format(name(who))))
    return "".join(parts)


def change_text(change: WaitChange, lang: Lang) -> str:
    """Return by how much a row changed, with its interval."""
    texts: dict[str, Any] = words(lang)["history"]
    low, high, old, new = (f"{value:.3g}" for value in (change.low, change.high, change.before, change.after))
    return str(
        texts["change"].format(
            direction=texts["directions"][change.direction], old=old, new=new, low=low, high=high,
            q=f"{change.q_value:.2g}",
        )
    )  # fmt: skip


def seconds_text(seconds: float) -> str:
    """Return a duration with its unit."""
    return quantity(seconds, "s")
