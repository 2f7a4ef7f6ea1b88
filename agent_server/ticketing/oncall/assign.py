"""Who gets a ticket: pure, and it says what decided."""

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
    """What of a ticket decides who gets it. `receiver` and `schedule`: of the routing tree, which may name a schedule
    outright. `severity`: as the tickets have it (``critical`` ...).
    """

    category: str
    component: str
    severity: str
    origin: Origin
    labels: Mapping[str, str] = field(default_factory=dict)
    receiver: str = ""
    schedule: str | None = None


def assign(facts: Facts, settings: OncallSettings, overrides: Sequence[Override], now: datetime) -> Assignment:
    """Who gets a ticket with `facts` at `now` (with a time zone), and the rule that decided.

    What is more particular goes first: the schedule that the receiver names, the first of the rules that fits, the
    schedule of the category, the default. A schedule that is no longer there names nobody, and the next one is asked.
    """
    rule, schedule, users = _decided(facts, settings)
    return _assignment(settings, overrides, now, rule=rule, schedule=schedule, users=users, level=0)


def renewed(
    before: Assignment, settings: OncallSettings, overrides: Sequence[Override], now: datetime
) -> Assignment | None:
    """Who gets a ticket that is open again at `now`: whoever is on call by now in the schedule that had it, from the
    first level; None: it stays with whom it was, since no schedule that is still there had it.
    """
    if before.schedule not in settings.schedules:
        return None
    return _assignment(settings, overrides, now, rule=before.rule, schedule=before.schedule, users=[], level=0)


def _decided(facts: Facts, settings: OncallSettings) -> tuple[str, str | None, list[str]]:
    if facts.schedule in settings.schedules:
        return f"receiver:{facts.receiver}", facts.schedule, []
    for rule in settings.rules:
        if _fits(rule, facts):
            return f"rule:{rule.id}", rule.schedule, rule.users
    if facts.category in settings.categories:
        return f"category:{facts.category}", settings.categories[facts.category], []
    if settings.schedule is not None:
        return "default", settings.schedule, []
    return "none", None, []


def _fits(rule: Rule, facts: Facts) -> bool:
    given = (
        (rule.origins, facts.origin),
        (rule.categories, facts.category),
        (rule.components, facts.component),
        (rule.severities, facts.severity),
    )
    if any(wanted and value not in wanted for wanted, value in given):
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
    asked = users or settings.fallback
    why = "fallback" if asked and not users else ""
    return Assignment(users=settings.expanded(asked), rule=rule, why=why, level=level, at=rfc3339(now))
