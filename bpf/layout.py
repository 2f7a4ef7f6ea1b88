"""Python's mirror of ``src/records.h`` and ``src/trace_records.h``; a test compares them through the objects' BTF."""

from __future__ import annotations

import ctypes as ct
import struct
from typing import Any

SYSCALL_ROWS = 512
STACK_DEPTH = 96
PATH_BYTES = 4096
COMM_BYTES = 16
PYTHON_BYTES = 256
CODE_NAME_BYTES, CODE_FILE_BYTES, CODE_LINES_BYTES = 256, 512, 4096
CODE_TOLD_APART_BYTES = 64
FRAME_CODE_SHIFT = 24
FRAME_ENTRY = 1 << 23
FRAME_INSTRUCTION = FRAME_ENTRY - 1
NO_ARG = 0xFF

(
    ROW_FILE_OP,
    ROW_METADATA,
    ROW_BYTES,
    ROW_POSITION,
    ROW_RETURNS_FD,
    ROW_VECTOR,
    ROW_CLOSES,
    ROW_FUTEX,
    ROW_READS,
    ROW_WRITES,
) = (1 << bit for bit in range(10))

OFF_CLASSES = ("D", "S", "R", "other")
BLOCK_OPS = ("read", "write", "sync_write", "flush", "discard", "other")
BLOCK_PHASES = ("queue", "device")

SEEDED, OPEN, DIRECT, SYNC, KTHREAD, FAULT_FILE, REGULAR, IN_CALL = (1 << bit for bit in range(8))
FILE_TRUNCATED, FILE_UNLINKED, FILE_NO_MOUNT = 1, 2, 4

(
    RECORD_CALL,
    RECORD_PATH,
    RECORD_FILE,
    RECORD_SEGMENT,
    RECORD_BLOCK,
    RECORD_STACK,
    RECORD_SAMPLE,
    RECORD_CODE,
) = range(1, 9)
STACK_KERNEL, STACK_USER, STACK_PYTHON = range(3)

COUNTERS = (
    "ring_full",
    "call_totals_full",
    "file_slots_full",
    "off_totals_full",
    "files_full",
    "threads_full",
    "no_state",
    "requests_full",
    "block_maps_full",
    "targets_full",
    "stack_walk_failed",
    "page_uses_full",
    "page_files_full",
    "stalls_full",
    "sizes_full",
    "interrupts_full",
    "waits_lost",
    "compat_skipped",
    "self_calls",
    "self_switches",
    "seen_block",
    "seen_untold",
    "seen_ticks",
    "seen_idle_ticks",
    "seen_self_ticks",
    "seen_samples",
    "seen_pages",
    "self_added",
    "self_read",
    "self_waits",
    "python_walks",
    "python_skipped",
    "python_broken",
    "python_ns",
    "kept_records",
)
"""Names of ``enum counter`` in order; those before ``self_calls`` are losses."""
LOSSES = COUNTERS[: COUNTERS.index("self_calls")]

_u8, _u16, _u32, _u64, _s32, _s64 = ct.c_uint8, ct.c_uint16, ct.c_uint32, ct.c_uint64, ct.c_int32, ct.c_int64
_comm = ct.c_char * COMM_BYTES


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class SyscallRow(ct.Structure):
    _fields_ = [("flags", _u16), *_fields(_u8, "fd fd2 path dir path2 dir2 size offset"), ("pad", _u16)]


class Config(ct.Structure):
    _fields_ = [
        *_fields(_u64, "call_min_ns switch_min_ns block_min_ns wakeup_bytes tick_ns"),
        ("preempt_distance", _s64),
        *_fields(_u32, "target self_tgid thread_size page_shift chunks_of_others"),
        *_fields(
            _u8,
            "follow syscalls switches user_stacks wakers task_storage pt_regs_helper switch_has_state"
            " block_one_arg current_btf loop_helper all_cpus samples python pages_told"
            " maps_folios",
        ),
        ("pad", _u8 * 4),
    ]


class Live(ct.Structure):
    _fields_ = [
        *_fields(_u64, "window_start window_end more_targets walk_stage"),
        ("clock_offset", _s64),
        *_fields(_u64, "clock_read other_chunks"),
    ]


