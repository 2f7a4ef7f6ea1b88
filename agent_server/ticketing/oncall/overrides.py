"""Overrides of who is on call, as people make them: checked against the settings, and logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING

from whystall.agent_server.journal.overrides import Override
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores


@dataclass(frozen=True)
class Wish:
    """What shall be other, from `begins` until `ends`: see `Override`, which it becomes."""

    schedule: str
    begins: datetime
    ends: datetime
    add: str = ""
    remove: str = ""
    only: Sequence[str] | None = None
    reason: str = ""


def override(kb: Stores, settings: Settings, wish: Wish, by: str, now: datetime) -> Override:
    """Make the override that `wish` asks for; it begins now where it began before, since the past stays as it was.

    Raises `ToolError`: not_found (no such schedule); bad_argument (unknown names, or a time that is over, or none).
    """
    if wish.schedule not in settings.oncall.schedules:
        raise _unknown(ErrorCode.NOT_FOUND, "schedule", wish.schedule, list(settings.oncall.schedules))
    if wish.only is None and not (wish.add or wish.remove):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "nobody is named", "say who is added, taken out or put in for whom")
    if wish.add and wish.add == wish.remove:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{wish.add} is put in for {wish.add}", "name two")
    people = known(settings)
    for name in (wish.add, wish.remove, *(wish.only or ())):
        if name and name not in people:
            raise _unknown(ErrorCode.BAD_ARGUMENT, "user or group", name, sorted(people))
    begins = max(wish.begins, now)
    if wish.ends <= now:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"it is over at {rfc3339(wish.ends)}", "give an end in the future")
    if wish.ends <= begins:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "it ends before it begins", "give an end after the beginning")
    with kb.transaction():
        made = kb.overrides.put(
            wish.schedule,
            begins,
            wish.ends,
            add=wish.add,
            remove=wish.remove,
            only=wish.only,
            reason=wish.reason,
            by=by,
        )
        kb.audit.put(by, "override.added", made.code, detail=_detail(made))
    return made


def take_back(kb: Stores, id: int, by: str, now: datetime) -> Override:
    """End override `id`; `ToolError`: not_found, or bad_argument where it is over."""
    with kb.transaction():
        ended = kb.overrides.end(id, now)
        kb.audit.put(by, "override.removed", ended.code, detail=_detail(ended))
    return ended


def known(settings: Settings) -> set[str]:
    """Names of users and groups that a schedule may hold."""
    named = {name for _, name in settings.oncall.people()}
    return {*settings.users, *settings.oncall.groups, *named}


def _detail(override: Override) -> dict[str, object]:
    return override.model_dump(mode="json", exclude={"id", "by", "at"}, exclude_defaults=True)


def _unknown(code: ErrorCode, kind: str, name: str, valid: list[str]) -> ToolError:
    near = get_close_matches(name, valid, n=5) or sorted(valid)[:10]
    remedy = f"one of: {', '.join(near)}" if near else "the settings name none"
    return ToolError(code, f"no {kind} is called {name[:100]!r}", remedy)
