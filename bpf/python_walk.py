"""Walk the frames of a waiting thread in a CPython interpreter's memory, like ``src/python.bpf.h`` for running threads.

The memory belongs to another process: it is untrusted, and may change while it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol

from whystall.bpf import layout as lay
from whystall.bpf.python_offsets import Offsets

_U64 = (1 << 64) - 1
_MOST_THREADS = 4096
_MOST_INTERPRETERS = 64
_OWNED_BY_C = 3
_MIX = 0x9E3779B97F4A7C15
_SEED = 0xCBF29CE484222325


class Reader(Protocol):
    """Another process's memory."""

    def read(self, address: int, size: int) -> bytes:
        """Return exactly `size` bytes. Raises ``OSError``."""


class Memory:
    """Memory of a process, by /proc/PID/mem."""

    def __init__(self, pid: int) -> None:
        """Open it. Raises ``OSError``."""
        self._descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """See `Reader`."""
        if not 0 < address < 1 << 63:
            raise OSError("invalid address")
        data = os.pread(self._descriptor, size, address)
        if len(data) != size:
            raise OSError("unmapped")
        return data

    def close(self) -> None:
        """Close; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Runtime:
    """A CPython interpreter in a process."""

    minor: int
    address: int
    """Address of ``_PyRuntime``."""
    offsets: Offsets
    code_type: int = 0
    """Address of the type of code objects; 0: unknown."""
    pthread_bytes: int = 0
    """Distance from pthread_self to the thread pointer."""

    def for_kernel(self, collecting: int = 0, lock_holder: int = 0) -> bytes:
        """Return it as ``struct python_process``; see there for the addresses."""
        members = {name for name, *_ in lay.PythonProcess._fields_}
        return bytes(
            lay.PythonProcess(
                interpreters=self.address + self.offsets.interpreters_head,
                code_type=self.code_type,
                pthread_bytes=self.pthread_bytes,
                collecting=collecting,
                lock_holder=lock_holder,
                **{f.name: getattr(self.offsets, f.name) for f in fields(self.offsets) if f.name in members},
            )
        )


@dataclass(frozen=True)
class Thread:
    """A thread state: its address, thread number, and interpreter."""

    state: int
    number: int
    interpreter: int
    consistent: bool
    """Whether its own interpreter member matches the list it is in."""


Identify = Callable[[Reader, Runtime, int, int], int]
"""Returns the id of a code object at an address; 0: none. See `code_id`."""


def word(memory: Reader, address: int) -> int:
    """Read eight bytes as a number."""
    return int.from_bytes(memory.read(address, 8), "little")


def threads(memory: Reader, runtime: Runtime) -> Iterator[Thread]:
    """Yield the thread states of all interpreters, in no order. Raises ``OSError``."""
    o = runtime.offsets
    state_bytes = 8 + max(o.thread_id, o.thread_interpreter, o.thread_next)
    interpreter = word(memory, runtime.address + o.interpreters_head)
    for _ in range(_MOST_INTERPRETERS):
        if not interpreter:
            return
        state = word(memory, interpreter + o.interpreter_threads)
        for _ in range(_MOST_THREADS):
            if not state:
                break
            raw = memory.read(state, state_bytes)
            consistent = _at(raw, o.thread_interpreter) == interpreter
            yield Thread(state, _at(raw, o.thread_id), interpreter, consistent)
            state = _at(raw, o.thread_next)
        interpreter = word(memory, interpreter + o.interpreter_next)


def stack(
    memory: Reader, runtime: Runtime, state: int, tgid: int, identify: Identify | None = None
) -> tuple[list[int], dict[int, int]]:
    """Return the words of a thread state's Python stack, innermost first (see ``src/python_records.h``), and addresses
    of the code objects by id. Ends early, without an error, at invalid memory. `identify`: instead of `code_id`.
    """
    identify = identify or code_id
    words: list[int] = []
    codes: dict[int, int] = {}
    try:
        for code, instruction, entry in frames(memory, runtime, state):
            if not code:
                if words:
                    words[-1] |= lay.FRAME_ENTRY
                continue
            number = identify(memory, runtime, code, tgid)
            if not number or len(words) >= lay.STACK_DEPTH:
                break
            codes[number] = code
            words.append(_frame_word(number, instruction, entry))
    except OSError:
        pass  # keep the frames read so far
    return words, codes


def frames(memory: Reader, runtime: Runtime, state: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the frames of a thread state, innermost first: code object, instruction + 1, and whether a C call of the
    evaluator begins with it. Code object 0: such a call begins with the frame before. Raises ``OSError``."""
    o = runtime.offsets
    for _, raw in _raw_frames(memory, runtime, state):
        owner = raw[o.frame_owner]
        if not o.flags & (lay.PYTHON_FRAME_OBJECTS | lay.PYTHON_IS_ENTRY) and owner >= _OWNED_BY_C:
            yield 0, 0, True
            continue
        code = _at(raw, o.frame_code) & ~7
        entry = o.flags & lay.PYTHON_FRAME_OBJECTS or (o.flags & lay.PYTHON_IS_ENTRY and owner)
        yield code, _instruction(raw, code, o), bool(entry)


