"""Parsers of /proc against the awkward contents that real kernels and hostile programs produce."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_counters import pressure_counters, stat_counters, vm_counters

TICK_NS = parse.NS // parse.TICKS
STAT_TAIL = (
    b" S 17 9 9 0 -1 4194304 103 5 7 2 350 120 0 0 20 0 4 0 117047 3133440 410 18446744073709551615 1 2 3 0 0 0 0 0 0 0"
    b" 0 0 17 0 0 0 25 0 0 5 6 7 8 9 10 11 0\n"
)


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b"python3", "python3"),
        (b"a b c", "a b c"),
        (b") R 1 2 3", ") R 1 2 3"),
        (b"((x))", "((x))"),
        (b"x) D 1 (y", "x) D 1 (y"),
        (b"\x1b[31mred\n", "\\x1b[31mred\\x0a"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"", ""),
    ],
)
def test_a_command_name_cannot_forge_the_fields_after_it(comm: bytes, shown: str) -> None:
    stat = parse.pid_stat(b"42 (" + comm + b")" + STAT_TAIL)
    assert (stat.pid, stat.comm, stat.state, stat.ppid) == (42, shown, "S", 17)
    assert (stat.user_ns, stat.system_ns) == (350 * TICK_NS, 120 * TICK_NS)
    assert (stat.minor_faults, stat.major_faults, stat.threads, stat.start_ticks) == (103, 7, 4, 117047)
    assert stat.rss_bytes == 410 * os.sysconf("SC_PAGE_SIZE")
    assert stat.block_io_ns == 25 * TICK_NS


@pytest.mark.parametrize("raw", [b"", b"42", b"42 (x", b"42 (x) S 1 2", b"42 x S 1 2 3"])
def test_a_cut_stat_line_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="stat"):
        parse.pid_stat(raw)


def test_our_own_stat_line_agrees_with_the_kernel() -> None:
    tid = threading.get_native_id()
    stat = parse.pid_stat(Path(f"/proc/self/task/{tid}/stat").read_bytes())
    assert (stat.pid, stat.ppid, stat.state) == (tid, os.getppid(), "R")


def test_schedstat_of_zeros_means_not_kept() -> None:
    assert parse.schedstat(b"771148 12 3\n") == (771148, 12, 3)
    assert parse.schedstat(b"0 0 0\n") == (-1, -1, -1)


def test_host_stat_adds_up_and_leaves_out_cpus_that_are_offline() -> None:
    raw = (
        b"cpu  100 10 50 800 40 1 2 3 60 0\ncpu0 60 5 25 400 20 1 1 1 60 0\ncpu3 40 5 25 400 20 0 1 2 0 0\n"
        b"intr 99 0 0\nctxt 318212\nbtime 1\nprocesses 6266\nprocs_running 3\nprocs_blocked 2\nsoftirq 1 2\n"
    )
    stat = parse.host_stat(raw)
    assert sorted(stat.cpus) == [0, 3]
    assert stat.all.busy == (100 + 10 + 50 + 1 + 2 + 3) * TICK_NS  # guest time is inside user time
    assert (stat.context_switches, stat.forks, stat.runnable, stat.blocked) == (318212, 6266, 3, 2)
    found = stat_counters(stat, {3, 9})
    assert (found["cpu_count"], found["target_cpu_count"], found["runnable"]) == (2, 1, 2)
    assert found["target_cpu_busy_ns"] == (40 + 5 + 25 + 0 + 1 + 2) * TICK_NS


def test_an_old_kernels_short_cpu_line_is_padded() -> None:
    assert parse.host_stat(b"cpu 1 2 3 4\n").all == (TICK_NS, 2 * TICK_NS, 3 * TICK_NS, 4 * TICK_NS, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="no cpu line"):
        parse.host_stat(b"ctxt 1\n")


def test_keyed_files_know_kilobytes_and_skip_what_is_no_number() -> None:
    raw = b"MemTotal:       24684084 kB\nHugePages_Total:       0\nName:\tx y\nthrottled_time 5\nmax -\n\n"
    assert parse.keyed(raw) == {"MemTotal": 24684084 * 1024, "HugePages_Total": 0, "throttled_time": 5}


def test_vmstat_counters_split_by_zone_are_summed_and_waits_are_not_scans() -> None:
    new = {"pgscan_direct": 7, "pgscan_direct_throttle": 99, "allocstall_normal": 3, "allocstall_movable": 4}
    assert vm_counters(new) == {"vm_pgscan_direct": 7, "vm_allocstall": 7}
    old = {"pgscan_direct_dma": 1, "pgscan_direct_normal": 2, "pgscan_direct_throttle": 99}
    assert vm_counters(old) == {"vm_pgscan_direct": 3}


def test_pressure_with_and_without_a_full_line() -> None:
    some = b"some avg10=0.14 avg60=0.17 avg300=0.05 total=4253380\n"
    full = b"full avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
    assert pressure_counters("io", parse.pressure(some + full)) == {"psi_io_some_us": 4253380, "psi_io_full_us": 12}
    assert parse.pressure(some) == {"some": 4253380}


def test_diskstats_of_three_generations() -> None:
    line = b"   7       0 loop0 78 7 620 3 764 93 1128008 4262 2 776 4268"
    oldest, middle, newest = parse.diskstats(
        line + b"\n" + line + b" 5 0 16 9\n" + line + b" 5 0 16 9 120 1\nshort 1 2\n"
    )
    assert (oldest.device, oldest.dev, oldest.read_bytes, oldest.write_bytes) == ("loop0", "7:0", 317440, 577540096)
    assert (oldest.read_ms, oldest.write_ms, oldest.in_flight, oldest.busy_ms) == (3, 4262, 2, 776)
    assert (oldest.discards, oldest.flushes) == (-1, -1)
    assert (middle.discards, middle.discard_bytes, middle.discard_ms, middle.flushes) == (5, 8192, 9, -1)
    assert (newest.flushes, newest.flush_ms) == (120, 1)


def test_the_syscall_file_tells_running_blocked_and_outside() -> None:
    assert parse.syscall(b"running\n") is None
    assert parse.syscall(b"") is None
    assert parse.syscall(b"-1 0x7ffc 0x7fab\n") == parse.InSyscall(-1, ())
    blocked = parse.syscall(b"0 0x3 0x7fab907e1000 0x20000 0x0 0xffffffffffffffff 0x0 0x7ffc 0x7fab\n")
    assert blocked == parse.InSyscall(0, (3, 0x7FAB907E1000, 0x20000, 0, 0xFFFFFFFFFFFFFFFF, 0))


def test_a_kernel_stack_is_functions_only() -> None:
    raw = b"[<0>] folio_wait_bit_common+0x1/0x2\n[<ffffffff8112>] ext4_sync_file+0xb1/0x150 [ext4]\nnonsense\n"
    assert parse.kernel_stack(raw) == ["folio_wait_bit_common", "ext4_sync_file"]


def test_fdinfo_of_an_open_file_and_of_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    fd = os.open(path, os.O_RDONLY)
    try:
        os.lseek(fd, 3, os.SEEK_SET)
        info = parse.fdinfo(Path(f"/proc/self/fdinfo/{fd}").read_bytes())
        assert info.position == 3
        assert not info.flags & os.O_DIRECTORY
    finally:
        os.close(fd)
    with pytest.raises(ValueError, match="pos"):
        parse.fdinfo(b"flags: 02\n")


def test_a_deleted_files_path_is_inert() -> None:
    assert parse.link_path(b"/tmp/x\x1b[2J (deleted)") == ("/tmp/x\\x1b[2J", True)
    assert parse.link_path(b"/tmp/plain") == ("/tmp/plain", False)
