"""Build the lanes of a panel: selected from the tables, limited in number, labelled.

Instants of a panel are nanoseconds from the start of its bubble, so that they are exact in the browser's doubles.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from whystall.tools.views.bubble_data import Bubble, Timeline

MOST_PIECES = 750
"""Pieces of time in a lane with more than twice as many slices: those within one piece are drawn as one."""
MOST_LANES = 8
"""Limit per sort: threads, device streams, CPUs, interrupts."""
MOST_ARROWS = 2000
_LONGEST_TEXT = 160
_LEAST_MARGIN_NS = 1_000_000

_STATES = ("running", "runnable", "sleeping", "uninterruptible", "stopped", "idle", "dead", "unknown")
_DEVICE_WORK = ("kernel", "memcpy", "memset", "collective")
_HOST_WORK = ("launch", "sync")
_OTHERS = ("thread_a", "thread_b", "thread_c", "thread_d", "thread_e")
LOOKS = (*_STATES, *_DEVICE_WORK, *_HOST_WORK, "interrupt", "softirq", "hole", "cpu_idle", *_OTHERS)
"""Looks of slices: keys of the colours in assets/bubbles.css, the patterns in bubbles.js, and of words. The thread_
ones are threads other than the bubble's, chosen by name."""

Row = dict[str, Any]


class Slice(NamedTuple):
    """One slice. `more`: lines of its tooltip besides text and times. `depth`: of nesting."""

    at: int
    length: int
    look: str
    text: str
    more: list[str]
    depth: int


@dataclass
class Lane:
    """One lane. `sort`: device, launches, thread, cpu, interrupts. `rows`: the table of the slices."""

    title: str
    sort: str
    key: int
    slices: list[Slice]
    rows: list[Row]


class Arrow(NamedTuple):
    """An arrow from an instant of one lane to an instant of another; `kind`: wake, launch, migration."""

    kind: str
    from_lane: int
    from_at: int
    to_lane: int
    to_at: int


@dataclass
class Panel:
    """The drawing of one bubble: `low` to `high` is the span shown, 0 to `length` the bubble."""

    low: int
    high: int
    length: int
    lanes: list[Lane] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def data(self, looks: Sequence[str] = LOOKS) -> dict[str, Any]:
        """Return JSON types: columns, each text once. `looks`: all that slices may have."""
        texts: dict[str, int] = {}

        def number(text: str) -> int:
            return texts.setdefault(text, len(texts))

        lanes = [
            {
                "title": lane.title,
                "sort": lane.sort,
                "at": [one.at for one in lane.slices],
                "length": [one.length for one in lane.slices],
                "look": [looks.index(one.look) for one in lane.slices],
                "text": [number(one.text) for one in lane.slices],
                "more": [[number(line) for line in one.more] for one in lane.slices],
                "depth": [one.depth for one in lane.slices],
            }
            for lane in self.lanes
        ]
        span = {"low": self.low, "high": self.high, "length": self.length}
        return {**span, "lanes": lanes, "arrows": [list(arrow) for arrow in self.arrows], "texts": list(texts)}


def panel(timeline: Timeline, bubble: Bubble, words: Mapping[str, str], most: int) -> Panel:
    """Return the panel of one bubble, of `most` slices with half its length (1 ms at least) on both sides."""
    return _Builder(timeline, bubble, words).build(most)


