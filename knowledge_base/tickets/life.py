"""State transitions of a ticket, as pure functions; `ticket_store` stores their results.

A transition that is not allowed raises `ToolError` (bad_argument) with what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystall.knowledge_base.ticket_models import LIVE, ClosedAs, Comment, Link, LinkKind, State, Ticket
from whystall.knowledge_base.tickets import human
from whystall.tools.contract.errors import ErrorCode, ToolError

COMMENTS, LINKS, LABELS = 1000, 500, 200
"""Maximum numbers per ticket: it is read, sent and stored whole."""
_CODES = 20

MOVES: Mapping[State, tuple[State, ...]] = {
    "open": ("acknowledged", "resolved", "closed"),
    "acknowledged": ("resolved", "closed"),
    "resolved": ("closed", "open"),
    "closed": ("open",),
}
"""Allowed transitions. An ended ticket must be reopened before it is acknowledged."""


def inert(ticket: Ticket) -> Ticket:
    """Return `ticket` with foreign texts made inert and cut, if that was not done on input."""
    text = ticket.human
    title, description = human.line(text.title, 12 * human.TITLE), human.lines(text.description, 12 * human.TEXT)
    labels = [(human.line(k, human.NAME), human.line(v, human.LABEL)) for k, v in ticket.labels.items()]
    update: dict[str, object] = {"labels": dict(labels[:LABELS])}
    if (title, description) != (text.title, text.description):
        update["human"] = text.model_copy(update={"title": title, "description": description})
    return ticket.model_copy(update=update)


def refusal(ticket: Ticket, to: State) -> str | None:
    """Return why `ticket` cannot change to state `to`, or None if it can."""
    if to in MOVES[ticket.state]:
        return None
    if to == "open":
        return f"ticket {ticket.id} is not over"
    already = " already" if to == ticket.state else ""
    by = f" as {ticket.closed_as}" if ticket.closed_as else ""
    return f"ticket {ticket.id} is {ticket.state}{by}{already}"


def acknowledged(ticket: Ticket) -> Ticket:
    return _moved(ticket, "acknowledged")


def resolved(ticket: Ticket, because: str, at: str) -> Ticket:
    """Return `ticket` as resolved; `because`: what solved it."""
    _check(ticket, "resolved")
    return _moved(ticket, "resolved", resolution=_reason(because), ended=at)


def closed(ticket: Ticket, as_: ClosedAs, at: str, because: str = "") -> Ticket:
    """Return `ticket` as closed. A ``fixed`` one needs a reason, a ``duplicate`` one its link."""
    _check(ticket, "closed")
    reason = _reason(because) if because.strip() else ticket.resolution
    if as_ == "fixed" and not reason:
        raise _refused(f"ticket {ticket.id} needs a reason: what fixed it", "give it, or close it as another")
    if as_ == "duplicate" and not any(link.kind == "duplicate" for link in ticket.links):
        raise _refused(f"ticket {ticket.id} has no link to its original", "link it as a duplicate: that closes it")
    return _moved(ticket, "closed", closed_as=as_, resolution=reason, ended=ticket.ended or at)


def reopened(ticket: Ticket) -> Ticket:
    """Return `ticket` as open again; its earlier resolution stays in the history."""
    links = [link for link in ticket.links if link.kind != "duplicate"]
    return _moved(ticket, "open", closed_as=None, ended=None, resolution="", links=links)


def commented(ticket: Ticket, comment: Comment) -> Ticket:
    """Return `ticket` with `comment`, inert; unchanged if its key exists."""
    comments, key = ticket.human.comments, human.line(comment.key, human.KEY)
    if key and any(other.key == key for other in comments):
        return ticket
    if len(comments) >= COMMENTS:
        raise _refused(f"ticket {ticket.id} has {COMMENTS} comments", "continue in another ticket, and link both")
    text = human.required(comment.text, human.COMMENT, "comment", "give a text")
    names = {name: human.line(getattr(comment, name), human.NAME) for name in ("by", "source")}
    made = comment.model_copy(update={"text": text, "key": key, **names})
    return ticket.model_copy(update={"human": ticket.human.model_copy(update={"comments": [*comments, made]})})


def edited(ticket: Ticket, title: str | None = None, description: str | None = None) -> Ticket:
    """Return `ticket` with a new `title` or `description`; None leaves one unchanged, "" removes it."""
    update = {}
    if title is not None:
        if len(title.strip()) > human.TITLE:
            raise _refused("the title is too long", f"use at most {human.TITLE} characters")
        update["title"] = human.line(title, 12 * human.TITLE)
    if description is not None:
        given = description.strip()
        update["description"] = human.required(given, human.TEXT, "description", "") if given else ""
    return ticket.model_copy(update={"human": ticket.human.model_copy(update=update)})


def linked(ticket: Ticket, link: Link) -> Ticket:
    """Return `ticket` with `link`; unchanged if it exists."""
    if link.ticket == ticket.id:
        raise _refused(f"ticket {ticket.id} cannot be linked with itself", "name another ticket")
    if any((other.kind, other.ticket) == (link.kind, link.ticket) for other in ticket.links):
        return ticket
    if len(ticket.links) >= LINKS:
        raise _refused(f"ticket {ticket.id} has {LINKS} links", "link the new ticket with one of those")
    why = [human.line(code, human.NAME) for code in link.why[:_CODES]]
    made = link.model_copy(update={"why": why, "by": human.line(link.by, human.NAME)})
    return ticket.model_copy(update={"links": [*ticket.links, made]})


def unlinked(ticket: Ticket, other: str, kinds: Sequence[LinkKind]) -> Ticket:
    """Return `ticket` without its links of `kinds` to `other`."""
    kept = [link for link in ticket.links if link.ticket != other or link.kind not in kinds]
    return ticket.model_copy(update={"links": kept}) if len(kept) < len(ticket.links) else ticket


def is_live(ticket: Ticket) -> bool:
    """Return whether `ticket` is open or acknowledged, so that the same fault counts in it."""
    return ticket.state in LIVE


def original_of(ticket: Ticket) -> str | None:
    """Return the ticket that `ticket` was closed as a duplicate of."""
    if ticket.closed_as != "duplicate":
        return None
    return next((link.ticket for link in ticket.links if link.kind == "duplicate"), None)


def _moved(ticket: Ticket, to: State, **update: object) -> Ticket:
    _check(ticket, to)
    return ticket.model_copy(update={**update, "state": to})


def _check(ticket: Ticket, to: State) -> None:
    why = refusal(ticket, to)
    if why is None:
        return
    over = ticket.state not in LIVE and to not in (ticket.state, "open")
    raise _refused(why, f"reopen it: `whystall tickets reopen {ticket.id}`" if over else "see `whystall tickets show`")


def _reason(because: str) -> str:
    return " ".join(human.required(because, human.REASON, "reason", "state what solved it").split())


def _refused(message: str, remedy: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
