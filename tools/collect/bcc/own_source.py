"""BCC programs of our own: their C text, and the plan for the child that compiles and attaches it.

The records, map keys and counters are those of the ``ebpf`` engine (`bpf/src/records.h`, mirrored by `bpf/layout.py`),
so that one decoder serves both.
"""

from __future__ import annotations

import base64
import ctypes as ct
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.tools.collect.options import BlockOptions, SwitchOptions, SyscallOptions
from whystall.tools.recording.collector import Options
from whystall.tools.recording.target import Target

SERVES = frozenset({"syscalls", "switches", "block", "interrupts", "run_queue", "page_cache"})
MAX_TARGETS = 1024
_BPF = Path(syscalls.__file__).parent
_FILES = ("base", "files", "tasks", "switches", "syscalls", "block", "interrupts", "pages")
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
_MAP = re.compile(r"^(HASH_MAP|CPU_VALUE)\((.+)\);", re.MULTILINE)
_HASH_MAP = """\
BPF_HASH({0}, {1}, {2}, {3});
static __always_inline {2} *{0}_lookup({1} *key)
{{
	return {0}.lookup(key);
}}
static __always_inline int {0}_update({1} *key, {2} *value)
{{
	return {0}.update(key, value);
}}
static __always_inline {2} *{0}_make({1} *key, enum counter lost)
{{
	{2} zeroes = {{0}}, *value = {0}.lookup(key);

	if (value)
		return value;
	{0}.insert(key, &zeroes);
	value = {0}.lookup(key);
	if (!value)
		count(lost);
	return value;
}}"""
_CPU_VALUE = """\
BPF_PERCPU_ARRAY({0}, {1}, 1);
static __always_inline {1} *{0}_here(void)
{{
	int zero = 0;

	return {0}.lookup(&zero);
}}"""
_BUFFER_BYTES = 16 << 20
"""Memory of the perf buffers of all CPUs; each has 16 to 256 pages."""
_STACK_WORDS = 127  # BCC's BPF_STACK_TRACE: PERF_MAX_STACK_DEPTH


class OwnState(ct.Structure):
    """``struct thread_state`` of bpf/src_bcc/tasks.bcc.h."""

    _fields_ = [
        ("call_start", ct.c_uint64),
        ("call_off", ct.c_uint64 * 4),
        ("longest_ns", ct.c_uint64),
        ("longest_stack", ct.c_uint64),
        ("closing", lay.FileKey),
        ("closing_dentry", ct.c_uint64),
        ("closing_mnt", ct.c_uint64),
        ("off_start", ct.c_uint64),
        ("off_runs", ct.c_uint64),
        ("kstack", ct.c_uint64),
        ("ustack", ct.c_uint64),
        ("futex", ct.c_uint64),
        ("file_pointer", ct.c_uint64),
        ("file", lay.FileKey),
        ("wake", ct.c_uint64),
        ("queued", ct.c_uint64),
        ("waker_tgid", ct.c_uint32),
        ("waker_tid", ct.c_uint32),
        ("call_nr", ct.c_int32),
        ("off_nr", ct.c_int32),
        ("off_class", ct.c_uint32),
        ("off_flags", ct.c_uint32),
        ("tgid", ct.c_uint32),
        ("tid", ct.c_uint32),
        ("waker_comm", ct.c_char * lay.COMM_BYTES),
    ]


# key and value of every map that the child reads or fills
_MAPS: dict[str, tuple[Any, Any]] = {
    "live": (ct.c_uint32, lay.Live),
    "counters": (ct.c_uint32, ct.c_uint64 * len(lay.COUNTERS)),
    "targets": (ct.c_uint32, ct.c_uint8),
    "rows": (ct.c_uint32, lay.SyscallRow),
    "states": (ct.c_uint32, OwnState),
    "threads": (ct.c_uint32, lay.ThreadInfoValue),
    "stacks": (ct.c_uint32, ct.c_uint64 * _STACK_WORDS),
    "call_totals": (lay.CallKey, lay.CallTotal),
    "file_slots": (lay.SlotKey, lay.SlotValue),
    "off_totals": (lay.OffKey, lay.OffTotal),
    "queue_totals": (lay.QueueKey, lay.QueueTotal),
    "queue_slots": (lay.QueueSlotKey, ct.c_uint64),
    "requests": (ct.c_uint64, lay.RequestState),
    "block_slots": (lay.BlockKey, lay.BlockSlot),
    "block_totals": (lay.BlockKey, lay.BlockTotal),
    "irq_totals": (lay.IrqKey, lay.IrqTotal),
    "irq_slots": (lay.IrqSlotKey, ct.c_uint64),
    "irq_names": (ct.c_uint64, lay.IrqName),
    "page_uses": (lay.UseKey, lay.PageUse),
    "page_files": (lay.FileKey, lay.PageFile),
    "stall_totals": (lay.StallKey, lay.StallTotal),
}
# (tracepoint, program, required). Attached in this order, which ends a pair of events before it begins one, so that no
# program observes an end without its start. Required: the collector reports nothing without it.
_RETURNS = (("sys_exit", "on_exit", True),)
_CALLS = (("sys_enter", "on_enter", True),)
_THREADS = (("sched_process_exit", "on_thread_exit", True), ("sched_switch", "on_switch", True))
_WAKERS = (("sched_waking", "on_waking", True),)
_FOLLOW = (("sched_process_fork", "on_fork", True),)
_QUEUE = (("sched_wakeup", "on_wakeup", True), ("sched_wakeup_new", "on_wakeup", True))
_BLOCK = (
    ("block_rq_complete", "on_complete", True),
    ("block_rq_issue", "on_issue", True),
    ("block_rq_insert", "on_insert", True),
    ("block_rq_merge", "on_merge", False),  # since 5.11
)
_INTERRUPTS = (
    ("irq_handler_exit", "on_irq_exit", True),
    ("irq_handler_entry", "on_irq_entry", True),
    ("softirq_exit", "on_softirq_exit", True),
    ("softirq_entry", "on_softirq_entry", True),
)
_PAGES = (
    ("mm_filemap_add_to_page_cache", "on_page_add", True),
    ("mm_filemap_delete_from_page_cache", "on_page_delete", True),
    ("writeback_dirty_folio", "on_page_dirty", False),  # since 5.18, before by the next name
    ("writeback_dirty_page", "on_page_dirty", False),
    ("mm_vmscan_direct_reclaim_end", "on_reclaim_done", True),
    ("mm_vmscan_direct_reclaim_begin", "on_reclaim", True),
    ("mm_vmscan_memcg_reclaim_end", "on_cgroup_reclaim_done", False),  # with CONFIG_MEMCG
    ("mm_vmscan_memcg_reclaim_begin", "on_cgroup_reclaim", False),
)


