"""Decode Xid and SXid messages of NVIDIA's driver from lines of a kernel log, with repeats folded. Pure.

Messages that are understood, each with an example::

    NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT
    NVRM: Xid (0000:03:00): 14, Channel 00000001                                            old drivers
    NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149
    NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 ...)
    NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)
    NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.                                     without a number: 79
    NVRM: The NVIDIA GPU 0000:18:00.0                                                       the same in several lines
    NVRM: fallen off the bus and is not responding to commands.
    NVRM: GPU at PCI:0000:9b:00: GPU-2a3c9c1e-...                                           the GPU's UUID
    nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)

Sub-codes of NVLink 5 (Xid 144 to 150): bits 20 to 25 of the first number in parentheses; the second is the error
status (NVIDIA's catalogue, "XID 144-150 Decode").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from whystall.tools.contract.text import clean
from whystall.tools.node import log_lines
from whystall.tools.node.xid_catalogue import OFF_BUS

Kind = Literal["xid", "sxid"]
MARKS = (b"NVRM: ", b"SXid")
"""A line without any of these holds nothing to decode."""
NVLINK5 = range(144, 151)
_MOST_EVENTS = 4096
"""Most different messages that are kept; repeats are only counted."""
_MOST_PIDS = 32
_DETAIL = 160
_MOST_CODE = 1_000_000
_ADDRESS = r"(?:PCI:)?(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_MESSAGE = re.compile(r"NVRM: |nvidia-nvswitch\d{1,4}: (?=SXid)")
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}\): (?P<code>\d{{1,6}})(?:,\s*|\s+|$)(?P<rest>.*)", re.DOTALL)
_SXID = re.compile(
    rf"(?P<switch>nvidia-nvswitch\d+): SXid \({_ADDRESS}\): (?P<code>\d{{1,6}}),\s*(?P<rest>.*)", re.DOTALL
)
_PROCESS = re.compile(
    r"pid=(?:'?<unknown>'?|'?(?P<pid>\d{1,10})'?)(?:,\s*name=(?:'?<unknown>'?|(?P<name>.{1,15}?)))?(?:,\s*|$)"
)
_UUID = re.compile(rf"NVRM: GPU at {_ADDRESS}: (?P<uuid>GPU-[0-9a-fA-F-]{{8,36}})")
_LOST = re.compile(rf"NVRM: .{{0,40}}?\b{_ADDRESS}:?.{{0,60}}\bfallen off the bus")
_LOST_HEAD = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}")
_LOST_TAIL = re.compile(r"NVRM: .{0,40}\bfallen off the bus and is not responding")
_CAUSED_BY = re.compile(r"\bcaused by previous Xid (\d{1,6})\b")
_RECOVERY = re.compile(
    r"\brecovery action changed from (?:0x)?[0-9a-fA-F]+ ?(?:\([^)]{0,40}\) )?to 0x([0-9a-fA-F]{1,8})"
)
_UNIT = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{2,40})(?:/[A-Z0-9_/]{1,60})?\s+(?P<fatal>Fatal|Non-?fatal)\b"
    r"(?:.{0,40}?\bLink (?P<link>-?\d{1,4}))?"
    r"(?:.{0,20}?\((?P<numbers>0x[0-9a-fA-F]{1,8}(?:[ ,]+0x[0-9a-fA-F]{1,8})*))?",
    re.DOTALL,
)
_SWITCH_FATAL = re.compile(r"(?P<fatal>Fatal|Non-?fatal)\b", re.IGNORECASE)
_LINK = re.compile(r"\b[Ll]ink (\d{1,4})\b")


@dataclass
class Event:
    """Messages that say the same about one device, in the order of their first one.

    `device`: PCI address (``0000:05:00.0``); `unit`, `sub_code`, `status`: of NVLink 5; `fatal`: what the message says,
    yes or no, empty if nothing; `root`: the Xid that the message names as the cause; `recovery`: what Xid 154 asks for.
    `numbered`: False if no message stated the code. `first_us`, `last_us`: by `clock` (see `log_lines`). -1: unknown.
    `order`: of the first message among all; `line`: its line in the log, from 1, 0 unknown; `host`: as
    the log states, empty if it does not.
    """

    kind: Kind
    code: int
    device: str
    uuid: str = ""
    unit: str = ""
    sub_code: int = -1
    status: int = -1
    fatal: str = ""
    link: int = -1
    root: int = -1
    recovery: int = -1
    numbered: bool = True
    count: int = 1
    first_us: int = -1
    last_us: int = -1
    clock: str = ""
    order: int = 0
    line: int = 0
    host: str = ""
    detail: str = ""
    processes: dict[int, str] = field(default_factory=dict)


@dataclass
class Seen:
    """What was read: `lines` of the driver, those of them that programs wrote (`foreign`), that quote messages within
    other text (`quoted`), and whose form does not show who wrote them (`unmarked`); messages that could not be kept
    (`lost`)."""

    lines: int = 0
    foreign: int = 0
    quoted: int = 0
    unmarked: int = 0
    lost: int = 0


class Decoder:
    """Takes lines one by one with `feed`; `events` returns what they say. No line raises, whatever it holds."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._events: dict[tuple[object, ...], Event] = {}
        self._uuids: dict[str, str] = {}
        self._losing = ""

    def feed(self, raw: bytes | str, number: int = 0) -> None:
        """Read one line of a log in any form. `number`: of the line, from 1; 0: not known."""
        if isinstance(raw, str):
            raw = raw.encode("utf-8", "replace")
        if b"NVRM: " not in raw and b"SXid" not in raw:
            return
        line = log_lines.first_message(raw)
        if line is None or _MESSAGE.match(line.text) is None:
            self.seen.quoted += 1 if re.search(rb"\bS?Xid \(", raw) else 0
            return
        self.take(line, number)

    def take(self, line: log_lines.LogLine, number: int = 0) -> None:
        """Read a line that is already split."""
        if _MESSAGE.match(line.text) is None:
            return
        self.seen.lines += 1
        if line.origin == "user":
            self.seen.foreign += 1
            return
        self.seen.unmarked += line.origin == "unknown"
        event = self._decoded(line.text)
        if event is not None:
            event.line, event.host = number, clean(line.host)
            self._keep(event, line)

    def events(self) -> list[Event]:
        """Return the events, first ones first. A GPU that fell off the bus in a message without a number and in Xid 79
        did so once."""
        found = list(self._events.values())
        stated = {one.device for one in found if one.kind == "xid" and one.code == OFF_BUS and one.numbered}
        kept = [one for one in found if one.numbered or one.device not in stated]
        for one in kept:
            one.uuid = self._uuids.get(one.device, "")
        return sorted(kept, key=lambda one: one.order)

    def _decoded(self, text: str) -> Event | None:
        if (match := _XID.match(text)) is not None:
            return _xid(match)
        if (match := _SXID.match(text)) is not None:
            return _sxid(match)
        if (match := _UUID.match(text)) is not None:
            if len(self._uuids) < _MOST_EVENTS:
                self._uuids[address(match["address"])] = match["uuid"].lower().replace("gpu-", "GPU-", 1)
            return None
        if (match := _LOST.match(text)) is not None:
            return _off_bus(address(match["address"]), text)
        if (match := _LOST_HEAD.match(text)) is not None:
            self._losing = address(match["address"])
        elif self._losing and _LOST_TAIL.match(text):
            device, self._losing = self._losing, ""
            return _off_bus(device, text)
        return None

    def _keep(self, event: Event, line: log_lines.LogLine) -> None:
        key = (
            *(event.kind, event.code, event.device, event.unit, event.sub_code, event.status, event.link),
            *(event.root, event.recovery, event.numbered, event.host),
        )
        known = self._events.get(key)
        if known is None:
            if len(self._events) >= _MOST_EVENTS:
                self.seen.lost += 1
                return
            event.first_us, event.clock = line.instant
            event.last_us = event.first_us
            event.order = self.seen.lines
            self._events[key] = event
            return
        known.count += 1
        us, clock = line.instant
        if us >= 0 and clock == known.clock:
            known.last_us = max(known.last_us, us)
        for pid, name in event.processes.items():
            if len(known.processes) < _MOST_PIDS:
                known.processes.setdefault(pid, name)


