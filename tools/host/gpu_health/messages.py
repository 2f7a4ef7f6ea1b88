"""Judge Xid and SXid messages, each together with what stands beside it in the log.

Xid 45 (a program's work was removed) follows another error unless it stands alone; Xid 154 states what the GPU needs
after another one (NVIDIA's catalogue of Xid errors).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whystall.tools.contract.findings import Finding, Interval, Severity, Subject
from whystall.tools.host.common.findings import finding
from whystall.tools.host.gpu_health.data import LogRow, MessageRow
from whystall.tools.node.sxid_catalogue import SwitchAdvice, switch_advice
from whystall.tools.node.xid_catalogue import (
    CLEANUP,
    RECOVERY_CHANGED,
    UNUSED,
    advice,
    code_of,
    recovery,
    severity_of_action,
)
from whystall.tools.node.xid_log import NVLINK5
from whystall.tools.recording.store import Recording

COLLECTOR = "device_log"
NEAR_US = 60_000_000
"""An error within this time of Xid 45 caused it; the driver removes work within seconds."""
_BESIDE = (CLEANUP, RECOVERY_CHANGED)
_BY_154, _FOLLOW, _ALONE = "xid_154", "follow_other", "restart_fm"
_BY_LEVEL = {"fatal": Severity.MAJOR, "warning": Severity.MINOR, "info": Severity.INFO}
_NAMED = 4
Row = dict[str, Any]


@dataclass
class Message:
    """The rows of equal messages about a device, and what follows from them."""

    rows: list[Row]
    severity: Severity
    action: str
    further: str
    root: str = ""
    recovery: str = ""
    switch: SwitchAdvice | None = None
    processes: dict[int, str] = field(default_factory=dict)

    @property
    def first(self) -> Row:
        """Return the most telling row."""
        return self.rows[0]

    @property
    def what(self) -> str:
        """Return the code as it is named: Xid 79, Xid 149.33, SXid 12028."""
        return f"{'SXid' if self.first['kind'] == 'sxid' else 'Xid'} {self.code}"

    @property
    def code(self) -> str:
        """Return the number with the sub-code of NVLink 5: 79, 149.33."""
        row = self.first
        return f"{row['code']}.{row['sub_code']}" if row["sub_code"] >= 0 else str(row["code"])

    @property
    def process(self) -> str:
        """Return the processes that the messages name, the first ones: python3 (812)."""
        people = [f"{comm} ({pid})" if comm else str(pid) for pid, comm in self.processes.items()]
        return ", ".join(people[:_NAMED])

    @property
    def meaning(self) -> str:
        """Return the key of what it means."""
        if self.switch is not None:
            return self.switch.meaning
        entry = code_of(self.first["code"])
        return entry.meaning if entry is not None else "unknown"

    def last_us(self, clock: str) -> int:
        """Return the latest instant by `clock`, -1 if unknown."""
        return max((row["last_us"] for row in self.rows if row["clock"] == clock), default=-1)


def messages_of(recording: Recording) -> list[Message]:
    """Return the judged messages, the most severe first, then the earliest."""
    rows = recording.table(f"{COLLECTOR}.events").sort("number").to_dicts()
    processes: dict[int, dict[int, str]] = {}
    for row in recording.table(f"{COLLECTOR}.processes").iter_rows(named=True):
        processes.setdefault(row["number"], {})[row["pid"]] = row["comm"]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        # of one code and sub-code; of Xid 45 with one cause
        sub_code = row["sub_code"] if row["code"] in NVLINK5 else -1
        root = row["root"] if row["code"] == CLEANUP else -1
        key = (row["kind"], row["host"], row["device"], row["code"], sub_code, root)
        groups.setdefault(key, []).append(row)
    found = [_judged(group) for group in groups.values()]
    for message in found:
        message.processes = {
            pid: comm for row in message.rows for pid, comm in processes.get(row["number"], {}).items()
        }
    _follow(found)
    stated = _recovered(found)
    kept = [message for message in found if message not in stated]
    return sorted(kept, key=lambda m: (-m.severity.rank, min(row["number"] for row in m.rows)))


def _judged(rows: list[Row]) -> Message:
    """Return a message from its rows, of which the most severe one decides."""
    if rows[0]["kind"] == "sxid":
        stated = {row["fatal"] for row in rows}
        asked_for = switch_advice(rows[0]["code"], "yes" if "yes" in stated else "no" if "no" in stated else "")
        return Message(rows, asked_for.severity, asked_for.action, "", switch=asked_for)
    graded = []
    for row in rows:
        asked = advice(row["code"], row["unit"], row["sub_code"], row["status"])
        graded.append((_severity(row, asked.action), asked, row))
    graded.sort(key=lambda one: -one[0].rank)
    severity, asked, _ = graded[0]
    return Message([row for *_, row in graded], severity, asked.action, asked.further)


def _severity(row: Row, action: str) -> Severity:
    entry = code_of(row["code"])
    if entry is None or entry.meaning == UNUSED:
        return Severity.MINOR
    severity = severity_of_action(action) or _BY_LEVEL.get(entry.level, Severity.MINOR)
    if action in ("", _BY_154) and row["fatal"] == "no":
        severity = Severity.MINOR
    return severity


def _follow(found: Sequence[Message]) -> None:
    """Set what each Xid 45 follows: the code that it names, another one of its GPU, or of another GPU at that time."""
    others = [one for one in found if one.first["kind"] == "xid" and one.first["code"] not in _BESIDE]
    for message in found:
        row = message.first
        if row["kind"] != "xid" or row["code"] != CLEANUP:
            continue
        own = [one for one in others if one.first["device"] == row["device"]]
        cause = next((one for one in own if one.first["code"] == row["root"]), None)
        cause = cause or next((one for one in own if _near(one, message)), None)
        cause = cause or next((one for one in others if _near(one, message)), None)
        if row["root"] >= 0:
            message.root = f"Xid {row['root']}"
        elif cause is not None:
            elsewhere = cause.first["device"] != row["device"]
            message.root = f"{cause.what} ({cause.first['device']})" if elsewhere else cause.what
        message.severity = Severity.INFO if message.root else Severity.MINOR
        message.action, message.further = (_FOLLOW, "") if message.root else (_ALONE, "")


def _near(cause: Message, message: Message) -> bool:
    """Return whether two messages are of one time; those without comparable instants are, if the cause came first."""
    for one in cause.rows:
        for other in message.rows:
            if one["clock"] and one["clock"] == other["clock"]:
                if one["first_us"] - NEAR_US <= other["last_us"] and other["first_us"] <= one["last_us"] + NEAR_US:
                    return True
            elif one["number"] < other["number"]:
                return True
    return False


def _recovered(found: Sequence[Message]) -> list[Message]:
    """Join what Xid 154 states last to the errors of its GPU; return the messages that are stated so."""
    stated = []
    for message in found:
        if message.first["kind"] != "xid" or message.first["code"] != RECOVERY_CHANGED:
            continue
        last = max(message.rows, key=lambda row: (row["last_us"], row["number"]))
        needs = recovery(last["recovery"])
        message.recovery = needs.name if needs is not None else ""
        if needs is not None:
            message.action, message.further = needs.action, ""
            message.severity = _needed(needs.action)
        own = [
            one
            for one in found
            if one.first["kind"] == "xid"
            and one.first["device"] == message.first["device"]
            and one.first["code"] not in _BESIDE
        ]
        if not own or needs is None:
            continue
        stated.append(message)
        for one in own:
            one.recovery = message.recovery
            if one.action in ("", _BY_154):
                one.action = message.action
                one.severity = message.severity
        # what the driver asks for is no less than what the catalogue does
        worst = max(own, key=lambda one: one.severity.rank)
        worst.severity = max(worst.severity, message.severity, key=lambda severity: severity.rank)
    return stated


def _needed(action: str) -> Severity:
    return Severity.INFO if action == "ignore" else severity_of_action(action) or Severity.MINOR


def ends(recording: Recording) -> dict[str, int]:
    """Return the last instant of the log, by clock."""
    found: dict[str, int] = {}
    for row in recording.table(f"{COLLECTOR}.sources").iter_rows(named=True):
        if row["clock"]:
            found[row["clock"]] = max(found.get(row["clock"], -1), row["until_us"])
    return found


def age_s(message: Message, until: dict[str, int]) -> float | None:
    """Return how long before the end of the log the last message was, in seconds; None if unknown."""
    for clock, end in until.items():
        last = message.last_us(clock)
        if last >= 0 <= end:
            return max(0, end - last) / 1e6
    return None


def row_of(message: Message, until: dict[str, int]) -> MessageRow:
    """Return the table row of a message."""
    row = message.first
    entry = code_of(row["code"]) if row["kind"] == "xid" else None
    return MessageRow(
        what=message.what,
        gpu=row["device"],
        uuid=row["uuid"],
        mnemonic=message.switch.name if message.switch else entry.mnemonic if entry else "",
        meaning=message.meaning,
        area=_area(message),
        level=message.switch.kind if message.switch else entry.level if entry else "",
        severity=message.severity,
        action=message.action,
        further=message.further,
        root=message.root,
        recovery=message.recovery,
        fatal=row["fatal"],
        links=_links(message),
        pids=list(message.processes),
        process=message.process,
        count=_count(message),
        last_s=age_s(message, until),
        text=row["detail"],
    )


def finding_of(message: Message, until: dict[str, int], window_ns: int, log: str = "") -> Finding:
    """Return the finding of a message. `log`: the file that it is in, empty if it was read on the host."""
    row = message.first
    kind = "gpu.switch" if row["kind"] == "sxid" else "gpu.xid"
    attributes = {
        "xid": message.code,
        "meaning": message.meaning,
        "area": _area(message),
        "action": message.action,
        "further": message.further,
        "recovery": message.recovery,
        "root": message.root,
        "links": _links(message),
        "process": message.process,
        "uuid": row["uuid"],
        "message": row["detail"] if kind == "gpu.switch" or message.meaning == "unknown" else "",
        "switch_class": message.switch.kind if message.switch else "",
        "log": log,
    }
    declared = {name: value for name, value in attributes.items() if value}
    if kind == "gpu.switch":
        own = ("xid", "meaning", "switch_class", "action", "links", "message", "log")
        declared = {name: declared[name] for name in own if name in declared}
    lines = [one["line"] for one in message.rows if one["line"] > 0]
    metrics = {"count": _count(message), "age_s": age_s(message, until), "line": min(lines, default=None)}
    subject = Subject(type="device", device=row["device"], host=row["host"] or None)
    made = finding(kind, subject, Interval(start_ns=0, end_ns=window_ns), metrics, message.severity, declared)
    return made


def log_rows(recording: Recording) -> list[LogRow]:
    """Return what was read."""
    return [
        LogRow(
            source=row["source"],
            lines=row["lines"],
            messages=row["messages"],
            foreign=row["foreign"] + row["quoted"],
            covers_s=(row["until_us"] - row["from_us"]) / 1e6 if row["from_us"] >= 0 <= row["until_us"] else None,
            since_boot=row["whole"],
        )
        for row in recording.table(f"{COLLECTOR}.sources").iter_rows(named=True)
    ]


def _area(message: Message) -> str:
    if message.first["kind"] == "sxid":
        return "link"
    entry = code_of(message.first["code"])
    return entry.area if entry is not None else "none"


def _links(message: Message) -> str:
    return ", ".join(str(link) for link in sorted({row["link"] for row in message.rows if row["link"] >= 0}))


def _count(message: Message) -> int:
    return sum(row["count"] for row in message.rows)