class FileKeyC(ct.Structure):
    _fields_ = [("ino", _u64), ("dev", _u32), ("gen", _u32)]


class CallKey(ct.Structure):
    _fields_ = [("tgid", _u32), ("tid", _u32), ("nr", _s32), ("pad", _u32)]


class CallTotalC(ct.Structure):
    _fields_ = _fields(_u64, "count wall_ns max_ns bytes d_ns s_ns run_ns other_ns")


class SlotKey(ct.Structure):
    _fields_ = [("file", FileKeyC), ("tgid", _u32), ("nr", _u16), ("slot", _u16)]


class SlotValue(ct.Structure):
    _fields_ = _fields(_u64, "count sum_ns bytes")


class OffKey(ct.Structure):
    _fields_ = [
        ("file", FileKeyC),
        *_fields(_u64, "kstack ustack pystack"),
        *_fields(_u32, "tgid tid"),
        ("nr", _s32),
        ("off_class", _u32),
    ]


class OffTotalC(ct.Structure):
    _fields_ = _fields(_u64, "count total_ns max_ns run_ns")


class ThreadInfo(ct.Structure):
    _fields_ = [("tgid", _u32), ("flags", _u32), ("comm", _comm)]


class BlockKey(ct.Structure):
    _fields_ = [("dev", _u32), ("op", _u16), ("phase", _u16), ("slot", _u32), ("pad", _u32)]


class RequestState(ct.Structure):
    _fields_ = [
        *_fields(_u64, "insert issue sector allocated"),
        *_fields(_u32, "dev bytes op tgid tid pad"),
        ("comm", _comm),
    ]


class BlockSlotC(ct.Structure):
    _fields_ = _fields(_u64, "count sum_ns")


class BlockTotalC(ct.Structure):
    _fields_ = _fields(_u64, "count bytes queue_ns device_ns queue_max_ns device_max_ns")


CHUNK_SHIFT, CHUNK_WORDS = 9, 8
PAGE_FILE_NO_DISK = 1
STALLS = ("direct_reclaim", "cgroup_reclaim", "throttled_reclaim", "dirty_throttle", "file_lock")
"""Names of ``enum stall``."""


class ChunkKey(ct.Structure):
    _fields_ = [("file", FileKeyC), ("chunk", _u64)]


class PageChunk(ct.Structure):
    _fields_ = _fields(_u64 * CHUNK_WORDS, "touched added once more evicted")


class UseKey(ct.Structure):
    _fields_ = [("file", FileKeyC), *_fields(_u32, "tgid pad")]


class PageUseC(ct.Structure):
    _fields_ = [
        *_fields(_u64, "accessed mapped again added refaulted dirtied tracked untracked"),
        *_fields(_u64, "direct_bytes read_bytes write_bytes"),
        ("comm", _comm),
    ]


class PageFileC(ct.Structure):
    _fields_ = _fields(_u64, "reclaimed dropped judged one_pass written_back flags")


class StallKey(ct.Structure):
    _fields_ = [("file", FileKeyC), *_fields(_u32, "tgid tid what pad")]


class StallTotalC(ct.Structure):
    _fields_ = _fields(_u64, "count total_ns max_ns longest_at pages in_flight")


class SizeKey(ct.Structure):
    _fields_ = [("file", FileKeyC), ("tgid", _u32), *_fields(_u8, "write direct log pad")]


class SizeTotalC(ct.Structure):
    _fields_ = _fields(_u64, "count bytes")


IRQ_KINDS = ("hardirq", "softirq")
"""Names of ``enum irq_kind``."""
IRQ_NAME_BYTES = 64


class IrqKey(ct.Structure):
    _fields_ = [("id", _u64), *_fields(_u32, "kind cpu")]


class IrqTotalC(ct.Structure):
    _fields_ = _fields(_u64, "count total_ns max_ns")


class IrqSlotKey(ct.Structure):
    _fields_ = [("id", _u64), *_fields(_u32, "kind slot")]


class IrqName(ct.Structure):
    _fields_ = [("text", ct.c_char * IRQ_NAME_BYTES)]


class StolenKey(ct.Structure):
    _fields_ = [("id", _u64), *_fields(_u32, "kind tid")]


