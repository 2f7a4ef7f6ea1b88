"""The BPF collectors, one module each."""

from __future__ import annotations

from whystall.bpf.collector import Collector
from whystall.bpf.collectors.accelerator import AcceleratorCalls
from whystall.bpf.collectors.block import Block
from whystall.bpf.collectors.interrupts import InterruptTimes
from whystall.bpf.collectors.page_cache import PageCache
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.collectors.run_queue import RunQueueWaits
from whystall.bpf.collectors.samples import CpuSamples
from whystall.bpf.collectors.switches import Switches
from whystall.bpf.collectors.syscalls import Syscalls

COLLECTORS: tuple[type[Collector], ...] = (
    Syscalls,
    Switches,
    CpuSamples,
    PythonFrames,
    Block,
    InterruptTimes,
    RunQueueWaits,
    PageCache,
    AcceleratorCalls,
)
