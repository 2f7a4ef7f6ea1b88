"""Escalate tickets that are not acknowledged. Pure.

Modelled after GoAlert's escalation policies: steps, each after a delay, and the whole repeated. Level 0 is the first
assignment; levels keep counting through the repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.sections.oncall import OncallSettings, Schedule, Step
from whystall.agent_server.ticketing.oncall.on_call import on_call
from whystall.knowledge_base.ticket_models import Assignment, Ticket
from whystall.knowledge_base.times import moment, rfc3339

_SKEW = timedelta(minutes=1)  # an assignment further in the future was made before the clock was set back


def escalates_at(ticket: Ticket, settings: OncallSettings) -> datetime | None:
    """Return when `ticket` escalates to the next level unless acknowledged; None: never."""
    found = _next(ticket, settings)
    since = moment(found[0].at) if found is not None else None
    return None if found is None or since is None else since + found[2]


def due_escalation(
    ticket: Ticket, settings: OncallSettings, overrides: Sequence[Override], now: datetime
) -> Assignment | None:
    """Return the next assignment of `ticket` if it was not acknowledged in time; None: not due, or no further users.

    `now` has a time zone. Escalates one level at a time, even after downtime or a clock that jumped ahead, so that each
    level has its delay. An assignment in the future (the clock was set back) counts as due: better early than never.
    """
    at = escalates_at(ticket, settings)
    if at is None or ticket.assignment is None:
        return None
    since = moment(ticket.assignment.at)
    if since is not None and since <= now + _SKEW and now < at:
        return None
    found = _next(ticket, settings)
    if found is None:
        return None
    assignment, schedule, _, level = found
    for further in range(level, _levels(schedule)):
        step = _step(schedule, further)
        users, why = _users(assignment, settings, overrides, step, now)
        if users:
            return assignment.model_copy(
                update={"users": users, "why": why, "level": further, "at": rfc3339(now), "until": None}
            )
    return None


def _next(ticket: Ticket, settings: OncallSettings) -> tuple[Assignment, Schedule, timedelta, int] | None:
    """Return the current assignment, its schedule, the delay and the number of the next level; None: no next level."""
    assignment = ticket.assignment
    if ticket.state != "open" or assignment is None or assignment.schedule is None:
        return None
    schedule = settings.schedules.get(assignment.schedule)
    if schedule is None or assignment.level + 1 >= _levels(schedule):
        return None
    step = _step(schedule, assignment.level + 1)
    # A repetition begins after the delay of the last step.
    delay = schedule.escalation[-1].after if step is None else step.after
    if not assignment.users:
        delay = timedelta()  # no one was notified: do not wait
    return assignment, schedule, delay, assignment.level + 1


def _levels(schedule: Schedule) -> int:
    steps = len(schedule.escalation)
    return (steps + 1) * (schedule.repeat + 1) if steps else 1


def _step(schedule: Schedule, level: int) -> Step | None:
    """The step of `level`; None: the schedule itself."""
    n = level % (len(schedule.escalation) + 1)
    return schedule.escalation[n - 1] if n else None


def _users(
    assignment: Assignment, settings: OncallSettings, overrides: Sequence[Override], step: Step | None, now: datetime
) -> tuple[list[str], str]:
    """Return the users of a step (None: those on call), and the code of what decided it."""
    if step is None:
        found = on_call(settings, overrides, assignment.schedule or "", now)
        return list(found.users), found.why
    users = settings.expanded(step.users)
    why = "escalation" if users else ""
    for name in step.schedules:
        on = on_call(settings, overrides, name, now)
        users += [user for user in on.users if user not in users]
        why = why or on.why
    return users, why
