"""Perfetto's protobuf, read back by the field numbers of its public .proto files."""

from __future__ import annotations

import io
from typing import Any

import pytest
from machine import Machine, changed, trace_of
from profiles import profile_of

from whystall.tools.files.protobuf import fixed64, message, number, text, varint
from whystall.tools.timeline.lanes.build import cpu_slices
from whystall.tools.timeline.sched import TABLES, SchedTrace
from whystall.tools.timeline.writers import perfetto as write_perfetto

Message = dict[str, Any]
# name: (field, message or type); a list: repeated. Types: u unsigned, i signed, s text, x 8 bytes.
SWITCH = {"prev_comm": (1, "s"), "prev_pid": (2, "i"), "prev_prio": (3, "i"), "prev_state": (4, "i"),
          "next_comm": (5, "s"), "next_pid": (6, "i"), "next_prio": (7, "i")}  # fmt: skip
WAKE = {"comm": (1, "s"), "pid": (2, "i"), "prio": (3, "i"), "success": (4, "i"), "target_cpu": (5, "i")}
EVENT = {
    "timestamp": (1, "u"), "pid": (2, "u"), "common_flags": (5, "u"),
    "sched_switch": (4, SWITCH), "sched_waking": (20, WAKE), "sched_wakeup": (17, WAKE),
    "sched_wakeup_new": (114, WAKE),
    "cpu_frequency": (11, {"state": (1, "u"), "cpu_id": (2, "u")}),
    "cpu_idle": (13, {"state": (1, "u"), "cpu_id": (2, "u")}),
    "softirq_entry": (24, {"vec": (1, "u")}), "softirq_exit": (25, {"vec": (1, "u")}),
    "irq_handler_entry": (36, {"irq": (1, "i"), "name": (2, "s")}),
    "irq_handler_exit": (37, {"irq": (1, "i"), "ret": (2, "i")}),
    "task_rename": (236, {"pid": (1, "i"), "oldcomm": (2, "s"), "newcomm": (3, "s")}),
    "sched_process_exec": (237, {"filename": (1, "s"), "pid": (2, "i"), "old_pid": (3, "i")}),
    "sched_process_exit": (238, {"comm": (1, "s"), "pid": (2, "i")}),
    "sched_process_fork": (239, {"parent_comm": (1, "s"), "parent_pid": (2, "i"), "child_comm": (3, "s"),
                                 "child_pid": (4, "i")}),
    "sys_enter": (329, {"id": (1, "i"), "args": (2, ["u"])}), "sys_exit": (330, {"id": (1, "i"), "ret": (2, "i")}),
    "sched_migrate_task": (491, {"comm": (1, "s"), "pid": (2, "i"), "orig_cpu": (4, "i"), "dest_cpu": (5, "i")}),
}  # fmt: skip
BUNDLE = {"cpu": (1, "u"), "event": (2, [EVENT]), "lost_events": (3, "u"), "ftrace_clock": (5, "u")}
TRACK_EVENT = {
    "type": (9, "u"), "track_uuid": (11, "u"), "categories": (22, "s"), "name": (23, "s"),
    "debug_annotations": (4, [{"name": (10, "s"), "string_value": (9, "s")}]),
    "flow_ids": (47, ["x"]), "terminating_flow_ids": (48, ["x"]),
}  # fmt: skip
PACKET = {
    "ftrace_events": (1, BUNDLE),
    "process_tree": (2, {
        "processes": (1, [{"pid": (1, "i"), "cmdline": (3, "s"), "nspid": (6, "i"), "cmdline_is_comm": (9, "u")}]),
        "threads": (2, [{"tid": (1, "i"), "name": (2, "s"), "tgid": (3, "i"), "nstid": (4, "i")}]),
    }),
    "clock_snapshot": (6, {"clocks": (1, [{"clock_id": (1, "u"), "timestamp": (2, "u")}]), "primary": (2, "u")}),
    "timestamp": (8, "u"), "sequence": (10, "u"), "track_event": (11, TRACK_EVENT), "timestamp_clock_id": (58, "u"),
    "track_descriptor": (60, {
        "uuid": (1, "u"), "name": (2, "s"), "thread": (4, {"pid": (1, "i"), "tid": (2, "i")}), "parent_uuid": (5, "u"),
    }),
    "system_info": (45, {"utsname": (1, {"sysname": (1, "s"), "release": (3, "s")})}),
}  # fmt: skip


