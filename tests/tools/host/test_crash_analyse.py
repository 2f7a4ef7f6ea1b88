"""crash_analyse on small logs of a host and of the ranks of a job."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity
from whystall.tools.crashes.read import read_logs
from whystall.tools.host.crash_analyse.tool import TOOL, Data, Params, judge

OOPS = """\
<1>[   50.000001] BUG: kernel NULL pointer dereference, address: 0000000000000008
<4>[   50.000002] CPU: 1 PID: 77 Comm: loader Not tainted 6.1.0-test #1
<4>[   50.000003] RIP: 0010:demo_take+0x10/0x20
<4>[   50.000004] Call Trace:
<4>[   50.000005]  demo_poll+0x1/0x2
"""
OOM = """\
Jan 12 03:04:05 n7 kernel: [   90.000001] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0
Jan 12 03:04:05 n7 kernel: [   90.000002] Out of memory: Killed process 102 (python3) total-vm:2kB, anon-rss:1kB
"""
SUMMARY = """\
[0]:
  time      : 2026-01-12_03:04:09
  host      : gpu-7
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 102)
[1]:
  time      : 2026-01-12_03:04:10
  host      : gpu-7
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 100)
"""
TIMEOUT = (
    "[rank{0}]:[E112 03:14:05.123 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE)\n"
)


def judged(folder: Path, **logs: str) -> Data:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text, "utf-8")
    return judge(read_logs([str(folder)]), Params()).data


def test_repeats_are_one_row_and_one_finding(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text(OOPS * 3, "utf-8")
    found = judge(read_logs([str(tmp_path / "dmesg")]), Params())
    (row,) = found.data.crashes
    assert (row.title, row.count, row.process, row.origin) == (
        "BUG: unable to handle kernel NULL pointer dereference in demo_take",
        3,
        "loader",
        "kernel",
    )
    (finding,) = found.findings
    assert (finding.kind, finding.severity, finding.attributes["function"]) == (
        "crash.kernel",
        Severity.CRITICAL,
        "demo_take",
    )


def test_the_kill_by_the_kernel_explains_the_rank_that_died_first(tmp_path: Path) -> None:
    data = judged(tmp_path, console=OOM, launcher=SUMMARY, rank0=TIMEOUT.format(0), rank1=TIMEOUT.format(1))
    assert data.first is not None
    assert (data.first.who, data.first.rank, data.first.reason) == ("rank 2", 2, "only_one")
    assert data.first.title == "out of memory: killed python3"
    assert [row.rank for row in data.failures if not row.reaction] == [2]


def test_the_first_failure_is_left_open_if_the_times_do_not_tell(tmp_path: Path) -> None:
    lines = ("Traceback (most recent call last):", '  File "/srv/a.py", line 4, in f', "OSError: x")
    stack = "".join("[rank{0}]: " + line + "\n" for line in lines)
    data = judged(tmp_path, rank0=stack.format(0), rank1=stack.format(1))
    assert data.first is not None
    assert (data.first.who, data.first.reason) == ("", "time_unknown")
    assert data.first.candidates == ["rank 0", "rank 1"]


def test_ranks_are_known_by_the_paths_of_torchrun(tmp_path: Path) -> None:
    place = tmp_path / "attempt_0" / "3"
    place.mkdir(parents=True)
    (place / "stderr.log").write_text("Fatal Python error: Segmentation fault\n", "utf-8")
    (row,) = judge(read_logs([str(tmp_path)]), Params()).data.failures
    assert (row.rank, row.local_rank, row.title) == (None, 3, "Fatal Python error: Segmentation fault")


def test_lines_of_user_space_are_told_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(OOPS.replace("<1>", "<9>").replace("<4>", "<12>"), "utf-8")
    recording = read_logs([str(tmp_path / "kmsg")])
    assert judge(recording, Params()).data.crashes == []
    assert [spot.code for spot in recording.manifest.collectors["crashes"].not_seen] == ["user_space_lines"]


def test_logs_without_a_crash_are_no_proof_of_health(tmp_path: Path) -> None:
    (tmp_path / "calm.txt").write_text("[   10.100000] python[88]: BUG report feature enabled\n", "utf-8")
    found = judge(read_logs([str(tmp_path / "calm.txt")]), Params())
    assert (found.findings, found.not_seen) == ([], [("no_crash_logged", "")])


def test_a_binary_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "c.bin").write_bytes(bytes(range(256)) * 64)
    entry = read_logs([str(tmp_path / "c.bin")]).manifest.collectors["crashes"]
    assert [spot.code for spot in entry.not_seen] == ["log_damaged"]
    assert not entry.proven


def test_who_asked_for_memory_is_not_taken_for_whom_the_kernel_killed(tmp_path: Path) -> None:
    path = tmp_path / "oom.txt"
    path.write_text("[  912.300000] sidecar invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n", "utf-8")
    data = judge(read_logs([str(path)]), Params()).data
    assert [row.title for row in data.crashes] == ["out of memory: killed an unknown process"]
    assert data.first is not None
    assert data.first.who == str(path)  # not a name


def test_packed_binary_and_damaged_files_are_read_as_far_as_possible(tmp_path: Path) -> None:
    packed = gzip.compress(OOPS.encode())
    (tmp_path / "a.gz").write_bytes(packed)
    (tmp_path / "b.gz").write_bytes(packed[: len(packed) - 9])
    (tmp_path / "c.bin").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "d.journal").write_bytes(b"LPKSHHRH" + bytes(100))
    (tmp_path / "e.txt").write_bytes(OOPS.encode("utf-16"))
    recording = read_logs([str(tmp_path)])
    assert sum(row.count for row in judge(recording, Params()).data.crashes) >= 1
    unread = [s.detail for s in recording.manifest.collectors["crashes"].not_seen if s.code == "logs_unread"]
    assert [Path(detail.split(":")[0]).name for detail in unread] == ["b.gz", "d.journal"]


def test_what_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "absent", ErrorCode.IO_ERROR), (tmp_path, ErrorCode.BAD_ARGUMENT)):
        with pytest.raises(ToolError) as raised:
            read_logs([str(path)])
        assert raised.value.code is code
    assert TOOL.params(log=["x"]).log == ["x"]
    with pytest.raises(ValueError, match="characters"):
        TOOL.params(log=[""])
