"""Offsets of the members that lead from a CPython runtime to the frames of its threads.

3.13 and later publish them in the runtime (``_Py_DebugOffsets``, Include/internal/pycore_runtime.h, from 3.14 on
pycore_debug_offsets.h). Those of older versions are from the public headers; members do not move within a minor
version, and `whystall.bpf.python_find` verifies each process.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from whystall.bpf import layout as lay

COOKIE = b"xdebugpy"
_FARTHEST = 65535


@dataclass(frozen=True)
class Offsets:
    """Offsets in bytes, named as in ``struct python_process``; `interpreters_head` from the start of the runtime."""

    flags: int
    interpreters_head: int
    interpreter_next: int
    interpreter_threads: int
    thread_next: int
    thread_id: int
    thread_frame: int
    frame_bytes: int
    """Bytes of a frame that are read: up to the last used member."""
    frame_previous: int
    frame_code: int
    frame_instruction: int
    frame_owner: int
    code_file: int
    code_name: int
    code_line: int
    code_lines: int
    code_first: int
    """The first instruction; 0 if frames have instruction numbers (3.10)."""
    code_version: int = 0
    """Unique number of the code object (3.12 and later); 0: none."""
    thread_interpreter: int = 16
    cframe_frame: int = 0
    text_length: int = 16
    text_state: int = 32
    text_ascii: int = 40
    text_compact: int = 56
    bytes_length: int = 16
    bytes_data: int = 32
    runtime_gil: int = 0
    """The interpreter lock in the runtime (3.11 and older); 0: each interpreter points to its own."""
    interpreter_gil: int = 0
    """Address of the interpreter lock; 0: unknown."""
    gil_holder: int = 8
    """In the lock (``struct _gil_runtime_state``): the thread state that holds it, or held it last."""
    gil_locked: int = 16
    interpreter_collecting: int = 0
    """``gc.collecting``: 1 while the garbage collector runs (``struct _gc_runtime_state``); 0: unknown."""


_BY_MINOR = {
    10: Offsets(
        flags=lay.PYTHON_THREAD_BY_POINTER | lay.PYTHON_FRAME_OBJECTS,
        interpreters_head=32,
        interpreter_next=0,
        interpreter_threads=8,
        thread_next=8,
        thread_id=176,
        thread_frame=24,
        frame_bytes=104,
        frame_previous=24,
        frame_code=32,
        frame_instruction=96,
        frame_owner=0,
        code_file=104,
        code_name=112,  # the bare name: there is no qualified one
        code_line=40,
        code_lines=120,
        code_first=0,
        text_ascii=48,
        text_compact=72,
        runtime_gil=352,
        interpreter_collecting=816,
    ),
    11: Offsets(
        flags=lay.PYTHON_CFRAME | lay.PYTHON_IS_ENTRY,
        interpreters_head=40,
        interpreter_next=0,
        interpreter_threads=16,
        thread_next=8,
        thread_id=160,
        thread_frame=56,
        cframe_frame=8,
        frame_bytes=72,
        frame_previous=48,
        frame_code=32,
        frame_instruction=56,
        frame_owner=68,
        code_file=112,
        code_name=128,
        code_line=72,
        code_lines=136,
        code_first=184,
        text_ascii=48,
        text_compact=72,
        runtime_gil=360,
        interpreter_collecting=848,
    ),
    12: Offsets(
        flags=lay.PYTHON_CFRAME,
        interpreters_head=40,
        interpreter_next=0,
        interpreter_threads=72,
        thread_next=8,
        thread_id=144,
        thread_frame=56,
        cframe_frame=0,
        frame_bytes=72,
        frame_previous=8,
        frame_code=0,
        frame_instruction=56,
        frame_owner=70,
        code_file=112,
        code_name=128,
        code_line=68,
        code_lines=136,
        code_first=192,
        code_version=92,
        interpreter_gil=384,
        interpreter_collecting=312,
    ),
}

# The published tables by group; the first group follows cookie, version and free_threaded. Each group begins with the
# size of its structure.
_PUBLISHED: dict[int, tuple[tuple[str, str], ...]] = {
    13: (
        ("runtime", "size finalizing interpreters_head"),
        (
            "interpreter",
            "size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_runtime_state"
            " gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder",
        ),
        ("thread", "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"),
        ("frame", "size previous executable instr_ptr localsplus owner"),
        (
            "code",
            "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds"
            " co_code_adaptive",
        ),
        ("object", "size ob_type"),
        ("type", "size tp_name tp_repr tp_flags"),
        ("tuple", "size ob_item ob_size"),
        ("list", "size ob_item ob_size"),
        ("dict", "size ma_keys ma_values"),
        ("float", "size ob_fval"),
        ("long", "size lv_tag ob_digit"),
        ("bytes", "size ob_size ob_sval"),
        ("unicode", "size state length asciiobject_size"),
        ("gc", "size collecting"),
    ),
    14: (
        ("runtime", "size finalizing interpreters_head"),
        (
            "interpreter",
            "size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil gil_runtime_state"
            " gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder code_object_generation"
            " tlbc_generation",
        ),
        ("thread", "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"),
        ("frame", "size previous executable instr_ptr localsplus owner stackpointer tlbc_index"),
        (
            "code",
            "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds"
            " co_code_adaptive co_tlbc",
        ),
        ("object", "size ob_type"),
        ("type", "size tp_name tp_repr tp_flags"),
        ("tuple", "size ob_item ob_size"),
        ("list", "size ob_item ob_size"),
        ("set", "size used table mask"),
        ("dict", "size ma_keys ma_values"),
        ("float", "size ob_fval"),
        ("long", "size lv_tag ob_digit"),
        ("bytes", "size ob_size ob_sval"),
        ("unicode", "size state length asciiobject_size"),
        ("gc", "size collecting"),
    ),
}
PUBLISHED_BYTES = 8 * (3 + max(sum(len(names.split()) for _, names in groups) for groups in _PUBLISHED.values()))
"""Bytes at the start of a runtime that contain all published tables."""
OLDEST, NEWEST = 10, 14
"""Minor versions of CPython 3 whose frames can be walked."""


class UnknownLayout(Exception):
    """This interpreter's frames cannot be walked; the message is the reason, in a few words."""


