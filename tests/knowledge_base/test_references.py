"""Codes and names in a text."""

from __future__ import annotations

import random

import pytest

from whystall.knowledge_base.references import is_code, references


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.", "xid:79"),
        ("Xid 63", "xid:63"),
        ("xid=119", "xid:119"),
        ("显卡报 Xid 错误 48", "xid:48"),
        ("显卡掉卡怎么办", "xid:79"),
        ("SXid 12021", "sxid:12021"),
        ("[Errno 28] No space left on device", "errno:ENOSPC"),
        ("ENOSPC /dev/shm", "errno:ENOSPC"),
        ("Stale file handle", "errno:ESTALE"),
        ("Connection refused (os error 111)", "errno:ECONNREFUSED"),
        ("Child process terminated with code -9", "signal:SIGKILL"),
        ("OOMKilled, exit code 137", "signal:SIGKILL"),
        ("exited with status 139, segfault at 0", "signal:SIGSEGV"),
        ("worker is killed by signal: Bus error", "signal:SIGBUS"),
        ("NET/IB : Got completion from peer 10.0.0.7 with error 12, opcode 0, len 0", "wc:12"),
        ("CUDA error: an illegal memory access was encountered", "cuda:illegaladdress"),
        ("cudaErrorIllegalAddress", "cuda:illegaladdress"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS (700)", "cuda:illegaladdress"),
        ("CUDA error 802", "cuda:systemnotready"),
        ("ncclSystemError: System call failed", "nccl:ncclsystemerror"),
        ("HTTP 429", "http:429"),
        ("NCCL timeout", "nccl:timeout"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "nccl:timeout"),
        ("nccl 通信超时", "nccl:timeout"),
    ],
)
def test_a_code_is_one_however_it_is_reported(text: str, expected: str) -> None:
    assert [reference for reference in references(text) if is_code(reference)] == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "the END of the ERROR",
        "signal quality 5 of 9",
        "it exited",
        "79 GPUs in 9 nodes",
        "EKS and EFA",
        "404 files",
        "",
    ],
)
def test_other_words_and_numbers_are_no_codes(text: str) -> None:
    assert [reference for reference in references(text) if is_code(reference)] == []


def test_functions_settings_and_files_are_names_and_products_are_not() -> None:
    text = "futex_wait_queue_me < ncclAllReduce, c10d::ProcessGroup, NCCL_SOCKET_IFNAME, train.py:12, PyTorch, 0xbeef"
    assert references(text) == [
        "name:futex_wait_queue_me",
        "name:ncclallreduce",
        "name:c10d::processgroup",
        "name:nccl_socket_ifname",
        "name:train.py",
    ]


def test_any_text_is_read_in_bounded_time_and_size() -> None:
    dice = random.Random(5)
    pool = "xid errno signal code -9 E_A( ): 79\n completion error cuda Error:: _a.py 错误\0\udcff"
    for _ in range(200):
        assert len(references("".join(dice.choices(pool, k=dice.randrange(400))))) <= 64
    assert len(references(" ".join(f"a_{n}_name" for n in range(100_000)))) == 64
    references("completion " * 20_000)
    references("a_" * 100_000)


@pytest.mark.parametrize("text", ["open: no \u017fuch device", "device or resource bu\u017fy", "\u0130/\u0130 error"])
def test_letters_that_only_look_alike_are_no_message(text: str) -> None:
    assert references(text) == []  # a pattern that ignores case matches U+017F as an s


def test_messages_of_errors_are_read_in_any_case_and_the_longer_of_two_that_begin_alike() -> None:
    text = "NO SUCH DEVICE OR ADDRESS, then no such device. Device or Resource Busy"
    assert references(text) == ["errno:ENXIO", "errno:ENODEV", "errno:EBUSY"]