def running_frames(memory: Reader, runtime: Runtime, state: int) -> Iterator[tuple[int, int, int]]:
    """Yield the frames of a thread state that run code, innermost first: address, code object, and the number of its
    current instruction + 1. Raises ``OSError``."""
    o = runtime.offsets
    for frame, raw in _raw_frames(memory, runtime, state):
        if raw[o.frame_owner] < _OWNED_BY_C:
            code = _at(raw, o.frame_code) & ~7
            yield frame, code, _instruction(raw, code, o)


def _raw_frames(memory: Reader, runtime: Runtime, state: int) -> Iterator[tuple[int, bytes]]:
    """Yield address and content of the frames of a thread state, innermost first."""
    o = runtime.offsets
    frame = word(memory, state + o.thread_frame)
    if frame and o.flags & lay.PYTHON_CFRAME:
        frame = word(memory, frame + o.cframe_frame)
    for _ in range(2 * lay.STACK_DEPTH):
        if not frame:
            return
        raw = memory.read(frame, o.frame_bytes)
        yield frame, raw
        frame = _at(raw, o.frame_previous)


def _at(raw: bytes, offset: int) -> int:
    return int.from_bytes(raw[offset : offset + 8], "little")


def _instruction(raw: bytes, code: int, o: Offsets) -> int:
    if o.flags & lay.PYTHON_FRAME_OBJECTS:
        return int.from_bytes(raw[o.frame_instruction : o.frame_instruction + 4], "little", signed=True) + 1
    return (_at(raw, o.frame_instruction) - code - o.code_first >> 1) + 1


def _frame_word(number: int, instruction: int, entry: bool) -> int:
    if not 0 <= instruction < lay.FRAME_INSTRUCTION:
        instruction = 0
    return number << lay.FRAME_CODE_SHIFT | (lay.FRAME_ENTRY if entry else 0) | instruction


def code_id(memory: Reader, runtime: Runtime, code: int, tgid: int) -> int:
    """Return the id of a code object in stacks, as ``python_code_id`` computes it; 0: none."""
    o = runtime.offsets
    head = memory.read(code, o.code_lines + 8)
    if runtime.code_type and _at(head, 8) != runtime.code_type:
        return 0
    number = _mixed(_SEED + tgid, code)
    for offset in (o.code_name, o.code_file, o.code_lines):
        number = _mixed(number, _at(head, offset))
    number = _mixed(number, _at(head, o.code_line) & 0xFFFFFFFF)
    number = _mixed(number, _word_or_0(memory, _at(head, o.code_name) + o.text_length + 8))  # the hash of its text
    if o.code_version:
        number = _mixed(number, _at(head, o.code_version) & 0xFFFFFFFF)
    else:
        number = _path_mixed(memory, o, number, _at(head, o.code_file))
        number = _lines_mixed(memory, o, number, _at(head, o.code_lines))
    return number >> lay.FRAME_CODE_SHIFT | 1


def _word_or_0(memory: Reader, address: int) -> int:
    try:
        return word(memory, address)
    except OSError:
        return 0