def offsets_of(minor: int) -> Offsets:
    """Return the offsets of CPython 3.`minor`, which does not publish them. Raises `UnknownLayout`."""
    if minor not in _BY_MINOR:
        raise UnknownLayout(f"CPython 3.{minor}")
    return _BY_MINOR[minor]


def published(start: bytes) -> tuple[int, Offsets] | None:
    """Return minor version and offsets from the `PUBLISHED_BYTES` at the start of a runtime; None without any.

    Raises `UnknownLayout` for an unsupported version or build (free-threaded), or invalid values.
    """
    if not start.startswith(COOKIE):
        return None
    if len(start) < PUBLISHED_BYTES:
        raise UnknownLayout("the runtime's memory cannot be read")
    words = struct.unpack_from(f"<{PUBLISHED_BYTES // 8}Q", start)
    major, minor = words[1] >> 24 & 0xFF, words[1] >> 16 & 0xFF
    if words[1] >> 32 or major != 3 or minor not in _PUBLISHED:
        raise UnknownLayout(f"CPython {major}.{minor}")
    if words[2]:
        raise UnknownLayout(f"CPython {major}.{minor} without a global lock")
    at, named = 3, {}
    for group, members in _PUBLISHED[minor]:
        size = words[at]
        for position, member in enumerate(members.split()):
            value = words[at + position]
            if member in _USED.get(group, ()) and not (value < size <= 1 << 24 and value <= _FARTHEST):
                raise UnknownLayout(f"CPython {major}.{minor} with invalid offsets")
            named[f"{group}.{member}"] = value
        at += len(members.split())
    found = Offsets(
        flags=0,
        interpreters_head=named["runtime.interpreters_head"],
        interpreter_next=named["interpreter.next"],
        interpreter_threads=named["interpreter.threads_head"],
        thread_next=named["thread.next"],
        thread_id=named["thread.native_thread_id"],
        thread_interpreter=named["thread.interp"],
        thread_frame=named["thread.current_frame"],
        frame_bytes=max(
            *(8 + named[f"frame.{member}"] for member in ("previous", "executable", "instr_ptr")),
            1 + named["frame.owner"],
        ),
        frame_previous=named["frame.previous"],
        frame_code=named["frame.executable"],
        frame_instruction=named["frame.instr_ptr"],
        frame_owner=named["frame.owner"],
        code_file=named["code.filename"],
        code_name=named["code.qualname"],
        code_line=named["code.firstlineno"],
        code_lines=named["code.linetable"],
        code_first=named["code.co_code_adaptive"],
        # not published, but in both versions the four bytes before localsplusnames
        code_version=named["code.localsplusnames"] - 4,
        text_length=named["unicode.length"],
        text_state=named["unicode.state"],
        text_ascii=named["unicode.asciiobject_size"],
        # a string that is not ASCII also has the length and the address of its UTF-8 form
        text_compact=named["unicode.asciiobject_size"] + 16,
        bytes_length=named["bytes.ob_size"],
        bytes_data=named["bytes.ob_sval"],
        **_lock_offsets(named),
        **_collector_offsets(named),
    )
    # the BPF programs read a code object up to the address of its line table
    behind = max(found.code_file, found.code_name, found.code_line, found.code_version) > found.code_lines
    if behind or max(found.frame_bytes, found.code_lines + 8, found.text_compact) > lay.PYTHON_BYTES:
        raise UnknownLayout(f"CPython {major}.{minor} with invalid offsets")
    return minor, found


def _lock_offsets(named: dict[str, int]) -> dict[str, int]:
    """Return where the interpreter lock is; empty if the published values are not those of a lock.

    Its members are published as offsets in the interpreter, which contains a lock of its own.
    """
    lock = named["interpreter.gil_runtime_state"]
    holder = named["interpreter.gil_runtime_state_holder"] - lock
    locked = named["interpreter.gil_runtime_state_locked"] - lock
    pointer = named["interpreter.ceval_gil"]
    if not (0 < pointer < named["interpreter.size"] and 0 < holder < locked <= 64):
        return {}
    return {"interpreter_gil": pointer, "gil_holder": holder, "gil_locked": locked}


def _collector_offsets(named: dict[str, int]) -> dict[str, int]:
    """Return where the state of the garbage collector is; empty if the published values are not plausible."""
    start, collecting = named["interpreter.gc"], named["gc.collecting"]
    if 0 < start < named["interpreter.size"] and 0 < collecting < named["gc.size"] <= _FARTHEST:
        return {"interpreter_collecting": start + collecting}
    return {}


_USED = {
    "runtime": ("interpreters_head",),
    "interpreter": ("next", "threads_head"),
    "thread": ("next", "interp", "current_frame", "native_thread_id"),
    "frame": ("previous", "executable", "instr_ptr", "owner"),
    "code": ("filename", "qualname", "firstlineno", "localsplusnames", "linetable", "co_code_adaptive"),
    "bytes": ("ob_size", "ob_sval"),
    "unicode": ("state", "length"),
}
