"""Answer chat messages: understand the message, answer it, and execute confirmed commands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from whystall.agent_server.app import App
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat import alert_overview, answers, investigations
from whystall.agent_server.integrations.chat.answers import Answers, severities_of
from whystall.agent_server.integrations.chat.assistant import answer_with_model
from whystall.agent_server.integrations.chat.author import Author, author_of
from whystall.agent_server.integrations.chat.commands import CHANGE, expires
from whystall.agent_server.integrations.chat.confirming import Confirming
from whystall.agent_server.integrations.chat.handling import handled_message, may_act_message
from whystall.agent_server.integrations.chat.intents import (
    Intent,
    names_this_host,
    parts_of,
    subject_of,
    understand,
    wanted_of,
)
from whystall.agent_server.integrations.chat.look_up import (
    Found,
    host_lines,
    is_named,
    look_up,
    similar_or_past,
    topic_lines,
)
from whystall.agent_server.integrations.chat.message_texts import outgoing, similar_message
from whystall.agent_server.integrations.chat.pasted_log import log_of, pasted, pasted_message
from whystall.agent_server.integrations.chat.recent import recent_message
from whystall.agent_server.integrations.chat.references import alert_of, chosen_position, ticket_of
from whystall.agent_server.integrations.chat.ticket_words import describing_words, fitting
from whystall.agent_server.integrations.chat.times import when
from whystall.agent_server.integrations.chat.turn import Turn
from whystall.agent_server.integrations.messages import Incoming, Outgoing
from whystall.agent_server.job_lookup.find import choose_rank, find, running_jobs
from whystall.agent_server.job_lookup.models import LISTED, Resolution, Wanted
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import say
from whystall.prompts.intents import intent_rules

CHOOSE = "choose"
_CONTEXT_S = 3600.0  # how long "that" refers to the last subject
_SYMPTOM = 1000


@dataclass(frozen=True)
class Conversation:
    """Answers messages from the knowledge base of `app`. `no_worker`: the caller runs investigations itself
    (`Turn.request`), since no background worker does.
    """

    app: App
    ticket_service: TicketService
    settings: Settings | None
    no_worker: bool = False

    @property
    def _confirming(self) -> Confirming:
        return Confirming(self.app.kb(), self.ticket_service, self.settings)

    async def turn(
        self, incoming: Incoming, now: float, lang: Lang | None = None, llm: bool | None = None
    ) -> tuple[Turn, Author]:
        """Return the answer to `incoming` and its author. `lang`, `llm`: override the settings of the chat. Raises
        `ToolError`.
        """
        kb = self.app.kb()
        key = _key(incoming)
        context = await in_thread(lambda: kb.pending_commands.topic(*key, now - _CONTEXT_S))
        pending = await in_thread(lambda: kb.pending_commands.get(*key, now))
        author = author_of(incoming, self.settings, (pending or context).get("lang"))
        author = replace(author, lang=lang or author.lang, llm=author.llm if llm is None else llm)
        intent = understand(incoming.text)
        turn = await self._turn(intent, author, now, pending, context)
        return turn, author

    def language(self, incoming: Incoming, now: float) -> Lang:
        """Return the language of everything that is sent in answer to `incoming`; see `author_of`. Blocks on the
        database.
        """
        waiting, key = self.app.kb().pending_commands, _key(incoming)
        last = waiting.get(*key, now) or waiting.topic(*key, now - _CONTEXT_S)
        return author_of(incoming, self.settings, last.get("lang")).lang

    async def _turn(
        self, intent: Intent, author: Author, now: float, pending: dict[str, Any] | None, context: dict[str, Any]
    ) -> Turn:
        if (
            pending is not None
            and pending.get("kind") == CHOOSE
            and (chosen := chosen_position(author.incoming.text, pending))
        ):
            return await self._chosen(chosen, author, now, pending)
        if intent.name in ("yes", "no"):
            return self._confirming.confirm(intent.name == "yes", author, now)
        if intent.changes:
            return await self._confirming.request(intent, author, now, context)
        if (log := log_of(author.incoming)) and (turn := await self._pasted(log, author, now, context)) is not None:
            return turn
        if author.llm and intent.name not in _PLAIN:
            return await answer_with_model(self, intent, author, now, context)
        parts = parts_of(author.incoming.text)
        if not parts:
            return await self.answer_query(intent, author, now, context)
        turns = [await self.answer_query(part, author, now, context) for part in parts]
        request = next((turn.request for turn in turns if turn.request is not None), None)

        def act() -> Outgoing:
            messages = [turn.act() for turn in turns]
            return messages[0].model_copy(update={"text": "\n\n".join(message.text for message in messages)})

        return Turn(act, request)

    async def answer_query(self, intent: Intent, author: Author, now: float, context: dict[str, Any]) -> Turn:
        """Return the answer to a read-only question, without a model."""
        kb, lang = self.app.kb(), author.lang
        local = datetime.fromtimestamp(now, author.zone)
        known = Answers(kb, self.settings)
        name = intent.name
        if name == "why":
            return await self._why(intent, author, now, context)
        if name == "jobs":
            return await self._jobs(intent, author, now)
        if name == "follow_up":
            return await self.answer_query(self._followed(known, intent, author, now, context), author, now, context)
        if name == "on_call":
            last = str(context.get("ticket") or "")
            message = await in_thread(lambda: known.on_call(intent, lang, local, author.user, last))
            return self._with_context(message, author, now, context, asked=name)
        if name in ("ticket", "history", "spoken", "chosen"):
            id = ticket_of(intent, context)
            if id is None and (alert := alert_of(intent, context)):
                return await self._retrieve(Intent("about", alert, intent.lang), author, now, context)
            if id is None:
                return _reply(outgoing(lang, [say(lang, "ticket.which")]))
            message = await in_thread(lambda: known.ticket(id, lang, local, name == "history"))
            return self._with_context(message, author, now, context, ticket=id)
        if name == "tickets":
            message, ids = await in_thread(lambda: known.tickets(intent, lang, author.user))
            return self._with_context(message, author, now, context, listed=ids, asked=name)
        if name == "similar":
            return _reply(await in_thread(lambda: self._similar(known, intent, lang, context)))
        if name == "alerts":
            message = await in_thread(lambda: alert_overview.alerts_message(kb, intent.text, lang, local))
            chosen = await in_thread(lambda: alert_overview.chosen_alerts(alert_overview.firing(kb), intent.text))
            listed = alert_overview.listed_tickets(chosen)
            return self._with_context(message, author, now, context, listed=listed, asked=name)
        if name == "silences":
            return _reply(await in_thread(lambda: alert_overview.silences_message(kb.silences, lang, local)))
        if name == "state":
            return await self._state(known, intent, author, now, context)
        if name == "described":
            fit = await in_thread(lambda: fitting(kb, intent.get("about")))
            if len(fit) == 1:
                message = await in_thread(lambda: known.ticket(fit[0].id, lang, local))
                return self._with_context(message, author, now, context, ticket=fit[0].id)
            return await self._retrieve(intent, author, now, context)
        if name == "contact" and (contact := known.contact(intent.text, lang)) is not None:
            return _reply(contact)
        if name in ("recent", "handled", "may_act"):
            found = await in_thread(lambda: _found(known, intent, lang, local, context))
            return self._with_context(found.message, author, now, context, **_shown(found), asked=name)
        if name in ("how_to", "crashed"):
            return await self._how_to(intent, author, now, context)
        if name == "cancel":
            return Turn(lambda: self._cancel(author))
        if name == "status":
            return Turn(lambda: investigations.status(kb.observation_requests, author, local))
        if name == "help":
            rest = say(lang, "help_change" if author.may_change else "help_no_change")
            return _reply(outgoing(lang, [say(lang, "help"), rest], say(lang, "title.help")))
        if name in ("thanks", "undeletable", "observes_only"):
            return _reply(outgoing(lang, [say(lang, name)]))
        return await self._retrieve(intent, author, now, context)

    async def _pasted(self, log: str, author: Author, now: float, context: dict[str, Any]) -> Turn | None:
        """Return what a pasted log states; None if it states nothing."""
        known, lang, local = (
            Answers(self.app.kb(), self.settings),
            author.lang,
            datetime.fromtimestamp(now, author.zone),
        )
        read = await in_thread(lambda: pasted(known, log))
        if read is None:
            return None
        found = await in_thread(lambda: pasted_message(known, read, author.incoming.lines or log, lang, local))
        return self._with_context(found.message, author, now, context, **_shown(found))

    def _followed(self, known: Answers, intent: Intent, author: Author, now: float, context: dict[str, Any]) -> Intent:
        """Return the last question, asked of what a follow-up names; a question about that alone if it does not fit."""
        asked, about = str(context.get("asked", "")), intent.get("about")
        fits = {
            "on_call": known.names_schedule(about, author.lang) or when(about, datetime.now(author.zone)) is not None,
            "tickets": bool(severities_of(about)) or known.names_person(about),
            "alerts": bool(severities_of(about)),
            "state": bool(severities_of(about)),
            "recent": True,
            "handled": True,
        }
        name = asked if fits.get(asked) else "why" if subject_of(about)[1] else "about"
        return Intent(name, about, intent.lang)

    async def _state(self, known: Answers, intent: Intent, author: Author, now: float, context: dict[str, Any]) -> Turn:
        """Return the firing alerts and the open tickets."""
        lang, local = author.lang, datetime.fromtimestamp(now, author.zone)
        alerts = await in_thread(lambda: alert_overview.alerts_message(known.kb, intent.text, lang, local))
        chosen = await in_thread(lambda: alert_overview.chosen_alerts(alert_overview.firing(known.kb), intent.text))
        folded = alert_overview.listed_tickets(chosen)
        of_alerts = [one.ticket for one in chosen if one.ticket]
        tickets, ids = await in_thread(lambda: known.tickets(intent, lang, author.user, of_alerts, worse=True))
        rest = [say(lang, "ticket.other_open" if of_alerts else "ticket.open_ones"), tickets.text]
        text = "\n".join([alerts.text, *(rest if ids or not of_alerts else [])])
        message = alerts.model_copy(update={"text": text})
        return self._with_context(message, author, now, context, listed=[*folded, *ids], asked="state")

    async def _how_to(self, intent: Intent, author: Author, now: float, context: dict[str, Any]) -> Turn:
        """Return what is known about the fault in the question, or diagnose the running job that it names, unless that
        crashed.
        """
        wanted, sure = subject_of(intent.text)
        if intent.name != "crashed" and sure and (await find(wanted, look_s=0)).status != "none":
            return await self._why(intent, author, now, context)
        return await self._retrieve(intent, author, now, context)

    async def _retrieve(
        self, intent: Intent, author: Author, now: float, context: dict[str, Any], *, tried: Sequence[str] = ()
    ) -> Turn:
        """Return what is stored about the words of a message. `tried`: what was looked for on this machine, which it
        names.
        """
        lang, local = author.lang, datetime.fromtimestamp(now, author.zone)
        first = [say(lang, "look_up.not_understood")] if intent.name == "none" else []
        known = Answers(self.app.kb(), self.settings)
        asked = intent.name in ("how_to", "crashed")
        found = await in_thread(lambda: look_up(known, intent.text, lang, local, first=first, last=tried, asked=asked))
        if intent.name == "none" and (turn := await self._offer_job(intent, author, now, found is None)) is not None:
            return turn
        if found is not None:
            return self._with_context(found.message, author, now, context, **_shown(found))
        last = "unknown" if intent.name == "none" else "look_up.nothing"
        return _reply(outgoing(lang, [*tried, say(lang, last), *host_lines(intent.text, lang)]))

    async def _offer_job(self, intent: Intent, author: Author, now: float, slow: bool) -> Turn | None:
        """Return the question whether to observe the running job that the message names; with `slow`, also which one to
        observe if it only states that something is slow; None if it does neither.
        """
        wanted, sure = subject_of(intent.text)
        named = await find(wanted, look_s=0) if sure else None
        if named is not None and named.status != "none" and "close" not in named.how:
            return self.ask_which(named, author, now)
        if not slow or wanted.text or intent_rules().slow.search(intent.text) is None:
            return None
        jobs = await self._any_job(Resolution(status="none"))
        return self.ask_which(jobs, author, now) if jobs.status == "several" else None

    async def _why(self, intent: Intent, author: Author, now: float, context: dict[str, Any]) -> Turn:
        """Diagnose the process that the question names, or ask which one is meant: nothing is diagnosed unnamed."""
        wanted, sure = subject_of(intent.text)
        if not wanted.text and names_this_host(intent.text):
            return self.investigate(None, author, intent.text)
        found = await find(wanted)
        known = Answers(self.app.kb(), self.settings)
        if "close" in found.how and await in_thread(lambda: is_named(known, intent.text)):
            return await self._retrieve(intent, author, now, context)  # a host is named, and no job here is called so
        if found.status == "none" and sure:
            tried = answers.not_found(found, author.lang).text
            return await self._retrieve(intent, author, now, context, tried=[tried])
        if found.status == "none" and wanted.text:  # its only word may be no name
            found = await find(Wanted(rank=wanted.rank))
            wanted = Wanted(rank=wanted.rank)
        if found.status == "found" and wanted.text:
            return self.investigate(found, author, intent.text)
        if found.status == "none" and wanted.rank is None:
            found = await self._any_job(found)
        also = topic_lines(intent.text, author.lang, 1, means=False)
        elsewhere = say(author.lang, "look_up.elsewhere")
        if found.status == "none":
            message = answers.not_found(found, author.lang)
            return _reply(message.model_copy(update={"text": "\n".join([*also, message.text, elsewhere])}))
        return self.ask_which(found, author, now, also, elsewhere)

    async def _any_job(self, none: Resolution) -> Resolution:
        """Return all jobs of this host to choose from; `none`, which found nothing, if there are none."""
        seen, jobs = await in_thread(running_jobs)
        if not jobs:
            return none
        return Resolution(status="several", jobs=jobs[:LISTED], left_out=max(0, len(jobs) - LISTED), missed=seen.missed)

    def investigate(self, found: Resolution | None, author: Author, symptom: str) -> Turn:
        """Start an investigation of the process `found`, or of this host if None."""
        symptom = symptom[:_SYMPTOM]
        if self.no_worker:
            request = investigations.request_for(found, symptom)
            return Turn(lambda: investigations.started_message(request, found, author.lang, self.settings), request)
        return Turn(lambda: investigations.start(self.app.kb(), author, found, symptom, self.settings))

    def ask_which(
        self, found: Resolution, author: Author, now: float, also: Sequence[str] = (), last: str = ""
    ) -> Turn:
        """Ask which of several jobs is meant, or whether the only one is; the answer is a number.
        `also`: lines that precede the question; `last`: a line below it.
        """
        if found.status == "found" and found.job is not None:
            found = found.model_copy(update={"status": "several", "jobs": [found.job]})
        choice = {
            "kind": CHOOSE,
            "jobs": [[job.id, found.pid or job.pid] for job in found.jobs],
            "rank": found.rank,
            "symptom": author.incoming.text[:_SYMPTOM],
            "lang": author.lang,
        }

        def act() -> Outgoing:
            self.app.kb().pending_commands.put(*author.key, choice, expires(now))
            message = answers.which_job(found, author.lang)
            return message.model_copy(update={"text": "\n".join([*also, message.text, *([last] if last else [])])})

        return Turn(act)

    async def _chosen(self, chosen: int, author: Author, now: float, pending: dict[str, Any]) -> Turn:
        """Investigate the chosen process if it still runs."""
        id, pid = pending["jobs"][chosen - 1]
        found = await find(Wanted(pid=int(pid)), look_s=0)
        if found.job is None or found.job.id != id:
            return _reply(
                outgoing(author.lang, [say(author.lang, "looking.ended", say(author.lang, "looking.pid", pid=pid))])
            )
        no_rank = pending.get("rank") is None and len(found.job.ranks) > 1
        how = [f"lowest_rank:{found.rank}"] if no_rank else found.how
        found = await choose_rank(found.model_copy(update={"how": how}))
        turn = self.investigate(found, author, str(pending.get("symptom", "")))

        def act() -> Outgoing:
            self.app.kb().pending_commands.drop(*author.key)
            return turn.act()

        return Turn(act, turn.request)

    async def _jobs(self, intent: Intent, author: Author, now: float) -> Turn:
        text = intent.get("job")
        if text:
            return _reply(
                answers.found_message(await find(wanted_of(text) if " " in text else Wanted(text=text), 0), author.lang)
            )
        seen, shown = await in_thread(running_jobs)
        return _reply(answers.jobs_message(shown[:LISTED], len(shown) - LISTED, seen.missed, author.lang))

    def _cancel(self, author: Author) -> Outgoing:
        kb = self.app.kb()
        waited = kb.pending_commands.get(*author.key, time.time())
        kb.pending_commands.drop(*author.key)
        message = investigations.cancel(kb.observation_requests, author)
        if waited is not None and waited.get("kind") == CHANGE:
            return outgoing(author.lang, [say(author.lang, "dropped")])
        return message

    def _similar(self, known: Answers, intent: Intent, lang: Lang, context: dict[str, Any]) -> Outgoing:
        if id := intent.get("id").lstrip("0"):
            return known.similar_to(id, lang)
        if (text := intent.get("text")) and (words_ := describing_words(text)) and (words_.words or words_.chinese):
            return similar_or_past(known, text, lang)
        if diagnosis := context.get("diagnosis"):
            return similar_message(self.app.kb().get_diagnosis(str(diagnosis)).matches, lang)
        if context.get("ticket"):
            return known.similar_to(str(context["ticket"]), lang)
        return outgoing(lang, [say(lang, "lacks.similar")])

    def _with_context(
        self, message: Outgoing, author: Author, now: float, context: dict[str, Any], **what: object
    ) -> Turn:
        def act() -> Outgoing:
            self.app.kb().pending_commands.put_topic(*author.key, {**context, **what, "lang": author.lang}, now)
            return message

        return Turn(act)


# Intents that never need a model.
_PLAIN = frozenset(
    (
        *("cancel", "status", "help", "thanks", "ticket", "history", "chosen", "alerts", "silences", "state"),
        *("undeletable", "observes_only", "recent", "handled", "may_act", "follow_up"),
        *("described", "contact"),
    )
)


def _key(incoming: Incoming) -> tuple[str, str, str]:
    return incoming.place.channel, incoming.place.conversation, incoming.sender


def _found(known: Answers, intent: Intent, lang: Lang, local: datetime, context: dict[str, Any]) -> Found:
    if intent.name == "recent":
        return recent_message(known.kb, intent.text, lang, local)
    if intent.name == "handled":
        return handled_message(known, intent, context, lang, local)
    return may_act_message(known, intent, lang, local)


def _shown(found: Found) -> dict[str, object]:
    """Return what later messages can refer to: positions in the lists, and the ticket if there is just one."""
    only = {id for id in found.listed if id and not id.startswith(alert_overview.ALERT)}
    return {"listed": found.listed, **({"ticket": only.pop()} if len(only) == 1 else {})}


def _reply(message: Outgoing) -> Turn:
    return Turn(lambda: message)
