"""Crash reports of the kernel: title, class, function at fault, and what must not be taken for one."""

from __future__ import annotations

import random

import pytest

from whystall.tools.crashes.kernel import KernelReport, beginning, report
from whystall.tools.crashes.rules import kernel_rules
from whystall.tools.node.log_lines import lines

PAGE_FAULT = """\
[  101.000001][ T4242] BUG: unable to handle page fault for address: ffffa00000000010
[  101.000002][ T4242] Oops: 0002 [#1] SMP
[  101.000003][ T4242] CPU: 3 PID: 4242 Comm: trainer Tainted: P           OE     6.1.0-test #1
[  101.000004][ T4242] RIP: 0010:memcpy+0x10/0x20
[  101.000005][ T4242] Call Trace:
[  101.000006][ T4242]  <TASK>
[  101.000007][ T4242]  ? __warn+0x1/0x2
[  101.000008][ T4242]  demo_fill_ring.isra.0+0x44/0x90 [demo]
[  101.000009][ T4242]  demo_ioctl+0x30/0x60 [demo]
[  101.000010][ T4242]  </TASK>
[  101.000011][ T4242] Modules linked in: demo(POE) nfs
[  101.000012][   T11] eth0: link becomes ready
"""
HUNG = """\
INFO: task loader:77 blocked for more than 122 seconds.
      Not tainted 6.1.0-test #1
task:loader          state:D stack:0     pid:77
Call Trace:
 __schedule+0x2e3/0x7a0
 schedule+0x5e/0xd0
 io_schedule+0x46/0x70
 wait_on_page_bit+0x100/0x200
 demo_fs_read+0x20/0x40
 vfs_read+0x90/0x1b0
"""
LOCKUP = """\
watchdog: BUG: soft lockup - CPU#5 stuck for 26s! [python3:900]
CPU: 5 PID: 900 Comm: python3 Not tainted 6.1.0-test #1
RIP: 0010:demo_spin+0x4/0x10
Call Trace:
 demo_wait_all+0x1a/0x40
 demo_submit+0x10/0x80
 vfs_ioctl+0x20/0x40
 do_syscall_64+0x5c/0x90
"""
OOM = """\
<6>[    9.000000] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=984
<4>[    9.000001] CPU: 1 PID: 50 Comm: python3 Not tainted 5.15.0 #1
<6>[    9.000002] oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=/,oom_memcg=/p,task_memcg=/p/a,task=loader,pid=51,uid=0
<3>[    9.000003] Memory cgroup out of memory: Killed process 51 (loader) total-vm:2kB, anon-rss:1024kB, file-rss:0kB
<6>[    9.000009] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=984
"""
PAGE_STATE = """\
BUG: Bad page state in process loader  pfn:7deea
page_owner tracks the page as allocated
page last allocated via order 0, migratetype Unmovable, gfp_mask 0x40c40(GFP_NOFS|__GFP_COMP), pid 96
 post_alloc_hook+0x1f3/0x230
 get_page_from_freelist+0x2e4c/0x2f10
 filemap_alloc_folio_noprof+0xdf/0x500
 demo_owner+0x2b4/0x1050
page last free pid 83 tgid 83 stack trace:
 free_unref_page+0xd19/0xea0
 demo_former+0x6f2/0x13e0
Call Trace:
 bad_page+0x14c/0x170
 demo_freer+0x1121/0x19c0
"""
LEAK = """\
unreferenced object 0xffff880039a55260 (size 64):
  comm "loader", pid 11, jiffies 4298984475 (age 16.078s)
  backtrace:
    [<ffffffff848a2f5f>] kmemleak_alloc+0x7f/0xc0
    [<ffffffff84e5bea0>] demo_open+0x15d0/0x2830
"""
STALL = """\
rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
Call Trace:
 demo_find+0x93/0x260
 demo_get_dumpit+0x11d/0x4e0
 netlink_dump+0x570/0xc50
 netlink_sendmsg+0x91b/0xe10
 sock_sendmsg+0xd3/0x120
 do_syscall_64+0x39/0xb0
"""
LOCK = """\
WARNING: inconsistent lock state
6.1.0-test #1 Not tainted
loader/79 [HC0[0]:SC0[0]:HE0:SE1] takes:
ffff888114ca0920 (&p->pi_lock){?.-.}-{2:2}, at: task_blocks_on_rt_mutex+0x231/0x342
stack backtrace:
Call Trace:
 dump_stack+0x107/0x163
 mark_lock+0x310/0x6ae
 demo_balance+0xa8/0x635
"""
FREE = """\
BUG: KASAN: double-free in kfree+0xf8/0x19c
Call Trace:
 dump_stack+0x107/0x163
 kfree+0xf8/0x19c
 demo_close+0x10/0x20
"""
JOURNAL = '{"_TRANSPORT":"%s","MESSAGE":"BUG: soft lockup - CPU#5","__REALTIME_TIMESTAMP":"1768187045123456"}'


