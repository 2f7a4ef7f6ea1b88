"""Uncaught exceptions in logs of ranks, with the labels of torch and of launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.tools.collect.log_exceptions import LOG_BYTES, logged_exceptions
from whystall.tools.collect.rank_logs import read_logs
from whystall.tools.node.environment import Identity

TRACEBACK = """Traceback (most recent call last):
  File "/srv/train.py", line 12, in <module>
    main()
    ~~~~^^
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args, **kwargs)
ValueError: bad batch: 17"""
FRAMES = ("_call_impl (torch/nn/modules/module.py:1751)", "<module> (train.py:12)")


def labelled(label: str, text: str = TRACEBACK) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("label", "rank"),
    [("", -1), ("[rank3]: ", 3), ("[default1]:[rank3]: ", 3), (" 3: ", 3), ("[1,3]<stderr>:", 3), ("[default1]:", -1)],
)
def test_labels(label: str, rank: int) -> None:
    (found,) = logged_exceptions(labelled(label).encode())
    assert (found.rank, found.exception, found.message, found.frames) == (rank, "ValueError", "bad batch: 17", FRAMES)


def test_lines_of_several_ranks_may_be_mixed() -> None:
    one, other = labelled("[rank1]: ").splitlines(), labelled("[rank0]: ", TRACEBACK.replace("17", "4")).splitlines()
    mixed = ["epoch 3", *(line for pair in zip(one, other, strict=True) for line in (*pair, "step 7"))]
    found = logged_exceptions("\n".join(mixed).encode())
    assert [(each.rank, each.message, each.line) for each in found] == [(1, "bad batch: 17", 1), (0, "bad batch: 4", 2)]


def test_the_last_exception_of_a_rank_counts() -> None:
    chained = f"{TRACEBACK}\n\nDuring handling of the above exception, another exception occurred:\n\n"
    (found,) = logged_exceptions((chained + TRACEBACK.replace("ValueError: bad batch: 17", "queue.Empty")).encode())
    assert (found.exception, found.message) == ("queue.Empty", "")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\0" * 400,
        b"Traceback (most recent call last):\n",
        b"Traceback (most recent call last):\nValueError: no frame\n",
        b'Traceback (most recent call last):\n  File "a.py", line 99999999999999999999, in f\nE: x\n',
        b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n- not the name of a class\n',
        b"[rank99999999999]: " * 5000,
    ],
)
def test_what_is_no_traceback_is_ignored(text: bytes) -> None:
    assert logged_exceptions(text) == []


@pytest.mark.parametrize(
    ("line", "of_other"),
    [
        ("RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:2291", True),
        (
            "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network",
            True,
        ),
        ("torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.", True),
        ("RuntimeError: [/pytorch/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
        ("AssertionError", False),
    ],
)
def test_what_ranks_raise_when_another_one_has_ended(line: str, of_other: bool) -> None:
    (found,) = logged_exceptions(labelled("[rank1]: ", TRACEBACK.replace("ValueError: bad batch: 17", line)).encode())
    assert found.of_other is of_other


def test_hostile_text_is_made_inert() -> None:
    text = 'Traceback (most recent call last):\n  File "\x1b[2Ja.py", line 1, in f\u202e\nE: \x1b]0;x\x07' + "m" * 5000
    (found,) = logged_exceptions(text.encode())
    assert found.frames == ("f\\u202e (\\x1b[2Ja.py:1)",)
    assert found.message.startswith("\\x1b]0;x\\x07mmm")
    assert len(found.message) <= 256
    deep = "Traceback (most recent call last):\n" + '  File "a.py", line 1, in f\n' * 900 + "RecursionError: deep"
    assert len(logged_exceptions(deep.encode())[0].frames) == 64


# --- files of ranks ----------------------------------------------------------------------------------------------


def sleeper(log: Path) -> subprocess.Popen[bytes]:
    """A process with this file as its output and standard error."""
    with open(log, "ab") as file:
        return subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"], stdout=file, stderr=file)


def rows(ranks: dict[int, Identity], since_s: float = 0) -> list[tuple[object, ...]]:
    return [row[:3] + row[4:5] for row in read_logs("/proc", ranks, since_s, lambda: False).rows]


def test_logs_of_living_ranks_and_of_the_missing_one_beside_them(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"attempt_0/{rank}").mkdir(parents=True)
    logs = [tmp_path / f"attempt_0/{rank}/stderr.log" for rank in range(3)]
    logs[2].write_text("x" * LOG_BYTES + "\n" + TRACEBACK)
    (tmp_path / "attempt_0/3").mkdir()
    (tmp_path / "attempt_0/3/stderr.log").symlink_to(logs[2])  # is not followed
    children = [sleeper(logs[rank]) for rank in range(2)]
    try:
        ranks = {
            child.pid: Identity(rank=8 + rank, local_rank=rank, local_size=4, world_size=16)
            for rank, child in enumerate(children)
        }
        assert rows(ranks) == [(str(logs[2]), -1, 2, "ValueError")]
        logs[1].write_text(TRACEBACK)
        assert rows(ranks) == [(str(logs[1]), 9, 1, "ValueError"), (str(logs[2]), -1, 2, "ValueError")]
        os.utime(logs[2], (1000, 1000))
        assert rows(ranks, since_s=2000) == [(str(logs[1]), 9, 1, "ValueError")]  # of an earlier job
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_log_that_ranks_share_names_them_by_its_labels_only(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(labelled("[rank2]: ") + TRACEBACK)
    children = [sleeper(log) for _ in range(2)]
    try:
        ranks = {child.pid: Identity(rank=rank, local_rank=rank) for rank, child in enumerate(children)}
        assert rows(ranks) == [(str(log), 2, -1, "ValueError"), (str(log), -1, -1, "ValueError")]
        os.unlink(log)
        assert [row[1] for row in rows(ranks)] == [2, -1]  # deleted files are read, too
    finally:
        for child in children:
            child.kill()
            child.wait()
