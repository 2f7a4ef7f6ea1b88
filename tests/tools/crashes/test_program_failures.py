"""Failures that programs of a job log: exceptions, aborts, exit codes, error files."""

from __future__ import annotations

import json

import pytest

from whystall.tools.crashes.times import instant
from whystall.tools.crashes.user_space import Failure, error_file, failure, program_rules

TRACEBACK = b"""\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/srv/train.py", line 41, in step
[rank2]:     loss = model(batch)
[rank2]: %s
2026-01-12 03:04:07,500 INFO ended
"""
SUMMARY = b"""\
[0]:
  time      : 2026-01-12_03:04:09
  host      : gpu-7
  rank      : 3 (local_rank: 3)
"""


def read(text: bytes, before: bytes = b"") -> Failure:
    """Return the failure that the first line of `text` begins."""
    found = failure(text, before, 0, 2026, program_rules())
    assert found is not None
    return found


def test_an_exception_has_its_rank_place_and_bounds_of_its_time() -> None:
    one = read(TRACEBACK % b"ValueError: bad batch", b"2026-01-12 03:04:05,123 INFO step 12\n")
    assert (one.title, one.kind, one.rank, one.frames) == (
        "ValueError in step",
        "python_exception",
        2,
        ("step (train.py:41)",),
    )
    assert one.at == instant(b"2026-01-12 03:04:05,123", 2026)
    assert one.until == instant(b"2026-01-12 03:04:07,500", 2026)
    assert not one.exact


@pytest.mark.parametrize(
    ("end", "title", "kind"),
    [
        (
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "CUDA out of memory in step",
            "cuda_out_of_memory",
        ),
        (
            b"RuntimeError: CUDA error: an illegal memory access was encountered",
            "CUDA error: an illegal memory access was encountered in step",
            "cuda_error",
        ),
        (b"torch.distributed.DistBackendError: NCCL error in: x.cpp:1", "NCCL error in step", "collective_error"),
    ],
)
def test_errors_of_devices_are_told_by_the_message(end: bytes, title: str, kind: str) -> None:
    one = read(TRACEBACK % end)
    assert (one.title, one.kind) == (title, kind)


@pytest.mark.parametrize(
    ("line", "title", "kind", "reaction"),
    [
        (
            b"[E1129 09:30:31.123 x.cpp:632] [Rank 3] Watchdog caught collective operation timeout: (OpType=ALLREDUCE)",
            "NCCL watchdog: collective operation timed out in ALLREDUCE",
            "collective_timeout",
            True,
        ),
        (
            b"gpu-7:42:43 [3] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer",
            "NCCL: remote peer",
            "collective_error",
            True,
        ),
        (
            b"terminate called after throwing an instance of 'std::bad_alloc'",
            "terminate called after throwing std::bad_alloc",
            "program_abort",
            False,
        ),
        (b"Fatal Python error: Segmentation fault", "Fatal Python error: Segmentation fault", "signal", False),
        (
            b"E0112 03:04:05.1 44 api.py:826] failed (exitcode: -9) local_rank: 1 (pid: 12345)",
            "SIGKILL",
            "signal",
            False,
        ),
        (
            b"E0112 03:04:05.1 44 api.py:826] failed (exitcode: -15) local_rank: 1 (pid: 12345)",
            "SIGTERM",
            "signal",
            True,
        ),
        (b"srun: error: gpu-7: task 3: Exited with exit code 137", "SIGKILL", "signal", False),
        (b"srun: error: gpu-7: task 3: Exited with exit code 1", "exit code 1", "exit_code", False),
    ],
)
def test_one_line_failures(line: bytes, title: str, kind: str, reaction: bool) -> None:
    one = read(line + b"\n")
    assert (one.title, one.kind, one.of_other) == (title, kind, reaction)


def test_the_summary_of_torchrun_bounds_the_time_from_above() -> None:
    one = read(b"  exitcode  : -9 (pid: 12345)\n", SUMMARY)
    assert (one.rank, one.pid, one.host, one.status, one.title) == (3, 12345, "gpu-7", -9, "SIGKILL")
    assert one.at is None
    assert one.until == instant(b"2026-01-12_03:04:09", 2026)


def test_an_error_file_of_torchrun() -> None:
    stack = (
        'Traceback (most recent call last):\n  File "/srv/train.py", line 41, in step\n    x()\nValueError: bad batch\n'
    )
    extra = {"py_callstack": stack, "timestamp": "1768187045"}
    text = json.dumps({"message": {"message": "ValueError: bad batch", "extraInfo": extra}}).encode()
    one = error_file(text, 2026, program_rules())
    assert one is not None
    assert (one.title, one.detail) == ("ValueError in step", "ValueError: bad batch")
    assert one.at is not None
    assert (one.at.at_ns, one.at.zoned) == (1768187045 * 10**9, True)
    assert error_file(b'{"message": 1}', 2026, program_rules()) is None
    assert error_file(b"[" * 100_000, 2026, program_rules()) is None


@pytest.mark.parametrize(
    ("line", "ms", "zoned"),
    [
        (b"2026-01-12T03:04:05.5+02:00 x", 1768179845500, True),
        (b"[Mon Jan 12 03:04:05 2026] x", 1768187045000, False),
        (b"E0112 03:04:05.250000 77 x", 1768187045250, False),
        (b"Jan 12 03:04:05 host x", 1768187045000, False),
    ],
)
def test_times_of_lines(line: bytes, ms: int, zoned: bool) -> None:
    at = instant(line, 2026)
    assert at is not None
    assert (at.at_ns // 10**6, at.zoned) == (ms, zoned)


def test_a_date_that_does_not_exist_is_no_time() -> None:
    assert instant(b"2026-02-30 03:04:05 x", 2026) is None
