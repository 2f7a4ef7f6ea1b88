"""Find where the running kernel stores a CPU's preemption count, which distinguishes interrupts from tasks."""

from __future__ import annotations

from functools import lru_cache

from whystall.bpf.libbpf import KernelTypes


@lru_cache(maxsize=1)
def preempt_distance() -> int:
    """Return the bytes from a CPU's run queue to its preemption count (on x86 from 6.2 to 6.14, to the structure with
    it); 0: unknown, or the count is elsewhere. Raises ``BpfError``."""
    with KernelTypes() as kernel:
        offsets = kernel.per_cpu_offsets()
    count, queue = offsets.get("__preempt_count", offsets.get("pcpu_hot")), offsets.get("runqueues")
    return 0 if count is None or queue is None else count - queue
