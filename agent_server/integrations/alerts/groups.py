"""Groups of alerts when their time has come: what is new is told, as one ticket and to the chats of the receiver.

When a group is looked at follows Alertmanager (prometheus/alertmanager, dispatch/group.go and notify's DedupStage):
first after ``group_wait``, then at most every ``group_interval``; told are alerts that fire and were not told before,
again all of them after ``repeat_interval``, and that none fires any more. It differs where a ticket is not a
notification: an alert that is resolved ends its ticket also while it is silenced.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Literal

from whystall.agent_server.integrations.alerts.moving import move
from whystall.agent_server.integrations.alerts.muting import Inhibitor, Muting, pieces
from whystall.agent_server.integrations.alerts.related import relate
from whystall.agent_server.integrations.alerts.reports import What, flood_report, joined, message, report, summary_of
from whystall.agent_server.integrations.alerts.routefile import check_names, load
from whystall.agent_server.integrations.alerts.tree import match
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.tickets.models import LIVE
from whystall.knowledge_base.times import moment
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.integrations.alerts.receivers import Receiver
    from whystall.agent_server.integrations.alerts.reports import Summary
    from whystall.agent_server.integrations.alerts.routefile import Routes
    from whystall.agent_server.integrations.alerts.tree import Node
    from whystall.agent_server.integrations.messages import Place
    from whystall.agent_server.journal.alerts import Group, Member
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.tickets.models import Ticket

BY = "alerts"
"""Who does what alerts ask for."""
FLOOD_S = 600.0
_FLOOD_PAUSE_S = 60.0  # between two revisions of the ticket of a flood
_MANY, _MOMENT_S = 200, 0.25  # groups of one transaction, and how long other writers wait for it
_PAUSE_S = 60.0
_log = logging.getLogger("whystall.alerts")


@dataclass(frozen=True)
class Flushed:
    """What became of a look at a group. `what`: what was told; ``nothing``; ``held`` (all that is new is silenced or
    the like); ``moved`` (the routes changed, its alerts are in other groups now); ``gone`` (there is no such group).
    `told`, `held`: alerts.
    """

    id: str
    what: What | Literal["nothing", "held", "moved", "gone", "put_off"]
    ticket: str | None = None
    new: bool = False
    told: int = 0
    held: int = 0


@dataclass
class _Look:
    """The members of a group, as they stand. `fresh`: fire, not told; `known`: fire, told; `held`: of both, those that
    are silenced or the like; `done`: told, resolved since; `passed`: resolved before they were told; `quiet`: fire, as
    far as anybody knows, but their sender speaks of them no more.
    """

    fresh: list[Member] = field(default_factory=list)
    known: list[Member] = field(default_factory=list)
    held: dict[str, None] = field(default_factory=dict)
    done: list[Member] = field(default_factory=list)
    passed: list[Member] = field(default_factory=list)
    quiet: list[Member] = field(default_factory=list)

    def loud(self, members: list[Member]) -> list[Member]:
        return [m for m in members if m.fingerprint not in self.held]


class Groups:
    """The groups of `kb`. Each look is one transaction: killed within, it is done again from the beginning."""

    def __init__(self, kb: Stores, settings: Settings, routes: Routes | None = None) -> None:
        """`routes`: those of the settings, unless they are given. Raises `ToolError` (bad_argument) where their file is
        at fault, or a receiver names what the settings do not have, or a chat that nobody there can be told in.
        """
        self._kb = kb
        self._settings = settings
        self._routes = load(settings.alerts.routes) if routes is None else routes
        names = (set(settings.sinks), set(settings.oncall.schedules), set(settings.chat))
        check_names(self._routes, *names, settings.alerts.routes)
        self._ticket_service = TicketService(kb, settings)
        self._told = {name: self._places(receiver) for name, receiver in self._routes.receivers.items()}
        self._inhibitor = Inhibitor(kb.alerts, self._routes.inhibit)

    def due(self, now: float, limit: int = 100) -> list[str]:
        """Ids of groups whose time has come, due longest first."""
        return self._kb.alerts.due(now, limit)

    def next_due(self, now: float) -> float | None:
        """When the next group is due; None: none is."""
        return self._kb.alerts.next_due(now)

    def forget(self, now: float) -> int:
        """Forget alerts that have been over for `keep_days`; how many."""
        return self._kb.alerts.forget(now - 86_400.0 * self._settings.alerts.keep_days)

    def work(self, now: float) -> list[Flushed]:
        """Look at groups that are due, as many as take a moment, in one transaction: a disk takes longer to store one
        than most groups take to be looked at. Empty: none is due.

        A group that cannot be looked at is put off by a minute, audited, and holds up no other. Raises `ToolError`
        (database, disk_full) where that cannot be stored either, and nothing was done.
        """
        done: list[Flushed] = []
        until = monotonic() + _MOMENT_S
        with self._kb.transaction():
            for id in self.due(now, _MANY):
                try:
                    done.append(self.flush(id, now))
                except Exception as error:
                    _log.exception("group %s of alerts cannot be told", id)
                    self._put_off(id, now, error)
                    done.append(Flushed(id, "put_off"))
                if monotonic() > until:
                    break
        return done

    def _put_off(self, id: str, now: float, error: Exception) -> None:
        group = self._kb.alerts.group(id)
        if group is not None:
            self._kb.alerts.put_group(group.model_copy(update={"due": now + _PAUSE_S, "wait": _PAUSE_S}))
            self._kb.audit.put(
                BY, "alerts.put_off", f"group:{id}", type(error).__name__, {"why": clean(str(error), 500)}
            )

    def flush(self, id: str, now: float) -> Flushed:
        """Look at the group `id`, tell what there is to tell, and say when to look again."""
        with self._kb.transaction():
            group = self._kb.alerts.group(id)
            if group is None:
                return Flushed(id, "gone")
            node = self._routes.node(group.route, group.receiver)
            if node is None or not self._fits(group, node):
                return self._moved(group, now)
            return self._looked_at(group, node, now)

    # --- looking ----------------------------------------------------------------------------------------------------

    def _looked_at(self, group: Group, node: Node, now: float) -> Flushed:
        muting = Muting(self._kb, self._routes, self._inhibitor, now)
        look = self._look(group, node, muting, now)
        receiver = self._routes.receivers[node.options.receiver]
        fresh, known = look.loud(look.fresh), look.loud(look.known)
        repeat = group.told is None or group.told > now or now - group.told >= node.options.repeat_interval
        done = Flushed(group.id, "held" if look.held else "nothing", group.ticket, held=len(look.held))
        if fresh:
            group, done = self._fire(group, receiver, look, "more" if look.known else "first", now)
        elif look.done and not look.known and not look.quiet:
            group, done = self._over(group, receiver, look, now)
        elif known and repeat:
            group, done = self._repeat(group, receiver, look, now)
        gone = [m.fingerprint for m in (*look.done, *look.passed, *look.quiet)]
        self._kb.alerts.remove_members(group.id, gone, group.ticket)
        self._rest(group, node, look, now)
        return done

    def _look(self, group: Group, node: Node, muting: Muting, now: float) -> _Look:
        look = _Look()
        oldest = now - 3600.0 * self._settings.alerts.quiet_hours
        for member in self._kb.alerts.members(group.id):
            if member.status == "resolved":
                (look.done if member.notified else look.passed).append(member)
            elif member.seen < oldest:
                look.quiet.append(member)
            else:
                (look.known if member.notified else look.fresh).append(member)
        firing = [*look.fresh, *look.known]
        if muting.route(node) is not None:
            look.held = dict.fromkeys(m.fingerprint for m in firing)
        elif muting.by_labels:
            for piece in pieces(self._kb.alerts.bodies([m.n for m in firing])):
                muting.learn([stored.alert.labels for stored in piece])
                for stored in piece:
                    if muting.alert(stored.alert.labels, stored.alert.fingerprint) is not None:
                        look.held[stored.alert.fingerprint] = None
        return look

    def _rest(self, group: Group, node: Node, look: _Look, now: float) -> None:
        """What is left of the group, and when to look at it again."""
        if not look.fresh and not look.known:
            self._kb.alerts.delete_group(group.id)
            return
        options = node.options
        again = options.group_interval
        if not look.held and group.told is not None:
            again = max(again, group.told + options.repeat_interval - now)
        self._kb.alerts.put_group(group.model_copy(update={"flushed": now, "due": now + again, "wait": again}))

    # --- telling ----------------------------------------------------------------------------------------------------

    def _fire(self, group: Group, receiver: Receiver, look: _Look, what: What, now: float) -> tuple[Group, Flushed]:
        fresh = look.loud(look.fresh)
        summary = self._summary([*fresh, *look.loud(look.known)])
        at = datetime.fromtimestamp(now, timezone.utc)
        live = self._live(group) if receiver.ticket else None
        first = live is None if receiver.ticket else what == "first"
        flood = self._flooded(receiver, now) if first else group.flood
        ticket: Ticket | None = None
        new = False
        if receiver.ticket and flood:
            ticket, new = self._flood(receiver, summary, at)
        elif receiver.ticket:
            key = live.dedup_key if live is not None else None
            detail = joined(self._summary(fresh), group.truncated)
            filed = self._ticket_service.file(report(group, receiver, summary, at, key), BY, at, detail=detail)
            ticket = relate(self._kb, filed.ticket, summary.things, at, self._settings.alerts.related_minutes)
            new = filed.new
        number = ticket.id if ticket is not None else None
        triage = bool(new and not flood and receiver.triage)
        if triage and number is not None:
            self._triage(number, receiver)
        group = group.model_copy(update={"told": now, "ticket": number, "flood": flood})
        self._kb.alerts.mark_notified(group.id, [m.fingerprint for m in fresh], number)
        if first:
            self._kb.alerts.add_first_notification(receiver.name, group.id, now)
        if not flood:
            self._say(what, group, receiver, summary, look, now, triage)
        elif new or (not receiver.ticket and self._just_flooded(receiver, now)):
            self._say("flood", group, receiver, summary, look, now, triage)
        return group, Flushed(group.id, "flood" if flood else what, number, new, len(fresh), len(look.held))

    def _repeat(self, group: Group, receiver: Receiver, look: _Look, now: float) -> tuple[Group, Flushed]:
        """Remind of what still fires; where somebody resolved the ticket, it is not over, and gets another one. What
        somebody closed as no fault, or not to be fixed, is left alone.
        """
        ticket = self._ticket(group)
        if receiver.ticket and ticket is not None and ticket.state not in LIVE:
            if ticket.state == "closed" and ticket.closed_as != "fixed":
                group = group.model_copy(update={"told": now})
                return group, Flushed(group.id, "nothing", group.ticket, held=len(look.held))
            look.fresh, look.known = [*look.fresh, *look.known], []
            return self._fire(group, receiver, look, "repeat", now)
        group = group.model_copy(update={"told": now})
        known = look.loud(look.known)
        if not group.flood:
            self._say("repeat", group, receiver, self._summary(known), look, now)
        return group, Flushed(group.id, "repeat", group.ticket, False, len(known), len(look.held))

    def _over(self, group: Group, receiver: Receiver, look: _Look, now: float) -> tuple[Group, Flushed]:
        """No alert that was told of fires any more: its ticket is resolved, where it is that of no other."""
        ticket = self._live(group)
        done = Flushed(group.id, "over", group.ticket, told=len(look.done), held=len(look.held))
        resolves = receiver.resolved == "resolve"
        if ticket is not None and resolves and ticket.origin == "alert" and not self._fires_elsewhere(ticket, group):
            from whystall.prompts.render import words

            because = str(words(receiver.lang)["alerts"]["resolved"])
            at = datetime.fromtimestamp(now, timezone.utc)
            self._ticket_service.resolve(ticket.id, because, BY, "alerts", at, lesson=False)
        if not group.flood:
            self._say("over", group, receiver, self._summary(look.done), look, now)
        return group, done

    def _fires_elsewhere(self, ticket: Ticket, group: Group) -> bool:
        """Whether an alert of another group fires that is told of in `ticket`, or in one that is counted there."""
        return self._kb.alerts.firing_on(self._kb.tickets.counted_in(ticket.id), group.id)

    def _say(
        self,
        what: What,
        group: Group,
        receiver: Receiver,
        summary: Summary,
        look: _Look,
        now: float,
        triage: bool = False,
    ) -> None:
        for number, place in enumerate(self._told[receiver.name]):
            said = message(what, group, summary, receiver.lang, held=len(look.held), ticket=group.ticket, triage=triage)
            key = f"alerts:{group.id}:{now!r}:{what}:{number}"
            self._kb.messages.put(key, place.channel, place.model_dump(), said.model_dump())

    def _triage(self, ticket: str, receiver: Receiver) -> None:
        places = [place.model_dump() for place in self._told[receiver.name]]
        payload = {"ticket": ticket, "receiver": receiver.name, "places": places, "lang": receiver.lang}
        self._kb.tasks.add("triage", f"triage:{ticket}:alerts", payload)

    def _places(self, receiver: Receiver) -> list[Place]:
        """Where the chats of `receiver` are told."""
        from whystall.agent_server.integrations.chat_vendors import vendor
        from whystall.agent_server.integrations.messages import Place

        found = []
        for to in receiver.chat:
            home = vendor(to.channel, self._settings.chat[to.channel]).home()
            if to.conversation:
                home = Place(channel=to.channel, conversation=to.conversation)
            if home is None:
                message = f"receiver {receiver.name!r} tells the chat {to.channel!r}, but nobody says whom there"
                remedy = f"give `to` in [chat.{to.channel}], or `conversation` in the receiver"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
            found.append(home)
        return found

    def _summary(self, members: list[Member]) -> Summary:
        return summary_of(self._kb.alerts.bodies([m.n for m in members]))

    # --- tickets ----------------------------------------------------------------------------------------------------

    def _ticket(self, group: Group) -> Ticket | None:
        """The ticket of the group; where it is a duplicate by now, the one it is a duplicate of."""
        return None if group.ticket is None else self._kb.tickets.original(group.ticket)

    def _live(self, group: Group) -> Ticket | None:
        """The live ticket that the group is counted in: its own, or that of an earlier group of the same alerts."""
        ticket = self._ticket(group)
        if ticket is not None and ticket.state in LIVE:
            return ticket
        return self._kb.tickets.live(f"2:group:{group.id}")

    def _flooded(self, receiver: Receiver, now: float) -> bool:
        return self._kb.alerts.first_notifications_since(receiver.name, now - FLOOD_S) >= self._settings.alerts.flood

    def _just_flooded(self, receiver: Receiver, now: float) -> bool:
        limit = self._settings.alerts.flood + 1
        return self._kb.alerts.first_notifications_since(receiver.name, now - FLOOD_S) == limit

    def _flood(self, receiver: Receiver, summary: Summary, at: datetime) -> tuple[Ticket, bool]:
        """The ticket that the groups of a flood share. It is not revised for each of them: every revision is told to
        the trackers.
        """
        live = self._kb.tickets.live(f"2:flood:{receiver.name}")
        changed = moment(live.updated) if live is not None else None
        if live is not None and changed is not None and abs((at - changed).total_seconds()) < _FLOOD_PAUSE_S:
            return live, False
        filed = self._ticket_service.file(flood_report(receiver, summary, self._settings.alerts.flood, at), BY, at)
        return filed.ticket, filed.new

    # --- routes that changed ----------------------------------------------------------------------------------------

    def _fits(self, group: Group, node: Node) -> bool:
        """Whether the route still makes this group of its alerts."""
        one = next((m for m in self._kb.alerts.members(group.id) if m.status == "firing"), None)
        stored = self._kb.alerts.get(one.n) if one is not None else None
        return stored is None or node.group(stored.alert.labels) == group.id

    def _moved(self, group: Group, now: float) -> Flushed:
        """Put the alerts of a group that the routes no longer make into the groups that they are in now."""
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
                self._kb.alerts.put_group(move(self._kb, member, group, node, stored.alert.labels, there, now))
            self._kb.alerts.remove_members(group.id, [stored.alert.fingerprint])
        if stay:
            self._kb.alerts.put_group(group.model_copy(update={"due": now, "wait": 0.0}))
        else:
            self._kb.alerts.delete_group(group.id)
        return Flushed(group.id, "moved", group.ticket)
