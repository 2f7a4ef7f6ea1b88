"""A report: an alert, a work order, or a person's message, as input of a ticket."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.knowledge_base.models import Model
from whystall.knowledge_base.ticket_models import Decision, Origin

TITLE_LIMIT = 300
TEXT_LIMIT = 8000


Given = Literal["category", "component", "severity", "cause"]


class Report(Model):
    """A report. All text is untrusted, made inert and cut on input.

    `labels`: of the alert, or columns of the work order. `source_severity`: the sender's value. `given`: fields set by
    the sender or a routing rule. `advice`: follows the description in the
    ticket; our own words must not decide how it is classified. `dedup_key`: given if the source identifies repetitions
    better than words; None: computed. `created`: RFC 3339, when it began. `receiver`: of the routing tree; `schedule`:
    on-call schedule to assign, if named. `sinks`: trackers to synchronize; None: those for all tickets.
    """

    origin: Origin
    title: str = Field(max_length=TITLE_LIMIT)
    description: str = Field(default="", max_length=TEXT_LIMIT)
    advice: str = Field(default="", max_length=TEXT_LIMIT)
    labels: dict[str, str] = Field(default_factory=dict)
    source_severity: str = ""
    given: dict[Given, Decision] = Field(default_factory=dict)
    dedup_key: str | None = None
    created: str
    receiver: str = ""
    schedule: str | None = None
    sinks: list[str] | None = None

    @property
    def whole_text(self) -> str:
        """The description of the ticket: what was reported, then our advice."""
        return "\n".join(part for part in (self.description, self.advice) if part)[:TEXT_LIMIT]
