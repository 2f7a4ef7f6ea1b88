"""Split the bytes of a log into lines without the prefixes of consoles, syslog, journals and /dev/kmsg. Pure.

One line in each of the forms (all are of the same message)::

    [ 1992.224966][   T28] INFO: task udevd:5612 blocked for more than 143 seconds.
    <3>[ 1992.224966] INFO: task ...
    Jan 12 03:04:05 gpu-7 kernel: [ 1992.224966] INFO: task ...
    2026-01-12T03:04:05.123456+00:00 gpu-7 kernel: INFO: task ...
    3,2033,1992224966,-,caller=T28;INFO: task ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Literal, NamedTuple

Origin = Literal["kernel", "user", "unknown"]
LINE_BYTES = 4096
"""Longest part of a line that is looked at."""
_KMSG = re.compile(
    rb"(?P<priority>\d{1,4}),(?P<seq>\d{1,19}),(?P<us>\d{1,19}),[^;\n]{0,80}?(?:caller=(?P<caller>[TC]\d{1,7}))?;"
)
_SYSLOG = re.compile(
    rb"(?:<(?P<priority>\d{1,4})>\d?\s?)?"
    rb"(?P<clock>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    rb" (?P<host>[\w.:-]{1,255}) (?P<tag>[\w./()@-]{1,64})(?:\[\d{1,10}\])?: ?"
)
_STAMP = re.compile(rb"\[ *(?P<seconds>\d{1,12}\.\d{3,9})\](?:\[ *(?P<caller>[TC]\d{1,7})\])? ?")
# dmesg -T: [Thu Jan 12 03:04:05 2026]
_HUMAN = re.compile(rb"\[(?P<clock>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
# dmesg --decode: kern  :err   : [ 12.3] ...
_DECODED = re.compile(rb"(?P<name>kern|user|daemon|mail|auth|syslog|lpr|news|local\d) *:[a-z]+ *: ")
_LEVEL = re.compile(rb"<(?P<priority>\d{1,4})>")
_DROPPED = re.compile(rb"\*\* (?:\d+ printk messages dropped|replaying previous printk message) ?\*\* ?")
# a prefix of the machine that the console belongs to: [4:  system_server: 3344]
_VENDOR = re.compile(rb"\[\d{1,3}: *[^\]\n]{1,40}: *\d{1,7}\] ?")
_FACILITY = 8
"""Priorities below are of facility 0, the kernel's (include/linux/syslog.h)."""


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
        origin = "unknown" if syslog["tag"] == b"kernel" else "user"
        clock, host, at = syslog["clock"].decode("ascii"), syslog["host"].decode("ascii"), syslog.end()
    elif raw.startswith(b"{") and (entry := _journal(raw)) is not None:
        message, origin, clock, host = entry
        yield LogLine(start, end, message, time_s, caller, origin, True, clock, host)
        return
    elif (facility := _DECODED.match(raw)) is not None:
        origin, at = ("kernel" if facility["name"] == b"kern" else "user"), facility.end()
    elif (level := _LEVEL.match(raw)) is not None:
        # dmesg --raw and pstore have the facility in the priority
        origin, at = ("kernel" if int(level["priority"]) < _FACILITY else "user"), level.end()
    if (human := _HUMAN.match(raw, at)) is not None:
        clock, at, stamped = human["clock"].decode("ascii"), human.end(), True
    head = raw[at:]
    if (dropped := _DROPPED.match(head)) is not None:
        head = head[dropped.end() :]
    stamps = [] if record is not None else list(_STAMP.finditer(head))
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
        if not text.strip() and following is not None:
            continue
        by = (one["caller"] or b"").decode()
        yield LogLine(start, end, _text(text), float(one["seconds"]), by, origin, True, clock, host)


def _journal(raw: bytes) -> tuple[str, Origin, str, str] | None:
    """Return text, origin, time and host of an entry of ``journalctl -o json``; None for other lines::

    {"_TRANSPORT":"kernel","MESSAGE":"BUG: soft lockup","__REALTIME_TIMESTAMP":"1768187045123456","_HOSTNAME":"gpu-7"}
    """
    try:
        entry = json.loads(raw)
        text = entry["MESSAGE"]
        if isinstance(text, list):  # bytes that are not UTF-8
            text = bytes(text).decode("utf-8", "replace")
        moment = datetime.fromtimestamp(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, timezone.utc)
        clock = moment.isoformat(timespec="microseconds")
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None
    origin: Origin = "kernel" if entry.get("_TRANSPORT") == "kernel" else "user"
    return str(text)[:LINE_BYTES].partition("\n")[0], origin, clock, str(entry.get("_HOSTNAME", ""))[:255]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r ")