UNKNOWN = 0x4000


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def read(raw: bytes, schema: dict[str, Any]) -> Message:
    """A message; fields that `schema` does not know are an error."""
    fields = {field: (name, kind) for name, (field, kind) in schema.items()}
    out: Message = {}
    at = 0
    while at < len(raw):
        key, at = read_varint(raw, at)
        value: Any
        if key & 7 == 0:
            value, at = read_varint(raw, at)
        elif key & 7 == 1:
            value, at = int.from_bytes(raw[at : at + 8], "little"), at + 8
        else:
            assert key & 7 == 2
            size, at = read_varint(raw, at)
            value, at = raw[at : at + size], at + size
            assert len(value) == size
        name, kind = fields[key >> 3]
        repeated = isinstance(kind, list)
        kind = kind[0] if repeated else kind
        assert (key & 7) == {"u": 0, "i": 0, "x": 1, "s": 2}.get(kind if isinstance(kind, str) else "", 2)
        if isinstance(kind, dict):
            value = read(value, kind)
        elif kind == "s":
            value = value.decode()
        elif kind == "i" and value >= 1 << 63:
            value -= 1 << 64
        if repeated:
            out.setdefault(name, []).append(value)
        else:
            assert name not in out
            out[name] = value
    return out


def packets(trace: SchedTrace, **options: Any) -> list[Message]:
    out = io.BytesIO()
    count = write_perfetto.write(trace, out, **options)
    found: list[Message] = read(out.getvalue(), {"packet": (1, [PACKET])})["packet"]
    assert len(found) == count
    assert {packet["sequence"] for packet in found} == {1}
    return found


def events(found: list[Message]) -> list[tuple[int, Message]]:
    """(cpu, event), checked to be in order within each CPU."""
    recorded = []
    last: dict[int, int] = {}
    for packet in found:
        bundle = packet.get("ftrace_events", {})
        for event in bundle.get("event", ()):
            cpu = bundle.get("cpu", 0)
            assert event["timestamp"] >= last.get(cpu, 0)
            last[cpu] = event["timestamp"]
            recorded.append((cpu, event))
    return recorded


@pytest.mark.parametrize(
    ("value", "raw"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (-1, "ff" * 9 + "01"), ((1 << 64) - 1, "ff" * 9 + "01")],
)
def test_varints(value: int, raw: str) -> None:
    """300 is the documentation's own example."""
    assert varint(value).hex() == raw


def test_fields() -> None:
    """The documentation's examples: field 1 the integer 150, field 2 the text ``testing``; and 8 bytes."""
    assert number(1, 150).hex() == "089601"
    assert text(2, "testing").hex() == "120774657374696e67"
    assert message(3, number(1, 150)).hex() == "1a03089601"
    assert fixed64(47, 1).hex() == "f902" + "0100000000000000"


