"""Answers to read-only questions: who is on call, tickets, past incidents, jobs of this host.

All methods block on the database; call them in a thread.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from whystall.agent_server.incident_search.search import FoundIncidents, search_incidents
from whystall.agent_server.integrations.alerts.related import other_hosts, things_of
from whystall.agent_server.integrations.chat import message_texts as texts
from whystall.agent_server.integrations.chat.intents import Intent
from whystall.agent_server.integrations.chat.message_texts import clock, outgoing
from whystall.agent_server.integrations.chat.times import when
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.job_lookup.models import Job, Missed, Resolution
from whystall.agent_server.presentation.oncall import contacts
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.oncall.on_call import OnCall, on_call, shifts
from whystall.knowledge_base.models import Lang, Match, Words
from whystall.knowledge_base.ticket_models import State
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.intents import intent_rules
from whystall.prompts.quantities import quantity
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

SHOWN = 10
_SORTED = 500  # latest tickets, of which the worst are shown
_AHEAD = timedelta(days=62)
_NEXT = re.compile(r"\bnext\b(?! (?:week|month|mon|tue|wed|thu|fri|sat|sun))|下一[个位班]|接班|接下来|之后是谁", re.I)
_OWN_SHIFT = re.compile(
    r"\bwhen\b.*\b(?:i|my)\b|\bam i\b|\bmy (?:next )?(?:on-call )?(?:shift|turn)\b"
    r"|我.*(?:什么时候|何时|几点|哪天|值班吗)|(?:什么时候|何时|轮到)我",
    re.I,
)
_OWN = re.compile(r"\b(?:my|mine)\b|\b(?:to|for|of|on) me\b|我的|给我的|我(?:名下|手上|手里|负责|在处理)", re.I)
_NAMES = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_SIMILARITY = 0.8
_NAME = 120
_CONTACT = 300
# Words of an on-call question that are no name of a schedule.
_ASKING = frozenset(
    (
        *("who", "whom", "is", "s", "on", "call", "oncall", "on-call", "duty", "the", "for", "at", "now", "right"),
        *("do",),
        *("i", "we", "pager", "has", "have", "shift", "whose", "it", "responsible", "will", "be", "this", "next", "in"),
        *("of", "to", "a", "am", "pm", "page", "contact", "ping", "today", "tonight", "tomorrow", "yesterday", "night"),
        *("morning", "evening", "afternoon", "weekend", "week", "monday", "tuesday", "wednesday", "thursday", "friday"),
        *("saturday", "sunday", "mon", "tue", "wed", "thu", "fri", "sat", "sun", "noon", "midnight", "hours", "hour"),
        *("day", "days", "minutes", "after", "from", "and", "please", "currently", "team", "schedule", "should", "can"),
        *("help", "support", "backup", "this", "that", "me", "us", "wake", "up", "if", "gets", "worse", "tell"),
        *("what", "about", "handles", "handling", "escalate", "ask", "someone", "anyone", "there", "with", "my", "our"),
    )
)


@dataclass(frozen=True)
class Answers:
    """Answers from the knowledge base and the settings. `judge`: a language model may choose among past incidents; not
    where one leads the conversation, since it judges by itself what it is shown.
    """

    kb: Stores
    settings: Settings | None
    judge: bool = True

    def on_call(self, intent: Intent, lang: Lang, now: datetime, user: str = "", ticket: str = "") -> Outgoing:
        """Return who is on call in the schedules and at the time in the question, who is next, to whom it escalates, or
        when `user` is on call. `ticket`: the last one shown, whose schedule is meant if a question about escalation
        names none.
        """
        title = say(lang, "title.on_call")
        schedules = sorted(self.settings.oncall.schedules) if self.settings is not None else []
        if not schedules:
            return outgoing(lang, [say(lang, "on_call.not_set_up")], title)
        chosen, unknown = self._schedules(intent.text, schedules, lang)
        if unknown:
            comma = words(lang)["marks"]["comma"]
            known = Safe(comma.join(name(one) for one in schedules[:SHOWN]))
            return outgoing(lang, [say(lang, "on_call.unknown", name(unknown), known)], title)
        escalates = intent_rules().escalate.search(intent.text) is not None
        if escalates and ticket and not self.names_schedule(intent.text, lang):
            assignment = self.kb.tickets.get(ticket).assignment
            chosen = [assignment.schedule] if assignment and assignment.schedule in schedules else chosen
        at = when(intent.text, now)
        if _OWN_SHIFT.search(intent.text):
            return outgoing(lang, [self._own_shift(user, schedules, lang, now)], title)
        turns = self.on_call_at(chosen[:SHOWN], at or now)
        lines = [self._line_of(turn, lang, at, now) for turn in turns]
        if at is None and _NEXT.search(intent.text):
            after = [(turn.until, self.on_call_at([turn.schedule], turn.until)[0]) for turn in turns if turn.until]
            lines += [self._line_of(turn, lang, until, now) for until, turn in after]
        if escalates:
            lines += [self._steps_of(turn.schedule, lang, at or now) for turn in turns]
        lines += [say(lang, "jobs.more", len(chosen) - SHOWN)] if len(chosen) > SHOWN else []
        return outgoing(lang, [f"- {line}" for line in lines] if len(lines) > 1 else lines, title)

    def on_call_at(self, schedules: Sequence[str], at: datetime) -> list[OnCall]:
        """Return who is on call in each of `schedules` at `at`."""
        assert self.settings is not None  # noqa: S101 - callers have schedules
        overrides = self.kb.overrides.all()
        return [on_call(self.settings.oncall, overrides, schedule, at) for schedule in schedules]

    def names_schedule(self, text: str, lang: Lang) -> bool:
        """Return whether `text` names a schedule that is known, or a category that has one."""
        known = sorted(self.settings.oncall.schedules) if self.settings is not None else []
        return bool(known) and self._named_schedules(text, known, lang) != []

    def contact(self, text: str, lang: Lang) -> Outgoing | None:
        """Return the contacts of the person that `text` names; None if it names no one of the settings."""
        user = self._assignee(text, "", own=False)
        return outgoing(lang, [self.person(user)]) if user else None

    def names_person(self, text: str) -> bool:
        """Return whether `text` names a person of the settings."""
        return bool(self._assignee(text, "", own=False))

    def _named_schedules(self, text: str, known: Sequence[str], lang: Lang) -> list[str]:
        """Return the schedules that `text` names itself, or by a category."""
        assert self.settings is not None  # noqa: S101 - the caller checked
        lowered = {one.lower(): one for one in known}
        tokens = [t.lower() for t in _NAMES.findall(text)]
        if named := [lowered[t] for t in tokens if t in lowered]:
            return list(dict.fromkeys(named))
        meant = [
            c
            for c, word in words(lang)["categories"].items()
            if c != "none" and (str(word).lower() in text.lower() or c in tokens)
        ]
        of_category = [s for c in meant if (s := self.settings.oncall.categories.get(c)) is not None]
        return list(dict.fromkeys(of_category))

    def _schedules(self, text: str, known: Sequence[str], lang: Lang) -> tuple[list[str], str]:
        """Return the schedules that `text` names, or a name in it that is unknown."""
        assert self.settings is not None  # noqa: S101 - the caller checked
        if named := self._named_schedules(text, known, lang):
            return named, ""
        lowered = {one.lower(): one for one in known}
        tokens = [t.lower() for t in _NAMES.findall(text)]
        left = [t for t in tokens if t not in _ASKING and not t.isdigit()]
        for token in left:
            if close := difflib.get_close_matches(token, lowered, 1, _SIMILARITY):
                return [lowered[close[0]]], ""
        after = re.search(r"(?:\bfor|\bof) +(?:the +)?([A-Za-z][\w.-]*)", text, re.I | re.A)
        if after is not None and after[1].lower() in left:
            return [], after[1]
        default = self.settings.oncall.schedule
        return ([default] if default is not None else list(known)), ""

    def _line_of(self, turn: OnCall, lang: Lang, wanted_at: datetime | None, now: datetime) -> Safe:
        at = Safe(clock(wanted_at, now)) if wanted_at is not None else say(lang, "on_call.now")
        if not turn.users:
            return say(lang, "on_call.nobody", schedule=name(turn.schedule), at=at)
        users = Safe(str(words(lang)["marks"]["semicolon"]).join(self.person(user) for user in turn.users))
        until = say(lang, "on_call.until", Safe(clock(turn.until, now))) if turn.until is not None else ""
        return say(lang, "on_call.is", schedule=name(turn.schedule), at=at, users=users, until=until)

    def _steps_of(self, schedule: str, lang: Lang, at: datetime) -> Safe:
        """Return whom a ticket of `schedule` goes to if no one acknowledges it, step by step."""
        assert self.settings is not None  # noqa: S101 - the caller checked
        semicolon = str(words(lang)["marks"]["semicolon"])
        steps = []
        for step in self.settings.oncall.schedules[schedule].escalation:
            users = list(self.settings.oncall.expanded(step.users))
            for turn in self.on_call_at(step.schedules, at):
                users += [user for user in turn.users if user not in users]
            people = Safe(semicolon.join(self.person(user) for user in users)) or Safe("-")
            after = Safe(quantity(step.after.total_seconds(), "s"))
            steps.append(say(lang, "on_call.step", after=after, users=people))
        if not steps:
            return say(lang, "on_call.no_steps", name(schedule))
        return say(lang, "on_call.steps", schedule=name(schedule), steps=Safe(semicolon.join(steps)))

    def _own_shift(self, user: str, schedules: Sequence[str], lang: Lang, now: datetime) -> Safe:
        """Return when `user` is on call next, or now."""
        assert self.settings is not None  # noqa: S101 - the caller checked
        if not user:
            return say(lang, "ticket.not_known")
        overrides = self.kb.overrides.all()
        found = [
            (shift.begins, schedule, shift.ends)
            for schedule in schedules
            for shift in shifts(self.settings.oncall, overrides, schedule, now, now + _AHEAD)
            if user in shift.users
        ]
        if not found:
            return say(lang, "on_call.not_yours", self.person(user), _AHEAD.days)
        begins, schedule, ends = min(found)
        at = say(lang, "on_call.now") if begins <= now else Safe(clock(begins, now))
        until = say(lang, "on_call.until", Safe(clock(ends, now)))
        return say(lang, "on_call.is", schedule=name(schedule), at=at, users=self.person(user), until=until)

    def person(self, user: str) -> Safe:
        """Return the name of `user` with the contacts in the settings."""
        if self.settings is None:
            return name(user)
        return name(short(contacts([user], self.settings)[0], _CONTACT))

    def ticket(self, id: str, lang: Lang, now: datetime, history: bool = False) -> Outgoing:
        """Describe the ticket `id`, with its latest changes if `history`; times are in the zone of `now`."""
        try:
            events = self.kb.tickets.events(id) if history else ()
            ticket = self.kb.tickets.get(id)
            elsewhere = next(iter(other_hosts(things_of(ticket.labels))), "")
            return texts.ticket_message(ticket, lang, now, events, elsewhere)
        except ToolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return outgoing(lang, [say(lang, "ticket.there_is_none", name(id))])

    def tickets(
        self, intent: Intent, lang: Lang, user: str, but: Sequence[str] = (), *, worse: bool = False
    ) -> tuple[Outgoing, list[str]]:
        """Return the tickets with the states, severities and assignee in the question, the worst first, and the ids
        shown. `but`: tickets to leave out; `worse`: also those of worse severities.
        """
        own = _OWN.search(intent.text) is not None
        whose = self._assignee(intent.text, user, own)
        if own and whose is None:
            return outgoing(lang, [say(lang, "ticket.not_known")], say(lang, "title.tickets")), []
        severities = severities_of(intent.text)
        if worse and severities:
            least = min(severity.rank for severity in severities)
            severities = tuple(severity for severity in Severity if severity.rank >= least)
        wanted = Wanted(states=states_of(intent.text), severities=severities, assignee=whose)
        found = [line for line in self.kb.tickets.lines(wanted, _SORTED) if line.id not in but]
        lines = sorted(found, key=lambda line: -line.severity.rank)[:SHOWN]
        total = len(found) if but else self.kb.tickets.count(wanted)
        return texts.tickets_message(lines, total, lang), [line.id for line in lines]

    def _assignee(self, text: str, user: str, own: bool) -> str | None:
        """Return the assignee that is meant: "" for unassigned tickets, None for all."""
        if own:
            return user or None
        if re.search(r"\bunassigned\b|\bnobody\b|无人(?:负责|认领|处理)|没人|未分配|未指派", text, re.I):
            return ""
        lowered = text.lower()
        people = self.settings.users if self.settings is not None else {}
        for name_, person in people.items():
            called = [name_.lower(), *([person.name.lower()] if person.name else [])]
            if any(re.search(rf"(?<![a-z0-9_.-]){re.escape(one)}(?![a-z0-9_-])", lowered) for one in called):
                return name_
        return None

    def similar(self, text: str, lang: Lang) -> Outgoing:
        """Return past incidents that share words with `text`."""
        found = self.incidents(text, 3, lang)
        return texts.similar_message(found.matches, lang, found.notes)

    def incidents(self, text: str, limit: int, lang: Lang) -> FoundIncidents:
        """Return past incidents for `text`, with the fixes of reviewed cards; see `search_incidents`."""
        found = search_incidents(self.kb, text, limit, lang, judge=self.judge)
        fixed = [match.model_copy(update={"fix": self.fix(match)}) for match in found.matches]
        return FoundIncidents(fixed, found.notes)

    def similar_to(self, id: str, lang: Lang) -> Outgoing:
        """Return past incidents similar to the ticket `id`: by its diagnosis, else by its text."""
        try:
            ticket = self.kb.tickets.get(id)
        except ToolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return outgoing(lang, [say(lang, "ticket.there_is_none", name(id))])
        if ticket.diagnosis is not None:
            return texts.similar_message(ticket.diagnosis.matches, lang)
        if ticket.analysis is not None:
            found = [match.model_copy(update={"fix": self.fix(match)}) for match in ticket.analysis.matches]
            return texts.similar_message(found, lang)
        text = f"{ticket.human.title} {ticket.human.description}".strip()
        return self.similar(text, lang) if text else texts.similar_message([], lang)

    def fix(self, match: Match) -> Words | None:
        """Return the fix of the incident if its card was reviewed."""
        return self.kb.cards.get(match.incident).fix if match.state == "reviewed" else None


def states_of(text: str) -> tuple[State, ...]:
    """Return the states in `text`; by default open and acknowledged, for "all" none (no filter)."""
    patterns: tuple[tuple[str, State], ...] = (
        (r"\backnowledged\b|\backed\b|处理中|已认领|已确认", "acknowledged"),
        (r"(?<!un)(?<!not )\bresolved\b|(?<!未)已?解决", "resolved"),
        (r"\bclosed\b|已关闭|已结单", "closed"),
    )
    found = tuple(
        state for pattern, state in patterns if re.search(pattern, text, re.I) and not _negated(pattern, text)
    )
    if re.search(r"\b(?:all|every)\b(?!.*\bopen\b)|所有|全部", text, re.I) and not found:
        return ()
    return found or ("open", "acknowledged")


def severities_of(text: str) -> tuple[Severity, ...]:
    """Return the severities in `text`; empty: all."""
    patterns: tuple[tuple[str, Severity], ...] = (
        (r"\bcriticals?\b|\burgent\b|危急|紧急|致命|\bp0\b", Severity.CRITICAL),
        (r"\bmajors?\b|\b(?:serious|severe)\b|(?<!不)严重|\bp1\b", Severity.MAJOR),
        (r"\bminor\b|轻微", Severity.MINOR),
    )
    return tuple(severity for pattern, severity in patterns if re.search(pattern, text, re.I | re.A))


def _negated(pattern: str, text: str) -> bool:
    return re.search(rf"(?:not|n't|没有?|未|还没)[ 被]*(?:{pattern})", text, re.I) is not None


# --- jobs -----------------------------------------------------------------------------------------------------------


def job_line(job: Job, lang: Lang, n: int) -> Safe:
    ranks = _ranks(job, lang)
    age = say(lang, "jobs.age", Safe(quantity(job.age_s, "s"))) if job.age_s >= 1 else ""
    program = name(short(job.program, _NAME))
    return say(lang, "jobs.line", n=n, job=_label(job), pid=job.pid, program=program, ranks=ranks, age=age)


def _label(job: Job) -> Safe:
    kind, _, key = job.id.partition(":")
    label = name(short(job.name, _NAME))
    return label if kind in ("process", "run") else Safe(f"{label} ({name(short(f'{kind} {key}', _NAME))})")


def _ranks(job: Job, lang: Lang) -> Safe:
    if job.ranks:
        of = say(lang, "jobs.of", job.world_size) if job.world_size and job.world_size != len(job.ranks) else ""
        return say(lang, "jobs.ranks", here=len(job.ranks), of=of)
    return say(lang, "jobs.processes", job.processes) if job.processes > 1 else Safe("")


def jobs_message(jobs: Sequence[Job], left: int, missed: Missed, lang: Lang) -> Outgoing:
    """List the jobs of this host; `left`: how many more there are."""
    title = say(lang, "title.jobs")
    if not jobs:
        return outgoing(lang, [say(lang, "jobs.nothing"), *missed_lines(missed, lang)], title)
    lines: list[str] = [say(lang, "jobs.list")]
    lines += [job_line(job, lang, n) for n, job in enumerate(jobs, 1)]
    lines += [say(lang, "jobs.more", left)] if left > 0 else []
    return outgoing(lang, [*lines, *missed_lines(missed, lang)], title)


def found_message(found: Resolution, lang: Lang) -> Outgoing:
    """Return the answer to a question about a job that requests no investigation."""
    title = say(lang, "title.jobs")
    if found.status == "several":
        return which_job(found, lang, waits=False)
    if found.job is None or found.pid is None:
        return not_found(found, lang)
    rank = say(lang, "jobs.rank", found.rank) if found.rank is not None else ""
    line = say(
        lang, "jobs.found", job=_label(found.job), pid=found.pid, program=name(short(found.job.program, _NAME)),
        rank=rank, more=_ranks(found.job, lang),
    )  # fmt: skip
    return outgoing(lang, [line, *missed_lines(found.missed, lang)], title)


def which_job(found: Resolution, lang: Lang, waits: bool = True) -> Outgoing:
    """List several matching jobs; `waits`: and ask which one is meant."""
    close = "close" in found.how
    head = ("jobs.close" if close else "jobs.several") if waits else ("jobs.like" if close else "jobs.fitting")
    lines: list[str] = [say(lang, head)]
    lines += [job_line(job, lang, n) for n, job in enumerate(found.jobs, 1)]
    lines += [say(lang, "jobs.more", found.left_out)] if found.left_out else []
    return outgoing(lang, [*lines, *missed_lines(found.missed, lang)], say(lang, "title.question"))


def not_found(found: Resolution, lang: Lang) -> Outgoing:
    """Return that no job matches, what was tried, and what could not be read."""
    elsewhere = next((code for code in found.tried if code.startswith("elsewhere:")), None)
    if elsewhere is not None:
        return outgoing(lang, [say(lang, "jobs.elsewhere", name(elsewhere.partition(":")[2]))])
    lines: list[str] = [say(lang, "jobs.none", texts.tried(found.tried, lang))]
    lines += missed_lines(found.missed, lang)
    lines += [job_line(job, lang, n) for n, job in enumerate(found.jobs, 1)]
    return outgoing(lang, lines, say(lang, "title.jobs"))


def missed_lines(missed: Missed, lang: Lang) -> list[str]:
    """Return what the inventory could not read, besides processes that have ended."""
    return [
        say(lang, f"jobs.missed.{what}", count)
        for what, count in (("denied", missed.denied), ("beyond", missed.beyond))
        if count
    ]
