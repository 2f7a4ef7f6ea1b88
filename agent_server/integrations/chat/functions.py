"""The read-only functions that a model may call in a chat.

Each returns data for the model and keeps a plain answer, which replaces a model's answer that the data do not support.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat import alert_overview, answers
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.intents import Intent, wanted_of
from whystall.agent_server.integrations.chat.look_up import look_up
from whystall.agent_server.integrations.chat.message_texts import (
    clock,
    line_title,
    similar_message,
    ticket_title,
    tickets_message,
)
from whystall.agent_server.integrations.chat.times import when
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.job_lookup.find import find, running_jobs
from whystall.agent_server.job_lookup.models import LISTED, Job, Resolution, Wanted
from whystall.agent_server.llm.wire import Function, ToolCall
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import State, Ticket
from whystall.knowledge_base.tickets.rows import Wanted as Tickets
from whystall.prompts.chat import chat_words
from whystall.prompts.escape import short
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_ARGUMENTS = 4000
_PART = 3  # characters of a word that may be a part of another one
_QUIET = re.compile(r"\d[\d:.,%-]*")
_ASCII_WORD = re.compile(r"[\w.-]+", re.A)
_TEXT = 500
_RESULT = 4000
_NO_NAMES = ("lowest_rank", "first_of", "rank")  # codes of a lookup that name no job
_STRING: dict[str, Any] = {"type": "string", "maxLength": _TEXT}
_STATES = list(get_args(State))
_PARAMETERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "find_job": ({"text": _STRING}, ("text",)),
    "list_jobs": ({}, ()),
    "on_call": ({"schedule": _STRING, "time": _STRING}, ()),
    "ticket": ({"id": _STRING}, ("id",)),
    "tickets": ({"state": {"type": "string", "enum": _STATES}}, ()),
    "similar": ({"text": _STRING}, ("text",)),
    "alerts": ({"text": _STRING}, ()),
    "search": ({"text": _STRING}, ("text",)),
    "start_look": ({"text": _STRING}, ("text",)),
}


@dataclass
class Functions:
    """The functions offered for one message.

    `person_text`: the person's message and the turns before it; an investigation starts only for a job named there.
    `plain`: plain answers of the calls so far; `target`: the process to investigate; `ambiguous`: jobs to choose from.
    """

    answers: Answers
    lang: Lang
    now: datetime
    person_text: str
    plain: list[Outgoing] = field(default_factory=list)
    target: Resolution | None = None
    ambiguous: Resolution | None = None

    def offered(self) -> list[Function]:
        """Return their descriptions for the model."""
        descriptions = chat_words(self.lang)["model"]["functions"]
        return [
            Function(
                name=name,
                description=descriptions[name],
                parameters={
                    "type": "object",
                    "properties": properties,
                    "required": list(required),
                    "additionalProperties": False,
                },
            )
            for name, (properties, required) in _PARAMETERS.items()
        ]

    async def call(self, call: ToolCall) -> dict[str, Any]:
        """Execute `call`. Raises `ToolError`: not_found (no such function), bad_argument, or those of the lookup."""
        given = _arguments(call)
        if call.name in ("find_job", "start_look"):
            return await self._job(given["text"], look=call.name == "start_look")
        if call.name == "list_jobs":
            return await self._jobs()
        return await in_thread(lambda: self._read(call.name, given))

    async def _job(self, text: str, *, look: bool) -> dict[str, Any]:
        wanted = wanted_of(text)
        found = await find(wanted if wanted.text or wanted.rank is not None else Wanted(text=text))
        if look and found.status == "found":
            if not _named_by_person(found, self.person_text):
                message = "the person did not name this job"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, "ask which one is meant")
            self.target = found
        elif look and found.status == "several":
            self.ambiguous = found
        self.plain.append(answers.found_message(found, self.lang))
        return {
            "asked": clean(text, _TEXT),
            "status": found.status,
            **({"pid": found.pid, "rank": found.rank} if found.status == "found" else {}),
            **({"job": _job_data(found.job)} if found.job is not None else {}),
            **(
                {"candidates": [_job_data(job) for job in found.jobs], "left_out": found.left_out} if found.jobs else {}
            ),
            "tried": found.tried,
            "matched": found.how,
            "not_seen": found.missed.model_dump(),
            **({"started": True} if look and found.status == "found" else {}),
        }

    async def _jobs(self) -> dict[str, Any]:
        seen, found = await in_thread(running_jobs)
        shown = found[:LISTED]
        self.plain.append(answers.jobs_message(shown, len(found) - len(shown), seen.missed, self.lang))
        return {
            "jobs": [_job_data(job) for job in shown],
            "left_out": len(found) - len(shown),
            "not_seen": seen.missed.model_dump(),
        }

    def _read(self, name: str, given: Mapping[str, str]) -> dict[str, Any]:
        if name == "on_call":
            return self._on_call(given)
        if name == "ticket":
            return self._ticket(given["id"])
        if name == "tickets":
            return self._tickets(given.get("state", ""))
        if name == "alerts":
            return self._alerts(given.get("text", ""))
        if name == "search":
            return self._search(given["text"])
        return self._similar(given["text"])

    def _on_call(self, given: Mapping[str, str]) -> dict[str, Any]:
        schedule, text = given.get("schedule", ""), given.get("time", "")
        self.plain.append(self.answers.on_call(Intent("on_call", f"{schedule} {text}", self.lang), self.lang, self.now))
        settings = self.answers.settings
        if settings is None or not settings.oncall.schedules:
            return {"schedules": [], "note": "no schedules are set up"}
        known = sorted(settings.oncall.schedules)
        wanted = [one for one in known if one.lower() == schedule.strip().lower()] if schedule.strip() else known
        at = when(text, self.now) or self.now
        return {
            "known_schedules": known[:LISTED],
            "at": clock(at, self.now),
            "on_call": [
                {
                    "schedule": turn.schedule,
                    "users": list(turn.users),
                    "names": [
                        person.name for user in turn.users if (person := settings.users.get(user)) and person.name
                    ],
                    "until": clock(turn.until, self.now) if turn.until is not None else None,
                }
                for turn in self.answers.on_call_at(wanted[:LISTED], at)
            ],
        }

    def _ticket(self, id: str) -> dict[str, Any]:
        number = id.strip().lstrip("#").lstrip("0") or "0"
        self.plain.append(self.answers.ticket(number, self.lang, self.now))
        return {"ticket": _ticket_data(self.answers.kb.tickets.get(number), self.lang)}

    def _tickets(self, state: str) -> dict[str, Any]:
        states = tuple(one for one in get_args(State) if one == state) or ("open", "acknowledged")
        wanted = Tickets(states=states)
        lines, count = self.answers.kb.tickets.lines(wanted, LISTED), self.answers.kb.tickets.count(wanted)
        self.plain.append(tickets_message(lines, count, self.lang))
        return {
            "count": count,
            "tickets": [
                {
                    "ticket": line.id,
                    "state": line.state,
                    "severity": line.severity.value,
                    "title": line_title(line, self.lang),
                    "assignee": line.assignee,
                }
                for line in lines
            ],
        }

    def _alerts(self, text: str) -> dict[str, Any]:
        kb = self.answers.kb
        self.plain.append(alert_overview.alerts_message(kb, text, self.lang, self.now))
        found = alert_overview.firing(kb)
        chosen = alert_overview.named_alerts(found, text) or found
        return {"count": len(chosen), "alerts": [_alert_data(one) for one in chosen[:LISTED]]}

    def _search(self, text: str) -> dict[str, Any]:
        found = look_up(self.answers, text, self.lang, self.now)
        if found is None:
            return {"found": False}
        message = found.message
        self.plain.append(message)
        return {"found": True, "text": short(message.text, _RESULT)}

    def _similar(self, text: str) -> dict[str, Any]:
        searched = self.answers.incidents(text, 3, self.lang)
        found = searched.matches
        self.plain.append(similar_message(found, self.lang, searched.notes))
        return {
            "incidents": [
                {
                    "incident": match.incident,
                    "about": match.title.get(self.lang),
                    "fits": not match.weak,
                    "known": match.known,
                    "fix": short(self.answers.kb.cards.get(match.incident).fix.get(self.lang), _TEXT)
                    if match.state == "reviewed"
                    else "",
                }
                for match in found
            ]
        }


def _arguments(call: ToolCall) -> dict[str, str]:
    """Return the checked arguments of `call`; raises `ToolError`."""
    if call.name not in _PARAMETERS:
        message = f"no function is called {clean(call.name, 80)!r}"
        raise ToolError(ErrorCode.NOT_FOUND, message, f"valid: {', '.join(_PARAMETERS)}")
    try:
        given = json.loads(call.arguments[:_ARGUMENTS]) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the arguments are no JSON", "give one JSON object") from None
    properties, required = _PARAMETERS[call.name]
    if not isinstance(given, dict) or not all(isinstance(value, (str, int)) for value in given.values()):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the arguments are no object of texts", "give one, {} for none")
    for name in given:
        if name not in properties:
            valid = ", ".join(properties) or "none"
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown argument {clean(name, 80)!r}", f"valid: {valid}")
    for name in required:
        if not str(given.get(name, "")).strip():
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: a text is needed", "give it")
    return {name: clean(str(value), _TEXT) for name, value in given.items()}


def _mentioned(word: str, person_text: str) -> bool:
    """Return whether `person_text` contains `word`: numbers and short words as a whole, others also inside a word,
    since Chinese has no blanks.
    """
    word, person_text = word.casefold(), person_text.casefold()
    if word.isascii() and (len(word) < _PART or _QUIET.fullmatch(word)):
        return any(word == known.strip(".-") for known in _ASCII_WORD.findall(person_text))
    return word in person_text


def _named_by_person(found: Resolution, person_text: str) -> bool:
    """Return whether `person_text` has a word by which the process was found."""
    codes = [code.partition(":") for code in found.how]
    values = [value.casefold() for kind, _, value in codes if value and kind not in _NO_NAMES]
    return any(_mentioned(value, person_text) for value in values)


def _job_data(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "kind": job.kind,
        "pid": job.pid,
        "program": job.program,
        "processes": job.processes,
        "ranks": [{"rank": rank.rank, "pid": rank.pid} for rank in job.ranks[:16]],
        "world_size": job.world_size,
        "runs_for_s": round(job.age_s),
    }


def _alert_data(one: alert_overview.Firing) -> dict[str, Any]:
    return {
        "alert": one.alert.name,
        "severity": one.severity.value if one.severity is not None else None,
        "places": one.places[:3],
        "about": short(one.description, _TEXT),
        "ticket": one.ticket,
    }


def _ticket_data(ticket: Ticket, lang: Lang) -> dict[str, Any]:
    diagnosis = ticket.diagnosis
    cause = load_causes().get(diagnosis.cause or "") if diagnosis is not None else None
    return {
        "ticket": ticket.id,
        "title": ticket_title(ticket, lang),
        "state": ticket.state,
        "closed_as": ticket.closed_as,
        "severity": ticket.severity.value,
        "category": ticket.category,
        "occurrences": ticket.occurrences,
        "created": ticket.created,
        "users": ticket.assignment.users if ticket.assignment is not None else [],
        "verdict": diagnosis.verdict.value if diagnosis is not None else None,
        "cause": cause.title.get(lang) if cause is not None else None,
        "explained_pct": diagnosis.explained_pct if diagnosis is not None and cause is not None else None,
        "remedies": [remedy.text.get(lang) for remedy in cause.remedies[:2]] if cause is not None else [],
        "resolution": short(ticket.resolution, _TEXT),
        "last_comment": short(ticket.human.comments[-1].text, _TEXT) if ticket.human.comments else "",
    }
