"""What to run on the host of an alert, by its name and its own texts: ``checks.yaml``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.classify.severities import xids
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.tickets.human import line
from whystall.prompts.render import words

_XID_CHECK = "gpu"
_NAME = 200  # characters of an alert's name that are read
_HOST = 100
# HostOomKillDetected, GPUXIDError, kube_node_not_ready
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


class Check(BaseModel):
    """An entry of the file; see there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    match: re.Pattern[str]
    names: list[str]
    tool: str
    causes: list[str]
    commands: list[str]


@cache
def checks() -> tuple[Check, ...]:
    """Return all entries, in order."""
    found = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"))
    return tuple(Check.model_validate({**one, "match": re.compile(one["match"], re.IGNORECASE)}) for one in found)


def check_of(names: Iterable[str], text: str = "") -> Check | None:
    """Return what examines alerts with these `names`; `text`: their own texts, which may name an Xid.

    None if nothing is known that does. An alert about an Xid counts as such whatever its name is.
    """
    if next(xids(text.lower()), None) is not None:
        return next(one for one in checks() if one.id == _XID_CHECK)
    worded = [" ".join(_WORD.findall(name[:_NAME])) for name in names]
    return next((one for one in checks() if any(one.match.search(name) for name in worded)), None)


def check_lines(check: Check | None, hosts: Iterable[str], lang: Lang) -> list[str]:
    """Return the sentence that states where to run what; empty without a check. `hosts`: of the alerts, if known."""
    if check is None:
        return []
    texts = words(lang)["alert_checks"]
    comma = words(lang)["marks"]["comma"]
    named = comma.join(line(host, _HOST) for host in hosts)
    where = texts["host"].format(named) if named else texts["on_its_host"]
    commands = comma.join(f"`{command}`" for command in check.commands)
    return [texts["run"].format(where, commands, texts["why"][check.id])]
