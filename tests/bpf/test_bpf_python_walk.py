"""The walk over an interpreter's memory: of images made as each version lays them out, and of this very process."""

from __future__ import annotations

import os
import struct
import sys
import threading
from typing import Any

import pytest

from whystall.bpf import layout as lay
from whystall.bpf.capture import Stack
from whystall.bpf.python_code import UNKNOWN, decode, frames
from whystall.bpf.python_find import NotReady, check, find, tasks_of
from whystall.bpf.python_offsets import Offsets, UnknownLayout, offsets_of
from whystall.bpf.python_walk import (
    Memory,
    Runtime,
    code_id,
    code_record,
    stack,
    stack_id,
    thread_number,
    threads,
)

CODE_TYPE = 0x7000
TGID = 77


class Image:
    """Memory in which objects are laid out one behind the other; what was not written cannot be read."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.base = 0x10000

    def add(self, size: int, members: dict[int, bytes], tail: bytes = b"") -> int:
        raw = bytearray(size)
        for offset, value in members.items():
            raw[offset : offset + len(value)] = value
        at = self.base + len(self.bytes)
        self.bytes += (raw + tail).ljust((size + len(tail) + 15) // 16 * 16, b"\0")
        return at

    def put(self, address: int, value: bytes) -> None:
        self.bytes[address - self.base : address - self.base + len(value)] = value

    def read(self, address: int, size: int) -> bytes:
        at = address - self.base
        if at < 0 or at + size > len(self.bytes):
            raise OSError("unmapped")
        return bytes(self.bytes[at : at + size])


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


class Interpreter:
    """A process image of one CPython version with one thread, whose frames are given from the innermost outward."""

    def __init__(self, o: Offsets, minor: int, frames_: list[tuple[str, int, bool]], tid: int = 4242) -> None:
        self.o, self.image = o, Image()
        self.modern = not o.flags & (lay.PYTHON_FRAME_OBJECTS | lay.PYTHON_IS_ENTRY)
        runtime = self.image.add(o.interpreters_head + 16, {})
        interpreter = self.image.add(o.interpreter_threads + 16, {})
        self.state = self.image.add(
            256, {o.thread_id: u64(tid), o.thread_interpreter: u64(interpreter), o.thread_next: u64(0)}
        )
        self.image.put(runtime + o.interpreters_head, u64(interpreter))
        self.image.put(interpreter + o.interpreter_threads, u64(self.state))
        innermost = 0
        for name, instruction, entry in reversed(frames_):
            if self.modern and entry:  # the evaluator's own frame below the first one it runs
                innermost = self.frame(innermost, 0, 0, owner=3)
            innermost = self.frame(innermost, self.code(name), instruction, owner=int(entry) if not self.modern else 0)
        if o.flags & lay.PYTHON_CFRAME:
            innermost = self.image.add(32, {o.cframe_frame: u64(innermost)})
        self.image.put(self.state + o.thread_frame, u64(innermost))
        self.runtime = Runtime(minor, runtime, o, CODE_TYPE)

    def text(self, value: str) -> int:
        o = self.o
        kind = 1 if max(map(ord, value), default=0) < 256 else 2 if max(map(ord, value)) < 65536 else 4
        ascii_ = value.isascii()
        state = kind << 2 | 1 << 5 | (1 << 6 if ascii_ else 0)
        data = value.encode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind], "surrogatepass")
        size = o.text_ascii if ascii_ else o.text_compact
        return self.image.add(size, {o.text_length: u64(len(value)), o.text_state: bytes([state])}, data)

    def code(self, name: str) -> int:
        o = self.o
        pairs = o.flags & lay.PYTHON_FRAME_OBJECTS
        table = bytes([2, 1] * 50) if pairs else bytes([0x80 | 11 << 3, 0, 0] * 50)  # a line per instruction
        lines = self.image.add(o.bytes_data, {o.bytes_length: u64(len(table))}, table)
        return self.image.add(
            max(o.code_first, o.code_lines + 8) + 200,
            {
                8: u64(CODE_TYPE),
                o.code_name: u64(self.text(name)),
                o.code_file: u64(self.text(f"/src/{name}.py")),
                o.code_lines: u64(lines),
                o.code_line: struct.pack("<i", 100),
            },
        )

    def frame(self, previous: int, code: int, instruction: int, owner: int) -> int:
        o = self.o
        if o.flags & lay.PYTHON_FRAME_OBJECTS:
            where, kind = struct.pack("<i", instruction), b""
        else:
            where, kind = u64(code + o.code_first + 2 * instruction), bytes([owner])
        tag = 1 if self.modern and code and o.frame_owner == 74 else 0
        members = {o.frame_previous: u64(previous), o.frame_code: u64(code | tag), o.frame_instruction: where}
        if kind:
            members[o.frame_owner] = kind
        return self.image.add(o.frame_bytes + 16, members)


def modern(first: int, owner: int) -> Offsets:
    """As 3.13 and 3.14 publish them."""
    return Offsets(
        flags=0, interpreters_head=632, interpreter_next=7264, interpreter_threads=7344, thread_next=8, thread_id=160,
        thread_frame=72, frame_bytes=owner + 1, frame_previous=8, frame_code=0, frame_instruction=56, frame_owner=owner,
        code_file=112, code_name=128, code_line=68, code_lines=136, code_first=first,
        code_version=92,
    )  # fmt: skip


VERSIONS = {10: offsets_of(10), 11: offsets_of(11), 12: offsets_of(12), 13: modern(200, 70), 14: modern(208, 74)}
STACK = [("leaf", 4, False), ("Å.method", 7, True), ("naïve_训练_🚂", 0, False), ("module", 9, True)]


def names_of(made: Interpreter) -> list[tuple[str, str, int, bool]]:
    words, codes = stack(made.image, made.runtime, made.state, TGID)
    known = dict(decode(code_record(made.image, made.runtime, code, TGID)) for code in codes.values())
    return [tuple(frame) for frame in frames(words, TGID, known)]  # type: ignore[misc]


@pytest.mark.parametrize("minor", VERSIONS)
def test_frames_of_every_version(minor: int) -> None:
    every = minor == 10  # there each frame has its own call of the evaluator
    expected = [(name, f"/src/{name}.py", 101 + at, entry or every) for name, at, entry in STACK]
    assert names_of(Interpreter(VERSIONS[minor], minor, STACK)) == expected


@pytest.mark.parametrize("minor", VERSIONS)
def test_a_deep_stack_is_cut_and_its_innermost_part_kept(minor: int) -> None:
    deep = [(f"f{depth}", 1, depth % 2 == 0) for depth in range(lay.STACK_DEPTH + 40)]
    found = names_of(Interpreter(VERSIONS[minor], minor, deep))
    assert [frame[0] for frame in found] == [f"f{depth}" for depth in range(lay.STACK_DEPTH)]


@pytest.mark.parametrize("minor", VERSIONS)
def test_code_where_other_code_was_is_another_one(minor: int) -> None:
    made = Interpreter(VERSIONS[minor], minor, [])
    code = made.code("again")
    lines = int.from_bytes(made.image.read(code + made.o.code_lines, 8), "little") + made.o.bytes_data
    before = code_id(made.image, made.runtime, code, TGID)
    assert before == code_id(made.image, made.runtime, code, TGID) != 0
    for member in ("code_name", "code_file"):  # a text that is freed and made anew lies where it was
        if member == "code_file" and made.o.code_version:
            continue
        text = int.from_bytes(made.image.read(code + getattr(made.o, member), 8), "little")
        at = text + (made.o.text_length + 8 if member == "code_name" else made.o.text_ascii + len("/src/again"))
        old = made.image.read(at, 1)
        made.image.put(at, b"\x55")
        assert code_id(made.image, made.runtime, code, TGID) != before
        made.image.put(at, old)
    if made.o.code_version:
        made.image.put(code + made.o.code_version, struct.pack("<I", 7))
        assert code_id(made.image, made.runtime, code, TGID) != before
        return
    for at in (0, 40, 99):  # of the hundred bytes or more of its table: same place, same length, other lines
        table = made.image.read(lines + at, 1)
        made.image.put(lines + at, bytes([table[0] ^ 1]))
        assert code_id(made.image, made.runtime, code, TGID) != before
        made.image.put(lines + at, table)


def test_long_names_keep_their_head_and_long_paths_their_tail() -> None:
    name = "n" * 5000
    ((found, file, _, _),) = names_of(Interpreter(VERSIONS[12], 12, [(name, 1, True)]))
    assert found == name[: lay.CODE_NAME_BYTES] + "…"
    assert len(file) <= lay.CODE_FILE_BYTES + 1
    assert file.startswith("…")
    assert file.endswith("nnn.py")


@pytest.mark.parametrize("minor", VERSIONS)
def test_memory_that_is_not_what_it_should_be_ends_the_walk(minor: int) -> None:
    whole = Interpreter(VERSIONS[minor], minor, STACK)
    words, _ = stack(whole.image, whole.runtime, whole.state, TGID)
    assert len(words) == len(STACK)
    for at in range(0, len(whole.image.bytes) - 8, 8):
        broken = Interpreter(VERSIONS[minor], minor, STACK)
        broken.image.put(broken.image.base + at, u64(0xDEAD0000DEAD0001))
        found, codes = stack(broken.image, broken.runtime, broken.state, TGID)
        assert len(found) <= lay.STACK_DEPTH
        for code in codes.values():
            try:
                decode(code_record(broken.image, broken.runtime, code, TGID))
            except OSError:
                continue


def test_a_circle_of_frames_ends() -> None:
    made = Interpreter(VERSIONS[13], 13, [("a", 1, False), ("b", 1, False)])
    o = made.o
    first = int.from_bytes(made.image.read(made.state + o.thread_frame, 8), "little")
    second = int.from_bytes(made.image.read(first + o.frame_previous, 8), "little")
    made.image.put(second + o.frame_previous, u64(first))
    assert len(stack(made.image, made.runtime, made.state, TGID)[0]) == lay.STACK_DEPTH


def test_code_in_memory_that_is_used_again_is_another_code() -> None:
    made = Interpreter(VERSIONS[11], 11, [("a", 1, True)])
    _, codes = stack(made.image, made.runtime, made.state, TGID)
    ((number, address),) = codes.items()
    made.image.put(address + made.o.code_name, u64(made.text("b")))
    assert code_id(made.image, made.runtime, address, TGID) != number
    assert code_id(made.image, made.runtime, address, TGID + 1) != number
    made.image.put(address + 8, u64(CODE_TYPE + 8))
    assert code_id(made.image, made.runtime, address, TGID) == 0


def test_what_was_not_told_is_not_named() -> None:
    (frame,) = frames([5 << lay.FRAME_CODE_SHIFT | 3], TGID, {})
    assert (frame.name, frame.file, frame.line) == (UNKNOWN.name, "", 0)


def test_an_interpreter_is_believed_only_when_its_threads_are_the_processs() -> None:
    made = Interpreter(VERSIONS[12], 12, STACK, tid=4242)
    check(made.image, made.runtime, {4242: 99})
    with pytest.raises(UnknownLayout, match="another memory layout"):
        check(made.image, made.runtime, {1: 1})
    (thread,) = threads(made.image, made.runtime)
    assert thread_number(made.image, made.runtime, thread, {4242: 99}) == 99
    made.image.put(made.state + made.o.thread_interpreter, u64(1))
    with pytest.raises(UnknownLayout, match="debug"):
        check(made.image, made.runtime, {4242: 99})
    made.image.put(made.runtime.address + made.o.interpreters_head, u64(0))
    with pytest.raises(NotReady):
        check(made.image, made.runtime, {4242: 99})


def test_equal_stacks_have_equal_ids() -> None:
    made = Stack(lay.STACK_PYTHON, (1 << 24, 2 << 24 | 5))
    assert stack_id(list(made.addresses)) == stack_id([1 << 24, 2 << 24 | 5])
    assert stack_id([1 << 24]) != stack_id([1 << 24, 2 << 24])
    assert stack_id([1]) & 1


def waits_here(ready: threading.Event, end: threading.Event) -> None:
    ready.set()
    end.wait(60)  # the line looked for


@pytest.mark.skipif(not (3, 10) <= sys.version_info[:2] <= (3, 14), reason="another interpreter")
def test_frames_of_this_very_process() -> None:
    pid = os.getpid()
    runtime = find(pid)
    assert runtime is not None
    assert runtime.minor == sys.version_info[1]
    assert runtime.code_type in (0, id(type(waits_here.__code__)))
    ready, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=waits_here, args=(ready, end))
    thread.start()
    ready.wait()
    try:
        with Memory(pid) as memory:
            tasks = tasks_of(pid)
            found: dict[int, Any] = {}
            for state in threads(memory, runtime):
                words, codes = stack(memory, runtime, state.state, pid)
                known = dict(decode(code_record(memory, runtime, code, pid)) for code in codes.values())
                found[thread_number(memory, runtime, state, tasks)] = frames(words, pid, known)
    finally:
        end.set()
        thread.join()
    assert thread.native_id is not None
    (here,) = [frame for frame in found[thread.native_id] if frame.name == "waits_here"]
    assert (here.file, here.line) == (__file__, waits_here.__code__.co_firstlineno + 2)
    own = [frame.name for frame in found[threading.get_native_id()]]
    assert "test_frames_of_this_very_process" in own


def test_a_process_that_is_no_python_is_none() -> None:
    import subprocess

    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert find(other.pid) is None
        finally:
            other.kill()
