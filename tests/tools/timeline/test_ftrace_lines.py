"""Reading ftrace's text: single lines in all forms they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.sched import SchedTrace


def text(tmp_path: Path, *lines: str) -> SchedTrace:
    """What is read from these lines."""
    path = tmp_path / "trace.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return read(path)


def event(what: str, head: str = "          <idle>-0       [001] d..2.  1583.765274: ") -> str:
    return head + what


def one(
    tmp_path: Path, table: str, what: str, head: str = "          <idle>-0       [001] d..2.  1583.765274: "
) -> dict[str, object]:
    """The only row that a line gives."""
    trace = text(tmp_path, event(what, head))
    assert trace.odd.count == 0, trace.odd
    rows = trace.table(table).to_dicts()
    assert len(rows) == 1
    return rows[0]


SWITCH = (
    "sched_switch: prev_comm=a b prev_pid=0 prev_prio=120 prev_state={} ==> next_comm=x ==> y next_pid=7 next_prio=-1"
)


@pytest.mark.parametrize(
    ("stated", "state", "preempted"),
    [
        ("R", "R", True),
        ("R+", "R", True),
        ("S", "S", False),
        ("D", "D", False),
        ("T", "T", False),
        ("t", "t", False),
        ("X", "X", False),
        ("x", "X", False),
        ("Z", "Z", False),
        ("P", "P", False),
        ("I", "I", False),
        ("S|W", "S", False),
        ("D|K", "D", False),
        ("D|W", "D", False),
        ("D|N", "I", False),
        ("F|O", "?", False),
        ("W", "?", False),
        ("0x400", "?", False),
        ("0", "R", True),
        ("1", "S", False),
        ("2", "D", False),
        ("4", "T", False),
        ("8", "t", False),
        ("16", "X", False),
        ("32", "Z", False),
        ("64", "P", False),
        ("128", "I", False),
        ("130", "D", False),
        ("256", "R", True),
        ("2048", "R", True),
        ("4096", "R", True),
        ("1026", "I", False),
        ("65536", "?", False),
    ],
)
def test_states_in_letters_and_in_bits(tmp_path: Path, stated: str, state: str, preempted: bool) -> None:
    row = one(tmp_path, "switches", SWITCH.format(stated))
    assert (row["prev_state"], row["preempted"]) == (state, preempted)
    assert (row["next_tid"], row["next_prio"], row["prev_arrived_ns"]) == (7, -1, 0)


@pytest.mark.parametrize(
    "what",
    [
        SWITCH.format("S"),
        "sched_switch:         a b:0 [120] S ==> x ==> y:7 [-1]",
        "sched_switch: task a b:0 [120] (S) ==> x ==> y:7 [-1]",
        SWITCH.format("S ") + " expeller_type=0",
        "sched_switch:          prev_comm=a b prev_pid=0 prev_prio=120 prev_state=1 next_comm=x ==> y next_pid=7 "
        "next_prio=-1",
        "sched_switch: prev_comm=a b prev_pid=0x0 (0) prev_prio=0x78 (120) prev_state=0x1 (1) next_comm=x ==> y "
        "next_pid=0x7 (7) next_prio=0xffffffff (-1)",
    ],
)
def test_switches_in_all_forms(tmp_path: Path, what: str) -> None:
    trace = text(tmp_path, event(what))
    assert trace.table("switches").rows() == [(1583765274000, 1, 0, 120, "S", False, 0, 7, -1)]
    assert set(trace.table("names").rows()) == {(1583765274000, 0, 0, "swapper"), (1583765274000, 7, -1, "x ==> y")}


def test_a_switch_that_is_not_of_its_head_is_odd(tmp_path: Path) -> None:
    trace = text(tmp_path, event(SWITCH.format("S").replace("prev_pid=0", "prev_pid=3")), event(SWITCH.format("S")))
    assert (trace.odd.count, len(trace.table("switches"))) == (1, 1)


@pytest.mark.parametrize(
    ("head", "at_ns", "cpu", "tid", "pid"),
    [
        ("          <idle>-0       [001] d..2.  1583.765274: ", 1583765274000, 1, 0, 0),
        ("           a b-c-12      [001] d..2.  1583.765274: ", 1583765274000, 1, 12, -1),
        (" [000] 1.5: x-99-4194304 (4194300) [1023] dNZ2.  1583.765274: ", 1583765274000, 1023, 4194304, 4194300),
        ("            bash-18978   (-------) [000] d..2 12089.508566: ", 12089508566000, 0, 18978, -1),
        ("            bash-18978 ( 18970) [000] d..2 12089.508566: ", 12089508566000, 0, 18978, 18970),
        ("     kworker/4:1-51    [004]  1583.765274: ", 1583765274000, 4, 51, -1),
        ("          <idle>-0     [000]    20.552204634: ", 20552204634, 0, 0, 0),
        ("            bash-18978   [001] d..2. 1795192742.826843: ", 1795192742826843000, 1, 18978, -1),
        ("            bash-18978   [001] d..2.     7.5: ", 7500000000, 1, 18978, -1),
        ("bash-18978 [001] d..2. 12089.508566: ", 12089508566000, 1, 18978, -1),
        ("\tbash-18978   [001] 12089.508566: ", 12089508566000, 1, 18978, -1),
        ("    bash-18978     0d..2. 8482us+: ", 8482000, 0, 18978, -1),
        (
            "            bash   18978   0 1 00000002 00000002 [2d09742de] 8.482ms (+0.095ms): ",
            0x2D09742DE * 1000,
            0,
            18978,
            -1,
        ),
    ],
)
def test_heads_in_all_forms(tmp_path: Path, head: str, at_ns: int, cpu: int, tid: int, pid: int) -> None:
    trace = text(tmp_path, event("sched_waking: comm=w pid=5 prio=120 target_cpu=003", head))
    assert trace.odd.count == 0
    assert trace.table("wakeups").select("at_ns", "cpu", "waker_tid").rows() == [(at_ns, cpu, tid)]
    assert dict(trace.table("names").select("tid", "pid").iter_rows())[tid] == pid


@pytest.mark.parametrize(
    ("what", "row"),
    [
        ("sched_waking: comm=a pid=1 x pid=9 prio=98 target_cpu=003", ("waking", 9, 98, 3)),
        ("sched_wakeup: comm=a pid=9 prio=120 success=1 target_cpu=000", ("wakeup", 9, 120, 0)),
        ("sched_wakeup_new: comm=a pid=9 prio=120 target_cpu=128", ("new", 9, 120, 128)),
        ("sched_wakeup: comm=a pid=9 prio=120 success=1", ("wakeup", 9, 120, -1)),
        ("sched_wakeup:         a: b:9 [120] success=1 CPU:002", ("wakeup", 9, 120, 2)),
        ("sched_wakeup:         a:9 [120] CPU:002", ("wakeup", 9, 120, 2)),
    ],
)
def test_wakeups_in_all_forms(tmp_path: Path, what: str, row: tuple[object, ...]) -> None:
    found = one(tmp_path, "wakeups", what)
    assert tuple(found[name] for name in ("kind", "tid", "prio", "target_cpu")) == row


def test_a_wakeup_of_who_was_awake_is_none(tmp_path: Path) -> None:
    trace = text(tmp_path, event("sched_wakeup: comm=a pid=9 prio=120 success=0 target_cpu=000"))
    assert (len(trace.table("wakeups")), trace.odd.count) == (0, 0)


@pytest.mark.parametrize(
    ("flags", "context"),
    [
        ("d..2.", "task"),
        ("d.s2.", "softirq"),
        ("d.h2.", "hardirq"),
        ("d.H2.", "hardirq"),
        ("d.Z2", "nmi"),
        ("dNz2", "nmi"),
    ],
)
def test_the_context_of_the_waker(tmp_path: Path, flags: str, context: str) -> None:
    head = f"          <idle>-0       [001] {flags}  1583.765274: "
    assert one(tmp_path, "wakeups", "sched_waking: comm=a pid=9 prio=1 target_cpu=0", head)["context"] == context


@pytest.mark.parametrize(
    ("table", "what", "row"),
    [
        (
            "migrations",
            "sched_migrate_task: comm=a pid=9 prio=120 orig_cpu=0 dest_cpu=11",
            {"tid": 9, "from_cpu": 0, "to_cpu": 11},
        ),
        (
            "interrupts",
            "irq_handler_entry: irq=28 name=virtio0-input.0",
            {"soft": False, "entry": True, "vector": 28, "name": "virtio0-input.0"},
        ),
        (
            "interrupts",
            "irq_handler_exit: irq=28 ret=handled",
            {"soft": False, "entry": False, "vector": 28, "name": ""},
        ),
        (
            "interrupts",
            "softirq_entry: vec=1 [action=TIMER]",
            {"soft": True, "entry": True, "vector": 1, "name": "TIMER"},
        ),
        ("interrupts", "softirq_exit:         vec=9", {"soft": True, "entry": False, "vector": 9, "name": "RCU"}),
        ("interrupts", "softirq_entry: vec=40", {"vector": 40, "name": ""}),
        (
            "syscalls",
            "sys_enter: NR 202 (7f3a, ffffffffffffff9c, 3, 0, 0, 0)",
            {"entry": True, "nr": 202, "name": "", "arg0": 0x7F3A, "arg1": -100, "arg2": 3, "result": -1},
        ),
        ("syscalls", "sys_exit: NR 202 = -11", {"entry": False, "nr": 202, "result": -11, "arg0": -1}),
        ("syscalls", "sys_exit: NR -1 = 0", {"nr": -1, "result": 0}),
        (
            "syscalls",
            "sys_futex(uaddr: 7f00, op: 80, val: 1, utime: 0, uaddr2: 3, val3: 0)",
            {"entry": True, "nr": -1, "name": "futex", "arg0": 0x7F00, "arg1": 0x80, "arg2": 1},
        ),
        (
            "syscalls",
            "sys_futex(u32 * uaddr: 0x7f00, int op: 0x81, u32 val: 1)",
            {"name": "futex", "arg0": 0x7F00, "arg1": 0x81, "arg2": 1},
        ),
        (
            "syscalls",
            'sys_openat(dfd: 0xffffffffffffff9c, filename: 0x55 "/etc/a, b: 1f", flags: 0x241)',
            {"name": "openat", "arg0": -100, "arg1": 0x55, "arg2": 0x241},
        ),
        ("syscalls", "sys_close(fd: 3)", {"name": "close", "arg0": 3, "arg1": -1, "arg2": -1}),
        ("syscalls", "sys_getpid()", {"name": "getpid", "entry": True, "arg0": -1}),
        ("syscalls", "sys_futex -> 0x0", {"entry": False, "name": "futex", "result": 0}),
        ("syscalls", "sys_read -> 0xfffffffffffffff5", {"name": "read", "result": -11}),
        (
            "syscalls",
            "sys_enter_futex:      uaddr: 0x7f00, op: 0x00000081, val: 0x7fffffff, utime: 0x0",
            {"entry": True, "name": "futex", "arg0": 0x7F00, "arg1": 0x81, "arg2": 0x7FFFFFFF},
        ),
        (
            "syscalls",
            "sys_enter_futex:      op=FUTEX_WAKE|FUTEX_PRIVATE_FLAG uaddr=0x7f1e val=1",
            {"entry": True, "name": "futex", "arg0": -1},
        ),
        ("syscalls", "sys_exit_futex:       0x1", {"entry": False, "name": "futex", "result": 1}),
        (
            "syscalls",
            "sys_exit_futex:        __syscall_nr=202 ret=0x1",
            {"entry": False, "nr": 202, "name": "futex", "result": 1},
        ),
        (
            "syscalls",
            "sys_enter:             id=59 args=ARRAY[d0, ca, 62, 52, ff, 7f, 00, 00, 9c, ff, ff, ff, ff, ff, ff, ff, "
            "01, 00, 00, 00, 00, 00, 00, 00]",
            {"nr": 59, "arg0": 0x7FFF5262CAD0, "arg1": -100, "arg2": 1},
        ),
        ("syscalls", "sys_exit:              id=1 ret=-2", {"nr": 1, "result": -2}),
        (
            "tasks",
            "sched_process_fork: comm=a b pid=5 child_comm=c child_pid=6",
            {"kind": "fork", "tid": 5, "other_tid": 6, "text": ""},
        ),
        (
            "tasks",
            "task_newtask: pid=6 comm=c clone_flags=3d0f00 oom_score_adj=0",
            {"kind": "fork", "tid": 0, "other_tid": 6},
        ),
        (
            "tasks",
            "sched_process_exec: filename=/bin/a b pid=5 old_pid=5",
            {"kind": "exec", "tid": 5, "other_tid": -1, "text": "/bin/a b"},
        ),
        ("tasks", "sched_process_exit: comm=a pid=5 prio=120", {"kind": "exit", "tid": 5}),
        ("tasks", "sched_process_exit: comm=a pid=5 prio=120 group_dead=true", {"kind": "exit", "tid": 5}),
        (
            "tasks",
            "task_rename: pid=5 oldcomm=a newcomm=b c oom_score_adj=-1000",
            {"kind": "rename", "tid": 5, "text": "b c"},
        ),
        ("tasks", "task_rename: oldcomm=a newcomm=b oom_score_adj=0", {"kind": "rename", "tid": 0, "text": "b"}),
        ("power", "cpu_idle: state=1 cpu_id=3", {"kind": "idle", "cpu": 3, "value": 1}),
        ("power", "cpu_idle: state=4294967295 cpu_id=3", {"kind": "idle", "value": -1}),
        ("power", "cpu_idle: state=18446744073709551615 cpu_id=3", {"kind": "idle", "value": -1}),
        ("power", "cpu_frequency: state=2400000 cpu_id=12", {"kind": "frequency", "cpu": 12, "value": 2400000}),
        (
            "block",
            "block_rq_issue: 254,0 WFS 4096 (a) 5964295 + 8 be,0,4 [kworker/0:1 x]",
            {"phase": "issue", "device": "254,0", "operation": "WFS", "sector": 5964295, "bytes": 4096},
        ),
        ("block", "block_rq_insert: 8,0 W 4096 () 12 + 8 [fio]", {"phase": "insert", "sector": 12, "bytes": 4096}),
        ("block", "block_rq_complete: 254,0 W () 12 + 16 none,0,0 [0]", {"phase": "complete", "bytes": 8192}),
        ("block", "block_rq_complete: 254,0 FF () 18446744073709551615 + 0 none,0,0 [-5]", {"sector": -1, "bytes": 0}),
    ],
)
def test_events_in_all_forms(tmp_path: Path, table: str, what: str, row: dict[str, object]) -> None:
    found = one(tmp_path, table, what)
    assert {name: found[name] for name in row} == row


def test_a_birth_is_reported_once(tmp_path: Path) -> None:
    trace = text(
        tmp_path,
        event(
            "task_newtask: pid=6 comm=c clone_flags=3d0f00 oom_score_adj=0",
            "               p-5       (      4) [000] ..... 1.000000: ",
        ),
        event(
            "sched_process_fork: comm=p pid=5 child_comm=c child_pid=6",
            "               p-5       (      4) [000] ..... 1.000001: ",
        ),
        event(
            "task_newtask: pid=7 comm=d clone_flags=1200000 oom_score_adj=0",
            "               p-5       (      4) [000] ..... 1.000002: ",
        ),
    )
    assert trace.table("tasks").select("kind", "tid", "other_tid").rows() == [("fork", 5, 6)]
    # a thread belongs to its maker's group, a process to its own
    assert set(trace.table("names").select("tid", "pid", "comm").rows()) == {(5, 4, "p"), (6, 4, "c"), (7, 7, "d")}


def test_names_in_the_order_they_were_taken(tmp_path: Path) -> None:
    head = "           later-5       [000] ..... {}.000000: "
    trace = text(
        tmp_path,
        event("sched_waking: comm=w pid=9 prio=1 target_cpu=0", head.format(1)),
        event("sched_wakeup: comm=first pid=5 prio=1 target_cpu=0", head.format(2)),
        event("task_rename: pid=5 oldcomm=first newcomm=second oom_score_adj=0", head.format(3)),
        event("sched_wakeup: comm=second pid=5 prio=1 target_cpu=0", head.format(4)),
        event("sched_wakeup: comm=first pid=5 prio=1 target_cpu=0", head.format(5)),
        event("sched_waking: comm=w pid=9 prio=1 target_cpu=0", head.format(6)),
    )
    named = trace.table("names").select("at_ns", "tid", "comm").rows()
    assert named == [
        (10**9, 9, "w"), (2 * 10**9, 5, "first"), (3 * 10**9, 5, "second"), (5 * 10**9, 5, "first"),
    ]  # fmt: skip


def test_a_thread_no_event_names_has_the_name_of_its_head(tmp_path: Path) -> None:
    trace = text(
        tmp_path,
        event("cpu_idle: state=1 cpu_id=0", "          a - b]-5       [000] ..... 1.000000: "),
        event("cpu_idle: state=1 cpu_id=0", "           <...>-6       [000] ..... 1.000000: "),
    )
    assert trace.table("names").rows() == [(10**9, 5, -1, "a - b]")]


def test_other_events_are_counted_by_name(tmp_path: Path) -> None:
    trace = text(
        tmp_path,
        event("tracing_mark_write: hello: b"),
        event("print: hello"),
        event("cdev_update:          type=devfreq target=1"),
        event("do_sys_open <-x64_sys_open"),
        event("sched_wake_idle_without_ipi: cpu=0"),
        event("print: two"),
        event("sched_switchy: x"),
        event("f: x"),
    )
    assert trace.others == {
        "tracing_mark_write": 1, "print": 2, "cdev_update": 1, "do_sys_open": 1, "sched_wake_idle_without_ipi": 1,
        "sched_switchy": 1, "f": 1,
    }  # fmt: skip
    assert trace.odd.count == 0


def test_lines_that_are_no_events_and_no_trouble(tmp_path: Path) -> None:
    trace = text(
        tmp_path,
        "version = 6",
        "CPU 0 is empty",
        "cpus=6",
        "",
        "   ",
        "# tracer: nop",
        event("kernel_stack: <stack trace >"),
        "=> ffffffff842dbf96",
        " => __schedule (ffffffff842dbf96)",
        event("print: a"),
        "message goes on",
        event("cpu_idle: state=1 cpu_id=0"),
    )
    assert trace.odd.count == 0
    assert trace.others == {"kernel_stack": 1, "print": 1}


def test_odd_lines_are_counted_and_some_shown_inert(tmp_path: Path) -> None:
    good = event("cpu_idle: state=1 cpu_id=0")
    trace = text(
        tmp_path, good, "what\x1b[31m", good, *["is this"] * 9, good, event("sched_switch: prev_comm=a prev_pi")
    )
    assert (trace.odd.count, len(trace.odd.examples)) == (11, 5)
    assert trace.odd.examples[0] == "what\\x1b[31m"
    assert len(trace.table("power")) == 3


def test_lost_lines_of_every_tracer(tmp_path: Path) -> None:
    def at(second: int, cpu: int) -> str:
        return event("cpu_idle: state=1 cpu_id=0", f"          <idle>-0       [{cpu:03d}] d..2. {second:5d}.000000: ")

    trace = text(
        tmp_path,
        at(1, 0),
        at(2, 1),
        "CPU:1 [LOST EVENTS]",
        "CPU:0 [123 EVENTS DROPPED]",
        at(3, 0),
        at(4, 1),
        "CPU:0 [LOST 5 EVENTS]",
        "CPU:2 [EVENTS DROPPED]",
        at(5, 1),
        "##### CPU 3 buffer started ####",
        at(6, 3),
    )
    second = 10**9
    assert trace.table("holes").rows() == [
        (second, 3 * second, 0, 123, "lost"),
        (second, 6 * second, 2, -1, "lost"),
        (second, 6 * second, 3, -1, "lost"),
        (2 * second, 4 * second, 1, -1, "lost"),
        (3 * second, 6 * second, 0, 5, "lost"),
    ]
    assert trace.cpus == (0, 1, 2, 3)


def test_seconds_and_plain_numbers_are_not_mixed(tmp_path: Path) -> None:
    counted = "          <idle>-0       [001] d..2.           57: "
    trace = text(tmp_path, *[event("cpu_idle: state=1 cpu_id=0")] * 3, event("cpu_idle: state=1 cpu_id=0", counted))
    assert (len(trace.table("power")), trace.odd.count, trace.clock) == (3, 1, "")


def test_events_out_of_order_are_sorted(tmp_path: Path) -> None:
    lines = [
        event("cpu_idle: state=1 cpu_id=0", f"          <idle>-0       [001] d..2. {s:5d}.000000: ") for s in (3, 1, 2)
    ]
    assert text(tmp_path, *lines).table("power")["at_ns"].to_list() == [10**9, 2 * 10**9, 3 * 10**9]


PERF = """\
         swapper     0 [001]  1583.765274:       sched:sched_waking: comm=train pid=4711 prio=120 target_cpu=001
         swapper     0 [001]  1583.765280:       sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 \
prev_state=R ==> next_comm=train next_pid=4711 next_prio=120
 pt main thread  4700/4711 [001]  1583.765300: 1  sched:sched_switch: train:4711 [120] S ==> swapper/1:0 [120]
             :-1    -1 [001]  1583.765310:       sched:sched_switch: prev_comm=sh prev_pid=9 prev_prio=120 \
prev_state=X ==> next_comm=swapper/1 next_pid=0 next_prio=120
            java  99 [000]  1583.765301123:    250000 cpu-clock:pppH:  ffffffff81000000 do_idle ([kernel.kallsyms])
"""


def test_lines_of_perf_script(tmp_path: Path) -> None:
    trace = text(tmp_path, *PERF.splitlines())
    switches = trace.table("switches").to_dicts()
    assert [(row["prev_tid"], row["next_tid"], row["prev_state"], row["cpu"]) for row in switches] == [
        (0, 4711, "R", 1),
        (4711, 0, "S", 1),
        (9, 0, "X", 1),
    ]
    assert trace.table("wakeups")["tid"].to_list() == [4711]
    assert trace.end_ns - trace.start_ns == 36_000
    assert trace.odd.count == 1  # a sample of the CPU's clock is no event of the scheduler
