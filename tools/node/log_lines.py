"""Lines of kernel logs as programs write them: who wrote the line, when, and the message without prefixes. Pure.

Forms that are understood, each with an example::

    3,2033,25320993947,-,caller=T28;NVRM: Xid ...                          /dev/kmsg
    <3>[25320.993947] NVRM: Xid ...                                        dmesg --raw, pstore
    kern  :err   : [25320.993947] NVRM: Xid ...                            dmesg --decode
    [25320.993947] NVRM: Xid ...                                           dmesg
    [25320.993947][ T1234] NVRM: Xid ...                                   with CONFIG_PRINTK_CALLER
    [Fri Aug 30 11:11:22 2024] NVRM: Xid ...                               dmesg --ctime
    [Aug30 11:11] NVRM: Xid ...                                            dmesg --human, --reltime
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
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

Origin = Literal["kernel", "user", "unknown"]
BOOT, WALL = "boot", "wall"
"""Clocks of an instant: microseconds since boot, or since 1970 (UTC)."""
LINE_BYTES = 4096
"""Longest part of a line that `lines` looks at."""
_LONGEST = 16_384
"""Bytes of a line that `first_message` looks at."""
_FACILITY = 8
"""Priorities below are of facility 0, the kernel's (include/linux/syslog.h)."""
_KMSG = re.compile(
    rb"(?P<priority>\d{1,6}),(?P<seq>\d{1,20}),(?P<us>\d{1,19}),[^;\n]{0,200}?(?:caller=(?P<caller>[TC]\d{1,7}))?;"
)
_ISO = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
# only dmesg, which states no host, has a comma in a time
_SYSLOG = re.compile(
    rb"(?:<(?P<priority>\d{1,4})>\d?\s?)?"
    rb"(?P<clock>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|" + _ISO.replace(b"[.,]", rb"\.") + rb")"
    rb" (?P<host>[\w.:-]{0,254}[\w.-]) (?P<tag>[\w./()@-]{1,64})"
    rb"(?:(?:\[\d{1,10}\])?: ?| (?:\d{1,10}|-) [\w-]{1,32} (?:-|\[[^\]\n]{0,200}\]) ?)"
)
_STAMP = re.compile(rb"\[ *(?P<seconds>\d{1,12}\.\d{1,9})\](?:\[ *(?P<caller>[TC]\d{1,9})\])? ?")
_DIGITS = 3
"""Least digits of a fraction within a line: fewer are a figure of a message, unless they begin the line."""
# journalctl -o short-monotonic; other names without pid could as well be a driver and its device
_NAMED = re.compile(rb"(?P<host>[\w.-]{1,255}) (?:(?P<kernel>kernel)|[\w./@-]{1,64}\[\d{1,10}\]): ")
_HUMAN = re.compile(rb"\[(?P<clock>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_RELATIVE = re.compile(rb"\[(?:[A-Z][a-z]{2}[ \d]\d \d\d:\d\d| *[+<][\d. ]{1,20}>?|\.{3})\] ?")
_DATED = re.compile(rb"(?P<clock>" + _ISO + rb") ")
_DECODED = re.compile(rb"(?P<name>kern|user|daemon|mail|auth|syslog|lpr|news|[a-z]{3,8}\d?) *:[a-z]+ *: ?")
_LEVEL = re.compile(rb"<(?P<priority>\d{1,4})>")
_DROPPED = re.compile(rb"\*\* (?:\d+ printk messages dropped|replaying previous printk message) ?\*\* ?")
# a prefix of the machine that the console belongs to: [4:  system_server: 3344]
_VENDOR = re.compile(rb"\[\d{1,3}: *[^\]\n]{1,40}: *\d{1,7}\] ?")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class LogLine(NamedTuple):
    """A line of a log, or the part of one from a time stamp on, where messages were printed into each other.

    `start`, `end`: offsets in bytes; `text`: without prefixes; `time_s`: since boot, None if not stated; `caller`:
    ``T28`` (a task) or ``C1`` (an interrupt on a CPU), empty if not stated; `origin`: who wrote it, as far as the
    format says; `stamped`: it has a time stamp of the kernel; `clock`: of the syslog daemon; `host`: as it states.
    """

    start: int
    end: int
    text: str
    time_s: float | None
    caller: str
    origin: Origin
    stamped: bool
    clock: str
    host: str

    @property
    def instant(self) -> tuple[int, str]:
        """Its instant in microseconds, and of which clock; -1 and empty if unknown, as without a year or a zone."""
        if self.time_s is not None:
            return round(self.time_s * 1e6), BOOT
        us = _wall_us(self.clock)
        return (us, WALL) if us >= 0 else (-1, "")


def lines(data: bytes, base: int = 0) -> Iterator[LogLine]:
    """Yield the lines of `data`, which is at the offset `base` of its file; of one longer than 4 KiB the beginning."""
    at, size = 0, len(data)
    while at < size:
        end = data.find(b"\n", at)
        end = size if end < 0 else end
        yield from _parts(data[at : min(end, at + LINE_BYTES)], base + at, base + end)
        at = end + 1


def _parts(raw: bytes, start: int, end: int) -> Iterator[LogLine]:
    """Yield the messages of one line: one, or several where a console printed them into each other."""
    origin: Origin = "unknown"
    clock = host = caller = ""
    time_s: float | None = None
    stamped = False
    at = 0
    if (record := _KMSG.match(raw)) is not None:
        origin = "kernel" if int(record["priority"]) < _FACILITY else "user"
        time_s, caller, at = int(record["us"]) / 1e6, (record["caller"] or b"").decode(), record.end()
        stamped = True
    elif (syslog := _SYSLOG.match(raw)) is not None:
        # any program may log under the name kernel, so that the name proves nothing
        foreign = int(syslog["priority"] or 0) >= _FACILITY or syslog["tag"] != b"kernel"
        origin = "user" if foreign else "unknown"
        clock, host, at = syslog["clock"].decode("ascii"), syslog["host"].decode("ascii"), syslog.end()
    elif raw.startswith(b"{") and (entry := journal_entry(raw)) is not None:
        yield entry._replace(start=start, end=end)
        return
    elif (facility := _DECODED.match(raw)) is not None:
        origin, at = ("kernel" if facility["name"] == b"kern" else "user"), facility.end()
    elif (level := _LEVEL.match(raw)) is not None:
        # dmesg --raw and pstore have the facility in the priority
        origin, at = ("kernel" if int(level["priority"]) < _FACILITY else "user"), level.end()
    if (human := _HUMAN.match(raw, at)) is not None:
        clock, at, stamped = human["clock"].decode("ascii"), human.end(), True
    elif (relative := _RELATIVE.match(raw, at)) is not None:
        at, stamped = relative.end(), True
    elif not clock and (dated := _DATED.match(raw, at)) is not None:
        clock, at, stamped = dated["clock"].decode("ascii"), dated.end(), True
    head = raw[at:]
    if (dropped := _DROPPED.match(head)) is not None:
        head = head[dropped.end() :]
    stamps = (
        []
        if record is not None
        else [
            one for one in _STAMP.finditer(head) if not one.start() or len(one["seconds"].partition(b".")[2]) >= _DIGITS
        ]
    )
    if not stamps:
        yield LogLine(start, end, _text(head), time_s, caller, origin, stamped, clock, host)
        return
    before = head[: stamps[0].start()]
    if before.strip():
        yield LogLine(start, end, _text(before), time_s, caller, origin, False, clock, host)
    for one, following in zip(stamps, [*stamps[1:], None], strict=True):
        text = head[one.end() : following.start() if following else None]
        if (vendor := _VENDOR.match(text)) is not None:
            text = text[vendor.end() :]
        if origin == "unknown" and (named := _NAMED.match(text)) is not None:
            host, text = named["host"].decode("ascii"), text[named.end() :]
            origin = "unknown" if named["kernel"] else "user"
        if not text.strip() and following is not None:
            continue
        by = (one["caller"] or b"").decode()
        yield LogLine(start, end, _text(text), float(one["seconds"]), by, origin, True, clock, host)


def first_message(raw: bytes) -> LogLine | None:
    """Return the message of the line `raw`, of any form: the first one if several were printed into each other; None
    if it has none. What the line quotes (a program that prints a log) is not a message of its own."""
    raw = raw[:_LONGEST].partition(b"\n")[0]
    return next((part for part in _parts(raw, 0, len(raw)) if part.text.strip()), None)


def journal_entry(raw: bytes) -> LogLine | None:
    """Return an entry of ``journalctl -o json``, of which a message that is not UTF-8 is a list of bytes; None if it is
    none::

        {"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","_SOURCE_MONOTONIC_TIMESTAMP":"25320993947","MESSAGE":"NVRM: ..."}
    """
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    text = _journal_text(entry.get("MESSAGE")) if isinstance(entry, dict) else None
    if text is None:
        return None
    own = entry.get("_TRANSPORT") == "kernel" and str(entry.get("SYSLOG_FACILITY", "0")) == "0"
    since_boot, wall = (_number(entry.get(name)) for name in ("_SOURCE_MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP"))
    time_s = since_boot / 1e6 if since_boot is not None else None
    clock = _iso(wall) if wall is not None else ""
    host = str(entry.get("_HOSTNAME", ""))[:255]
    return LogLine(0, len(raw), text, time_s, "", "kernel" if own else "user", True, clock, host)


def _journal_text(message: Any) -> str | None:
    if isinstance(message, list) and all(isinstance(one, int) and 0 <= one < 256 for one in message[:_LONGEST]):
        message = bytes(message[:_LONGEST]).decode("utf-8", "replace")
    return message[:LINE_BYTES].partition("\n")[0] if isinstance(message, str) else None


def _number(stamp: Any) -> int | None:
    return int(stamp) if isinstance(stamp, str) and re.fullmatch(r"[0-9]{1,18}", stamp) else None


def _iso(us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    except OverflowError:
        return ""


def _wall_us(stamp: str) -> int:
    """Return microseconds since 1970 of an ISO time with a zone; -1 of any other."""
    # Python before 3.11 reads neither Z nor a zone without colon
    stamp = re.sub(r"Z$", "+00:00", stamp.replace(",", ".").replace(" ", "T"))
    stamp = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", stamp)
    stamp = re.sub(r"\.(\d+)", lambda part: "." + part[1][:6].ljust(6, "0"), stamp)
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return -1
    return (when - _EPOCH) // timedelta(microseconds=1) if when.tzinfo is not None else -1


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r ")
