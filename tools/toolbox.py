"""All tools and all engines, in one place for the doors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whystall.tools.collect.bcc.engine import BccEngine
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.ftrace.bpf_engine import FtraceBpfEngine
from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.registry import Registry
from whystall.tools.host import (
    biolatency,
    fileslower,
    ftrace_capture,
    host_bound,
    host_snapshot,
    hybrid_io_advise,
    interrupts,
    offcputime,
    page_cache,
    runqlat,
    syscall_time,
)
from whystall.tools.profiles import cpu_profile, flame_graph, flamegraph_diff, heat_map
from whystall.tools.ranks import compare_runs, slow_node_check
from whystall.tools.recording.collector import Engine

# In order of preference; the first that can serve a collector does.
ENGINES: Sequence[Callable[[], Engine]] = (EbpfEngine, FtraceBpfEngine, BccEngine, TracefsEngine, ProcfsEngine)


def registry() -> Registry:
    """The registry with every tool in it."""
    tools = Registry()
    for module in (
        *(host_snapshot, fileslower, syscall_time, biolatency, offcputime, page_cache, ftrace_capture, host_bound),
        *(hybrid_io_advise, interrupts, runqlat),
    ):
        tools.add(module.TOOL)
    for ranks in (slow_node_check, compare_runs):
        tools.add(ranks.TOOL)
    for profiles in (cpu_profile, flame_graph, flamegraph_diff, heat_map):
        tools.add(profiles.TOOL)
    return tools
