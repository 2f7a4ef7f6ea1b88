"""Lines of kernel logs as programs write them: who wrote the line, when, and the message. Pure.

Forms that are understood, each with an example::

    3,2033,25320993947,-;NVRM: Xid ...                                     /dev/kmsg
    <3>[25320.993947] NVRM: Xid ...                                        dmesg --raw
    kern  :err   : [25320.993947] NVRM: Xid ...                            dmesg --decode
    [25320.993947] NVRM: Xid ...                                           dmesg
    [25320.993947][ T1234] NVRM: Xid ...                                   with CONFIG_PRINTK_CALLER
    [Fri Aug 30 11:11:22 2024] NVRM: Xid ...                               dmesg --ctime
    2024-08-30T11:11:22,123456+00:00 NVRM: Xid ...                         dmesg --time-format iso
    Aug 30 11:11:22 node7 kernel: [25320.993947] NVRM: Xid ...             syslog
    2024-08-30T11:11:22.123456+00:00 node7 kernel: NVRM: Xid ...           rsyslog, journalctl -o short-iso
    <3>1 2024-08-30T11:11:22Z node7 kernel - - - NVRM: Xid ...             RFC 5424
    [25320.993947] node7 kernel: NVRM: Xid ...                             journalctl -o short-monotonic
    {"_TRANSPORT": "kernel", "MESSAGE": "NVRM: Xid ...", ...}              journalctl -o json
    NVRM: Xid ...                                                          the message alone

The kernel marks what programs write to /dev/kmsg: the priority's facility (priority // 8) is then not 0, whatever the
program asked for (kernel/printk/printk.c, devkmsg_write). Forms without priority do not show it: the name ``kernel`` in
syslog's forms is no proof, since any program may log under it.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, NamedTuple

BOOT, WALL = "boot", "wall"
"""Clocks of a line: microseconds since boot, or since 1970 (UTC)."""
_LONGEST = 16_384
"""Characters of a line that are looked at."""
_FACILITY = 8
_US = 1_000_000
_KMSG = re.compile(r"(?P<priority>\d{1,6}),\d{1,20},(?P<us>\d{1,19}),[^;]{0,200};(?P<text>.*)", re.DOTALL)
_BOOT_TIME = r"\[\s*(?P<{0}>\d{{1,10}}\.\d{{1,9}})\]"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_PREFIX = re.compile(
    r"(?:<(?P<priority>\d{1,4})>(?:1(?=\s))?\s*)?"
    r"(?:(?P<facility>[a-z][a-z0-9]{1,9})\s*:(?P<level>[a-z]{1,7})\s*:\s*)?"
    r"(?:"
    rf"{_BOOT_TIME.format('first')}"
    rf"|\[(?P<ctime>[A-Z][a-z]{{2}} (?:{_MONTHS}) [ \d]\d \d\d:\d\d:\d\d \d{{4}})\]"
    r"|(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    rf"|(?P<syslog>(?:{_MONTHS}) [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?)"
    rf"|\[(?:(?:{_MONTHS})\d\d \d\d:\d\d|\s*[+<][\d. ]{{1,20}}>?|\.{{3}})\]"
    r")?\s*"
    # a program's name: of the kernel, or another one
    r"(?:(?:[\w.-]{1,255}\s+)??(?P<program>[\w./@-]{1,64})(?:\[\d+\])?(?::|\s+-\s+-\s+-)\s+)??"
    rf"(?:{_BOOT_TIME.format('second')})?\s*(?:\[\s*[TC]\d{{1,9}}\]\s*)?"
)
_KERNEL = "kernel"


class Line(NamedTuple):
    """A line. `kernel`: the kernel wrote it; None: this form does not show who did. `us`: by `clock`, -1 and empty if
    the line has no instant. Instants without a year or a zone are unknown."""

    text: str
    kernel: bool | None
    us: int = -1
    clock: str = ""


def parsed(line: str, message: re.Pattern[str]) -> Line | None:
    """Return `line` if a message that begins with `message` follows a prefix of a known form; else None.

    What else a line may quote (a program that prints a log) is not a message of the kernel.
    """
    line = line[:_LONGEST].rstrip("\r\n")
    if line.startswith("{"):
        found = journal_entry(line)
        return found if found is not None and message.match(found.text) else None
    if (record := _KMSG.match(line)) is not None:
        text = record["text"].partition("\n")[0]
        own = int(record["priority"]) < _FACILITY
        return Line(text, own, int(record["us"]), BOOT) if message.match(text) else None
    for start in message.finditer(line):
        if (prefix := _PREFIX.fullmatch(line, 0, start.start())) is not None:
            return Line(line[start.start() :], _writer(prefix), *_instant(prefix))
        return None
    return None


def instant(line: str) -> tuple[int, str]:
    """Return the instant of a line of any form, and its clock; -1 and empty if it shows none, or has no known form."""
    line = line[:_LONGEST]
    if line.startswith("{"):
        entry = journal_entry(line)
        return (entry.us, entry.clock) if entry is not None else (-1, "")
    if (record := _KMSG.match(line)) is not None:
        return int(record["us"]), BOOT
    prefix = _PREFIX.match(line)
    return _instant(prefix) if prefix is not None else (-1, "")


def journal_entry(line: str) -> Line | None:
    """Return an entry of ``journalctl -o json``, of which a message that is not UTF-8 is a list of bytes; None if it is
    none::

        {"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","_SOURCE_MONOTONIC_TIMESTAMP":"25320993947","MESSAGE":"NVRM: ..."}
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    text = _journal_text(entry.get("MESSAGE"))
    if text is None:
        return None
    kernel = entry.get("_TRANSPORT") == _KERNEL and str(entry.get("SYSLOG_FACILITY", "0")) == "0"
    for name, clock in (("_SOURCE_MONOTONIC_TIMESTAMP", BOOT), ("__REALTIME_TIMESTAMP", WALL)):
        stamp = entry.get(name)
        if isinstance(stamp, str) and re.fullmatch(r"[0-9]{1,18}", stamp):
            return Line(text, kernel, int(stamp), clock)
    return Line(text, kernel)


def _journal_text(message: Any) -> str | None:
    if isinstance(message, str):
        return message[:_LONGEST]
    if isinstance(message, list) and all(isinstance(one, int) and 0 <= one < 256 for one in message[:_LONGEST]):
        return bytes(message[:_LONGEST]).decode("utf-8", "replace")
    return None


def _writer(prefix: re.Match[str]) -> bool | None:
    """Return whether the kernel wrote the line with this `prefix`; None if it does not show."""
    if prefix["priority"] is not None:
        return int(prefix["priority"]) < _FACILITY
    if prefix["facility"] is not None:
        return prefix["facility"] == "kern"
    if prefix["program"] not in (None, _KERNEL):
        return False
    return None  # any program may log under the name of the kernel


def _instant(prefix: re.Match[str]) -> tuple[int, str]:
    seconds = prefix["second"] or prefix["first"]
    if seconds is not None:
        return int(float(seconds) * _US), BOOT
    stamp = prefix["iso"]
    if stamp is None:
        return -1, ""
    # Python before 3.11 reads neither Z nor a zone without colon
    stamp = re.sub(r"Z$", "+00:00", stamp.replace(",", ".").replace(" ", "T"))
    stamp = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", stamp)
    stamp = re.sub(r"\.(\d+)", lambda part: "." + part[1][:6].ljust(6, "0"), stamp)
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return -1, ""
    if when.tzinfo is None:
        return -1, ""
    return int((when - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds() * _US), WALL
