"""Find the threads that are inside a ``with`` statement of a Python lock, in the memory of their process.

``threading.Lock`` keeps no owner. But while a thread is inside ``with lock``, the value stack of its frame has the
bound method ``lock.__exit__``, whose ``__self__`` is the lock; the lock's memory points to the semaphore on which other
threads wait (CPython 3.11 to 3.13: ``BEFORE_WITH`` in Python/bytecodes.c, ``PyCFunctionObject``, ``lockobject`` and
``rlockobject`` in Modules/_threadmodule.c, ``PyThread_allocate_lock`` in Python/thread_pthread.h). A lock that was
taken by ``acquire`` leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from whystall.bpf.python_walk import Reader, Runtime, frame_addresses

_MINORS = (11, 12, 13)
_STACK_TOP = 64  # int stacktop in struct _PyInterpreterFrame, number of the slot; -1: the frame runs
_LOCALS = 72
_MOST_SLOTS = 64
_METHOD, _SELF = 16, 24  # in PyCFunctionObject: m_ml, m_self
_SEMAPHORE = 16  # in lockobject and rlockobject: the PyThread_type_lock
_EXIT = b"__exit__\0"


def with_lock_owners(
    memory: Reader,
    runtime: Runtime,
    states: Iterable[tuple[int, int]],
    waiting: Mapping[int, int],
    over: Callable[[], bool],
) -> dict[int, int]:
    """Return the thread inside ``with lock`` by futex word, for those words that are semaphores of such locks.

    `states`: thread ids with their thread states; `waiting`: the word on which each thread waits. A thread that waits
    to enter has the method on its stack too; one that has it twice waits for itself. `over`: whether the time is used
    up.
    """
    found: dict[int, int] = {}
    words = set(waiting.values())
    if runtime.minor not in _MINORS or not words:
        return found
    for tid, state in states:
        if over():
            break
        try:
            slots = [s for frame in frame_addresses(memory, runtime, state) for s in _slots(memory, runtime, frame)]
        except OSError:
            continue  # it changed while it was read
        entered = Counter(word for slot in slots if (word := _locked(memory, slot, words)) is not None)
        found |= {word: tid for word, times in entered.items() if times > (waiting.get(tid) == word)}
    return found


def _slots(memory: Reader, runtime: Runtime, frame: int) -> Iterator[int]:
    """Yield the addresses of objects on the value stack of a frame, without its local variables.

    A frame that runs does not keep its top; slots above it may be left from before.
    """
    o = runtime.offsets
    head = memory.read(frame, _LOCALS)
    code = int.from_bytes(head[o.frame_code : o.frame_code + 8], "little") & ~7
    numbers = memory.read(code + o.code_line - 4, 12)  # co_stacksize, co_firstlineno, co_nlocalsplus
    size, variables = int.from_bytes(numbers[:4], "little"), int.from_bytes(numbers[8:], "little")
    top = int.from_bytes(head[_STACK_TOP : _STACK_TOP + 4], "little", signed=True)
    if size > 1 << 16 or variables > 1 << 16:
        return
    count = min(size, _MOST_SLOTS) if top < variables else min(top - variables, size, _MOST_SLOTS)
    if count <= 0:
        return
    raw = memory.read(frame + _LOCALS + 8 * variables, 8 * count)
    for at in range(0, len(raw), 8):
        address = int.from_bytes(raw[at : at + 8], "little")
        if address and not address & 7 and address < 1 << 63:
            yield address


def _locked(memory: Reader, address: int, words: Collection[int]) -> int | None:
    """Return the futex word of a lock if there is its bound method ``__exit__`` at `address`; else None."""
    try:
        head = memory.read(address, _SELF + 8)
        count = int.from_bytes(head[:4], "little")  # references: an object that was freed has the address of the next
        lock = int.from_bytes(head[_SELF : _SELF + 8], "little")
        if not count or not 0 < lock < 1 << 63 or lock & 7:
            return None
        word = int.from_bytes(memory.read(lock + _SEMAPHORE, 8), "little")
        if word not in words:
            return None
        method = int.from_bytes(head[_METHOD : _METHOD + 8], "little")
        name = int.from_bytes(memory.read(method, 8), "little")
        return word if memory.read(name, len(_EXIT)) == _EXIT else None
    except OSError:
        return None
