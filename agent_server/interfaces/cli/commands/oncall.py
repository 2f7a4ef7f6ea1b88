"""``whystall oncall``: who is on call, coming shifts, overrides, and the schedule as a calendar."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.kb_input import ByOption, who
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.oncall import overrides_text, shifts_text, who_text
from whystall.agent_server.settings.load import load
from whystall.agent_server.stores import open_default
from whystall.agent_server.ticketing.oncall.on_call import on_call, shifts
from whystall.agent_server.ticketing.oncall.overrides import OverrideRequest, create_override, end_override
from whystall.agent_server.ticketing.oncall.times import parse_span, parse_time, zone_of
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.files.output_file import aside

if TYPE_CHECKING:
    from whystall.agent_server.journal.overrides import Override
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.settings.sections.oncall import OncallSettings
    from whystall.agent_server.stores import Stores

_MAX_DAYS = 366
_WORDS = "e.g. 2026-03-29T09:00; without Z or an offset by the schedule's clocks"

_Schedule = Annotated[
    Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
    typer.Option("--schedule", metavar="NAME", help="one schedule of the settings (all)"),
]
_Which = Annotated[str, typer.Argument(metavar="[SCHEDULE]", help="name in the settings (the default one)")]
_Some = Annotated[str, typer.Argument(metavar="[SCHEDULE]", help="name in the settings (all)")]
_At = Annotated[Optional[str], typer.Option("--at", metavar="TIME", help=f"then, not now; {_WORDS}")]  # noqa: UP045
_From = Annotated[Optional[str], typer.Option("--from", metavar="TIME", help=f"from then on, not from now; {_WORDS}")]  # noqa: UP045
_Days = Annotated[int, typer.Option("--days", min=1, max=_MAX_DAYS, help="how many days")]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Who is on call.", rich_markup_mode=None)
    group.command("who")(who_)
    group.command("schedule")(schedule_)
    group.command("export")(export)
    overrides = typer.Typer(help="Exceptions from the schedules.", rich_markup_mode=None)
    overrides.command("add")(add_override)
    overrides.command("list")(list_overrides)
    overrides.command("remove")(remove_override)
    group.add_typer(overrides, name="override")
    app.add_typer(group, name="oncall")


def who_(
    which: _Some = "",
    schedule: _Schedule = None,
    at: _At = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show who is on call, and what decides it."""
    settings = _settings()
    names = _schedules(settings.oncall, schedule or which or None)
    zone = zone_of(settings.oncall, names)
    moment = parse_time(at, zone, "--at") if at else _now()
    with _kb() as kb:
        overrides = kb.overrides.all(after=moment)
    answers = [on_call(settings.oncall, overrides, name, moment) for name in names]
    if as_json:
        console.say_json([_plain(asdict(answer)) for answer in answers])
    else:
        console.say(who_text(answers, settings, zone, lang))


