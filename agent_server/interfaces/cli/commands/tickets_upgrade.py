"""``whystall tickets upgrade``: a plan for the upgrades that would end a ticket's known defects."""

from __future__ import annotations

from typing import Annotated

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import LangOption
from whystall.agent_server.presentation.defect_lines import check_text, upgrade_plan, upgrades
from whystall.agent_server.stores import open_default
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError


def add_upgrade(group: typer.Typer) -> None:
    """Add the command to the group of ``whystall tickets``."""
    group.command("upgrade")(upgrade)


def upgrade(
    ticket: Annotated[str, typer.Argument(metavar="TICKET", help="the ticket's id")],
    check: Annotated[
        bool,
        typer.Option("--check", help="ask apt and pip of this host whether the version is offered; changes nothing"),
    ] = False,
    lang: LangOption = "en",
) -> None:
    """Print a plan for the upgrades that fix a ticket's known defects; a person executes it."""
    diagnosis = open_default().tickets.get(ticket).diagnosed()
    plan = upgrade_plan(diagnosis, lang)
    if not plan:
        message = words(lang)["known_fixes"]["no_plan"].rstrip(".。")
        raise ToolError(ErrorCode.NOT_FOUND, message, "`whystall run known_fix` shows what is known of the versions")
    console.say(plan)
    if not check:
        return
    from whystall.agent_server.inputs.package_sources import offers

    asked: set[str] = set()
    for row in upgrades(diagnosis):
        if row.upgrade not in asked:
            asked.add(row.upgrade)
            for offer in offers(row.upgrade, row.fixed):
                console.say(check_text(offer, lang))
