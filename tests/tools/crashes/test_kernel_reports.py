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
WORK_LOCKUP = """\
BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 61s!
Showing busy workqueues and worker pools:
workqueue demo: flags=0x0
  pwq 6: cpus=3 node=0 flags=0x0 nice=0 active=1 refcnt=2
    in-flight: 77:demo_flush_fn for 60s
Showing backtraces of busy workers in stalled worker pools:
pool 6:
task:kworker/3:1     state:R  running task     stack:0     pid:77
Workqueue: demo demo_flush_fn
Call Trace:
 __schedule+0x17d9/0x56c0
"""
WORK_DEADLOCK = """\
WARNING: possible circular locking dependency detected
6.1.0-test #1 Not tainted
kworker/u8:2/43 is trying to acquire lock:
ffffc900 ((work_completion)(&d->work)){+.+.}, at: process_one_work+0x8c0/0x17b0
but task is already holding lock:
ffff8880 ((wq_completion)demo){+.+.}, at: process_one_work+0x88b/0x17b0
which lock already depends on the new lock.
the existing dependency chain (in reverse order) is:
-> #1 ((wq_completion)demo){+.+.}:
       flush_workqueue+0x115/0x1520
       demo_remove+0x16a/0x230
stack backtrace:
Call Trace:
 dump_stack+0x199/0x216
 lock_acquire+0x194/0x410
 process_one_work+0x91b/0x17b0
"""
LOCK_ORDER = """\
WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected
loader/7 [HC0[0]:SC0[0]:HE0:SE1] is trying to acquire:
 (&d->lock){+.+.}, at: demo_send+0x14/0x90
... which became HARDIRQ-irq-safe at:
  lock_acquire+0x29d/0x740
  _raw_spin_lock_irqsave+0x39/0x50
  demo_interrupt+0x6f/0x3d0
"""
CIPHER = """\
BUG: KMSAN: uninit-value in aes_encrypt+0x12/0x19
 aes_encrypt+0x12/0x19
 crypto_skcipher_encrypt+0xe0/0x150
 demo_write_block+0x52/0x90
"""
OLD_CIPHER = CIPHER.replace("uninit-value", "use of uninitialized memory")
TWO_STALLS = """\
INFO: rcu_sched self-detected stall on CPU
INFO: rcu_sched detected stalls on CPUs/tasks:
Call Trace:
 demo_loop+0x11/0x4e
 demo_write+0x57/0xc5
 vfs_write+0x91/0xe1
"""
# a timer's function was interrupted, too, but what it interrupted is the loop
STALL_INTERRUPTED = """\
rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
task:loader          state:R  running task     stack:0     pid:77
Call Trace:
 __schedule+0x2e3/0x7a0
 demo_preempted+0x11/0x4e
 do_syscall_64+0x39/0xb0
NMI backtrace for cpu 1
RIP: 0010:demo_timer_helper+0x10/0x20
Call Trace:
 <IRQ>
 demo_timer+0x47/0x8c
 __hrtimer_run_queues+0x47f/0x930
 sysvec_apic_timer_interrupt+0xb9/0x130
 asm_sysvec_apic_timer_interrupt+0x12/0x20
 </IRQ>
RIP: 0010:_raw_spin_unlock_irqrestore+0xa5/0xd0
 demo_change+0x4245/0x51f0
 demo_modify+0x962/0x1d90
 rtnetlink_rcv_msg+0x889/0xd40
"""
STALL_PREEMPTED = (
    "\n".join(STALL_INTERRUPTED.splitlines()[:6])
    + """
rcu: Stack dump where RCU GP kthread last ran:
RIP: 0010:stranger+0x4c/0x70
Call Trace:
 stranger_too+0x131/0x165
 do_syscall_64+0xf0/0x230
"""
)
HUNG_LINE_BREAK = """\
[ 1052.080846][   T41] INFO: task load
[ 1052.080847][   T41] er:18088 blocked for more than 143 seconds.
[ 1052.199981][   T41] Call Trace:
[ 1052.211420][   T41]  __schedule+0x10e9/0x6820
[ 1052.316193][   T41]  __wait_for_common+0x2e7/0x4c0
[ 1052.427704][   T41]  __flush_work+0x7c7/0xcb0
[ 1052.456896][   T41]  demo_close+0x299/0x5a0
"""
PREEMPTIBLE = """\
BUG: using smp_processor_id() in preemptible [00000000] code: loader/77
caller is radix_tree_node_alloc+0x5e/0x410
Call Trace:
 dump_stack+0x107/0x163
 debug_smp_processor_id+0x123/0x130
 radix_tree_node_alloc+0x5e/0x410
 demo_bind+0x5b/0x1c0
"""
RISCV = """\
Unable to handle kernel access to user memory without uaccess routines at virtual address 000000000cc6b0d0
Oops [#1]
epc : schedule_tail+0x72/0xb2
Call Trace:
[<ffffffe00008c762>] schedule_tail+0x72/0xb2
"""
HUNG_POWERPC = """\
INFO: task loader:77 blocked for more than 143 seconds.
Call Trace:
[c000000001bb3530] [c000000001bb35a0] demo_stale+0x308828/0x345288 (unreliable)
[c000000001bb3710] [c0000000000286fc] __switch_to+0x43c/0x6d0
[c000000001bb3860] [c0000000013872e0] synchronize_srcu+0x50/0xd0
"""
S390 = """\
specification exception: 0006 ilc:2 [#1] SMP
Krnl PSW : 0704c00180000000 000003ff80123456 (demo_irq+0x3a/0x120 [demo])
Call Trace:
 [<000003ff80123456>] demo_irq+0x3a/0x120 [demo]
([<000003ff80123400>] demo_poll+0x5a/0x80 [demo])
Last Breaking-Event-Address:
 [<000003ff80123000>] stranger+0x2/0x4
"""
LOONGARCH = """\
Oops[#1]:
   ERA: 9000000000224455 memset+0x10/0x20
Call Trace:
[<9000000000224455>] memset+0x10/0x20
[<9000000000224499>] demo_clear+0x30/0x70
"""
INTERLEAVED = """\
BUG: KASAN: use-after-free in rht_key_get_hash+0x19/0x1d
demo: link 1 down
demo: link 2 down
demo: link 3 down
demo: link 4 down
demo: link 5 down
Read of size 8 at addr ffff8801ce6e8e10 by task loader/7
Call Trace:
 rhashtable_lookup_fast+0x77/0x9b
 demo_lookup+0x1f/0x3c
"""
HUGE_REQUEST = """\
WARNING: CPU: 0 PID: 31 at mm/page_alloc.c:5214 __alloc_pages+0x45d/0x500
RIP: 0010:__alloc_pages+0x45d/0x500
Call Trace:
 alloc_page_interleave+0x1e/0x200
 kmalloc_order_trace+0x14/0x120
 demo_resize+0x5a/0x23
"""
DUPLICATED_NAME = """\
BUG: memory leak
unreferenced object 0xffff88005f607a40 (size 32):
  backtrace:
    [<000000005040d77c>] __kmalloc_track_caller+0x14b/0x290
    [<000000009136e0d6>] kstrdup+0x39/0x70
    [<0000000031b458ae>] demo_alloc_name+0x39/0x50
    [<00000000973ef0d1>] kobject_set_name+0xb2/0xd0
"""
DOUBLE_FAULT = """\
PANIC: double fault, error_code: 0x0
Call Trace:
 <#DF>
 df_debug+0x2d/0x30
 double_fault+0x1e/0x30
 </#DF>
 demo_recurse+0x5/0x40
 demo_recurse+0x21/0x40
 demo_write+0x57/0xc5
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
        "read_word_at_a_time",
        "__printk_safe_flush",
    ],
)
def test_a_helper_is_not_at_fault(helper: str) -> None:
    one = found(PAGE_FAULT.replace("memcpy", helper))
    assert one is not None
    assert one.function == "demo_fill_ring"


@pytest.mark.parametrize(
    "function",
    [
        "bitmap_ip_add",
        "atomic_notifier_call_chain",
        "strp_data_ready",
        "copy_to_user_state",
        "do_bpf_send_signal",
        "btrfs_read_locked_inode",
        "get_user_pages",
        "__fput",
        "list_add_event",
        "truncate_inode_partial_page",
    ],
)
def test_a_name_that_begins_like_a_helpers_may_be_at_fault(function: str) -> None:
    one = found(PAGE_FAULT.replace("memcpy", function))
    assert one is not None
    assert one.function == function


def test_a_heading_takes_the_function_of_what_its_context_reports_next() -> None:
    heading = "[  101.000000][ T4242] WARNING: Nested lock was not taken\n"
    one = found(heading + PAGE_FAULT)
    assert one is not None
    assert one.title == "WARNING: nested lock was not taken in demo_fill_ring"
    assert one.end <= len(heading)  # the fault is a report of its own
    other = found(heading.replace("T4242", "    T7") + PAGE_FAULT)
    assert other is not None
    assert other.title == "WARNING: nested lock was not taken in corrupted"


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
        (WORK_LOCKUP, "BUG: workqueue lockup in demo_flush_fn", "workqueue_lockup"),
        (WORK_LOCKUP.splitlines()[0] + "\n", "BUG: workqueue lockup", "workqueue_lockup"),
        (WORK_DEADLOCK, "possible deadlock in demo_remove", "deadlock"),
        (LOCK_ORDER, "possible deadlock in demo_interrupt", "deadlock"),
        (CIPHER, "KMSAN: uninit-value in demo_write_block", "kmsan"),
        (OLD_CIPHER, "KMSAN: use of uninitialized memory in demo_write_block", "kmsan"),
        (TWO_STALLS, "INFO: rcu detected stall in demo_write", "rcu_stall"),
        (HUNG_POWERPC, "INFO: task hung in synchronize_rcu", "hung_task"),
        (STALL_INTERRUPTED, "INFO: rcu detected stall in demo_modify", "rcu_stall"),
        (STALL_PREEMPTED, "INFO: rcu detected stall in corrupted", "rcu_stall"),
        (HUNG_LINE_BREAK, "INFO: task hung in demo_close", "hung_task"),
        (
            PREEMPTIBLE,
            "BUG: using smp_processor_id() in preemptible code in radix_tree_node_alloc",
            "lock_misuse",
        ),
        (RISCV, "BUG: unable to handle kernel access to user memory in schedule_tail", "page_fault"),
        (
            S390.replace("specification exception: 0006 ilc:2 [", "segment not present: 0000 ["),
            "segment not present in demo_irq",
            "cpu_exception",
        ),
        (S390, "specification exception in demo_irq", "cpu_exception"),
        (LOONGARCH, "Oops in demo_clear", "cpu_exception"),
        (INTERLEAVED, "KASAN: use-after-free Read in demo_lookup", "kasan"),
        (HUGE_REQUEST, "WARNING in demo_resize", "warning"),
        (DUPLICATED_NAME, "memory leak in kobject_set_name", "memory_leak"),
        ("Kernel panic - not syncing: hung_task: blocked tasks\n", "kernel panic: hung_task: blocked tasks", "panic"),
        ("Kernel panic - not syncing: panic_on_warn set ...\n", "kernel panic: panic_on_warn set", "panic"),
        (DOUBLE_FAULT, "PANIC: double fault in demo_recurse", "double_fault"),
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
        "INFO: task 12 of 40 finished\n",
        "INFO: Allocated 8 GPUs\n",
        "INFO: possible speedup by pinning memory\n",
        "WARNING: slow step at /app/train.py:12 in step\n",
        "BUG: please report at https://example.org\n",
        "[   28.000000] Kernel panic timeout is 10 seconds\n",
        "[    9.000000] unchecked MSR access error: RDMSR from 0x1a2 at rIP: 0xffffffff81 (native_read_msr+0x4/0x20)\n",
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


def test_a_panic_after_a_warning_is_part_of_its_report() -> None:
    log = "WARNING: CPU: 1 PID: 7 at demo.c:9 demo_close+0x1/0x2\nKernel panic - not syncing: panic_on_warn set ...\n"
    one = found(log + "Call Trace:\n panic+0x1/0x2\n __warn+0x1/0x2\n demo_close+0x1/0x2\n demo_release+0x1/0x2\n")
    assert one is not None
    assert (one.title, one.panicked) == ("WARNING in demo_close", True)