def schedule_(
    schedule: _Which = "",
    start: _From = None,
    days: _Days = 14,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List the coming shifts of one schedule."""
    settings = _settings()
    name = _one(settings.oncall, schedule or None)
    zone = zone_of(settings.oncall, [name])
    begins = parse_time(start, zone, "--from") if start else _now()
    with _kb() as kb:
        overrides = kb.overrides.all(after=begins, schedule=name)
    found = list(shifts(settings.oncall, overrides, name, begins, begins + timedelta(days=days)))
    if as_json:
        console.say_json({"schedule": name, "shifts": [_plain(asdict(shift)) for shift in found]})
    else:
        console.say(shifts_text(name, found, settings, zone, lang))


def export(
    schedule: _Which = "",
    days: _Days = 92,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", metavar="FILE", help="write to this file instead of standard output"),
    ] = None,
) -> None:
    """Write a schedule as a calendar (iCalendar, RFC 5545): a month of the past and the coming days."""
    with extra("ticketing"):
        from whystall.agent_server.ticketing.oncall.ical import PAST, calendar

    settings = _settings()
    name = _one(settings.oncall, schedule or None)
    with _kb() as kb:
        overrides = kb.overrides.all(after=_now() - PAST, schedule=name)
    raw = calendar(settings, overrides, name, _now(), days)
    if output is None:
        console.say_as_is(raw.decode("utf-8"))
        return

    with aside(output) as beside:
        beside.write_bytes(raw)
    console.say(f"wrote {output}")


def add_override(
    begins: Annotated[str, typer.Option("--from", metavar="TIME", help=f"its beginning (now); {_WORDS}")] = "",
    ends: Annotated[str, typer.Option("--to", metavar="TIME", help="its end")] = "",
    lasting: Annotated[str, typer.Option("--for", metavar="SPAN", help="how long, in place of --to: 30m, 4h, 2d")] = "",
    add: Annotated[str, typer.Option("--add", metavar="USER", help="is on call too")] = "",
    remove: Annotated[str, typer.Option("--remove", metavar="USER", help="is not on call")] = "",
    replace: Annotated[str, typer.Option("--replace", metavar="USER", help="is not on call, but ...")] = "",
    by_whom: Annotated[str, typer.Option("--with", metavar="USER", help="... who stands in for them")] = "",
    only: Annotated[str, typer.Option("--only", metavar="USER,...", help="only these, instead of the schedule")] = "",
    nobody: Annotated[bool, typer.Option("--nobody", help="no one is on call")] = False,
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="why")] = "",
    schedule: _Schedule = None,
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Add an override: users or groups who are on call too, or not, or in another's place."""
    _one_of(**{"--add": add, "--remove": remove, "--replace with --with": replace, "--only": only, "--nobody": nobody})
    _together(replace, by_whom)
    settings = _settings()
    name = _one(settings.oncall, schedule)
    zone = zone_of(settings.oncall, [name])
    now = _now()
    start = parse_time(begins, zone, "--from") if begins else now
    _one_of(**{"--to": ends, "--for": lasting})
    end = parse_time(ends, zone, "--to") if ends else start + parse_span(lasting, "--for")
    request = OverrideRequest(
        name,
        start,
        end,
        add=add or by_whom,
        remove=remove or replace,
        only=[part.strip() for part in only.split(",") if part.strip()] if only or nobody else None,
        reason=because,
    )
    with _kb() as kb:
        made = create_override(kb, settings, request, who(by), now)
    _say_overrides([made], settings, as_json, lang)


def list_overrides(
    schedule: _Schedule = None,
    everything: Annotated[bool, typer.Option("--all", help="also those that are over")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List the active and coming overrides."""
    settings = _settings()
    with _kb() as kb:
        found = kb.overrides.all(after=None if everything else _now(), schedule=schedule)
    _say_overrides(found, settings, as_json, lang)


def remove_override(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="of the exception")],
    by: ByOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Remove an override; an active one ends now."""
    settings = _settings()
    with _kb() as kb:
        ended = end_override(kb, number, who(by), _now())
    _say_overrides([ended], settings, as_json, lang)


def _say_overrides(found: list[Override], settings: Settings, as_json: bool, lang: Any) -> None:
    if as_json:
        console.say_json([_plain(each.model_dump()) for each in found])
        return

    console.say(overrides_text(found, settings, lang))


def _settings() -> Settings:
    return load()


def _kb() -> Stores:
    return open_default()


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _schedules(settings: OncallSettings, asked: str | None) -> list[str]:
    """Return the requested schedule, else all, the default one first."""
    if asked is not None or not settings.schedules:
        return [_one(settings, asked)]
    return sorted(settings.schedules, key=lambda name: name != settings.schedule)


def _one(settings: OncallSettings, asked: str | None) -> str:
    """Return the requested schedule, or the default, or the only one. Raises `ToolError`."""
    there = list(settings.schedules)
    name = asked or settings.schedule or (there[0] if len(there) == 1 else None)
    if name in there:
        return str(name)
    if not there:
        message, remedy = "no schedule is set up", "write [oncall.schedules.NAME] into the settings file"
        raise ToolError(ErrorCode.NOT_FOUND, message, remedy)
    message = "which schedule?" if name is None else f"no schedule is called {name!r}"
    code = ErrorCode.BAD_ARGUMENT if name is None else ErrorCode.NOT_FOUND
    raise ToolError(code, message, f"one of: {', '.join(sorted(there)[:10])}")


def _one_of(**given: object) -> None:
    """Refuse none or several of them."""
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        message = f"{' and '.join(names)} are given" if names else "nothing of this is given"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give one of {', '.join(given)}")


def _together(replace: str, by_whom: str) -> None:
    if bool(replace) != bool(by_whom):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "--replace and --with belong together", "give both")


def _plain(value: Any) -> Any:
    """Return times as RFC 3339 and tuples as lists, as in JSON."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return rfc3339(value)
    return value
