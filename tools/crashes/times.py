"""Read when a line of a program's log was written, by the clock of its host. Pure.

Forms: ``2026-01-12T03:04:05.123+00:00``, ``2026-01-12 03:04:05,123``, ``2026-01-12_03:04:05`` (torchrun), ``Jan 12
03:04:05`` (syslog), ``Mon Jan 12 03:04:05 2026`` (dmesg -T), ``E0112 03:04:05.123456`` (glog, c10).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_ISO = re.compile(
    rb"(?<!\d)(?P<y>20\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T _](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"
    rb"(?:[.,](?P<f>\d{1,9}))?(?P<z>Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(rb"\b[IWEF](?P<mo>\d\d)(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)\.(?P<f>\d{1,9})")
_SYSLOG = re.compile(
    rb"\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) (?P<d>[ \d]\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"
    rb"(?:\.(?P<f>\d{1,9}))?(?: (?P<y>20\d\d))?\b"
)
_LINE = 512


class Instant(NamedTuple):
    """A time: `at_ns` to `at_ns` + `width_ns` (how finely it is stated). `zoned`: with a time zone, so since the epoch
    in UTC; else of the host's unknown zone. `dated`: with its year."""

    at_ns: int
    width_ns: int
    zoned: bool
    dated: bool


def instant(line: bytes, year: int) -> Instant | None:
    """Return when `line` was written; None if it does not state that.

    Args:
        year: of lines without one.
    """
    head = line[:_LINE]
    found = _ISO.search(head) or _GLOG.search(head) or _SYSLOG.search(head)
    if found is None:
        return None
    named = found.groupdict()
    month = int(named["mo"]) if named.get("mo") else _MONTHS[named["name"].decode("ascii")]
    stated = named.get("y")
    day, hour, minute, second = (int(found[name]) for name in ("d", "h", "mi", "s"))
    zone = named.get("z")
    try:
        moment = datetime(int(stated or year), month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:  # February 30
        return None
    if zone and zone != b"Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        moment -= (1 if zone[:1] == b"+" else -1) * timedelta(hours=hours, minutes=minutes)
    fraction = named.get("f") or b""
    whole = int((moment - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds()) * 10**9
    nanoseconds = int(fraction.ljust(9, b"0")) if fraction else 0
    return Instant(whole + nanoseconds, 10 ** (9 - len(fraction)), bool(zone), bool(stated))
