"""Texts of chat messages in both languages: verdicts, tickets, past incidents. Pure.

They are short, since they are read on phones, but always name what could not be observed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from whystall.agent_server.incident_search.search import SearchNote
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.presentation.match_lines import note_texts
from whystall.agent_server.presentation.texts import brief
from whystall.agent_server.presentation.ticket_texts import assigned_markdown, history_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Lang, Match, Verdict
from whystall.knowledge_base.ticket_models import Event, Line, Ticket
from whystall.knowledge_base.times import moment
from whystall.prompts.chat import chat_words, name, say
from whystall.prompts.errors import code_text
from whystall.prompts.escape import Safe, markdown, short
from whystall.prompts.render import voice, words

_UNSEEN = 2
_FULL_STOP = re.compile(r"[.。]$")
_TITLE = 160
_NAME = 120
_TEXT = 400
_REPORTED = 200
_SHOWN = 10
_ROWS = 3  # of the account of the victim's time


def outgoing(lang: Lang, lines: Sequence[str], title: str = "", picture: str | None = None) -> Outgoing:
    """Return a message of the non-empty `lines`."""
    text = "\n".join(line for line in lines if line)
    return Outgoing(title=short(title or str(say(lang, "title.answer")), 200), text=text, picture=picture, lang=lang)


# --- diagnoses ------------------------------------------------------------------------------------------------------


def verdict_message(
    diagnosis: Diagnosis, lang: Lang, ticket: Ticket | None = None, picture: str | None = None
) -> Outgoing:
    """Return the message about a diagnosis. `picture`: its uri."""
    culprit = diagnosis.culprit
    if culprit is not None:  # too long for a phone; the ticket has it
        culprit = culprit.model_copy(update={"kernel_path": None})
    view = brief(diagnosis.model_copy(update={"culprit": culprit}), load_causes(), lang)
    known = words(lang)
    cause, verdict = view["cause"], known["verdicts"][diagnosis.verdict.value]
    separator = known["marks"]["semicolon"]
    if cause is not None:
        lines = [say(lang, "verdict.cause", verdict=verdict, cause=view["headline"])]
    else:
        line = known["verdict_lines"][diagnosis.verdict.value]
        lines = [say(lang, "verdict.no_cause", verdict=verdict, line=line)]
    for part in ("who", "where", "how_long"):
        if value := view["victim" if part == "who" else part]:
            lines.append(say(lang, f"verdict.{part}", value))
    if view["busy"]:
        lines.append(view["busy"])
    if rows := view["account"].rows[:_ROWS]:
        lines.append(Safe("\n".join([known["path"]["account_short"], *(f"- {row}" for row in rows)])))
    if view["fixes"]:
        lines.append(say(lang, "verdict.try", view["fixes"][0]))
    if not diagnosis.verdict.no_fault and (like := _similar(diagnosis.matches, lang)):
        lines.append(say(lang, "verdict.similar", like))
    if diagnosis.verdict in (Verdict.INCONCLUSIVE, Verdict.LIKELY, Verdict.IDLE) and diagnosis.missing:
        lacked = [voice("md", lang).missing(code) for code in diagnosis.missing[:_UNSEEN]]
        lines.append(say(lang, "verdict.lacked", _joined(lacked, separator)))
    if view["blind"]:
        left = len(view["blind"]) - _UNSEEN
        more = [say(lang, "jobs.more", left)] if left > 0 else []
        lines.append(say(lang, "verdict.unseen", _joined([*view["blind"][:_UNSEEN], *more], separator)))
    number = ticket.id if ticket is not None else diagnosis.ticket
    if number is not None:
        lines.append(say(lang, "verdict.ticket", id=number))
    title = say(lang, "title.verdict", verdict, view["headline"] if cause else diagnosis.target)
    return outgoing(lang, [f"{line}\n" for line in lines], title, picture)


def _joined(sentences: Sequence[Safe], separator: str) -> Safe:
    """Join sentences into one, without their full stops."""
    return Safe(separator.join(_FULL_STOP.sub("", sentence) for sentence in sentences))


def no_look_message(ticket: Ticket, code: str, why: Sequence[str], lang: Lang) -> Outgoing:
    """Return why there is no diagnosis of `ticket`: `code` is a key of ``no_look`` or ``failed:CODE``; `why`: codes of
    the job lookup.
    """
    lines = [say(lang, "no_look.line", ticket=ticket_name(ticket, lang), why=_why_no_look(code, lang))]
    if why:
        lines.append(say(lang, "no_look.tried", tried(why, lang)))
    return outgoing(lang, lines, say(lang, "title.ticket", ticket.id))


def responsible_line(people: Sequence[str], lang: Lang) -> Safe:
    """Return a line with the assignees of a ticket and their contacts."""
    comma: str = words(lang)["marks"]["semicolon"]
    return say(lang, "ticket.responsible", Safe(comma.join(markdown(person) for person in people)))


def _why_no_look(code: str, lang: Lang) -> Safe:
    """Return why there is no diagnosis; `code` as of `no_look_message`."""
    kind, _, detail = code.partition(":")
    known = chat_words(lang)["no_look"]
    if kind == "failed" or kind not in known:
        return say(lang, "no_look.failed", code_text(lang, detail or kind))
    return say(lang, f"no_look.{kind}", *([detail] if "{}" in known[kind] else []))


def tried(codes: Sequence[str], lang: Lang) -> Safe:
    """Describe the codes of what a job lookup tried."""
    kinds = chat_words(lang)["tried"]
    phrases = []
    for code in codes[:_SHOWN]:
        kind, _, value = code.partition(":")
        shown = name(short(value, _NAME)) if value else Safe("")
        phrases.append(say(lang, f"tried.{kind}", shown) if kind in kinds else name(short(code, _NAME)))
    comma: str = words(lang)["marks"]["comma"]
    return Safe(comma.join(dict.fromkeys(phrases)))


def _similar(matches: Sequence[Match], lang: Lang) -> Safe | None:
    best = next((match for match in matches if match.known and not match.weak), None)
    if best is None:
        return None
    fix = f"; {best.fix.get(lang)}" if best.fix else ""
    return markdown(short(f"{best.title.get(lang)}{fix}", _TEXT))


# --- tickets --------------------------------------------------------------------------------------------------------


def ticket_title(ticket: Ticket, lang: Lang) -> str:
    """Return the plain title of a ticket: as entered, else its cause, else what was diagnosed."""
    if ticket.human.title:
        return short(ticket.human.title, _TITLE)
    if ticket.diagnosis is not None:
        cause = load_causes().get(ticket.diagnosis.cause or "")
        return cause.title.get(lang) if cause else _unexplained(ticket.diagnosis.target, lang)
    return ticket.component


def _unexplained(target: str, lang: Lang) -> str:
    """Return the title of a stall without a known cause."""
    known = words(lang)
    return short(f"{known['labels']['no_cause']}{known['marks']['colon']}{target}", _TITLE)


def ticket_name(ticket: Ticket, lang: Lang) -> Safe:
    """Return ``ticket 12 (its title)``."""
    return say(lang, "ticket.name", id=ticket.id, title=ticket_title(ticket, lang))


def ticket_line(ticket: Ticket, lang: Lang) -> Safe:
    """Return the line of `ticket` in a list."""
    users = ticket.assignment.users if ticket.assignment is not None else []
    return _list_line(ticket, ticket_title(ticket, lang), users[0] if users else None, lang)


def _list_line(ticket: Ticket | Line, title: str, user: str | None, lang: Lang) -> Safe:
    known = words(lang)
    return say(
        lang,
        "ticket.line",
        id=ticket.id,
        state=known["states"][ticket.state],
        severity=known["severities"][ticket.severity.value],
        title=title,
        who=say(lang, "ticket.who", name(user)) if user else say(lang, "ticket.nobody"),
    )


def which_ticket(tickets: Sequence[Ticket], about: str, fit: bool, lang: Lang) -> Outgoing:
    """Return the question which of `tickets` is meant. `fit`: they fit the words `about`; else none does."""
    first = say(lang, "ticket.no_fit", name(short(about, _NAME))) if about and not fit else ""
    lines = [first, say(lang, "ticket.several" if fit else "ticket.which")]
    more = len(tickets) - _SHOWN
    lines += [f"- {ticket_line(one, lang)}" for one in tickets[:_SHOWN]]
    return outgoing(lang, [*lines, *([f"- {say(lang, 'ticket.more', more)}"] if more > 0 else [])])


def past_line(ticket: Ticket, lang: Lang) -> Safe:
    """Return the line of an ended ticket: what it was and what ended it."""
    known = words(lang)
    why = say(lang, "ticket.resolution", short(ticket.resolution, _TEXT)) if ticket.resolution else Safe("")
    return say(
        lang,
        "ticket.past",
        id=ticket.id,
        state=known["states"][ticket.state],
        at=Safe((ticket.ended or ticket.updated)[:10]),
        title=ticket_title(ticket, lang),
        why=why,
    )


def ticket_message(
    ticket: Ticket, lang: Lang, now: datetime, history: Sequence[Event] = (), elsewhere: str = ""
) -> Outgoing:
    """Describe a ticket: state, assignee, diagnosis, last comment, and the latest changes of its `history`. Times are
    in the zone of `now`. `elsewhere`: the other host that it concerns, where it must be diagnosed.
    """
    known = words(lang)
    lines: list[str] = [ticket_name(ticket, lang)]
    closed = chat_words(lang)["closed_as"].get(ticket.closed_as or "")
    state = known["states"][ticket.state]
    sort = [known["severities"][ticket.severity.value]]
    if ticket.category not in ("unknown", "none"):
        sort.append(known["categories"].get(ticket.category) or name(ticket.category))
    lines.append(
        say(
            lang,
            "ticket.state",
            state=Safe(f"{state} ({closed})") if closed else state,
            kind=Safe(known["marks"]["comma"].join(sort)),
            created=_local(ticket.created, now),
            times=ticket.occurrences,
        )
    )
    assignment = ticket.assignment
    if assignment is not None and assignment.users:
        lines.append(say(lang, "ticket.has", assigned_markdown(assignment, lang)))
    else:
        lines.append(say(lang, "ticket.no_one"))
    if ticket.human.description:
        lines.append(say(lang, "ticket.reported", short(" ".join(ticket.human.description.split()), _REPORTED)))
    diagnosis = ticket.diagnosis
    if diagnosis is not None:
        cause = load_causes().get(diagnosis.cause or "")
        shown = Safe(cause.title.get(lang)) if cause else known["labels"]["no_cause"]
        lines.append(say(lang, "ticket.verdict", verdict=known["verdicts"][diagnosis.verdict.value], cause=shown))
        if cause and (fix := next(iter(sorted(cause.remedies, key=lambda r: (-r.gain, r.effort))), None)):
            lines.append(say(lang, "verdict.try", Safe(fix.text.get(lang))))
    else:
        code = (ticket.analysis.triage if ticket.analysis else "") or (f"elsewhere:{elsewhere}" if elsewhere else "")
        known_codes = chat_words(lang)["no_look"]
        why = _why_no_look(code, lang) if code.partition(":")[0] in known_codes else ""
        lines.append(say(lang, "ticket.no_diagnosis", why or say(lang, "ticket.not_looked")))
    if ticket.human.comments:
        last = ticket.human.comments[-1]
        lines.append(say(lang, "ticket.said", by=name(last.by), said=short(last.text, _TEXT)))
    if ticket.resolution:
        lines.append(say(lang, "ticket.resolution", short(ticket.resolution, _TEXT)))
    lines += [say(lang, "ticket.links", kind=name(remote.sink), id=name(remote.ref)) for remote in ticket.remotes[:3]]
    if history:
        local = [event.model_copy(update={"at": _local(event.at, now)}) for event in history]
        lines.append(Safe("\n".join([say(lang, "ticket.history"), *history_items(local, lang)])))
    return outgoing(lang, [f"{line}\n" for line in lines], say(lang, "title.ticket", ticket.id))


def history_items(history: Sequence[Event], lang: Lang) -> list[str]:
    """Return the latest changes as a list."""
    return [f"- {line}" for line in history_markdown(history, lang, _SHOWN)]


def _local(at: str, now: datetime) -> str:
    """Return the RFC 3339 time `at` in the zone of `now`; as it is if it is no time."""
    found = moment(at)
    return at if found is None else clock(found, now)


def clock(at: datetime, now: datetime) -> str:
    """Return `at` with date and zone, in the zone of `now`."""
    local = at.astimezone(now.tzinfo)
    return f"{local:%Y-%m-%d %H:%M} {local:%Z}".strip()


def tickets_message(lines_of: Sequence[Line], total: int, lang: Lang) -> Outgoing:
    """List tickets; `total`: how many match."""
    if not lines_of:
        return outgoing(lang, [say(lang, "ticket.none")], say(lang, "title.tickets"))
    shown = lines_of[:_SHOWN]
    lines: list[str] = [f"- {_list_line(one, line_title(one, lang), one.assignee, lang)}" for one in shown]
    if total > len(lines):
        lines.append(f"- {say(lang, 'ticket.more', total - len(lines))}")
    return outgoing(lang, lines, say(lang, "title.tickets"))


def line_title(line: Line, lang: Lang) -> str:
    """Return the title of a ticket in a list."""
    cause = load_causes().get(line.cause)
    if line.title:
        return short(line.title, _TITLE)
    if cause is not None:
        return cause.title.get(lang)
    return _unexplained(line.target, lang) if line.target else line.component


# --- past incidents -------------------------------------------------------------------------------------------------


def similar_message(matches: Sequence[Match], lang: Lang, notes: Sequence[SearchNote] = ()) -> Outgoing:
    """List past incidents with their fixes, weak matches only if there are no others or a model chose one; then the
    `notes` on how they were searched for.
    """
    title = say(lang, "title.similar")
    if not matches:
        return outgoing(lang, [say(lang, "similar.none"), *note_texts(notes, "md", lang)], title)
    fitting = [match for match in matches if not match.weak or match.judged]
    lines: list[str] = [] if fitting else [say(lang, "similar.weak")]
    for match in (fitting or matches)[:3]:
        fix = short(match.fix.get(lang), _TEXT) if match.fix else say(lang, "similar.no_fix")
        lines.append(say(lang, "similar.line", title=match.title.get(lang), id=name(match.incident), fix=fix))
    return outgoing(lang, [*lines, *note_texts(notes, "md", lang)], title)