def test_every_event_is_there() -> None:
    trace = Machine(1).trace()
    recorded = events(packets(trace))
    switches = [(e["timestamp"], cpu, e["sched_switch"]) for cpu, e in recorded if "sched_switch" in e]
    # at the very start the thread on a CPU may be unknown
    switches = [switch for switch in switches if switch[2]["prev_state"] != UNKNOWN]
    expected = trace.table("switches").select("at_ns", "cpu", "prev_tid", "next_tid", "prev_state").rows()
    bits = {"R": 0, "R+": 256, "S": 1, "D": 2, "T": 4, "X": 16, "I": 128}
    assert sorted((at, cpu, s["prev_pid"], s["next_pid"], s["prev_state"]) for at, cpu, s in switches) == sorted(
        (*row[:4], bits[row[4]]) for row in expected
    )
    names = dict(trace.table("names").select("tid", "comm").rows()) | {0: "swapper"}
    assert all(
        s["prev_comm"] == names[s["prev_pid"]] and s["next_comm"] == names[s["next_pid"]] for _, _, s in switches
    )
    wakes = [
        (e["timestamp"], cpu, e.get("pid"), e["common_flags"], kind, e[kind]["pid"], e[kind]["target_cpu"])
        for cpu, e in recorded
        for kind in ("sched_waking", "sched_wakeup", "sched_wakeup_new")
        if kind in e
    ]
    flags = {"task": 0, "hardirq": 8, "softirq": 16}
    kinds = {"waking": "sched_waking", "wakeup": "sched_wakeup", "new": "sched_wakeup_new"}
    rows = trace.table("wakeups").select("at_ns", "cpu", "waker_tid", "context", "kind", "tid", "target_cpu").rows()
    assert sorted(wakes) == sorted((*row[:3], flags[row[3]], kinds[row[4]], *row[5:]) for row in rows)
    for kind, table in (("sched_migrate_task", "migrations"), ("sched_process_fork", "tasks")):
        found = sum(kind in event for _, event in recorded)
        rows_of = trace.table(table)
        assert found == (rows_of.filter(kind="fork").height if table == "tasks" else rows_of.height)
    entries = [event["irq_handler_entry"] for _, event in recorded if "irq_handler_entry" in event]
    assert {(entry["irq"], entry["name"]) for entry in entries} == {(30, "eth0")}
    interrupts = sum(any(name.startswith(("irq_", "softirq_")) for name in event) for _, event in recorded)
    assert interrupts == trace.table("interrupts").height


def test_who_belongs_to_whom() -> None:
    names = [(0, 40, 40, "main"), (0, 41, 40, "helper"), (0, 50, -1, "nobody's")]
    found = packets(trace_of(names=names), numbers={40: 1, 41: 2})
    (tree,) = [packet["process_tree"] for packet in found if "process_tree" in packet]
    assert tree == {
        "processes": [{"pid": 40, "cmdline": "main", "cmdline_is_comm": 1, "nspid": 1}],
        "threads": [{"tid": 41, "name": "helper", "tgid": 40, "nstid": 2}],
    }


def test_states_are_reported_to_be_encoded_as_by_a_kernel_that_has_them() -> None:
    (info,) = [packet["system_info"] for packet in packets(trace_of()) if "system_info" in packet]
    assert info["utsname"]["release"].startswith("4.14.")


def test_an_missing_switch_is_inserted_and_the_loss_reported() -> None:
    """Of U only its leaving is recorded: it is assumed to have the CPU from its waking on, as in the lanes."""
    switches = [(100, 0, 0, 120, "R", True, 0, 7, 120), (400, 0, 8, 120, "S", False, 0, 0, 120)]
    trace = trace_of(
        switches=switches, wakeups=[(350, 3, "waking", 99, "task", 8, 120, 0)], holes=[(100, 400, 0, -1, "unseen")]
    )
    found = packets(trace)
    recorded = [(e["timestamp"], s["prev_pid"], s["next_pid"], s["prev_state"])
            for cpu, e in events(found) if (s := e.get("sched_switch"))]  # fmt: skip
    assert recorded == [(100, 0, 7, 0), (350, 7, 8, UNKNOWN), (400, 8, 0, 1)]
    lossy = [
        p["ftrace_events"]["event"][0]["timestamp"] for p in found if p.get("ftrace_events", {}).get("lost_events")
    ]
    assert lossy == [400]