def decoded(lines: Iterable[bytes | str]) -> tuple[list[Event], Seen]:
    """Return the events in `lines`, and what was read."""
    decoder = Decoder()
    for line in lines:
        decoder.feed(line)
    return decoder.events(), decoder.seen


def address(text: str) -> str:
    """Return a PCI address in one form, that of sysfs: ``0000:05:00.0``. The driver prints it without function, NVML
    with a domain of eight digits."""
    domain, bus, slot = text.lower().split(":")
    number, _, function = slot.partition(".")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain}:{bus}:{number}.{function or '0'}"


def _xid(match: re.Match[str]) -> Event | None:
    code, rest = int(match["code"]), match["rest"]
    if not 0 < code < _MOST_CODE:
        return None
    event = Event("xid", code, address(match["address"]))
    if (process := _PROCESS.match(rest)) is not None:
        if process["pid"] is not None:
            event.processes[int(process["pid"])] = clean(process["name"] or "")
        rest = rest[process.end() :]
    if (cause := _CAUSED_BY.search(rest)) is not None:
        event.root = int(cause[1])
    if (change := _RECOVERY.search(rest)) is not None:
        event.recovery = int(change[1], 16)
    if code in NVLINK5 and (unit := _UNIT.search(rest)) is not None:
        event.unit, event.fatal = unit["unit"], _fatal(unit["fatal"])
        event.link = int(unit["link"]) if unit["link"] is not None else -1
        numbers = re.findall(r"0x[0-9a-fA-F]+", unit["numbers"] or "")
        if numbers:
            event.sub_code = int(numbers[0], 16) >> 20 & 0x3F
        if len(numbers) > 1:
            event.status = int(numbers[1], 16)
    elif (link := _LINK.search(rest)) is not None:
        event.link = int(link[1])
    event.detail = clean(rest.strip(), _DETAIL)
    return event


def _sxid(match: re.Match[str]) -> Event | None:
    code, rest = int(match["code"]), match["rest"]
    if not 0 < code < _MOST_CODE:
        return None
    event = Event("sxid", code, address(match["address"]), unit=match["switch"])
    if (fatal := _SWITCH_FATAL.match(rest)) is not None:
        event.fatal = _fatal(fatal["fatal"])
    if (link := _LINK.search(rest)) is not None:
        event.link = int(link[1])
    event.detail = clean(rest.strip(), _DETAIL)
    return event


def _off_bus(device: str, text: str) -> Event:
    return Event("xid", OFF_BUS, device, numbered=False, detail=clean(text.partition(": ")[2], _DETAIL))


def _fatal(word: str) -> str:
    return "yes" if word.lower() == "fatal" else "no"
