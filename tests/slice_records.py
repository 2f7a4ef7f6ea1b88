"""Records as the kernel side of a continuous recording writes them, for tests."""

from __future__ import annotations

from typing import Any

from whystall.bpf import layout as lay

PID, TID = 70, 71
MS = 1_000_000


def wait(start: int, end: int, *, flags: int = 0, pystack: int = 0, run_ns: int = 0, **more: Any) -> bytes:
    values = {"tgid": PID, "tid": TID, "nr": 202, "off_class": lay.OFF_S, "asked_ns": -1, "fd": -1, "waker_nr": -1}
    record = lay.SegmentRecord(
        type=lay.RECORD_SEGMENT, flags=flags, start=start * MS, end=end * MS, run_ns=run_ns * MS, pystack=pystack,
        comm=b"train", **(values | more),
    )  # fmt: skip
    return bytes(record)


def stack(number: int, *words: int) -> bytes:
    record = lay.StackRecord(type=lay.RECORD_STACK, depth=len(words), kind=lay.STACK_PYTHON, id=number)
    record.ip[: len(words)] = words
    return bytes(record)[: lay.StackRecord.ip.offset + 8 * len(words)]


def code(number: int, name: bytes) -> bytes:
    record = lay.CodeRecord(
        type=lay.RECORD_CODE, tgid=PID, id=number, first_line=7, name_kind=1, file_kind=1, name_length=len(name),
        file_length=8, name=name, file=b"train.py",
    )  # fmt: skip
    return bytes(record)[: lay.CodeRecord.lines.offset]


def sample(at: int, **more: int) -> bytes:
    return bytes(lay.SampleRecord(type=lay.RECORD_SAMPLE, at=at * MS, **({"tgid": PID, "tid": TID} | more)))


def total(count: int, ms: int, longest: int, **key: Any) -> tuple[bytes, bytes]:
    made = lay.OffKey(**({"tgid": PID, "tid": TID, "nr": 202, "off_class": lay.OFF_S} | key))
    return bytes(made), bytes(lay.OffTotal(count=count, total_ns=ms * MS, max_ns=longest * MS))