def found(text: str) -> KernelReport | None:
    """Return the first report in a log."""
    rules = kernel_rules()
    parts = list(lines(text.encode()))
    for at, part in enumerate(parts):
        if beginning(part, rules) is not None and (one := report(parts[at:], rules)) is not None:
            return one
    return None


def test_a_page_fault_is_named_after_who_passed_the_bad_address() -> None:
    one = found(PAGE_FAULT)
    assert one is not None
    assert one.title == "BUG: unable to handle kernel paging request in demo_fill_ring"
    assert one.also == ("bad-access in demo_fill_ring",)
    assert (one.kind, one.function, one.why) == ("page_fault", "demo_fill_ring", "")
    assert (one.details.comm, one.details.pid, one.details.taint) == ("trainer", 4242, "POE")
    assert (one.details.kernel, one.details.modules, one.details.foreign) == ("6.1.0-test", ("demo", "nfs"), ("demo",))


@pytest.mark.parametrize(
    "helper",
    [
        "task_blocks_on_rt_mutex",
        "device_remove_file",
        "complete",
        "add_wait_queue",
        "skb_dequeue",
        "__seqprop_assert",
        "fast_dput",
        "hrtimer_start_range_ns",
    ],
)
def test_a_helper_is_not_at_fault(helper: str) -> None:
    one = found(PAGE_FAULT.replace("memcpy", helper))
    assert one is not None
    assert one.function == "demo_fill_ring"


def test_a_name_does_not_depend_on_inlined_functions() -> None:
    frame = "[  101.000008][ T4242]  demo_fill_ring"
    inlined = PAGE_FAULT.replace(frame, f"[  101.000008][ T4242]  demo_find net/demo.c:2 [inline]\n{frame}")
    one = found(inlined)
    assert one is not None
    assert one.function == "demo_fill_ring"


def test_a_report_ends_with_its_last_line() -> None:
    text = "[  100.000000][    T1] booted\n" + PAGE_FAULT
    one = found(text)
    assert one is not None
    assert text.encode()[one.start :].startswith(b"[  101.000001]")
    assert text.encode()[: one.end].endswith(b"Modules linked in: demo(POE) nfs")


@pytest.mark.parametrize(
    ("text", "title", "kind"),
    [
        (HUNG, "INFO: task hung in demo_fs_read", "hung_task"),
        (LOCKUP, "BUG: soft lockup in demo_submit", "soft_lockup"),
        (OOM, "out of memory: killed loader", "oom"),
        (PAGE_STATE, "BUG: Bad page state in demo_owner", "memory_corruption"),
        (LEAK, "memory leak in demo_open (size 64)", "memory_leak"),
        ("BUG: memory leak\n" + LEAK, "memory leak in demo_open", "memory_leak"),
        (STALL, "INFO: rcu detected stall in demo_get_dumpit", "rcu_stall"),
        (LOCK, "inconsistent lock state in demo_balance", "deadlock"),
        (FREE, "KASAN: invalid-free in demo_close", "kasan"),
        ("BUG: unable to handle kernel [  153.6] eth0: up\n", "BUG: unable to handle kernel", "page_fault"),
        (
            "Kernel panic - not syncing: VFS: Unable to mount root fs\n",
            "kernel panic: VFS: Unable to mount root fs",
            "panic",
        ),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0\n", "EDAC: uncorrected memory error", "memory_error"),
        (
            "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4\n",
            "hardware error: machine check",
            "machine_check",
        ),
    ],
)
def test_the_class_and_the_title(text: str, title: str, kind: str) -> None:
    one = found(text)
    assert one is not None
    assert (one.title, one.kind) == (title, kind)


def test_a_kill_for_memory_names_cgroup_size_and_who_asked_for_memory() -> None:
    one = found(OOM)
    assert one is not None
    (kill,) = one.kills
    assert (kill.pid, kill.comm, kill.anon_bytes) == (51, "loader", 1 << 20)
    assert (kill.cgroup, kill.limit_cgroup) == ("/p/a", "/p")
    assert one.allocator.startswith("python3 invoked oom-killer: gfp_mask=0xcc0")
    assert one.end < OOM.rindex("<6>[    9.000009]")  # the next kill is another report