@pytest.mark.parametrize("seed", range(4))
def test_the_chain_of_each_cpu_holds(seed: int) -> None:
    machine = Machine(seed)
    trace = machine.trace()
    dropped = changed(trace, switches=trace.table("switches")[:: 2 + seed])
    current: dict[int, int] = {}
    for cpu, event in events(packets(dropped)):
        if "sched_switch" in event:
            assert event["sched_switch"]["prev_pid"] == current.get(cpu, event["sched_switch"]["prev_pid"])
            current[cpu] = event["sched_switch"]["next_pid"]
    assert cpu_slices(dropped)["inexact"].any()


def test_where_no_thread_is_known_none_runs() -> None:
    """A reported hole: the thread before it does not run through it."""
    switches = [(100, 0, 0, 120, "R", True, 0, 7, 120), (900, 0, 8, 120, "S", False, 0, 0, 120)]
    found = packets(trace_of(switches=switches, holes=[(200, 300, 0, 4, "lost")]))
    recorded = [(e["timestamp"], s["prev_comm"], s["prev_pid"], s["next_comm"], s["next_pid"])
            for _, e in events(found) if (s := e.get("sched_switch"))]  # fmt: skip
    no_thread = (1 << 31) - 1
    assert recorded[1:3] == [(200, "<...>", 7, "unknown", no_thread), (300, "unknown", no_thread, "<...>", 8)]


def test_long_traces_are_cut_into_bundles() -> None:
    trace = Machine(3, steps=12_000).trace()
    sizes = [len(p["ftrace_events"]["event"]) for p in packets(trace) if "ftrace_events" in p]
    assert max(sizes) == 4_000
    untold = cpu_slices(trace).filter(tid=-1).height
    assert sum(sizes) == untold + sum(trace.table(name).height for name in TABLES if name not in ("names", "syscalls"))


@pytest.mark.parametrize(
    ("clock", "at", "ftrace", "clock_id"),
    [("mono", 1_100, None, None), ("mono_raw", 100, 4, 5), ("local", 100, None, None)],
)
def test_clocks(clock: str, at: int, ftrace: int | None, clock_id: int | None) -> None:
    """mono is moved to boot, by the readings of the capture; mono_raw is stated; others are unknown."""
    switches = [(100, 0, 0, 120, "R", True, 0, 7, 120)]
    rows = [(50, 40, 1_050, 9_000_050, 3), (950, 940, 1_950, 9_000_950, 3)]
    trace = trace_of(switches=switches, clocks=rows, holes=[(200, 300, 0, -1, "lost")])
    trace = SchedTrace(trace.tables, 0, 1_000, (0,), clock=clock)
    found = packets(trace)
    assert [event["timestamp"] for _, event in events(found)] == [at, at + 100]  # the second: into the hole
    assert {packet["ftrace_events"].get("ftrace_clock") for packet in found if "ftrace_events" in packet} == {ftrace}
    begins = [p for p in found if p.get("track_event", {}).get("type") == 1]
    assert [(p["timestamp"], p.get("timestamp_clock_id")) for p in begins] == [(at + 100, clock_id)]
    snapshots = [p["clock_snapshot"] for p in found if "clock_snapshot" in p]
    expected = {1: 9_000_050, 3: 50, 5: 40, 6: 1_050}
    assert {c["clock_id"]: c["timestamp"] for c in snapshots[0]["clocks"]} == expected
    assert len(snapshots) == 2


