"""Answer a message that contains a pasted log: what crashed or failed, what failed first, and what is known of it.

The log is read as a file is (`diagnosis.log_reading`); nothing is stored, and no ticket is opened. Reading blocks: call
it in a thread.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from whystall.agent_server.diagnosis.log_reading import LogReading, may_be_log, read_log
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.look_up import Found, look_up_named, topic_lines
from whystall.agent_server.integrations.chat.message_texts import outgoing, similar_message
from whystall.agent_server.integrations.messages import Incoming
from whystall.agent_server.presentation.crash_lines import first_failure_lines
from whystall.agent_server.presentation.defect_lines import defect_text
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang, Match
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import words
from whystall.tools.host.crash_analyse.rows import CrashRow, FailureRow
from whystall.tools.host.gpu_health.data import MessageRow

_ROWS = 3
_CARDS = 2
_NAME = 200
_NAMED = 4000  # characters in which hosts and alerts are looked for
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})\s*[\w+-]{0,20}\s*$")
# What a person writes before the first line of the log, on that line: up to a time stamp, a level or a driver's name.
_BEFORE = re.compile(r"^.*?(?=(?:<\d{1,3}>)?\[ *\d+\.\d+\]|<\d{1,3}>|NVRM: |Traceback \(most)")
_CJK = re.compile(r"^.*[\u3000-\u303f\u3400-\u9fff\uff00-\uffef] *")
_STATES = ("relevant",)


def log_of(incoming: Incoming) -> str:
    """Return the log in a message, without fences, quotation marks and the words before it; empty if it has none."""
    text = incoming.lines or incoming.text
    if not may_be_log(text):
        return ""
    lines = [line.strip("`") if "```" in line else line for line in text.splitlines() if not _FENCE.match(line)]
    if len(lines) > 1 and all(line.startswith(("> ", ">")) for line in lines if line.strip()):
        lines = [line[1:].removeprefix(" ") for line in lines]
    if lines:
        lines[0] = _CJK.sub("", _BEFORE.sub("", lines[0], count=1), count=1)
    return "\n".join(lines) + "\n"


def pasted(known: Answers, log: str) -> LogReading | None:
    """Return what the pasted `log` states; None if nothing in it is a crash, a failure or a message of a GPU. Raises
    `ToolError`.
    """
    with tempfile.TemporaryDirectory(prefix="whystall-") as folder:
        path = Path(folder, "pasted.log")  # in the name of no rank
        path.write_text(log, "utf-8", "replace")
        found = read_log(path, known.kb)
    if found is None or found.crashes.first is None:
        return found
    # a process without a rank is named by its log, which was not a file
    first = found.crashes.first
    who, *others = (one.replace(str(path), path.name) for one in (first.who, *first.candidates))
    shown = {"who": who, "candidates": others}
    data = found.crashes.model_copy(update={"first": first.model_copy(update=shown)})
    return replace(found, crashes=data)


def pasted_message(known: Answers, read: LogReading, text: str, lang: Lang, now: datetime) -> Found:
    """Return the answer about a log. `text`: the message, for the hosts and alerts that it names."""
    data = read.crashes
    several = len(data.failures) + len(data.crashes) > 1
    lines: list[str] = [*first_failure_lines(data, "md", lang)] if several else []
    lines += [_crash(row, lang) for row in data.crashes[:_ROWS]]
    lines += [_failure(row, lang) for row in data.failures[:_ROWS]]
    left = max(0, len(data.crashes) - _ROWS) + max(0, len(data.failures) - _ROWS)
    lines += [_message(row, lang) for row in read.messages[:_ROWS]]
    left += max(0, len(read.messages) - _ROWS)
    lines += [f"- {say(lang, 'ticket.more', left)}"] if left else []
    lines += _cause(read, lang)
    first = next((row for row in data.failures if not row.reaction), None)
    lines += topic_lines(first.detail, lang, 1) if first is not None else []
    if any(row.origin != "kernel" for row in data.crashes):
        lines.append(say(lang, "log.origin"))
    named = look_up_named(known, text[:_NAMED], lang, now)
    lines += named.message.text.splitlines() if named is not None else []
    if cards := _cards(known, read, lang):
        lines += [say(lang, "look_up.incidents"), similar_message(cards, lang).text]
    lines.append(say(lang, "log.more"))
    return Found(outgoing(lang, lines, say(lang, "title.log")), named.listed if named is not None else [])


def _crash(row: CrashRow, lang: Lang) -> Safe:
    parts = [
        say(lang, "log.function", name(short(row.function, _NAME))) if row.function else "",
        say(lang, "log.process", name(short(row.process, _NAME))) if row.process else "",
        say(lang, "log.limit", name(short(row.limit_cgroup, _NAME))) if row.limit_cgroup else "",
        say(lang, "log.host", name(short(row.host, _NAME))) if row.host else "",
        say(lang, "log.times", row.count) if row.count > 1 else "",
        say(lang, "log.corrupted") if row.corrupted else "",
    ]
    return _line(row.title, row.crash_class, row.severity, parts, lang)


def _failure(row: FailureRow, lang: Lang) -> Safe:
    parts = [
        say(lang, "log.rank", row.rank) if row.rank is not None else "",
        say(lang, "log.process", name(short(row.process, _NAME))) if row.process else "",
        say(lang, "log.host", name(short(row.host, _NAME))) if row.host else "",
        say(lang, "log.status", row.status) if row.status is not None else "",
        name(short(row.detail, _NAME)) if row.detail and not row.reaction else "",
        say(lang, "log.reaction") if row.reaction else "",
    ]
    return _line(row.title, row.crash_class, "minor" if row.reaction else "critical", parts, lang)


def _line(title: str, kind: str, severity: str, parts: Sequence[str], lang: Lang) -> Safe:
    comma = str(words(lang)["marks"]["comma"])
    rest = "".join(f"{comma}{part}" for part in parts if part)
    shown = name(short(title or kind, _NAME))
    return say(
        lang, "log.line", title=shown, kind=name(kind), severity=words(lang)["severities"][severity], rest=Safe(rest)
    )


def _message(row: MessageRow, lang: Lang) -> Safe:
    known, comma = words(lang), str(words(lang)["marks"]["comma"])
    parts = [
        name(short(row.gpu, _NAME)) if row.gpu else "",
        say(lang, "log.process", name(short(row.process, _NAME))) if row.process else "",
        say(lang, "log.times", row.count) if row.count > 1 else "",
        say(lang, "log.follows", name(row.root)) if row.root else "",
    ]
    return say(
        lang,
        "log.message",
        what=name(row.what),
        meaning=known["xid_meanings"].get(row.meaning) or known["xid_meanings"]["unknown"],
        severity=known["severities"][row.severity.value],
        rest=Safe("".join(f"{comma}{part}" for part in parts if part)),
        action=say(lang, "log.action", known["xid_actions"][row.action]) if row.action in known["xid_actions"] else "",
    )


def _cause(read: LogReading, lang: Lang) -> list[str]:
    """Return the cause, its first remedy, and the known defects that the log shows."""
    lines: list[str] = []
    cause = load_causes().get(read.diagnosis.cause or "")
    if cause is not None:
        lines.append(say(lang, "log.cause", Safe(cause.title.get(lang))))
        if fix := next(iter(sorted(cause.remedies, key=lambda one: (-one.gain, one.effort))), None):
            lines.append(say(lang, "verdict.try", Safe(fix.text.get(lang))))
    for row in [one for one in read.diagnosis.known_fixes if one.standing in _STATES][:_CARDS]:
        lines.append(say(lang, "log.known", defect_text(row, "md", lang)))
    return lines


def _cards(known: Answers, read: LogReading, lang: Lang) -> list[Match]:
    """Return the incidents with the signature of the log, else those in its words that are likely to fit."""
    found = [match for match in read.diagnosis.matches if match.known]
    failures = [f"{row.title} {row.detail}" for row in read.crashes.failures if not row.reaction]
    crashes = [f"{row.title} {row.function}" for row in read.crashes.crashes]
    messages = [f"{row.what} {row.text}" for row in read.messages]
    asked = " ".join([*failures[:1], *crashes[:1], *messages[:1]])
    found = found or [match for match in known.incidents(asked, _ROWS, lang).matches if not match.weak]
    return [match.model_copy(update={"fix": known.fix(match)}) for match in found[:_CARDS]]