class StolenTotalC(ct.Structure):
    _fields_ = [*_fields(_u64, "count total_ns max_ns in_call_ns"), *_fields(_u32, "tgid pad"), ("comm", _comm)]


class QueueSince(ct.Structure):
    _fields_ = _fields(_u64, "since runs delay")


class QueueKey(ct.Structure):
    _fields_ = _fields(_u32, "tgid tid")


class QueueTotalC(ct.Structure):
    _fields_ = [*_fields(_u64, "count total_ns max_ns"), ("comm", _comm)]


class QueueSlotKey(ct.Structure):
    _fields_ = _fields(_u32, "tgid slot")


class CallRecord(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type flags"),
        *_fields(_u64, "start end"),
        *_fields(_u32, "tgid tid"),
        *_fields(_s32, "nr fd"),
        *_fields(FileKeyC, "file file2 dir dir2"),
        ("asked", _u64),
        *_fields(_s64, "returned offset"),
        *_fields(_u64, "d_ns s_ns run_ns other_ns stack longest_ns path_address path2_address"),
        ("comm", _comm),
    ]


class PathRecord(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type which"),
        ("start", _u64),
        *_fields(_u32, "tid length"),
        ("text", ct.c_char * PATH_BYTES),
    ]


class FileRecordC(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type flags"),
        ("file", FileKeyC),
        ("size", _u64),
        *_fields(_u32, "mode length"),
        ("fs", ct.c_char * 16),
        ("text", ct.c_char * PATH_BYTES),
    ]


class SegmentRecord(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type flags"),
        *_fields(_u64, "start end run_ns"),
        *_fields(_u32, "tgid tid"),
        ("nr", _s32),
        ("off_class", _u32),
        ("file", FileKeyC),
        *_fields(_u64, "futex kstack ustack pystack wake wake_stack"),
        *_fields(_u32, "waker_tgid waker_tid"),
        ("waker_comm", _comm),
        ("comm", _comm),
    ]


class BlockRecord(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type dev"),
        *_fields(_u64, "insert issue complete sector"),
        *_fields(_u32, "bytes op tgid tid"),
        ("comm", _comm),
    ]


class StackRecord(ct.Structure):
    _fields_ = [("type", _u32), ("depth", _u16), ("kind", _u16), ("id", _u64), ("ip", _u64 * STACK_DEPTH)]


class SampleRecord(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type cpu"),
        *_fields(_u64, "at kstack ustack pystack"),
        *_fields(_u32, "tgid tid"),
    ]


PYTHON_THREAD_BY_POINTER, PYTHON_FRAME_OBJECTS, PYTHON_CFRAME, PYTHON_IS_ENTRY = (1 << bit for bit in range(4))


class PythonProcess(ct.Structure):
    _fields_ = [
        *_fields(_u64, "interpreters code_type"),
        *_fields(_u32, "flags pthread_bytes"),
        *_fields(
            _u16,
            "interpreter_next interpreter_threads thread_next thread_id thread_frame cframe_frame"
            " frame_bytes frame_previous frame_code frame_instruction frame_owner"
            " code_file code_name code_line code_lines code_first code_version"
            " text_length text_state text_ascii text_compact bytes_length bytes_data",
        ),
        ("pad", _u16),
    ]


class CodeRecord(ct.Structure):
    _fields_ = [
        *_fields(_u32, "type tgid"),
        *_fields(_u64, "id code lines_length name_length file_length"),
        *_fields(_u32, "first_line flags"),
        *_fields(_u8, "name_kind file_kind"),
        ("lines_kept", _u16),
        ("pad", _u32),
        ("name", ct.c_char * CODE_NAME_BYTES),
        ("file", ct.c_char * CODE_FILE_BYTES),
        ("lines", ct.c_char * CODE_LINES_BYTES),
    ]


class PythonSeed(ct.Structure):
    _fields_ = _fields(_u64, "runs stack")


TRACE_TYPES = (
    "switch",
    "waking",
    "wakeup",
    "new",
    "migrate",
    "irq_entry",
    "irq_exit",
    "softirq_entry",
    "softirq_exit",
    "sys_enter",
    "sys_exit",
    "fork",
    "exec",
    "exit",
    "rename",
    "idle",
    "frequency",
    "block_insert",
    "block_issue",
    "block_complete",
    "lost",
)
"""Names of ``enum trace_type`` in order, from 1."""
TRACE_FLAGS = ("preempted", "task", "softirq", "hardirq", "nmi")
"""Names of ``enum trace_flag``, from bit 0."""


