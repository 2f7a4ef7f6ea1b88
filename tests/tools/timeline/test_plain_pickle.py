"""Pickles are read as plain data or refused, whatever they contain."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import random
import struct
import tracemalloc
from typing import Any

import pytest

from whystall.tools.timeline.nccl.plain_pickle import PickleRefused, loads

PLAIN: list[Any] = [
    None,
    True,
    -5,
    10**30,
    1.5,
    "x\u1234",
    (),
    (1,),
    (1, 2, 3, 4),
    [1, [2, (), (3, 4, 5)], {"a": {"b": None, "c": 1.5}}],
    {str(number): [number] * 3 for number in range(3000)},
]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_of_any_protocol(value: object, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_what_is_used_twice_is_there_twice(protocol: int) -> None:
    shared = {"name": "f", "line": 3}
    assert loads(pickle.dumps([shared, [shared], (shared,)], protocol)) == [shared, [shared], (shared,)]


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something(protocol: int) -> None:
    with pytest.raises(PickleRefused, match=r"it tries to import (posix|nt)\.system"):
        loads(pickle.dumps({"entries": [_Calls()]}, protocol))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "tries to import os.system"),
        (b"(S'true'\nios\nsystem\n.", "tries to import os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "tries to import os.system"),
        (b"\x80\x02cbuiltins\neval\x1b[31m\n.", r"tries to import builtins.eval\\x1b"),
        (b"\x80\x02Psomewhere\n.", "kept elsewhere"),
        (b"\x80\x02K\x01Q.", "kept elsewhere"),
        (b"\x80\x02\x82\x01.", "registered extension"),
        (b"\x80\x02}K\x01b.", "operation BUILD"),
        (b"\x80\x02]2.", "operation DUP"),
        (b"\x80\x05\x97.", "operation NEXT_BUFFER"),
        (b"\x80\x04\x8f.", "operation EMPTY_SET"),
    ],
)
def test_everything_that_leads_to_code_is_refused_by_name(data: bytes, text: str) -> None:
    with pytest.raises(PickleRefused, match=text):
        loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02}",
        b"\x80\x02}q\x00(X\x05\x00\x00\x00ab",
        b"\x80\x02h\x07.",
        b"\x80\x02.",
        b"\x80\x02(.",
        b"\x80\x02e.",
        b"\x80\x02(K\x01e.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}(X\x01\x00\x00\x00au.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02(q\x00.",
        b"I" + b"9" * 9000 + b"\n.",
        b"\x80\x02]" + b"\xff" * 20,
    ],
)
def test_damage_is_one_line(data: bytes) -> None:
    with pytest.raises(PickleRefused) as caught:
        loads(data)
    assert "\n" not in str(caught.value)


def test_keys_are_texts_only() -> None:
    deep = b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s."  # hashing such a tuple ends Python itself
    for data in (deep, pickle.dumps({1: 2}), pickle.dumps({"a": {None: 1}})):
        with pytest.raises(PickleRefused, match="a key that is no text"):
            loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abc.",  # BINBYTES8
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"abc.",  # BINUNICODE8
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"K\x01.",  # FRAME
        b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"abc.",
        b"\x80\x02B" + struct.pack("<I", (1 << 32) - 1) + b"abc.",
        b"\x80\x02]r" + struct.pack("<I", (1 << 32) - 1) + b".",  # LONG_BINPUT
        b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"abc.",  # LONG4
    ],
)
def test_what_is_only_announced_takes_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(PickleRefused):  # a large number of a place in the memo is odd, and harmless
            loads(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_small_pickle_makes_no_huge_tree() -> None:
    for kind in (lambda one: [one, one], lambda one: (one, one), lambda one: {"a": one, "b": one}):
        value: Any = [1]
        for _ in range(60):
            value = kind(value)
        with pytest.raises(PickleRefused, match="fill the memory"):
            loads(pickle.dumps(value))


def test_nothing_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    table: dict[str, Any] = {}
    table["self"] = [table]
    for value in (loop, table):
        with pytest.raises(PickleRefused, match="before that is complete"):
            loads(pickle.dumps(value))


def test_damaged_at_random() -> None:
    chance = random.Random(7)
    good = pickle.dumps([{"a": [1, 2, ("x", None)], "b": 1.5}] * 3, 2)
    outcomes = collections.Counter[str]()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            loads(bytes(data))
            outcomes["read"] += 1
        except PickleRefused:
            outcomes["refused"] += 1
    assert outcomes.total() == 3000
    assert outcomes["refused"] > 1000
