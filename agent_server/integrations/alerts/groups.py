"""Flush groups of alerts that are due: file one ticket per group and notify the chats of its receiver.

The schedule is Alertmanager's (prometheus/alertmanager, dispatch/group.go and notify's DedupStage): the first flush
after ``group_wait``, then at most one per ``group_interval``. A flush notifies of new firing alerts, of all firing
alerts again after ``repeat_interval``, and of the end of the last one. Unlike Alertmanager, a resolved alert closes its
ticket even while it is silenced.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import monotonic
from typing import Literal

from whystall.agent_server.integrations.alerts.muting import Inhibitor, Muting, chunks
from whystall.agent_server.integrations.alerts.receivers import Receiver
from whystall.agent_server.integrations.alerts.regrouping import move
from whystall.agent_server.integrations.alerts.related import relate
from whystall.agent_server.integrations.alerts.reports import (
    Summary,
    What,
    flood_report,
    joined,
    message,
    report,
    summary_of,
)
from whystall.agent_server.integrations.alerts.routefile import Routes, check_names, load
from whystall.agent_server.integrations.alerts.tree import Node, match
from whystall.agent_server.integrations.chat_vendors import vendor
from whystall.agent_server.integrations.messages import Place
from whystall.agent_server.journal.alerts import Group, Member
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.stall_tickets import diagnosed_ticket
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.ticket_models import LIVE, Ticket
from whystall.knowledge_base.times import moment
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

BY = "alerts"
"""The actor in the histories of tickets and in the audit log."""
FLOOD_S = 600.0
_FLOOD_UPDATE_S = 60.0  # minimum between two updates of a flood ticket
_BATCH, _BATCH_S = 200, 0.25  # limits of one transaction, which blocks other writers
_RETRY_S = 60.0
_log = logging.getLogger("whystall.alerts")


@dataclass(frozen=True)
class Flushed:
    """The result of flushing one group.

    `what`: the notification; ``nothing``; ``held`` (all new alerts are muted); ``moved`` (the routes changed and the
    alerts are in other groups now); ``gone`` (no such group); ``put_off`` (retried after an error).
    `notified`, `muted`: numbers of alerts.
    """

    id: str
    what: What | Literal["nothing", "held", "moved", "gone", "put_off"]
    ticket: str | None = None
    new: bool = False
    notified: int = 0
    muted: int = 0


@dataclass
class _Members:
    """The members of a group by state.

    `new`: firing, not yet notified; `notified`: firing, notified before; `muted`: fingerprints of both that are muted;
    `resolved`: resolved after their notification; `resolved_unnotified`: resolved before one; `stale`: never resolved,
    but not repeated by the sender for `quiet_hours`.
    """

    new: list[Member] = field(default_factory=list)
    notified: list[Member] = field(default_factory=list)
    muted: dict[str, None] = field(default_factory=dict)
    resolved: list[Member] = field(default_factory=list)
    resolved_unnotified: list[Member] = field(default_factory=list)
    stale: list[Member] = field(default_factory=list)

    def unmuted(self, members: list[Member]) -> list[Member]:
        return [m for m in members if m.fingerprint not in self.muted]


class Groups:
    """The groups of `kb`. Each flush is one transaction, so an interrupted one is repeated as a whole."""

    def __init__(self, kb: Stores, settings: Settings, routes: Routes | None = None) -> None:
        """Use `routes`, or those of the settings if None.

        Raises `ToolError` (bad_argument) on an invalid route file, or if a receiver names something that the settings
        do not define, or a chat channel without a conversation to post to.
        """
        self._kb = kb
        self._settings = settings
        self._routes = load(settings.alerts.routes) if routes is None else routes
        names = (set(settings.sinks), set(settings.oncall.schedules), set(settings.chat))
        check_names(self._routes, *names, settings.alerts.routes)
        self._ticket_service = TicketService(kb, settings)
        self._destinations = {
            name: self._destinations_of(receiver) for name, receiver in self._routes.receivers.items()
        }
        self._inhibitor = Inhibitor(kb.alerts, self._routes.inhibit)

    def due(self, now: float, limit: int = 100) -> list[str]:
        """Return the ids of groups that are due, oldest due time first."""
        return self._kb.alerts.due(now, limit)

    def next_due(self, now: float) -> float | None:
        """Return when the next group is due, or None without groups."""
        return self._kb.alerts.next_due(now)

    def forget(self, now: float) -> int:
        """Delete alerts that were resolved more than `keep_days` ago; return how many."""
        return self._kb.alerts.forget(now - 86_400.0 * self._settings.alerts.keep_days)

    def work(self, now: float) -> list[Flushed]:
        """Flush due groups in one transaction of limited length; return the results, empty if none is due.

        A group whose flush fails is audited and retried after a minute; the others are still flushed. Raises
        `ToolError` (database, disk_full) if the transaction cannot be committed.
        """
        done: list[Flushed] = []
        until = monotonic() + _BATCH_S
        with self._kb.transaction():
            for id in self.due(now, _BATCH):
                try:
                    done.append(self.flush(id, now))
                except Exception as error:
                    _log.exception("group %s of alerts cannot be processed", id)
                    self._postpone(id, now, error)
                    done.append(Flushed(id, "put_off"))
                if monotonic() > until:
                    break
        return done

    def _postpone(self, id: str, now: float, error: Exception) -> None:
        group = self._kb.alerts.group(id)
        if group is not None:
            self._kb.alerts.put_group(group.model_copy(update={"due": now + _RETRY_S, "wait": _RETRY_S}))
            self._kb.audit.put(
                BY, "alerts.put_off", f"group:{id}", type(error).__name__, {"why": clean(str(error), 500)}
            )

    def flush(self, id: str, now: float) -> Flushed:
        """Notify what is new in the group `id` and schedule its next flush."""
        with self._kb.transaction():
            group = self._kb.alerts.group(id)
            if group is None:
                return Flushed(id, "gone")
            node = self._routes.node(group.route, group.receiver)
            if node is None or not self._still_routed(group, node):
                return self._regroup(group, now)
            return self._dispatch(group, node, now)

    def _dispatch(self, group: Group, node: Node, now: float) -> Flushed:
        muting = Muting(self._kb.silences, self._routes, self._inhibitor, now)
        members = self._classify(group, node, muting, now)
        receiver = self._routes.receivers[node.options.receiver]
        new_alerts, notified = members.unmuted(members.new), members.unmuted(members.notified)
        repeat = group.told is None or group.told > now or now - group.told >= node.options.repeat_interval
        done = Flushed(group.id, "held" if members.muted else "nothing", group.ticket, muted=len(members.muted))
        if new_alerts:
            group, done = self._notify_firing(group, receiver, members, "more" if members.notified else "first", now)
        elif members.resolved and not members.notified and not members.stale:
            group, done = self._notify_resolved(group, receiver, members, now)
        elif notified and repeat:
            group, done = self._repeat(group, receiver, members, now)
        gone = [m.fingerprint for m in (*members.resolved, *members.resolved_unnotified, *members.stale)]
        self._kb.alerts.remove_members(group.id, gone, group.ticket)
        self._schedule_next(group, node, members, now)
        return done

    def _classify(self, group: Group, node: Node, muting: Muting, now: float) -> _Members:
        members = _Members()
        oldest = now - 3600.0 * self._settings.alerts.quiet_hours
        for member in self._kb.alerts.members(group.id):
            if member.status == "resolved":
                (members.resolved if member.notified else members.resolved_unnotified).append(member)
            elif member.seen < oldest:
                members.stale.append(member)
            else:
                (members.notified if member.notified else members.new).append(member)
        firing = [*members.new, *members.notified]
        if muting.route(node) is not None:
            members.muted = dict.fromkeys(m.fingerprint for m in firing)
        elif muting.by_labels:
            for chunk in chunks(self._kb.alerts.bodies([m.n for m in firing])):
                muting.learn([stored.alert.labels for stored in chunk])
                for stored in chunk:
                    if muting.alert(stored.alert.labels, stored.alert.fingerprint) is not None:
                        members.muted[stored.alert.fingerprint] = None
        return members

    def _schedule_next(self, group: Group, node: Node, members: _Members, now: float) -> None:
        """Store when the group is due next; delete it if nothing fires."""
        if not members.new and not members.notified:
            self._kb.alerts.delete_group(group.id)
            return
        options = node.options
        again = options.group_interval
        if not members.muted and group.told is not None:
            again = max(again, group.told + options.repeat_interval - now)
        self._kb.alerts.put_group(group.model_copy(update={"flushed": now, "due": now + again, "wait": again}))

    def _notify_firing(
        self, group: Group, receiver: Receiver, members: _Members, what: What, now: float
    ) -> tuple[Group, Flushed]:
        new_alerts = members.unmuted(members.new)
        summary = self._summary([*new_alerts, *members.unmuted(members.notified)])
        at = datetime.fromtimestamp(now, timezone.utc)
        live = self._live(group) or self._watched(summary, now) if receiver.ticket else None
        first = live is None if receiver.ticket else what == "first"
        limit = self._settings.alerts.flood
        flood = self._first_notifications(receiver, now) >= limit if first else group.flood
        ticket: Ticket | None = None
        new = False
        if receiver.ticket and flood:
            ticket, new = self._flood(receiver, summary, at)
        elif receiver.ticket:
            key = live.dedup_key if live is not None else None
            detail = joined(self._summary(new_alerts), group.truncated)
            filed = self._ticket_service.file(report(group, receiver, summary, at, key), BY, at, detail=detail)
            ticket = relate(self._kb, filed.ticket, summary.things, at, self._settings.alerts.related_minutes)
            new = filed.new
        number = ticket.id if ticket is not None else None
        triage = bool(new and not flood and receiver.triage)
        if triage and number is not None:
            self._triage(number, receiver)
        group = group.model_copy(update={"told": now, "ticket": number, "flood": flood})
        self._kb.alerts.mark_notified(group.id, [m.fingerprint for m in new_alerts], number)
        if first:
            self._kb.alerts.add_first_notification(receiver.name, group.id, now)
        if not flood:
            self._queue_messages(what, group, receiver, summary, members, now, triage)
        elif new or (not receiver.ticket and self._first_notifications(receiver, now) == limit + 1):
            self._queue_messages("flood", group, receiver, summary, members, now, triage)
        return group, Flushed(group.id, "flood" if flood else what, number, new, len(new_alerts), len(members.muted))

    def _repeat(self, group: Group, receiver: Receiver, members: _Members, now: float) -> tuple[Group, Flushed]:
        """Remind of alerts that still fire.

        A ticket that was resolved meanwhile gets a successor; one that was closed otherwise (no fault, will not be
        fixed) is left alone.
        """
        ticket = self._ticket(group)
        if receiver.ticket and ticket is not None and ticket.state not in LIVE:
            if ticket.state == "closed" and ticket.closed_as != "fixed":
                group = group.model_copy(update={"told": now})
                return group, Flushed(group.id, "nothing", group.ticket, muted=len(members.muted))
            members.new, members.notified = [*members.new, *members.notified], []
            return self._notify_firing(group, receiver, members, "repeat", now)
        group = group.model_copy(update={"told": now})
        notified = members.unmuted(members.notified)
        if not group.flood:
            self._queue_messages("repeat", group, receiver, self._summary(notified), members, now)
        return group, Flushed(group.id, "repeat", group.ticket, False, len(notified), len(members.muted))

    def _notify_resolved(
        self, group: Group, receiver: Receiver, members: _Members, now: float
    ) -> tuple[Group, Flushed]:
        """Resolve the ticket, unless other groups share it, and notify that no alert of the group fires any more."""
        ticket = self._live(group)
        done = Flushed(group.id, "over", group.ticket, notified=len(members.resolved), muted=len(members.muted))
        resolves = receiver.resolved == "resolve"
        if ticket is not None and resolves and ticket.origin == "alert" and not self._fires_elsewhere(ticket, group):
            because = str(words(receiver.lang or "en")["alerts"]["resolved"])
            at = datetime.fromtimestamp(now, timezone.utc)
            self._ticket_service.resolve(ticket.id, because, BY, "alerts", at, lesson=False)
        if not group.flood:
            self._queue_messages("over", group, receiver, self._summary(members.resolved), members, now)
        return group, done

    def _fires_elsewhere(self, ticket: Ticket, group: Group) -> bool:
        """Return whether an alert of another group fires in `ticket` or in a duplicate of it."""
        return self._kb.alerts.firing_on(self._kb.tickets.counted_in(ticket.id), group.id)

    def _queue_messages(
        self,
        what: What,
        group: Group,
        receiver: Receiver,
        summary: Summary,
        members: _Members,
        now: float,
        triage: bool = False,
    ) -> None:
        for number, place in enumerate(self._destinations[receiver.name]):
            muted = len(members.muted)
            lang = self._lang(receiver, place)
            out = message(what, group, summary, lang, held=muted, ticket=group.ticket, triage=triage)
            key = f"alerts:{group.id}:{now!r}:{what}:{number}"
            self._kb.messages.put(key, place.channel, place.model_dump(), out.model_dump())

    def _lang(self, receiver: Receiver, place: Place) -> Literal["en", "zh"]:
        """Return the language of messages to `place`: the receiver's, else the chat's, else English."""
        return receiver.lang or self._settings.chat[place.channel].lang or "en"

    def _triage(self, ticket: str, receiver: Receiver) -> None:
        places = [place.model_dump() for place in self._destinations[receiver.name]]
        langs = [self._lang(receiver, place) for place in self._destinations[receiver.name]]
        lang = receiver.lang or (langs[0] if langs else "en")
        payload = {"ticket": ticket, "receiver": receiver.name, "places": places, "lang": lang, "langs": langs}
        self._kb.tasks.add("triage", f"triage:{ticket}:alerts", payload)

    def _destinations_of(self, receiver: Receiver) -> list[Place]:
        """Return the conversations that `receiver` notifies."""
        found = []
        for to in receiver.chat:
            home = vendor(to.channel, self._settings.chat[to.channel]).home()
            if to.conversation:
                home = Place(channel=to.channel, conversation=to.conversation)
            if home is None:
                message = f"receiver {receiver.name!r} notifies chat {to.channel!r}, which has no conversation"
                remedy = f"give `to` in [chat.{to.channel}], or `conversation` in the receiver"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
            found.append(home)
        return found

    def _summary(self, members: list[Member]) -> Summary:
        return summary_of(self._kb.alerts.bodies([m.n for m in members]))

    def _ticket(self, group: Group) -> Ticket | None:
        """Return the ticket of the group, or the original if it was closed as a duplicate."""
        return None if group.ticket is None else self._kb.tickets.original(group.ticket)

    def _live(self, group: Group) -> Ticket | None:
        """Return the open ticket of the group, or of an earlier group of the same alerts."""
        ticket = self._ticket(group)
        if ticket is not None and ticket.state in LIVE:
            return ticket
        return self._kb.tickets.live(f"2:group:{group.id}")

    def _watched(self, summary: Summary, now: float) -> Ticket | None:
        """Return the ticket that the watcher made of the stall that the alerts are about."""
        began = now if summary.starts is None else summary.starts
        return diagnosed_ticket(self._kb, summary.things, summary.common.get("cause", ""), began, now)

    def _first_notifications(self, receiver: Receiver, now: float) -> int:
        return self._kb.alerts.first_notifications_since(receiver.name, now - FLOOD_S)

    def _flood(self, receiver: Receiver, summary: Summary, at: datetime) -> tuple[Ticket, bool]:
        """Return the ticket that the groups of a flood share, and whether it is new.

        It is updated at most once a minute, since every update is sent to the trackers.
        """
        live = self._kb.tickets.live(f"2:flood:{receiver.name}")
        changed = moment(live.updated) if live is not None else None
        if live is not None and changed is not None and abs((at - changed).total_seconds()) < _FLOOD_UPDATE_S:
            return live, False
        filed = self._ticket_service.file(flood_report(receiver, summary, self._settings.alerts.flood, at), BY, at)
        return filed.ticket, filed.new

    def _still_routed(self, group: Group, node: Node) -> bool:
        """Return whether `node` still puts the alerts of the group into it."""
        one = next((m for m in self._kb.alerts.members(group.id) if m.status == "firing"), None)
        stored = self._kb.alerts.get(one.n) if one is not None else None
        return stored is None or node.group(stored.alert.labels) == group.id

    def _regroup(self, group: Group, now: float) -> Flushed:
        """Move the alerts of a group that the changed routes no longer produce into their new groups."""
        firing = [m for m in self._kb.alerts.members(group.id) if m.status == "firing"]
        members = {m.fingerprint: m for m in firing}
        stay = False
        for stored in self._kb.alerts.bodies([m.n for m in firing]):
            here = match(self._routes.root, stored.alert.labels)
            if group.id in [node.group(stored.alert.labels) for node in here]:
                stay = True
                continue
            for node in here:
                id = node.group(stored.alert.labels)
                there = self._kb.alerts.group(id)
                member = members[stored.alert.fingerprint]
                self._kb.alerts.put_group(move(self._kb.alerts, member, group, node, stored.alert.labels, there, now))
            self._kb.alerts.remove_members(group.id, [stored.alert.fingerprint])
        if stay:
            self._kb.alerts.put_group(group.model_copy(update={"due": now, "wait": 0.0}))
        else:
            self._kb.alerts.delete_group(group.id)
        return Flushed(group.id, "moved", group.ticket)
