"""Chrome's format, checked against what its description demands and what viewers rely on."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from machine import Machine, changed, trace_of
from profiles import profile_of

from whystall.tools.timeline.drawing.build import draw
from whystall.tools.timeline.lanes.build import cpu_slices, interrupt_slices, thread_slices
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import TABLES, SchedTrace
from whystall.tools.timeline.writers import chrome as write_chrome

Event = dict[str, Any]
PHASES = {
    # phase: the keys it must have, those it may have
    "M": ({"name", "pid", "args"}, {"tid"}),
    "X": ({"name", "cat", "pid", "tid", "ts", "dur", "args"}, set()),
    "i": ({"name", "cat", "pid", "tid", "ts", "s", "args"}, set()),
    "s": ({"name", "cat", "id", "pid", "tid", "ts"}, set()),
    "f": ({"name", "cat", "id", "pid", "tid", "ts", "bp"}, set()),
}
METADATA = {
    "process_name": str, "process_labels": str, "process_sort_index": int, "thread_name": str, "thread_sort_index": int,
}  # fmt: skip


def written(trace: SchedTrace, **options: Any) -> list[Event]:
    out = io.BytesIO()
    count = write_chrome.write(draw(trace, **options), out)
    # numbers as they stand in the file, not as a double would have them
    events: list[Event] = json.loads(out.getvalue(), parse_float=Decimal)
    assert len(events) == count
    return events


def ns(value: Any) -> int:
    exact = Decimal(value) * 1000
    assert exact == int(exact)
    return int(exact)


def slices(events: list[Event]) -> dict[tuple[str, str], list[tuple[int, int, Event]]]:
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event))
    return lanes


def check(events: list[Event]) -> None:
    """The whole of what a reader may ask."""
    named: set[tuple[str, str]] = set()
    for event in events:
        must, may = PHASES[event["ph"]]
        assert must <= set(event) <= must | may | {"ph"}, event
        if event["ph"] == "M":
            (value,) = event["args"].values()
            assert isinstance(value, METADATA[event["name"]])
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
        else:
            assert (event["pid"], event["tid"]) in named
            assert ns(event["ts"]) >= 0
    lanes = slices(events)
    for lane in lanes.values():
        stack: list[int] = []
        before = 0
        for start, end, event in sorted(
            lane, key=lambda entry: entry[0]
        ):  # stable: the order of the file at one instant
            assert end > start >= before
            before = start
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], event  # within what is open
            stack.append(end)
    ends: dict[str, dict[int, Event]] = {"s": {}, "f": {}}
    for place, event in enumerate(events):
        if event["ph"] in ends:
            assert event["id"] not in ends[event["ph"]]
            ends[event["ph"]][event["id"]] = {**event, "place": place}
            at, key = ns(event["ts"]), (event["pid"], event["tid"])
            assert any(start <= at < end for start, end, _ in lanes[key]), event
            if event["ph"] == "f":  # MindStudio binds an end to the slice that begins there
                assert any(start == at for start, _, _ in lanes[key]), event
    assert ends["s"].keys() == ends["f"].keys()
    for number, start in ends["s"].items():
        end = ends["f"][number]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert ns(start["ts"]) <= ns(end["ts"])
        assert start["place"] < end["place"]


def profile(trace: SchedTrace) -> Profile:
    at = trace.start_ns
    return profile_of(
        (at + 10, at + 900, "operator", "aten::mm", 4, 5, -1, -1, -1, 3),
        (at + 20, at + 60, "launch", 'cuda"Launch"', 4, 5, -1, -1, 77, 3),
        (at + 30, at + 990, "python", "overlaps but does not nest", 4, 5, -1, -1, -1, 3),
        (at + 100, at + 700, "kernel", "gemm<float, 8>", 4, 5, 0, 7, 77, 3),
        (at + 650, at + 800, "memcpy", "Memcpy HtoD", 4, -1, 0, 7, -1, -1),
        steps=((at + 5, at + 1000, 3, 4, 5),),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happened_it_can_be_read(seed: int) -> None:
    machine = Machine(seed)
    trace = machine.trace()
    holes = [
        (trace.start_ns + 900, trace.start_ns + 70_000, 1, 3, "lost"),
        (trace.start_ns, trace.end_ns, -1, -1, "rotated"),
    ]
    lossy = changed(trace, holes=pl.DataFrame(holes[seed % 2 :], schema=TABLES["holes"], orient="row"))
    lossy = changed(
        lossy, switches=trace.table("switches")[:: 2 + seed], interrupts=trace.table("interrupts")[:: 1 + seed]
    )
    for recorded in (trace, lossy):
        check(written(recorded, profile=profile(trace)))
        check(written(recorded, cpus=[0]))


def test_the_layout_is_mindstudios() -> None:
    machine = Machine(1)
    trace = machine.trace()
    events = written(trace)
    names = {(event["pid"], event["name"]) for event in events if event["ph"] == "X"}
    assert {group for group, _ in names} == {"CPU Scheduling", "Process Scheduling"}
    assert {event["tid"] for event in events if event["pid"] == "CPU Scheduling" and "tid" in event} == {
        "CPU 000", "CPU 001", "CPU 002",
    }  # fmt: skip
    assert {name for group, name in names if group == "Process Scheduling"} == {
        "Running", "Runnable", "Sleeping", "Uninterruptible", "Stopped", "Idle", "Unknown",
    }  # fmt: skip
    of_cpus = {name for group, name in names if group == "CPU Scheduling"}
    assert {"irq", "softirq"} < of_cpus
    lanes = {event["tid"] for event in events if event["pid"] == "Process Scheduling" and "tid" in event}
    assert of_cpus - {"irq", "softirq", "unknown"} <= lanes
    assert all(lane.rpartition(":")[2].isdigit() for lane in lanes)
    tasks = {event["args"]["task"] for event in events if event.get("cat") == "irq"}
    assert tasks <= lanes | {"<idle>:0"}


def test_nothing_is_lost_or_moved() -> None:
    trace = Machine(2).trace()
    events = written(trace)
    drawn = Counter((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in events if e["ph"] == "X")
    lasting = pl.col("end_ns") > pl.col("start_ns")
    expected = [
        cpu_slices(trace).filter(lasting, pl.col("tid") != 0),
        thread_slices(trace).filter(lasting, pl.col("state") != "dead"),
        interrupt_slices(trace).filter(lasting),
    ]
    assert drawn == Counter(row for frame in expected for row in frame.select("start_ns", "end_ns").rows())
    opened = [event for event in events if event["ph"] == "X" and "open" in event["args"]]
    assert {event["args"]["open"] for event in opened} == {"start", "end"}


def test_who_woke_whom_who_preempted_and_from_where() -> None:
    switches = [
        (100, 0, 7, 120, "S", False, 0, 8, 120), (300, 0, 8, 120, "R+", True, 0, 9, 120),
        (400, 1, 0, 120, "R", True, 0, 7, 120), (600, 0, 9, 120, "S", False, 0, 8, 120),
    ]  # fmt: skip
    wakeups = [(250, 0, "waking", 8, "task", 7, 120, 0), (260, 0, "wakeup", 8, "task", 7, 120, 1)]
    names = [(0, 7, 7, "sleeper"), (0, 8, 8, "waker"), (0, 9, 9, "bully"), (550, 9, 9, "renamed")]
    moved = [(255, 0, 7, 0, 1)]
    trace = trace_of(switches=switches, wakeups=wakeups, names=names, migrations=moved, cpus=(0, 1))
    events = written(trace)
    check(events)
    by_lane = {key[1]: [(start, end, event["name"], event["args"]) for start, end, event in lane]
               for key, lane in slices(events).items()}  # fmt: skip
    assert by_lane["sleeper:7"] == [
        (0, 100, "Running", {"cpu": "0", "open": "start"}),
        (100, 250, "Sleeping", {"cpu": "0", "woken_by": "waker:8"}),
        (250, 400, "Runnable", {"cpu": "1", "woken_by": "waker:8"}),
        (400, 1000, "Running", {"cpu": "1", "from_cpu": "0", "open": "end"}),
    ]
    assert by_lane["waker:8"][2] == (300, 600, "Runnable", {"cpu": "0", "preempted_by": "renamed:9"})
    assert by_lane["renamed:9"][1] == (300, 600, "Running", {"cpu": "0", "called": "bully:9"})
    assert by_lane["CPU 000"][2][2:] == ("bully:9", {"host_pid": "9", "prio": "120", "end_state": "S"})
    arrows = [(e["ph"], e["cat"], e["tid"], ns(e["ts"])) for e in events if e["ph"] in "sf"]
    assert arrows == [
        ("s", "wakeup", "waker:8", 250), ("s", "migration", "CPU 000", 99),
        ("f", "wakeup", "sleeper:7", 250), ("f", "migration", "CPU 001", 400),
    ]  # fmt: skip
    marks = [(e["name"], e["tid"], ns(e["ts"])) for e in events if e["ph"] == "i"]
    assert marks == [("migrated: CPU 0 to 1", "sleeper:7", 255), ("renamed: renamed", "renamed:9", 550)]


def test_an_interrupt_wakes_from_its_own_slice() -> None:
    switches = [(100, 0, 7, 120, "S", False, 0, 8, 120), (400, 0, 8, 120, "S", False, 0, 7, 120)]
    wakeups = [(250, 0, "waking", 8, "hardirq", 7, 120, 0), (260, 0, "wakeup", 8, "hardirq", 7, 120, 0)]
    interrupts = [(240, 0, 8, False, True, 30, "eth0"), (270, 0, 8, False, False, 30, "")]
    events = written(trace_of(switches=switches, wakeups=wakeups, interrupts=interrupts))
    check(events)
    assert [(e["ph"], e["tid"], ns(e["ts"])) for e in events if e["ph"] in "sf"] == [
        ("s", "CPU 000", 250), ("f", "<...>:7", 250),
    ]  # fmt: skip
    woken = next(e for e in events if e["ph"] == "X" and e["tid"] == "<...>:7" and e["name"] == "Sleeping")
    assert woken["args"]["woken_by"] == "hardirq"


def test_holes_are_drawn() -> None:
    holes = [(200, 300, 0, 5, "lost"), (250, 350, 0, -1, "unseen"), (0, 40, -1, -1, "rotated")]
    switches = [(100, 0, 0, 120, "R", True, 0, 7, 120)]
    events = written(trace_of(switches=switches, holes=holes))
    check(events)
    drawn = {key[1]: [(start, end, e["name"]) for start, end, e in lane] for key, lane in slices(events).items()
             if key[0] == "Holes"}  # fmt: skip
    assert drawn == {"all CPUs": [(0, 40, "rotated")], "CPU 000": [(200, 300, "lost (5 events)"), (300, 350, "unseen")]}
    assert [(start, end) for start, end, e in slices(events)["CPU Scheduling", "CPU 000"] if e["name"] == "unknown"]


def test_lanes_are_in_order_of_processes() -> None:
    names = [(0, 40, 40, "main"), (0, 12, 40, "helper"), (0, 20, 20, "other")]
    switches = [(at, 0, tid, 120, "S", False, 0, following, 120)
                for at, tid, following in ((100, 40, 12), (200, 12, 20), (300, 20, 40))]  # fmt: skip
    events = written(trace_of(names=names, switches=switches))
    labels = {
        e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] != "CPU Scheduling"
    }
    assert list(labels.items()) == [
        ("other:20", "other:20"), ("helper:12", "helper:12 (main:40)"), ("main:40", "main:40"),
    ]  # fmt: skip
    order = [e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"]
    assert order == sorted(order)


def test_a_profile_lies_beside() -> None:
    trace = Machine(4).trace()
    events = written(trace, profile=profile(trace))
    at = trace.start_ns
    drawn = {key: [(start - at, end - at, e["name"]) for start, end, e in lane] for key, lane in slices(events).items()
             if key[0].startswith("Profile")}  # fmt: skip
    thread = next(e["tid"] for e in events if e["pid"] == "Process Scheduling" and e.get("tid", "").endswith(":5"))
    assert drawn == {
        ("Profile: host", thread): [(10, 900, "aten::mm"), (20, 60, 'cuda"Launch"')],
        ("Profile: host", f"{thread} #2"): [(30, 990, "overlaps but does not nest")],
        ("Profile: host", "steps of 4"): [(5, 1000, "step 3")],
        ("Profile: device 0", "stream 7"): [(100, 700, "gemm<float, 8>")],
        ("Profile: device 0", "stream 7 #2"): [(650, 800, "Memcpy HtoD")],
    }
    launch = [(e["ph"], ns(e["ts"]) - at) for e in events if e.get("cat") == "launch" and e["ph"] in "sf"]
    assert launch == [("s", 20), ("f", 100)]


@pytest.mark.parametrize(
    ("start", "kind"), [(15_000_000_000_001, Decimal), (1_763_655_359_123_456_789, str)], ids=["uptime", "wall clock"]
)
def test_instants_keep_their_nanoseconds(start: int, kind: type) -> None:
    switches = [(start + 1, 0, 7, 120, "S", False, 0, 8, 120)]
    events = written(trace_of(switches=switches, start=start, end=start + 12))
    check(events)
    times = [event["ts"] for event in events if event["ph"] == "X"]
    assert {type(time) for time in times} == {kind}
    assert sorted({ns(time) for time in times}) == [start, start + 1]


def test_names_cannot_break_out() -> None:
    hostile = '"},{"ph":"X","name":"\\'
    trace = trace_of(
        switches=[(100, 0, 7, 120, "S", False, 0, 8, 120)], names=[(0, 7, 7, hostile), (0, 8, 7, "a\x01b")]
    )
    events = written(trace)
    check(events)
    assert f"{hostile}:7" in {event["tid"] for event in events if "tid" in event}
    assert "ab:8" in {event["tid"] for event in events if "tid" in event}


def test_numbers_of_a_container() -> None:
    switches = [(100, 0, 7, 120, "S", False, 0, 8, 120), (200, 0, 8, 120, "S", False, 0, 9, 120)]
    names = [(0, 7, 7, "train"), (0, 8, 8, "train"), (0, 9, 9, "host")]
    events = written(trace_of(switches=switches, names=names), numbers={7: 1, 8: 1})
    lanes = [e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == "Process Scheduling"]
    # two containers use the same number: distinguished by the host's number
    assert lanes == ["train/7:1", "train/8:1", "host:9"]


def test_an_empty_trace_is_an_empty_list() -> None:
    assert written(trace_of(cpus=())) == []
