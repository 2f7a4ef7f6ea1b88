"""Decide who is assigned a ticket, and by which rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.sections.oncall import OncallSettings, Rule
from whystall.agent_server.ticketing.oncall.on_call import on_call
from whystall.knowledge_base.ticket_models import Assignment, Origin
from whystall.knowledge_base.times import rfc3339


@dataclass(frozen=True)
class Facts:
    """The fields of a ticket that decide its assignment. `receiver` and `schedule` come from the routing tree, which
    may name a schedule directly. `severity`: a ticket's (``critical`` ...).
    """

    category: str
    component: str
    severity: str
    origin: Origin
    labels: Mapping[str, str] = field(default_factory=dict)
    receiver: str = ""
    schedule: str | None = None


def assign(facts: Facts, settings: OncallSettings, overrides: Sequence[Override], now: datetime) -> Assignment:
    """Return the assignment of a ticket with `facts` at `now` (with a time zone).

    Precedence: the receiver's schedule (if it still exists), the first matching rule, the category's schedule, the
    default schedule.
    """
    rule, schedule, users = _match(facts, settings)
    return _assignment(settings, overrides, now, rule=rule, schedule=schedule, users=users, level=0)


def reassign(
    before: Assignment, settings: OncallSettings, overrides: Sequence[Override], now: datetime
) -> Assignment | None:
    """Return the assignment of a ticket reopened at `now`: who is on call now in its schedule, from the first level.

    None: keep the old assignment, which is by no schedule or by a deleted one.
    """
    if before.schedule not in settings.schedules:
        return None
    return _assignment(settings, overrides, now, rule=before.rule, schedule=before.schedule, users=[], level=0)


def _match(facts: Facts, settings: OncallSettings) -> tuple[str, str | None, list[str]]:
    if facts.schedule in settings.schedules:
        return f"receiver:{facts.receiver}", facts.schedule, []
    for rule in settings.rules:
        if _matches(rule, facts):
            return f"rule:{rule.id}", rule.schedule, rule.users
    if facts.category in settings.categories:
        return f"category:{facts.category}", settings.categories[facts.category], []
    if settings.schedule is not None:
        return "default", settings.schedule, []
    return "none", None, []


def _matches(rule: Rule, facts: Facts) -> bool:
    conditions = (
        (rule.origins, facts.origin),
        (rule.categories, facts.category),
        (rule.components, facts.component),
        (rule.severities, facts.severity),
    )
    if any(wanted and value not in wanted for wanted, value in conditions):
        return False
    return all(fnmatchcase(facts.labels.get(name, ""), pattern) for name, pattern in rule.labels.items())


def _assignment(
    settings: OncallSettings,
    overrides: Sequence[Override],
    now: datetime,
    *,
    rule: str,
    schedule: str | None,
    users: list[str],
    level: int,
) -> Assignment:
    if schedule is not None:
        found = on_call(settings, overrides, schedule, now)
        return Assignment(
            users=list(found.users),
            schedule=schedule,
            rule=rule,
            why=found.why,
            level=level,
            at=rfc3339(now),
            until=rfc3339(found.until) if found.until else None,
        )
    why = "fallback" if settings.fallback and not users else ""
    expanded = settings.expanded(users or settings.fallback)
    return Assignment(users=expanded, rule=rule, why=why, level=level, at=rfc3339(now))
