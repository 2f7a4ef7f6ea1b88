"""Find the threads that are inside a ``with`` statement of a Python lock, in the memory of their process.

``threading.Lock`` stores no owner. But while a thread is inside ``with lock``, the value stack of its frame has the
bound method ``lock.__exit__``, whose ``__self__`` is the lock; the lock's memory points to the semaphore on which other
threads wait (CPython 3.11 to 3.13: ``BEFORE_WITH`` in Python/bytecodes.c, ``PyCFunctionObject``, ``lockobject`` and
``rlockobject`` in Modules/_threadmodule.c, ``PyThread_allocate_lock`` in Python/thread_pthread.h). A lock that was
taken by ``acquire`` leaves no trace.

A running frame does not store the top of its stack, and slots above it contain stale values. The exception table of its
code object states how many values are below the ``with`` or ``try`` around an instruction, so only these are read
(Objects/exception_handling_notes.txt in CPython). A thread that waits to enter is not yet inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from whystall.bpf.python_walk import Reader, Runtime, running_frames

_MINORS = (11, 12, 13)
_EXCEPTION_TABLE = 40  # PyBytesObject *co_exceptiontable in PyCodeObject
_BYTES_SIZE, _BYTES = 16, 32  # ob_size, ob_sval in PyBytesObject
_MOST_TABLE_BYTES = 1 << 16
_LOCALS = 72  # localsplus in struct _PyInterpreterFrame
_MOST_SLOTS = 64
_METHOD, _SELF = 16, 24  # in PyCFunctionObject: m_ml, m_self
_SEMAPHORE = 16  # in lockobject and rlockobject: the PyThread_type_lock
_EXIT = b"__exit__\0"
_RELEASING = ("Condition.wait", "Condition.wait_for")

_Frame = tuple[int, int, int]
"""Address, code object, instruction + 1."""


def with_lock_owners(
    memory: Reader,
    runtime: Runtime,
    states: Iterable[tuple[int, int]],
    words: Collection[int],
    name_of: Callable[[int], str],
    over: Callable[[], bool],
) -> dict[int, int]:
    """Return the thread inside ``with lock`` by futex word, for those of `words` that are semaphores of such locks.

    `states`: thread ids with their thread states. `name_of`: returns the qualified name of the code object at an
    address. `over`: whether the time is used up.

    ``Condition.wait`` releases the lock of the condition, which its caller may hold by ``with lock``: the frame that
    calls it is left out.
    """
    found: dict[int, int] = {}
    if runtime.minor not in _MINORS or not words:
        return found
    for tid, state in states:
        if over():
            break
        try:
            frames = _holding(list(running_frames(memory, runtime, state)), name_of)
            slots = [slot for frame in frames for slot in _slots(memory, runtime, *frame)]
        except OSError:
            continue  # it changed while it was read
        found |= {word: tid for slot in slots if (word := _locked(memory, slot, words)) is not None}
    return found


def protected_depth(table: bytes, instruction: int) -> int:
    """Return how many values are on the stack below the innermost ``with`` or ``try`` around an instruction; 0: it is
    in none. `table`: a ``co_exceptiontable``; `instruction`: its number, counted in units of two bytes.
    """
    numbers = iter(table)
    try:
        while True:
            start, length, _, depth = [_number(numbers) for _ in range(4)]
            if start <= instruction < start + length:
                return depth >> 1  # the lowest bit: whether the instruction is kept for the handler
    except StopIteration:
        return 0


def _number(table: Iterator[int]) -> int:
    """Read a number, of six bits per byte; raises ``StopIteration`` at the end."""
    byte = next(table)
    value = byte & 0x3F
    while byte & 0x40:
        byte = next(table)
        value = value << 6 | byte & 0x3F
    return value


def _holding(frames: list[_Frame], name_of: Callable[[int], str]) -> list[_Frame]:
    """Return the frames without those that wait for a condition, and without their callers."""
    waits = [name_of(code) in _RELEASING for _, code, _ in frames]
    return [frame for at, frame in enumerate(frames) if not waits[at] and not (at and waits[at - 1])]


def _slots(memory: Reader, runtime: Runtime, frame: int, code: int, instruction: int) -> Iterator[int]:
    """Yield the addresses of objects on the value stack of a frame that are there for the rest of a block."""
    table = int.from_bytes(memory.read(code + _EXCEPTION_TABLE, 8), "little")
    size = int.from_bytes(memory.read(table + _BYTES_SIZE, 8), "little")
    if not 0 < size <= _MOST_TABLE_BYTES:
        return
    depth = protected_depth(memory.read(table + _BYTES, size), instruction - 1)
    if not depth:
        return
    variables = int.from_bytes(memory.read(code + runtime.offsets.code_line + 4, 4), "little")  # co_nlocalsplus
    if variables > 1 << 16:
        return
    raw = memory.read(frame + _LOCALS + 8 * variables, 8 * min(depth, _MOST_SLOTS))
    for at in range(0, len(raw), 8):
        address = int.from_bytes(raw[at : at + 8], "little")
        if address and not address & 7 and address < 1 << 63:
            yield address


def _locked(memory: Reader, address: int, words: Collection[int]) -> int | None:
    """Return the futex word of a lock if there is its bound method ``__exit__`` at `address`; else None."""
    try:
        head = memory.read(address, _SELF + 8)
        lock = int.from_bytes(head[_SELF : _SELF + 8], "little")
        if not 0 < lock < 1 << 63 or lock & 7:
            return None
        word = int.from_bytes(memory.read(lock + _SEMAPHORE, 8), "little")
        if word not in words:
            return None
        method = int.from_bytes(head[_METHOD : _METHOD + 8], "little")
        name = int.from_bytes(memory.read(method, 8), "little")
        return word if memory.read(name, len(_EXIT)) == _EXIT else None
    except OSError:
        return None
