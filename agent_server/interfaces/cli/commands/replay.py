"""``whystall replay``: repeat a diagnosis from its transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis import replay as replaying
from whystall.agent_server.diagnosis.transcript_files import is_id, path_of
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.presentation.results import replay_text


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("replay")(replay)


def replay(
    transcript: Annotated[str, typer.Argument(metavar="ID|FILE", help="a diagnosis' id, or its transcript's file")],
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Repeat a diagnosis without model and host, and report whether the result is the same."""
    path = path_of(transcript) if is_id(transcript) else Path(transcript)
    done = signals.run(replaying.replay(path, {tool.name: tool for tool in App().tools()}))
    if as_json:
        console.say_json(done)
    else:
        console.say(replay_text(done, lang))
