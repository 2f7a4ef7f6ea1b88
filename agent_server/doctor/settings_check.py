"""Check the settings offline: every secret is readable, every name defined, every file usable.

Whether a tracker or a chat accepts a token is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from whystall.agent_server.integrations.alerts.routefile import load, unknown_names
from whystall.agent_server.settings.load import load_embeddings, load_llm, validate
from whystall.agent_server.settings.proofs import weak
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.chat import WeComSettings, aes_key
from whystall.agent_server.settings.sources import RawSettings
from whystall.agent_server.ticketing.oncall.on_call import shifts
from whystall.knowledge_base.classify.rules import categories
from whystall.knowledge_base.times import rfc3339 as stamp
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Severity

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings

_AHEAD = timedelta(days=31)


@dataclass(frozen=True)
class Checked:
    """`faults` and `warnings`: one line each. `settings`: None if they are invalid."""

    settings: Settings | None
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def uses(self) -> list[tuple[str, str]]:
        """Return each feature as a code (``alerts``, ``trackers``, ``chats``, ``oncall``, ``calendars``, ``metrics``,
        ``otlp``, ``profiles``, ``model``) with the names set up for it, empty if it is off.
        """
        known = self.settings
        if known is None:
            return []
        named = {
            "alerts": ["POST /alerts/alertmanager"] if known.alerts.token else [],
            "trackers": [f"{name} ({sink.kind})" for name, sink in known.sinks.items()],
            "chats": [f"{name} ({chat.kind})" for name, chat in known.chat.items()],
            "oncall": list(known.oncall.schedules),
            "calendars": ["GET /oncall/NAME.ics"] if known.server.calendar_token and known.oncall.schedules else [],
            "metrics": ["GET /metrics"] if known.metrics.token else [],
            "otlp": [known.otlp.endpoint] if known.otlp.on else [],
            "profiles": [f"{known.profiles.url} ({known.profiles.kind})"] if known.profiles.on else [],
            "model": ["[llm]"] if known.llm else [],
        }
        return [(code, ", ".join(names)) for code, names in named.items()]


def check(values: RawSettings, now: datetime) -> Checked:
    """Check everything. The schedules are checked for a month from `now` (with a time zone)."""
    faults, settings = validate(values)
    faults += _model(values)
    if settings is None:
        return Checked(None, faults)
    faults += [*_secrets(settings), *_keys(settings), *_names(settings), *_routes(settings)]
    warnings = [*_off(settings), *_nobody(settings, now), *_idle(settings), *_people(settings), *_talk(settings)]
    return Checked(settings, faults, [*warnings, *weak(settings, secrets_in(settings))])


def secrets_in(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Secret]]:
    """Yield each secret in `value` with its key."""
    if isinstance(value, Secret):
        yield place, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name), (*place, name))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from secrets_in(inner, (*place, str(name)))


def spelled(place: tuple[str, ...]) -> str:
    """Return a key as the file spells it."""
    return f"[{'.'.join(place[:-1])}] {place[-1]}"


def _secrets(settings: Settings) -> Iterator[str]:
    for place, secret in secrets_in(settings):
        try:
            secret.read(spelled(place))
        except ToolError as error:
            yield f"{error.message}; {error.remedy}"


def _keys(settings: Settings) -> Iterator[str]:
    """Yield keys of chats that cannot be keys."""
    for name, chat in settings.chat.items():
        if isinstance(chat, WeComSettings) and chat.encoding_aes_key is not None:
            where = f"[chat.{name}] encoding_aes_key"
            try:
                aes_key(chat.encoding_aes_key.read(where))
            except ToolError:
                continue  # reported by `_secrets`
            except ValueError as error:
                yield f"{where}: {error}; copy it from the app's page"


def _model(values: RawSettings) -> Iterator[str]:
    for section, check in (("llm", load_llm), ("embeddings", load_embeddings)):
        try:
            if values.values.get(section):
                check()
        except ToolError as error:
            yield f"{error.message}; {error.remedy}"


def _names(settings: Settings) -> Iterator[str]:
    """Yield references to undefined names."""
    for where, user in dict.fromkeys(settings.oncall.people()):
        if user not in settings.users:
            yield f"[oncall] {where}: there is no user {user!r}; write [users.{user}]"
    for name, person in settings.users.items():
        if name in settings.oncall.groups:
            yield f"[users.{name}]: a group has this name too; rename one"
        yield from _unknown(f"[users.{name}] chats", person.chats, "chat", settings.chat)
        yield from _unknown(f"[users.{name}] trackers", person.trackers, "sinks", settings.sinks)
    yield from _unknown("[tickets] sinks", settings.tickets.sinks, "sinks", settings.sinks)
    yield from _classes(settings)


def _unknown(where: str, names: Any, section: str, there: dict[str, Any]) -> Iterator[str]:
    for name in names:
        if name not in there:
            yield f"{where}: there is no [{section}.{name}]"


def _classes(settings: Settings) -> Iterator[str]:
    """Yield categories and severities that do not exist."""
    known = {*categories(), "none", "unknown"}
    severities = {severity.value for severity in Severity}
    asked = [("categories", category) for category in settings.oncall.categories]
    asked += [(f"rules, {rule.id}, categories", name) for rule in settings.oncall.rules for name in rule.categories]
    for where, name in asked:
        if name not in known:
            yield f"[oncall] {where}: no ticket has the category {name!r}; one of {', '.join(sorted(known))}"
    for rule in settings.oncall.rules:
        for name in rule.severities:
            if name not in severities:
                valid = ", ".join(sorted(severities))
                yield f"[oncall] rules, {rule.id}, severities: no ticket has {name!r}; one of {valid}"


def _routes(settings: Settings) -> Iterator[str]:
    """Yield faults of the routing tree and undefined names of its receivers."""
    path = settings.alerts.routes
    if path is None:
        return

    try:
        routes = load(path)
    except ToolError as error:
        yield f"{error.message}; {error.remedy}"
        return
    for fault in unknown_names(routes, set(settings.sinks), set(settings.oncall.schedules), set(settings.chat)):
        yield f"{path}: {fault}"


def _off(settings: Settings) -> Iterator[str]:
    """Yield a warning if alerts are routed but not accepted."""
    if settings.alerts.token is None and (settings.alerts.routes is not None or settings.alerts.forms):
        yield "[alerts] token: there is none, so that no alert is let in; give {file = ...} or {env = ...}"


def _nobody(settings: Settings, now: datetime) -> Iterator[str]:
    """Yield schedules with a gap in the coming month."""
    for name in settings.oncall.schedules:
        gap = next((s for s in shifts(settings.oncall, [], name, now, now + _AHEAD) if not s.users), None)
        if gap is not None:
            yield (
                f"[oncall.schedules.{name}]: no one is on call from {stamp(gap.begins)} until {stamp(gap.ends)};"
                " give a fallback or another layer"
            )


def _idle(settings: Settings) -> Iterator[str]:
    """Yield unused rotations and schedules."""
    oncall = settings.oncall
    used = {layer.rotation for schedule in oncall.schedules.values() for layer in schedule.layers}
    for name in oncall.rotations:
        if name not in used:
            yield f"[oncall.rotations.{name}]: no schedule has it"
    if oncall.schedules and not (oncall.schedule or oncall.rules or oncall.categories):
        yield "[oncall] schedule: no ticket goes to any schedule but those that a receiver names; name a default one"


def _people(settings: Settings) -> Iterator[str]:
    """Yield people without a chat, or with the same chat id."""
    for chat in settings.chat:
        of: dict[str, str] = {}
        for name, person in settings.users.items():
            id = person.chats.get(chat)
            if id is not None and of.setdefault(id, name) != name:
                yield f"[users.{name}] chats: {chat} has the same id for {of[id]}"
    named = dict.fromkeys(user for _, user in settings.oncall.people())
    mute = [user for user in named if user in settings.users and not settings.users[user].chats]
    if settings.chat and mute:
        yield f"[users] {', '.join(mute[:5])}: no chat is known, so they receive no escalation; give chats"


def _talk(settings: Settings) -> Iterator[str]:
    """Yield settings that need a model when none is set up."""
    if settings.llm:
        return
    asked = [f"[chat.{name}] llm" for name, channel in settings.chat.items() if channel.llm]
    asked += ["[triage] llm"] if settings.triage.llm else []
    yield from (f"{where}: no language model is set up; write [llm]" for where in asked)