def _path_mixed(memory: Reader, o: Offsets, number: int, file: int) -> int:
    length = _word_or_0(memory, file + o.text_length)
    number = _mixed(number, length)
    end = file + o.text_ascii + (length - 16 if length > 16 else 0) & _U64
    return _mixed(_mixed(number, _word_or_0(memory, end)), _word_or_0(memory, end + 8))


def _lines_mixed(memory: Reader, o: Offsets, number: int, lines: int) -> int:
    length = word(memory, lines + o.bytes_length)
    number = _mixed(number, length)
    ends = [(0, min(length, lay.CODE_IDENTITY_BYTES))]
    if length > lay.CODE_IDENTITY_BYTES:
        ends.append((length - lay.CODE_IDENTITY_BYTES, lay.CODE_IDENTITY_BYTES))
    for begin, size in ends:
        part = memory.read(lines + o.bytes_data + begin, size) if size else b""
        for at in range(0, lay.CODE_IDENTITY_BYTES, 8):
            number = _mixed(number, int.from_bytes(part[at : at + 8], "little"))
    return number


def _mixed(number: int, value: int) -> int:
    number = (number ^ value) * _MIX & _U64
    return number ^ number >> 29


def stack_id(words: list[int]) -> int:
    """Return the id of a Python stack, as ``keep_stack`` computes it."""
    number = _SEED + lay.STACK_PYTHON
    for value in words + [0] * (-len(words) % 4):
        number = _mixed(number, value)
    return number | 1


def code_record(memory: Reader, runtime: Runtime, code: int, tgid: int) -> bytes:
    """Return the record of a code object, with the whole line table. Raises ``OSError``."""
    o = runtime.offsets
    head = memory.read(code, o.code_lines + 8)
    lines = _at(head, o.code_lines)
    length = word(memory, lines + o.bytes_length)
    if length > 1 << 20:
        raise OSError("invalid line table")
    name, name_kind, name_length = _text(memory, o, _at(head, o.code_name), lay.CODE_NAME_BYTES, tail=False)
    file, file_kind, file_length = _text(memory, o, _at(head, o.code_file), lay.CODE_FILE_BYTES, tail=True)
    record = lay.CodeRecord(
        type=lay.RECORD_CODE,
        tgid=tgid,
        id=code_id(memory, runtime, code, tgid),
        code=code,
        lines_length=length,
        name_length=name_length,
        file_length=file_length,
        first_line=_at(head, o.code_line) & 0xFFFFFFFF,
        flags=o.flags,
        name_kind=name_kind,
        file_kind=file_kind,
    )
    text = bytearray(bytes(record)[: lay.CodeRecord.lines.offset])
    text[lay.CodeRecord.name.offset : lay.CodeRecord.name.offset + len(name)] = name
    text[lay.CodeRecord.file.offset : lay.CodeRecord.file.offset + len(file)] = file
    return bytes(text) + (memory.read(lines + o.bytes_data, length) if length else b"")


def _text(memory: Reader, o: Offsets, address: int, most: int, *, tail: bool) -> tuple[bytes, int, int]:
    characters = word(memory, address + o.text_length)
    state = memory.read(address + o.text_state, 1)[0]
    kind = state >> 2 & 7
    if not state & 1 << 5 or characters >> 32 or kind not in (1, 2, 4):
        return b"", 0, 0
    data, size = address + (o.text_ascii if state & 1 << 6 else o.text_compact), characters * kind
    if tail and size > most:
        data += size - most
    return memory.read(data, min(size, most)) if size else b"", kind, characters


# glibc's struct pthread begins with the thread control block and a list head; the thread id follows.
_PTHREAD_TID = {"x86_64": 720, "aarch64": 208}


def thread_number(memory: Reader, runtime: Runtime, thread: Thread, tasks: dict[int, int]) -> int:
    """Return the host thread id of a thread state, 0 if unknown; `tasks`: as `tasks_of` returns them."""
    if not runtime.offsets.flags & lay.PYTHON_THREAD_BY_POINTER:
        return tasks.get(thread.number, 0)
    offset = _PTHREAD_TID.get(os.uname().machine)
    if offset is None:
        return 0
    try:
        return tasks.get(int.from_bytes(memory.read(thread.number + offset, 4), "little"), 0)
    except OSError:
        return 0
