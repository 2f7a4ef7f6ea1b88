"""Add and end overrides of who is on call: checked against the settings, and logged in the audit log."""

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
class OverrideRequest:
    """An override to add from `begins` until `ends`; for the fields see `Override`."""

    schedule: str
    begins: datetime
    ends: datetime
    add: str = ""
    remove: str = ""
    only: Sequence[str] | None = None
    reason: str = ""


def create_override(kb: Stores, settings: Settings, request: OverrideRequest, by: str, now: datetime) -> Override:
    """Store the override `request`; it begins at `now` at the earliest, since overrides do not change the past.

    Raises `ToolError`: not_found (no such schedule); bad_argument (unknown or missing names, a time in the past).
    """
    if request.schedule not in settings.oncall.schedules:
        raise _unknown(ErrorCode.NOT_FOUND, "schedule", request.schedule, list(settings.oncall.schedules))
    if request.only is None and not (request.add or request.remove):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "no user is named", "name who is added, removed or replaced")
    if request.add and request.add == request.remove:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{request.add} would replace {request.add}", "name two users")
    people = known_names(settings)
    for name in (request.add, request.remove, *(request.only or ())):
        if name and name not in people:
            raise _unknown(ErrorCode.BAD_ARGUMENT, "user or group", name, sorted(people))
    begins = max(request.begins, now)
    if request.ends <= now:
        message = f"the override would end in the past, at {rfc3339(request.ends)}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give an end in the future")
    if request.ends <= begins:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "it ends before it begins", "give an end after the beginning")
    with kb.transaction():
        fields = {**vars(request), "begins": begins, "by": by}
        made = kb.overrides.put(**fields)
        kb.audit.put(by, "override.added", made.code, detail=_detail(made))
    return made


def end_override(kb: Stores, id: int, by: str, now: datetime) -> Override:
    """End override `id` now. Raises `ToolError`: not_found, bad_argument (it is over)."""
    with kb.transaction():
        ended = kb.overrides.end(id, now)
        kb.audit.put(by, "override.removed", ended.code, detail=_detail(ended))
    return ended


def known_names(settings: Settings) -> set[str]:
    """Return the users and groups that a schedule may name."""
    return {*settings.users, *settings.oncall.groups, *(name for _, name in settings.oncall.people())}


def _detail(override: Override) -> dict[str, object]:
    return override.model_dump(mode="json", exclude={"id", "by", "at"}, exclude_defaults=True)


def _unknown(code: ErrorCode, kind: str, name: str, valid: list[str]) -> ToolError:
    near = get_close_matches(name, valid, n=5) or sorted(valid)[:10]
    remedy = f"one of: {', '.join(near)}" if near else "the settings name none"
    return ToolError(code, f"no {kind} is called {name[:100]!r}", remedy)