class _Builder:
    def __init__(self, timeline: Timeline, bubble: Bubble, words: Mapping[str, str]) -> None:
        self._timeline, self._bubble, self._words = timeline, bubble, words
        self._slices = _Slices(timeline.names, bubble.tids, words)
        length = max(bubble.end_ns - bubble.start_ns, 1)
        margin = max(length // 2, _LEAST_MARGIN_NS)
        self._low, self._high = bubble.start_ns - margin, bubble.start_ns + length + margin
        self._panel = Panel(-margin, length + margin, length)
        self._pieces = MOST_PIECES

    def build(self, most: int) -> Panel:
        """Return all lanes, from the device down to the interrupts, then the arrows."""
        tids = self._limited(self._bubble.tids)
        threads = self._pick(self._timeline.threads, pl.col("tid").is_in(tids))
        own = threads.filter(pl.col("tid").is_in(tids[:1]))
        cpus = sorted(self._limited(_cpus_of(own)))
        work = self._pick(self._timeline.activities, pl.col("kind").is_in(_DEVICE_WORK))
        streams = self._limited(_most(work, ["device", "stream"]))
        lanes = len(streams) + 1 + len(tids) + 2 * len(cpus)
        self._pieces = max(min(MOST_PIECES, most // (2 * lanes)), 1)
        self._device(work, streams)
        self._launches()
        for tid in tids:
            title = self._words["lane_thread"].format(self._timeline.names.get(tid, ""), tid)
            self._lane("thread", tid, title, threads.filter(pl.col("tid") == tid), self._slices.state)
        for cpu in cpus:
            self._cpu(cpu)
        for cpu in cpus:
            interrupts = self._pick(self._timeline.interrupts, pl.col("cpu") == cpu)
            if not interrupts.is_empty():
                title = self._words["lane_interrupts"].format(cpu)
                self._lane("interrupts", cpu, title, interrupts, self._slices.interrupt)
        self._panel.arrows = [*self._migrations(), *self._wakes(), *self._launched()][:MOST_ARROWS]
        return self._panel

    def _device(self, work: pl.DataFrame, streams: Sequence[tuple[int, ...]]) -> None:
        for device, stream in streams:
            title = self._words["lane_device"].format(device, stream)
            rows = work.filter((pl.col("device") == device) & (pl.col("stream") == stream))
            self._lane("device", device, title, rows, self._slices.activity)

    def _launches(self) -> None:
        own = pl.col("kind").is_in(_HOST_WORK) & pl.col("tid").is_in(self._bubble.tids[:1])
        calls = self._pick(self._timeline.activities, own)
        if not calls.is_empty():
            self._lane("launches", 0, self._words["lane_launches"], calls, self._slices.activity)

    def _cpu(self, cpu: int) -> None:
        self._lane(
            "cpu",
            cpu,
            self._words["lane_cpu"].format(cpu),
            self._pick(self._timeline.cpus, pl.col("cpu") == cpu),
            self._slices.holder,
        )
        lane = self._panel.lanes[-1]
        holes = self._thin(self._pick(self._timeline.holes, pl.col("cpu").is_in([cpu, -1])))
        # drawn over the others, which may be wrong there
        lane.slices += [self._slices.hole(row, self._bubble.start_ns) for row in holes.to_dicts()]

    # --- arrows -------------------------------------------------------------------------------------------

    def _migrations(self) -> Iterator[Arrow]:
        places = self._places("cpu")
        for _, row in self._first_thread():
            if row["state"] == "running" and row["from_cpu"] in places and row["cpu"] in places:
                at = row["start_ns"] - self._bubble.start_ns
                yield Arrow("migration", places[row["from_cpu"]], at, places[row["cpu"]], at)

    def _wakes(self) -> Iterator[Arrow]:
        """Return arrows from the CPU on which the waker ran at that instant."""
        ran = {place: self._panel.lanes[place] for place in self._places("cpu").values()}
        starts = {place: [row["start_ns"] for row in lane.rows] for place, lane in ran.items()}
        for to_lane, row in self._first_thread():
            if row["waker_tid"] <= 0 or not self._low < row["woken_ns"] < self._high:
                continue
            for place, lane in ran.items():
                before = bisect_right(starts[place], row["woken_ns"]) - 1
                if before >= 0 and lane.rows[before]["tid"] == row["waker_tid"]:
                    at = row["woken_ns"] - self._bubble.start_ns
                    yield Arrow("wake", place, at, to_lane, at)

    def _launched(self) -> Iterator[Arrow]:
        calls = {row["correlation"]: (lane, row) for lane, row in self._rows("launches") if row["correlation"] > 0}
        for to_lane, row in self._rows("device"):
            if row["correlation"] in calls:
                from_lane, call = calls[row["correlation"]]
                origin = self._bubble.start_ns
                yield Arrow("launch", from_lane, call["end_ns"] - origin, to_lane, row["start_ns"] - origin)

    def _places(self, sort: str) -> dict[int, int]:
        return {lane.key: place for place, lane in enumerate(self._panel.lanes) if lane.sort == sort}

    def _first_thread(self) -> Iterator[tuple[int, Row]]:
        """Return the dispatch thread's migrations: arrows of all threads would hide their targets."""
        return ((place, row) for place, row in self._rows("thread") if row["tid"] == self._bubble.tids[0])

    def _rows(self, sort: str) -> Iterator[tuple[int, Row]]:
        for place, lane in enumerate(self._panel.lanes):
            if lane.sort == sort:
                yield from ((place, row) for row in lane.rows)

    # --- parts --------------------------------------------------------------------------------------------

    def _pick(self, table: pl.DataFrame | None, wanted: pl.Expr) -> pl.DataFrame:
        if table is None:
            return pl.DataFrame()
        return table.filter((pl.col("end_ns") > self._low) & (pl.col("start_ns") < self._high) & wanted)

    def _lane(
        self, sort: str, key: int, title: str, rows: pl.DataFrame, appearance: Callable[[Row, int], Slice]
    ) -> None:
        drawn = self._thin(rows).to_dicts()
        slices = [appearance(row, self._bubble.start_ns) for row in drawn]
        self._panel.lanes.append(Lane(short(title), sort, key, slices, drawn))

    def _thin(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Limit `rows` by start to a number that can be drawn: those that begin within one piece of time and are
        shorter than it become one that looks as the longest of them. `merged`: how many it stands for."""
        if rows.is_empty():
            return rows
        rows = rows.with_columns(merged=pl.lit(1, pl.get_index_type()))
        if rows.height > 2 * self._pieces:
            length = pl.col("end_ns") - pl.col("start_ns")
            width = max((self._high - self._low) // self._pieces, 1)
            piece = [((pl.col("start_ns") - self._low) // width).alias("piece")]
            depth = [pl.col("depth").alias("at_depth")] if "depth" in rows.columns else []
            others = pl.exclude("start_ns", "end_ns", "merged")
            few = (
                rows.filter(length < width)
                .sort(length, descending=True, maintain_order=True)
                .group_by(*piece, *depth, maintain_order=True)
                .agg(others.first(), pl.col("start_ns").min(), pl.col("end_ns").max(), pl.len().alias("merged"))
            )
            rows = pl.concat([rows.filter(length >= width), few.select(rows.columns)])
        return rows.sort("start_ns", maintain_order=True)

    def _limited(self, keys: Sequence[Any]) -> Sequence[Any]:
        if len(keys) > MOST_LANES:
            self._panel.notes.append(self._words["lanes_left_out"].format(len(keys) - MOST_LANES))
        return keys[:MOST_LANES]


class _Slices:
    """Convert rows of the tables to slices: look, text, and the lines of the tooltip."""

    def __init__(self, names: Mapping[int, str], tids: Sequence[int], words: Mapping[str, str]) -> None:
        self._names, self._tids, self._words = names, tids, words

    def state(self, row: Row, origin: int) -> Slice:
        """Return the state of a thread."""
        look = row["state"] if row["state"] in _STATES else "unknown"
        more = []
        if row["cpu"] >= 0:
            key = {"running": "on_cpu", "runnable": "queued_on_cpu"}.get(look, "left_cpu")
            more.append(self._words[key].format(row["cpu"]))
        if look == "running" and row["from_cpu"] >= 0:
            more.append(self._words["from_cpu"].format(row["from_cpu"]))
        if row["preempted"]:
            more.append(self._words["preempted_by"].format(self._thread_name(row["preemptor_tid"])))
        if row["woken_ns"] > 0:
            more.append(self._waker(row))
        return self._slice(row, origin, look, self._words[look], more)

    def _waker(self, row: Row) -> str:
        if row["waker_context"] in ("softirq", "hardirq", "nmi"):
            return self._words["woken_by_interrupt"]
        known = row["waker_tid"] >= 0
        return (
            self._words["woken_by"].format(self._thread_name(row["waker_tid"]))
            if known
            else self._words["waker_unknown"]
        )

    def holder(self, row: Row, origin: int) -> Slice:
        """Return the thread on a CPU."""
        tid = row["tid"]
        if tid <= 0:
            look = "cpu_idle" if tid == 0 else "unknown"
            return self._slice(row, origin, look, self._words[look], [])
        others = _OTHERS[zlib.crc32(self._names.get(tid, "").encode()) % len(_OTHERS)]
        return self._slice(row, origin, "running" if tid in self._tids[:1] else others, self._thread_name(tid), [])

    def hole(self, row: Row, origin: int) -> Slice:
        """Return a hole of the trace."""
        lost = [self._words["lost"].format(row["lost"])] if row["lost"] > 0 else []
        return self._slice(row, origin, "hole", self._words["hole"], lost)

    def interrupt(self, row: Row, origin: int) -> Slice:
        """Return an interrupt or softirq."""
        own = self._words["own_time"].format(f"{row['self_ns'] / 1e6:.6f} ms")
        look = "softirq" if row["soft"] else "interrupt"
        return self._slice(row, origin, look, row["name"] or str(row["vector"]), [own])

    def activity(self, row: Row, origin: int) -> Slice:
        """Return work of the device, or a call that requested it."""
        number = row["correlation"]
        more = [self._words["correlation"].format(number)] if number > 0 else []
        return self._slice(row, origin, row["kind"], row["name"], more)

    def _slice(self, row: Row, origin: int, look: str, text: str, more: list[str]) -> Slice:
        flags = (("open_start", "began_before"), ("open_end", "not_ended"), ("inexact", "inexact"))
        more = more + [self._words[key] for flag, key in flags if row.get(flag)]
        if row["merged"] > 1:
            more.append(self._words["merged"].format(row["merged"]))
        at, length = row["start_ns"] - origin, row["end_ns"] - row["start_ns"]
        return Slice(at, length, look, short(text), [short(line) for line in more], row.get("depth", 0))

    def _thread_name(self, tid: int) -> str:
        return self._words["lane_thread"].format(self._names.get(tid, "") or "?", tid)


def _most(rows: pl.DataFrame, by: list[str]) -> list[tuple[int, ...]]:
    if rows.is_empty():
        return []
    total = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("total")
    return rows.group_by(by).agg(total).sort("total", *by, descending=[True] + [False] * len(by)).select(by).rows()


def _cpus_of(threads: pl.DataFrame) -> list[int]:
    """Return the CPUs that threads ran on, waited for, left or came from, the most used first."""
    if threads.is_empty():
        return []
    came = threads.filter(pl.col("state") == "running").select(cpu="from_cpu", start_ns="start_ns", end_ns="start_ns")
    used = pl.concat([threads.select("cpu", "start_ns", "end_ns"), came])
    return [cpu for (cpu,) in _most(used.filter(pl.col("cpu") >= 0), ["cpu"])]


def short(text: str) -> str:
    """Return `text`, cut where it is too long for a tooltip."""
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
