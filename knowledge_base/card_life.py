"""Review and edit steps of a card, its bounds, and the hash of its content. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from whystall.knowledge_base.incidents import unknown_name
from whystall.knowledge_base.models import HistoryEntry, Incident, Note, Phrasings, Words
from whystall.knowledge_base.ticket_models import Ticket
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

# Maximum lengths in characters, and numbers of list entries.
TITLE, TEXT, NAME, LINK = 300, 6000, 200, 1000
ENTRIES = 100
_NOTES, _ENTRIES_KEPT = 50, 100
_TEXTS = ("title", "symptom", "root_cause", "fix")
_LISTS = ("signatures", "kinds", "features", "checks", "components")
_LINES = ("environment", "source", "source_url")
_CONTENT = (*_TEXTS, "cause", *_LISTS, *_LINES)
_EDITED = (*_CONTENT, "phrasings")  # these state no fact, so that the hash of the content leaves them out

Act = Literal["drafted", "added", "imported", "noted", "edited", "reviewed", "retired"]


def content_hash(card: Incident) -> str:
    """Return ``1:`` and a hash of the content of `card`, without id, state and history: equal for the same card under
    another name.
    """
    content = card.model_dump(include=set(_CONTENT))
    text = json.dumps(content, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return f"1:{hashlib.sha256(text.encode()).hexdigest()}"


def checked(card: Incident) -> Incident:
    """Return `card` with its texts made inert; raise `ToolError` (bad_argument) for a text or list too long, or an
    unknown name.

    Texts are refused, not cut: half a remedy may be a wrong one.
    """
    if not card.id or len(card.id) > NAME or clean(card.id, NAME) != card.id or any(c.isspace() for c in card.id):
        raise _fault("id", f"1 to {NAME} printable characters without spaces are required")
    if fault := unknown_name(card):
        field, _, what = fault.partition(": ")
        raise _fault(field, what)
    update: dict[str, Any] = {}
    for name in _TEXTS:
        words: Words = getattr(card, name)
        limit = TITLE if name == "title" else TEXT
        update[name] = Words(en=_text(name, words.en, limit), zh=_text(name, words.zh, limit))
        if name != "root_cause" and not (update[name].en and update[name].zh):
            raise _fault(name, "it may not be blank")
    for name in _LINES:
        update[name] = _text(name, getattr(card, name), LINK)
    if update["source_url"] and not update["source_url"].startswith(("https://", "http://")):
        raise _fault("source_url", "an http or https URL is required")
    given = card.phrasings
    update["phrasings"] = Phrasings(
        en=_entries("phrasings", given.en, TITLE), zh=_entries("phrasings", given.zh, TITLE)
    )
    for name in _LISTS:
        update[name] = _entries(name, getattr(card, name))
    update["notes"] = [n.model_copy(update={"text": _text("notes", n.text, TEXT)}) for n in card.notes[:_NOTES]]
    return card.model_copy(update=update)


def edited(card: Incident, changes: Mapping[str, Any], by: str, at: str) -> Incident:
    """Return `card` with `changes`, content fields by name; a text given in one language keeps the other.

    Raises `ToolError` (bad_argument) for another field or an invalid value.
    """
    wrong = sorted(set(changes) - set(_EDITED))
    if wrong or not changes:
        what = f"{clean(str(wrong[0]), NAME)!r} cannot be changed" if wrong else "no change is given"
        raise ToolError(ErrorCode.BAD_ARGUMENT, what, f"change {', '.join(_EDITED)}")
    whole = card.model_dump()
    for name, value in changes.items():
        kept = whole[name]
        whole[name] = {**kept, **value} if isinstance(kept, dict) and isinstance(value, Mapping) else value
    try:
        new = checked(Incident.model_validate(whole))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _fault(".".join(map(str, first["loc"])), first["msg"]) from None
    return with_entry(new, "edited", by, at, because=", ".join(sorted(changes)))


def with_entry(card: Incident, what: Act, by: str, at: str, because: str = "", **update: Any) -> Incident:
    """Return `card` with `update` and a history entry; the latest entries are kept."""
    entry = HistoryEntry(what=what, by=clean(by, NAME), at=at, because=clean(because, TEXT))
    return card.model_copy(update={**update, "updated": at, "history": [*card.history, entry][-_ENTRIES_KEPT:]})


def accepted(card: Incident, by: str, at: str) -> Incident:
    notes = [note.model_copy(update={"reviewed": True}) for note in card.notes]
    return with_entry(card, "reviewed", by, at, state="reviewed", notes=notes)


def with_remedy(card: Incident, ticket: Ticket, by: str) -> Incident:
    """Return `card` with the resolution of `ticket`, of the same fault, as a note, unless the card has that text
    already.
    """
    text = clean(ticket.resolution, 2000)
    known = [card.fix.en, card.fix.zh, *(note.text for note in card.notes)]
    if _same(text) in {_same(other) for other in known}:
        return card
    note = Note(text=text, ticket=ticket.id, at=ticket.updated)
    return with_entry(card, "noted", by, ticket.updated, f"ticket {ticket.id}", notes=[*card.notes, note][-_NOTES:])


def needs_review(card: Incident) -> bool:
    """Return whether `card` is a draft or has an unreviewed note."""
    return card.state == "draft" or (card.state == "reviewed" and any(not note.reviewed for note in card.notes))


def _text(name: str, text: str, limit: int) -> str:
    flat = " ".join(text.split())
    if len(flat) > limit:
        raise _fault(name, f"it has {len(flat)} characters; the maximum is {limit}")
    made = clean(flat, 12 * limit)
    if len(made) > 2 * limit:
        raise _fault(name, "too much of it must be escaped")
    return made


def _entries(name: str, values: Sequence[str], limit: int = NAME) -> list[str]:
    if len(values) > ENTRIES:
        raise _fault(name, f"{len(values)} entries; the maximum is {ENTRIES}")
    return list(dict.fromkeys(_text(name, value, limit) for value in values))


def _same(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


def _fault(field: str, what: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, f"{clean(field, NAME)}: {what}", "correct that field of the card")
