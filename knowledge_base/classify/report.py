"""What a ticket can be made of besides a diagnosis: an alert, a work order, or what somebody says."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.knowledge_base.models import Model
from whystall.knowledge_base.tickets.models import Decision, Origin

TITLE_LIMIT = 300
TEXT_LIMIT = 8000


class Report(Model):
    """What is known before anybody looked. All text is a stranger's, made inert and cut where it was read.

    `labels`: of the alert, or the columns of the work order that were kept. `source_severity`: as the sender said.
    `given`: fields that the sender or a rule of routing sets outright (``category``, ``component``, ``severity``).
    `dedup_key`: where the source knows better than its words which reports are of the same; None: made from them.
    `created`: RFC 3339, when it began.
    `receiver`: of the routing tree that it came through; `schedule`: that shall have it, where one is named.
    `sinks`: trackers that are to be kept in step; None: those for all tickets.
    """

    origin: Origin
    title: str = Field(max_length=TITLE_LIMIT)
    description: str = Field(default="", max_length=TEXT_LIMIT)
    labels: dict[str, str] = Field(default_factory=dict)
    source_severity: str = ""
    given: dict[Literal["category", "component", "severity"], Decision] = Field(default_factory=dict)
    dedup_key: str | None = None
    created: str
    receiver: str = ""
    schedule: str | None = None
    sinks: list[str] | None = None
