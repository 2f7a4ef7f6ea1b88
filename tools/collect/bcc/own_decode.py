"""Decode the child's output into the `Capture` of a BPF session, of which the ``ebpf`` engine's code makes tables."""

from __future__ import annotations

import ctypes as ct
import struct
from collections.abc import Iterable, Mapping

from whystall.bpf import capture as cap
from whystall.bpf import capture_pages
from whystall.bpf import layout as lay
from whystall.bpf.collectors import interrupts, run_queue
from whystall.bpf.collectors.block import BlockRows
from whystall.bpf.collectors.switches import SwitchRows
from whystall.bpf.collectors.syscalls import SyscallRows

Rows = Mapping[str, list[tuple[bytes, bytes]]]
USER_STACK = 1 << 32
_KERNEL_HALF = 1 << 63
_LENGTHS = {
    lay.RECORD_CALL: lay.CallRecord,
    lay.RECORD_SEGMENT: lay.SegmentRecord,
    lay.RECORD_BLOCK: lay.BlockRecord,
}
_TEXTS = {lay.RECORD_PATH: lay.PathRecord, lay.RECORD_FILE: lay.FileRecord}


def decode(
    rows: Rows, raw: Iterable[bytes], begin: int, end: int, hooks: Iterable[str], lost: Mapping[str, int]
) -> cap.Capture:
    """Return all results except calls and waits in progress (`own_open`).

    `lost`: records lost outside the kernel, by reason. Raises ``ValueError`` for records and maps of another size.
    """
    records = cap.Records(_whole(record) for record in raw)
    counters = _counters(rows.get("counters", []))
    losses = {name: counters[name] for name in lay.LOSSES if any(counters[name])}
    losses |= {name: [number] for name, number in lost.items() if number}
    counts = {name.removeprefix("seen_"): sum(counters[name]) for name in lay.COUNTERS[len(lay.LOSSES) :]}
    totals, off_totals = cap.call_totals(rows.get("call_totals", [])), cap.off_totals(rows.get("off_totals", []))
    counts["calls"] = sum(total.count for total in totals) + sum(losses.get("call_totals_full", ()))
    counts["switches"] = sum(total.count for total in off_totals) + sum(losses.get("off_totals_full", ()))
    results: list[object] = [
        SyscallRows(records.calls, totals, cap.file_slots(rows.get("file_slots", []))),
        SwitchRows(records.segments, off_totals),
        BlockRows(
            cap.block_slots(rows.get("block_slots", [])),
            cap.block_totals(rows.get("block_totals", [])),
            records.block_ios,
            _open_requests(rows, begin, end, merges="block_rq_merge" in hooks),
        ),
        interrupts.decode(rows.get("irq_totals", []), rows.get("irq_slots", []), rows.get("irq_names", []), []),
        run_queue.decode(rows.get("queue_totals", []), rows.get("queue_slots", [])),
        *([_pages(rows)] if "page_uses" in rows else []),
    ]
    return cap.Capture(
        window_start=begin,
        window_end=end,
        files=records.files,
        threads=cap.threads(rows.get("threads", [])),
        stacks=stacks(rows.get("stacks", [])),
        results={type(result): result for result in results},
        lost=losses,
        seen=counts,
        hooks=tuple(hooks),
        variants={},
    )


def stacks(rows: Iterable[tuple[bytes, bytes]]) -> dict[int, cap.Stack]:
    """Return stacks by the ids of ``stack_here`` (bpf/src_bcc/switches.bcc.h): map key + 1, a bit for user mode."""
    found = {}
    for key, value in rows:
        addresses = struct.unpack(f"<{len(value) // 8}Q", value)
        depth = addresses.index(0) if 0 in addresses else len(addresses)
        if not depth:
            continue
        kernel = bool(addresses[0] & _KERNEL_HALF)
        number = int.from_bytes(key, "little") + 1
        kind = lay.STACK_KERNEL if kernel else lay.STACK_USER
        found[number if kernel else number | USER_STACK] = cap.Stack(kind, addresses[:depth])
    return found


def _whole(record: bytes) -> bytes:
    """Strip the padding of the perf buffer from `record`; raise ``ValueError`` if it is none of ours."""
    kind = record[0] if record else 0
    if kind in _LENGTHS:
        size = ct.sizeof(_LENGTHS[kind])
        if size <= len(record) < size + 8:
            return record[:size]
    elif kind in _TEXTS and len(record) >= _TEXTS[kind].text.offset:
        return record
    raise ValueError(f"a record of {len(record)} bytes, kind {kind}")


def _counters(rows: list[tuple[bytes, bytes]]) -> dict[str, list[int]]:
    raw, width = rows[0][1] if rows else b"", len(lay.COUNTERS)
    if not raw or len(raw) % (8 * width):
        raise ValueError(f"counters of {len(raw)} bytes")
    words = memoryview(raw).cast("Q")
    return {name: [words[i] for i in range(at, len(words), width)] for at, name in enumerate(lay.COUNTERS)}


def _pages(rows: Rows) -> capture_pages.Pages:
    """Return pages added to and dropped from the cache; their use by calls and faults is not recorded."""
    uses = [
        use._replace(accessed=-1, mapped=-1, again=-1, direct_bytes=-1, read_bytes=-1, write_bytes=-1)
        for use in capture_pages.uses(rows["page_uses"], maps_reported=False)
    ]
    return capture_pages.Pages(
        uses=uses,
        files=capture_pages.files(rows.get("page_files", []), {}, writes_reported=False),
        stalls=capture_pages.stalls(rows.get("stall_totals", [])),
        sizes=[],
        absent=[],
        reads_reported=False,
    )


def _open_requests(rows: Rows, begin: int, end: int, merges: bool) -> list[cap.BlockIo]:
    """Return requests in flight. Without the merge hook one that was queued but not issued may have been merged."""
    found = cap.open_ios(rows.get("requests", []), end)
    return [io for io in found if (io.insert or io.issue) >= begin and (io.issue or merges)]
