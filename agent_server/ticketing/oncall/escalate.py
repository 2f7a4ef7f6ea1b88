"""What happens with a ticket that nobody acknowledges: pure.

After GoAlert's escalation policies: steps with a pause before each, the whole of it repeated; level 0 is who had it
first. A level counts on through the repetitions, so that it never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.sections.oncall import OncallSettings, Schedule, Step
from whystall.agent_server.ticketing.oncall.on_call import on_call
from whystall.knowledge_base.ticket_models import Assignment, Ticket
from whystall.knowledge_base.times import moment, rfc3339

_SKEW = timedelta(minutes=1)  # an assignment that lies further ahead was made before the clock was set back


def escalates_at(ticket: Ticket, settings: OncallSettings) -> datetime | None:
    """When `ticket` goes on to the next level if nobody acknowledges it; None: it does not."""
    found = _next(ticket, settings)
    if found is None:
        return None
    assignment, _, pause, _ = found
    since = moment(assignment.at)
    return None if since is None else since + pause


def due_escalation(
    ticket: Ticket, settings: OncallSettings, overrides: Sequence[Override], now: datetime
) -> Assignment | None:
    """Who gets `ticket` in addition to or instead of who has it, since nobody has acknowledged it in time; None: it is
    not due, or there is nobody else to ask.

    `now` has a time zone. One level at a time, also when the clock jumped ahead or nothing ran for long: each level
    has its pause. An assignment in the future (the clock was set back) is taken as due: better told early than never.
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
        users, why = _asked(assignment, settings, overrides, step, now)
        if users:
            return assignment.model_copy(
                update={"users": users, "why": why, "level": further, "at": rfc3339(now), "until": None}
            )
    return None


def _next(ticket: Ticket, settings: OncallSettings) -> tuple[Assignment, Schedule, timedelta, int] | None:
    """Assignment, schedule, pause and level of what comes next for a ticket that nobody has acknowledged."""
    assignment = ticket.assignment
    if ticket.state != "open" or assignment is None or assignment.schedule is None:
        return None
    schedule = settings.schedules.get(assignment.schedule)
    if schedule is None or assignment.level + 1 >= _levels(schedule):
        return None
    step = _step(schedule, assignment.level + 1)
    # The first one is asked again as long after the last step as that came after the one before it.
    pause = schedule.escalation[-1].after if step is None else step.after
    if not assignment.users:
        pause = timedelta()  # nobody was asked, so that nobody is waited for
    return assignment, schedule, pause, assignment.level + 1


def _levels(schedule: Schedule) -> int:
    steps = len(schedule.escalation)
    return (steps + 1) * (schedule.repeat + 1) if steps else 1


def _step(schedule: Schedule, level: int) -> Step | None:
    """The step of `level`; None: the schedule itself."""
    n = level % (len(schedule.escalation) + 1)
    return schedule.escalation[n - 1] if n else None


def _asked(
    assignment: Assignment,
    settings: OncallSettings,
    overrides: Sequence[Override],
    step: Step | None,
    now: datetime,
) -> tuple[list[str], str]:
    """Who a step asks, and the code of what decided."""
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
