"""Turn the words of a silence ("node7", "the NFS alerts") into a matcher, by the alerts that fire. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystall.agent_server.integrations.alerts.matchers import format_matcher
from whystall.agent_server.integrations.chat.alert_overview import WORD, Firing
from whystall.agent_server.integrations.chat.ticket_words import is_in
from whystall.prompts.intents import intent_rules
from whystall.prompts.topics import divided

_PORT = re.compile(r":[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z_][\w:.-]*", re.ASCII)


def matcher_of(words: str, alerts: Sequence[Firing]) -> str | None:
    """Return the matcher that `words` mean among the firing `alerts`: the name of one, a host, or words of one name.

    None if they mean nothing, or several things. A word written as names of alerts are (GpuTempHigh) is the name of an
    alert, also if none fires: a silence may precede it.
    """
    words = words.strip()
    named = {one.alert.name for one in alerts if one.alert.name.casefold() == words.casefold()}
    if len(named) == 1:
        return format_matcher("alertname", named.pop())
    if (host := _host_matcher(words, alerts)) is not None:
        return host
    described = {one.alert.name for one in alerts if _described(words, one.alert.name)}
    if len(described) == 1:
        return format_matcher("alertname", described.pop())
    is_name = _NAME.fullmatch(words) and (words != words.lower() or "_" in words) and not words.isupper()
    return format_matcher("alertname", words) if is_name and not described else None


def _host_matcher(host: str, alerts: Sequence[Firing]) -> str | None:
    """Return a matcher of the label that names `host` in all of its alerts; None without one."""
    wanted = host.casefold()
    labels = [
        {name: value for name, value in one.alert.labels.items() if _PORT.sub("", value).casefold() == wanted}
        for one in alerts
    ]
    labels = [found for found in labels if found]
    for name in labels[0] if labels else ():
        values = {found.get(name, "") for found in labels}
        if "" not in values:
            if all(_PORT.search(value) is None for value in values):
                return format_matcher(name, min(values)) if len(values) == 1 else None
            bare = _PORT.sub("", min(values)).replace(".", r"\.")
            return format_matcher(name, f"{bare}(:[0-9]+)?", "=~")
    return None


def _described(words: str, alert: str) -> bool:
    """Return whether every word is in the name of `alert`, or begins a word of it."""
    own = {word.casefold() for word in WORD.findall(divided(alert))}
    asked = {word.casefold() for word in WORD.findall(words)} - intent_rules().filler
    return bool(asked) and all(is_in(word, own) for word in asked)
