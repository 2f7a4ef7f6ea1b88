"""Read the small files beside an Ascend profile: its rank, and how its clock relates to the host's.

Every Ascend profiler stamps with a counter, converts it to CLOCK_MONOTONIC_RAW and adds one constant: the difference of
wall clock and CLOCK_MONOTONIC_RAW when collection began (``host/start_info``: ``collectionTimeBegin`` us,
``clockMonotonicRaw`` ns; msprof's GetLocalTime, torch_npu's get_localtime_diff). So its instants look like the epoch
but run at the rate of mono_raw, and ``start_info`` is an exact bridge to it; the wall clock at the end of collection
(``end_info``) is no instant of the profile, it shows how far the wall clock was slewed meanwhile.
``profiler_info_N.json`` adds wall clock and CLOCK_MONOTONIC at the end (``time.time_ns``, ``time.monotonic_ns``).

``start_info``: ``{"collectionTimeBegin": "1736413971558972", "clockMonotonicRaw": "98127346512345", ...}``
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.files.input import opened
from whystall.tools.timeline.profile import ClockBridge
from whystall.tools.timeline.profile_reading.numbers import nanoseconds, whole

_LIMIT = 1 << 20
_INFO = re.compile(r"profiler_info(?:_([0-9]{1,9}))?\.json")
_PROF = re.compile(r"PROF_\w+")
# of torch_npu: host, process, time
_DIRECTORY = re.compile(r"(.+)_([0-9]{1,9})_[0-9]{14,20}_ascend_(?:pt|ms)")
_METADATA = "profiler_metadata.json"
_GROUPS = "parallel_group_info"
_US, _NS = "us", "ns"


@dataclass(frozen=True)
class Info:
    """What is known of an Ascend profile beside its activities. `cpu_only`: no device was profiled; `groups` as in the
    metadata, for `ascend.groups`; `host`, `pid`: from the directory's name, empty and -1 unknown."""

    rank: int = -1
    bridges: tuple[ClockBridge, ...] = ()
    cpu_only: bool = False
    groups: object = None
    host: str = ""
    pid: int = -1


@dataclass(frozen=True)
class _Clocks:
    """Pairs of readings in ns, None where a file is missing."""

    begin: tuple[int, int] | None = None  # wall, mono_raw
    end: tuple[int, int] | None = None  # wall, mono_raw
    framework_end: tuple[int, int] | None = None  # wall, mono


def info_of(directory: Path) -> Info:
    """Read a ``*_ascend_pt`` or ``PROF_*`` directory. What is missing or damaged is left out."""
    names = sorted(directory.iterdir()) if directory.is_dir() else []
    rank, main = -1, {}
    for path in names:
        if match := _INFO.fullmatch(path.name):
            main = _json(path)
            rank = _number(main.get("rank_id", match.group(1) or -1))
            break
    start, finish = _part(main, "start_info"), _part(main, "end_info")
    hosts = [directory / "host", *(path / "host" for path in names if _PROF.fullmatch(path.name))]
    clocks = _Clocks(
        begin=_pair(start, "collectionTimeBegin", "clockMonotonicRaw", _US),
        framework_end=_pair(finish, "collectionTimeEnd", "MonotonicTimeEnd", _NS),
    )
    for host in hosts:
        begin = _pair(_json(host / "start_info"), "collectionTimeBegin", "clockMonotonicRaw", _US)
        if begin is not None:
            end = _pair(_json(host / "end_info"), "collectionTimeEnd", "clockMonotonicRaw", _US)
            clocks = _Clocks(begin, end, clocks.framework_end)
            break
    config = _part(_part(main, "config"), "common_config").get("activities")
    cpu_only = isinstance(config, list) and bool(config) and all("CPU" in str(activity) for activity in config)
    named = _DIRECTORY.fullmatch(directory.absolute().name)
    return Info(
        rank,
        tuple(_bridges(clocks, cpu_only)),
        cpu_only,
        _json(directory / _METADATA).get(_GROUPS),
        clean(named.group(1)) if named else "",
        int(named.group(2)) if named else -1,
    )


def _bridges(clocks: _Clocks, cpu_only: bool) -> Iterator[ClockBridge]:
    if clocks.begin is not None:
        wall, raw = clocks.begin
        yield ClockBridge(profile_ns=wall, host_clock="mono_raw", host_ns=raw)
        if clocks.framework_end is not None:
            # Wall clock and mono are slewed alike: their difference holds for the whole profile.
            offset = clocks.framework_end[1] - clocks.framework_end[0]
            yield ClockBridge(profile_ns=wall, host_clock="mono", host_ns=wall + offset)
            if clocks.end is not None and clocks.end[1] > raw:
                last_wall, last_raw = clocks.end
                yield ClockBridge(profile_ns=wall + last_raw - raw, host_clock="mono", host_ns=last_wall + offset)
    elif clocks.framework_end is not None:
        wall, mono = clocks.framework_end
        # Without a device there is no start_info, and torch_npu adds wall minus mono of the end to mono_raw.
        yield ClockBridge(profile_ns=wall, host_clock="mono_raw" if cpu_only else "mono", host_ns=mono)


def _pair(content: dict[str, object], wall: str, other: str, unit: str) -> tuple[int, int] | None:
    """Return two readings; `unit` is the wall clock's, the other is in ns."""
    first = nanoseconds([content.get(wall, "")])[0] if unit == _US else _number(content.get(wall, -1))
    second = _number(content.get(other, -1))
    return (int(first), second) if first is not None and first > 0 and second > 0 else None


def _number(value: object) -> int:
    return int(whole([value if isinstance(value, (int, float, str)) else -1])[0])


def _part(content: dict[str, object], key: str) -> dict[str, object]:
    part = content.get(key)
    return part if isinstance(part, dict) else {}


def _json(path: Path) -> dict[str, object]:
    """Return a small JSON object; empty when the file is missing, damaged or too large."""
    try:
        with opened(path) as file:
            found = msgspec.json.decode(file.read(_LIMIT))
    except (
        OSError,
        EOFError,
        zlib.error,
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        ToolError,
    ):  # a pipe, say
        return {}
    return found if isinstance(found, dict) else {}