def test_names_of_a_system_call_are_the_same_bug() -> None:
    one = found(LOCKUP.replace("vfs_ioctl+0x20/0x40\n", "__x64_sys_demo+0x20/0x40\n"))
    assert one is not None
    assert one.title == "BUG: soft lockup in sys_demo"
    assert "stall in __x64_sys_demo" in one.also


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: the mand mount option is being deprecated\n",
        "INFO: lockdep is turned off.\n",
        "DEBUG: #1 pc 0000 /system/lib64/libart.so\n",
        "traps: python3[7] general protection fault ip:4 sp:7 error:0 in libc.so\n",
        "python3[12]: segfault at 4cb420 ip 4cb420 sp 7f error 15\n",
        "Speculative Return Stack Overflow: WARNING: See https://kernel.org/doc\n",
        "EXT4-fs: Warning: mounting with an experimental option\n",
        "",
    ],
)
def test_no_title_where_there_is_no_crash(text: str) -> None:
    assert found(text) is None


def test_a_report_without_its_trace_has_no_confident_title() -> None:
    one = found("".join(PAGE_FAULT.splitlines(keepends=True)[:3]))
    assert one is not None
    assert one.title.endswith(" in corrupted")
    assert one.corrupted


def test_a_jump_to_nowhere_is_the_fault_of_the_caller() -> None:
    text = PAGE_FAULT.replace("RIP: 0010:memcpy+0x10/0x20", "RIP: 0010:0x0").replace(
        "  ? __warn+0x1/0x2", "  demo_call+0x1/0x2"
    )
    one = found(text)
    assert one is not None
    assert one.function == "demo_call"


def test_a_report_of_one_line_does_not_end_another() -> None:
    between = "unregister_netdevice: waiting for lo to become free. Usage count = 6\n io_schedule"
    one = found(HUNG.replace(" io_schedule", between))
    assert one is not None
    assert one.title == "INFO: task hung in demo_fs_read"


def test_lines_of_other_writers_are_left_out_of_a_report() -> None:
    mixed = PAGE_FAULT.replace(
        "[  101.000005]", "[  101.000004][   T99] Call Trace:\n[  101.000004][   T99]  stranger+0x1/0x2\n[  101.000005]"
    )
    one = found(mixed)
    assert one is not None
    assert one.function == "demo_fill_ring"
    assert "stranger" not in one.frames


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("3,10,101000001,-,caller=T42;BUG: soft lockup - CPU#5 stuck for 26s! [a:1]", "kernel"),
        ("<3>[  101.000001] BUG: soft lockup - CPU#5 stuck for 26s! [a:1]", "kernel"),
        ("kern  :err   : [  101.000001] BUG: soft lockup - CPU#5 stuck for 26s! [a:1]", "kernel"),
        (
            '{"_TRANSPORT":"kernel","MESSAGE":"BUG: soft lockup - CPU#5","__REALTIME_TIMESTAMP":"1768187045123456"}',
            "kernel",
        ),
        ("[  101.000001] BUG: soft lockup - CPU#5 stuck for 26s! [a:1]", "unknown"),
        ("Jan 12 03:04:05 gpu-7 kernel: [  101.000001] BUG: soft lockup - CPU#5 stuck", "unknown"),
    ],
)
def test_who_wrote_a_line_is_told_as_far_as_the_format_states_it(line: str, origin: str) -> None:
    one = found(line + "\n")
    assert one is not None
    assert one.origin == origin


@pytest.mark.parametrize(
    "line",
    [
        "12,10,101000001,-;BUG: soft lockup - CPU#5 stuck for 26s! [a:1]",
        "<12>[  101.000001] BUG: soft lockup - CPU#5 stuck for 26s! [a:1]",
        "user  :err   : [  101.000001] BUG: soft lockup - CPU#5 stuck for 26s! [a:1]",
        "Jan 12 03:04:05 gpu-7 trainer[12]: BUG: soft lockup - CPU#5 stuck for 26s! [a:1]",
        JOURNAL % "stdout",
    ],
)
def test_a_line_that_a_program_wrote_is_no_crash_of_the_kernel(line: str) -> None:
    assert found(line + "\n") is None


def test_damaged_logs_never_raise() -> None:
    chance = random.Random(7)
    whole = (PAGE_FAULT + HUNG + LOCKUP + OOM).encode()
    rules = kernel_rules()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 40)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        parts = list(lines(bytes(data[chance.randrange(200) :])))
        for at, part in enumerate(parts):
            if beginning(part, rules) is not None:
                report(parts[at:], rules)


def test_numbers_too_large_for_a_table_are_not_read() -> None:
    kill = "[    9.000003] Out of memory: Killed process 99999999999999999999 (x) total-vm:9kB, anon-rss:1kB\n"
    one = found(kill)
    assert one is not None
    assert (one.kills, one.details.pid) == ((), -1)


def test_a_report_reads_no_line_behind_its_end() -> None:
    rest = iter(list(lines((OOM + HUNG * 50).encode())))
    one = report(rest, kernel_rules())
    assert one is not None
    assert len(list(rest)) > 400