def plan(wanted: Mapping[str, Options], target: Target, own: int) -> dict[str, Any]:
    """Return what the child needs, as JSON data; `own`: our process, which is not observed unless it is a target."""
    calls, switches = "syscalls" in wanted, "switches" in wanted
    queue, block, interrupts = ("run_queue" in wanted, "block" in wanted, "interrupts" in wanted)
    pages_too = "page_cache" in wanted
    threads = calls or switches or queue
    settings: dict[str, int | str] = {
        "CALL_MIN_NS": f"{SyscallOptions.of(wanted, 'syscalls').min_ns}ULL",
        "SWITCH_MIN_NS": f"{SwitchOptions.of(wanted, 'switches').min_ns}ULL",
        "BLOCK_MIN_NS": f"{BlockOptions.of(wanted, 'block').min_ns}ULL",
        "PARENT_TGID": own,
        "EVERYBODY": int(target.everything),
        "FOLLOW": int(target.follow),
        "SYSCALLS": int(calls),
        "SWITCHES": int(switches),
        "RUN_QUEUE": int(queue),
        "BLOCK": int(block),
        "INTERRUPTS": int(interrupts),
        "PAGE_CACHE": int(pages_too),
    }
    # sched_switch before sys_enter: else a wait in a call would count as CPU time.
    attach = [*(_RETURNS if calls else ()), *(_THREADS if threads else ()), *(_WAKERS if calls or switches else ())]
    attach += _CALLS if calls else ()
    attach += [*(_QUEUE if queue else ()), *(_BLOCK if block else ()), *(_INTERRUPTS if interrupts else ())]
    attach += _PAGES if pages_too else ()
    read = ["counters"]
    fill: dict[str, list[tuple[str, str]]] = {}
    if threads:
        read += ["states", "threads"]
        fill["rows"] = _rows()
        if not target.everything:
            fill["targets"] = [(_code(pid.to_bytes(4, "little")), _code(b"\1")) for pid in target.pids]
            attach += _FOLLOW if target.follow else ()
    read += ["stacks"] if calls or switches else []
    read += ["call_totals", "file_slots"] if calls else []
    read += ["off_totals"] if switches else []
    read += ["queue_totals", "queue_slots"] if queue else []
    read += ["block_totals", "block_slots", "requests"] if block else []
    read += ["irq_totals", "irq_slots", "irq_names"] if interrupts else []
    read += ["page_uses", "page_files", "stall_totals"] if pages_too else []
    used = {"live", *read, *fill}
    return {
        "source": source(settings),
        "attach": attach,
        "maps": {name: (ct.sizeof(key), ct.sizeof(value)) for name, (key, value) in _MAPS.items() if name in used},
        "fill": fill,
        "read": read,
        "pages": pages(os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE")),
    }


def source(settings: Mapping[str, int | str]) -> str:
    """Return the whole C text: settings, kernel headers, the records shared with user space, programs."""
    parts = [f"#define {name} {value}\n" for name, value in settings.items()]
    parts += [_text(name) for name in ("kernel.bcc.h", "records.h", *(f"{name}.bcc.h" for name in _FILES))]
    return "".join(parts)


def pages(cpus: int, page_bytes: int) -> int:
    """Return the pages of a CPU's buffer, a power of two."""
    share = max(16, min(256, _BUFFER_BYTES // (cpus * page_bytes)))
    return 1 << (share.bit_length() - 1)


def _rows() -> list[tuple[str, str]]:
    image, size = syscalls.rows_image(), ct.sizeof(lay.SyscallRow)
    rows = enumerate(image[at : at + size] for at in range(0, len(image), size))
    return [(_code(number.to_bytes(4, "little")), _code(row)) for number, row in rows]


def _text(name: str) -> str:
    """Return a header with those it includes, and with its maps in BCC's own form.

    BCC compiles a single text and rejects map functions in macros, so `_HASH_MAP` and `_CPU_VALUE` stand in for the
    macros of `bpf/src/common.bpf.h`.
    """
    folder = "src_bcc" if name.endswith(".bcc.h") else "src"
    text = (_BPF / folder / name).read_text()
    text = _MAP.sub(
        lambda found: (_HASH_MAP if found[1] == "HASH_MAP" else _CPU_VALUE).format(*found[2].split(", ")), text
    )
    return _INCLUDE.sub(lambda found: _text(found[1]), text)


def _code(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