def test_a_profile_lies_in_the_tracks_of_its_threads() -> None:
    profile = profile_of(
        (110, 190, "operator", "aten::mm", 4, 5, -1, -1, -1, 3),
        (120, 160, "launch", "launch", 4, 5, -1, -1, 77, 3),
        (200, 300, "kernel", "gemm", 4, 5, 0, 7, 77, 3),
        (310, 320, "kernel", "gemm", 4, 5, 0, 7, -1, 3),
        steps=((105, 330, 3, 4, 5),),
    )
    found = packets(trace_of(names=[(0, 5, 4, "python")]), profile=profile)
    tracks = {p["track_descriptor"]["uuid"]: p["track_descriptor"] for p in found if "track_descriptor" in p}
    recorded = [(p["timestamp"], p["track_event"]) for p in found if "track_event" in p]
    open_slices: dict[int, list[str]] = {}
    drawn = []
    for at, event in recorded:
        stack = open_slices.setdefault(event["track_uuid"], [])
        if event["type"] == 1:
            stack.append(event["name"])
        drawn.append((at, tracks[event["track_uuid"]].get("name", "thread"), event["type"], stack[-1]))
        if event["type"] == 2:
            stack.pop()
    assert not any(open_slices.values())
    assert drawn == [
        (110, "thread", 1, "aten::mm"), (120, "thread", 1, "launch"), (160, "thread", 2, "launch"),
        (190, "thread", 2, "aten::mm"), (105, "steps of 4", 1, "step 3"), (330, "steps of 4", 2, "step 3"),
        (200, "stream 7", 1, "gemm"), (300, "stream 7", 2, "gemm"),
        (310, "stream 7", 1, "gemm"), (320, "stream 7", 2, "gemm"),
    ]  # fmt: skip
    assert [t["thread"] for t in tracks.values() if "thread" in t] == [{"pid": 4, "tid": 5}]
    stream = next(t for t in tracks.values() if t.get("name") == "stream 7")
    assert tracks[stream["parent_uuid"]]["name"] == "Profile: device 0"
    flows = [
        (event["name"], event.get("flow_ids"), event.get("terminating_flow_ids"))
        for _, event in recorded
        if event["type"] == 1
    ]
    assert [flow for flow in flows if flow[1] or flow[2]] == [("launch", [1], None), ("gemm", None, [1])]


def test_only_chosen_cpus() -> None:
    trace = Machine(5).trace()
    recorded = events(packets(trace, cpus=[1]))
    ran = trace.table("switches").filter(cpu=1)
    threads = {*ran["prev_tid"], *ran["next_tid"]}
    assert {cpu for cpu, event in recorded if "sched_switch" in event} == {1}
    assert {event["sched_waking"]["pid"] for _, event in recorded if "sched_waking" in event} <= threads
    assert sum("sched_switch" in event for _, event in recorded) == ran.height


def test_system_calls_and_power() -> None:
    calls = [(10, 0, 7, True, 202, "", 4096, -1, 0, -1), (20, 0, 7, False, 202, "", -1, -1, -1, -11)]
    power = [(30, 0, "idle", 2), (40, 0, "idle", -1), (50, 0, "frequency", 2_400_000)]
    recorded = [event for _, event in events(packets(trace_of(syscalls=calls, power=power)))]
    assert [event.get("sys_enter") or event.get("sys_exit") for event in recorded[:2]] == [
        {"id": 202, "args": [4096, (1 << 64) - 1, 0]}, {"id": 202, "ret": -11},
    ]  # fmt: skip
    assert [event.get("cpu_idle", event.get("cpu_frequency"))["state"] for event in recorded[2:]] == [
        2,
        0xFFFFFFFF,
        2_400_000,
    ]


def test_renames_take_effect_when_they_happen() -> None:
    switches = [(at, 0, 7, 120, "S", False, 0, 7, 120) for at in (100, 300)]
    tasks = [(200, 0, "rename", 7, -1, "after")]
    names = [(0, 7, 7, "before"), (200, 7, 7, "after")]
    recorded = [event for _, event in events(packets(trace_of(switches=switches, tasks=tasks, names=names)))]
    assert [e["sched_switch"]["prev_comm"] for e in recorded if "sched_switch" in e] == ["before", "after"]
    assert [e["task_rename"] for e in recorded if "task_rename" in e] == [
        {"pid": 7, "oldcomm": "before", "newcomm": "after"}
    ]
