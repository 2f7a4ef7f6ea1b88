"""``whystall kb eval``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Optional, get_args

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.knowledge_base.evaluation import MOST, Evaluation, evaluate
from whystall.knowledge_base.evaluation_queries import Set
from whystall.knowledge_base.store import default_path
from whystall.prompts.render import render
from whystall.tools.contract.errors import ErrorCode, ToolError

_SETS: tuple[Set, ...] = get_args(Set)


def add_eval(group: typer.Typer) -> None:
    """Add the command to the group of ``whystall kb``."""
    group.command("eval")(evaluate_base)


def evaluate_base(
    sets: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option(
            "--set", metavar="NAME", help=f"ask only this set of queries, may be repeated: {', '.join(_SETS)}"
        ),
    ] = None,
    curated: Annotated[
        bool, typer.Option("--curated", help="evaluate the incidents as shipped instead of this host's base")
    ] = False,
    most: Annotated[int, typer.Option("--most", min=1, max=100_000, help="cards and tickets to ask for")] = MOST,
    misses: Annotated[int, typer.Option("--misses", min=0, max=1000, help="show so many queries that went wrong")] = 0,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Measure how well past incidents are found, in English and Chinese, beside plain FTS5 and a constant guess.

    Each card is removed from a copy of the base and searched by its symptom, without and with its evidence; shipped
    questions and resolved tickets are searched as well.
    """
    found = _evaluate(_chosen(sets or []), curated, most)
    if as_json:
        console.say_json(found)
    else:
        console.say(render("kb_eval.txt", lang, e=found, misses=found.misses[:misses]))


def _chosen(names: list[str]) -> tuple[Set, ...]:
    for name in names:
        if name not in _SETS:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"there is no set {name!r}", f"choose of {', '.join(_SETS)}")
    return tuple(name for name in _SETS if not names or name in names)


def _evaluate(sets: tuple[Set, ...], curated: bool, most: int) -> Evaluation:
    if not curated:
        return evaluate(default_path(), sets, most)
    with tempfile.TemporaryDirectory(prefix="whystall-eval-") as directory:
        return evaluate(Path(directory) / "curated.db", sets, most)
