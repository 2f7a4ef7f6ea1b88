"""The coarse history of a continuous recording: seconds of waiting by minute, thread, system call and line of code.

A wait counts in the minute in which it ends. The rows are kept in a small log of their own, some days long, also across
boots. Times are CLOCK_REALTIME.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.continuous import Cut
from whystall.tools.collect.proc_calls import syscall_name
from whystall.tools.collect.slice_log import SliceLog, read_log
from whystall.tools.collect.slice_parts import HISTORY, map_items, packed, unpacked
from whystall.tools.collect.slice_scan import Scan
from whystall.tools.contract.text import clean

LOG_NAME = "history"
LOG_BYTES = 8 << 20
_MINUTE_NS = 60_000_000_000
_MOST_ROWS = 400  # of a minute; the others become one row per thread
_OFF_KEY = lay.unpacker(lay.OffKey).size
_TID = 4


class HistoryRow(NamedTuple):
    """Waits of threads of one name and process in one place. `line`: of the program, empty if unknown; `state`: D, S, R
    (without a CPU) or other; `waited_ns`: in all, `number`: of waits, `longest_ns`: of one."""

    minute_ns: int
    pid: int
    comm: str
    state: str
    call: str
    line: str
    waited_ns: int
    number: int
    longest_ns: int


class History:
    """Writes the rows of each minute."""

    def __init__(self, directory: Path | None) -> None:
        """Raises `ToolError` (busy)."""
        self._log = SliceLog(directory / LOG_NAME if directory is not None else None, LOG_BYTES, every_boot=True)
        self._minute = 0
        self._sums: dict[tuple[int, str, str, str, str], list[int]] = {}

    def add(self, cut: Cut, targets: Collection[int], scan: Scan) -> None:
        """Add the waits that ended in a slice, of the processes `targets`."""
        minute = time.time_ns() // _MINUTE_NS
        if minute != self._minute:
            self.flush()
            self._minute = minute
        names = cap.threads(map_items(*cut.threads, _TID))
        for total in cap.off_totals(map_items(*cut.totals, _OFF_KEY)):
            if total.tgid not in targets:
                continue
            thread = names.get(total.tid)
            comm = clean(thread.comm) if thread is not None else ""
            call = syscall_name(total.nr) if total.nr >= 0 else ""
            line = scan.line(total.tgid, total.pystack)
            if len(self._sums) >= _MOST_ROWS:
                call = line = ""
            known = self._sums.setdefault((total.tgid, comm, total.off_class, call, line), [0, 0, 0])
            known[0] += total.total_ns
            known[1] += total.count
            known[2] = max(known[2], total.max_ns)

    def flush(self) -> None:
        """Write the rows of the minute so far."""
        if self._sums:
            rows = [[*key, *sums] for key, sums in self._sums.items()]
            begun = self._minute * _MINUTE_NS
            self._log.append(HISTORY, begun, begun + _MINUTE_NS, packed({"rows": rows}))
            self._sums = {}

    def close(self) -> None:
        """Write what is left; idempotent."""
        self.flush()
        self._log.close()


def history_rows(directory: Path, since_ns: int, until_ns: int) -> list[HistoryRow]:
    """Return the rows of the minutes that begin between two instants (CLOCK_REALTIME), oldest first. Raises `ToolError`
    (not_found, bad_recording)."""
    found = []
    for entry in read_log(directory / LOG_NAME):
        if entry.kind == HISTORY and since_ns <= entry.start_ns < until_ns:
            found += [HistoryRow(entry.start_ns, *row) for row in unpacked(entry.data).get("rows", ()) if len(row) == 8]
    return found


class Place(NamedTuple):
    """Where threads of one name wait, in all processes of the history."""

    comm: str
    state: str
    call: str
    line: str


def by_place(rows: Iterable[HistoryRow]) -> dict[Place, tuple[int, int, int]]:
    """Return (waited_ns, count, longest_ns) by place, the longest first."""
    sums: dict[Place, list[int]] = {}
    for row in rows:
        known = sums.setdefault(Place(row.comm, row.state, row.call, row.line), [0, 0, 0])
        known[0] += row.waited_ns
        known[1] += row.number
        known[2] = max(known[2], row.longest_ns)
    return {place: (one[0], one[1], one[2]) for place, one in sorted(sums.items(), key=lambda item: -item[1][0])}