class TraceRecord(ct.Structure):
    _fields_ = [
        *_fields(_u64, "at a b c"),
        *_fields(_s32, "tid other"),
        *_fields(_u16, "cpu value"),
        *_fields(_u8, "type flags prio prio2"),
    ]


class TraceLoss(ct.Structure):
    _fields_ = _fields(_u64, "first count")


class ThreadName(ct.Structure):
    _fields_ = [("tid", _s32), ("tgid", _s32), ("comm", _comm)]


TRACE_MIRRORS: dict[str, type[ct.Structure]] = {
    "config": Config,
    "live": Live,
    "trace_record": TraceRecord,
    "trace_loss": TraceLoss,
    "thread_name": ThreadName,
}
"""C struct name -> mirror, of the trace object."""

MIRRORS: dict[str, type[ct.Structure]] = {
    "syscall_row": SyscallRow,
    "config": Config,
    "live": Live,
    "file_key": FileKeyC,
    "call_key": CallKey,
    "call_total": CallTotalC,
    "slot_key": SlotKey,
    "slot_value": SlotValue,
    "off_key": OffKey,
    "off_total": OffTotalC,
    "thread_info_value": ThreadInfo,
    "block_key": BlockKey,
    "request_state": RequestState,
    "block_slot": BlockSlotC,
    "block_total": BlockTotalC,
    "chunk_key": ChunkKey,
    "page_chunk": PageChunk,
    "use_key": UseKey,
    "page_use": PageUseC,
    "page_file": PageFileC,
    "stall_key": StallKey,
    "stall_total": StallTotalC,
    "size_key": SizeKey,
    "size_total": SizeTotalC,
    "irq_key": IrqKey,
    "irq_total": IrqTotalC,
    "irq_slot_key": IrqSlotKey,
    "irq_name": IrqName,
    "stolen_key": StolenKey,
    "stolen_total": StolenTotalC,
    "queue_since": QueueSince,
    "queue_key": QueueKey,
    "queue_total": QueueTotalC,
    "queue_slot_key": QueueSlotKey,
    "call_record": CallRecord,
    "path_record": PathRecord,
    "file_record": FileRecordC,
    "segment_record": SegmentRecord,
    "block_record": BlockRecord,
    "stack_record": StackRecord,
    "sample_record": SampleRecord,
    "python_process": PythonProcess,
    "code_record": CodeRecord,
    "python_seed": PythonSeed,
}
"""C struct name -> mirror, of the host objects."""

_CODES: dict[Any, str] = {ct.c_char: "s", _u8: "B", _u16: "H", _u32: "I", _u64: "Q", _s32: "i", _s64: "q"}


def flat_format(mirror: type[ct.Structure]) -> str:
    """``struct`` format of a mirror, nested structures flattened, char arrays as bytes: decoding by
    ``struct`` costs a tenth of reading ctypes members one by one."""
    code = ""
    kind: Any
    for _, kind, *_rest in mirror._fields_:
        if isinstance(kind, type) and issubclass(kind, ct.Structure):
            code += flat_format(kind)
        elif isinstance(kind, type) and issubclass(kind, ct.Array):
            element = _CODES[kind._type_]
            code += f"{kind._length_}{element}"
        else:
            code += _CODES[kind]
    return code


def unpacker(mirror: type[ct.Structure]) -> struct.Struct:
    """Compiled little-endian ``struct`` of a mirror (both supported machines are little-endian)."""
    made = struct.Struct("<" + flat_format(mirror))
    if made.size != ct.sizeof(mirror):
        raise TypeError(f"{mirror.__name__} has hidden padding")
    return made


def slot_bounds(slot: int) -> tuple[int, int]:
    """Lower (inclusive) and upper (exclusive) bound of a latency slot, in ns: exact below 8, then
    8 steps per doubling, so a slot is at most 12.5 % wide."""
    if slot < 16:
        return slot, slot + 1
    shift = (slot >> 3) - 1
    low = (8 + (slot & 7)) << shift
    return low, low + (1 << shift)
