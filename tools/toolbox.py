"""List all tools and all engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from whystall.tools.collect.bcc.engine import BccEngine
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.ftrace.bpf_engine import FtraceBpfEngine
from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.registry import Registry
from whystall.tools.host import biolatency, ftrace_capture, interrupts, offcputime, runqlat, syscall_time
from whystall.tools.host.fileslower import tool as fileslower
from whystall.tools.host.host_bound import tool as host_bound
from whystall.tools.host.host_snapshot import tool as host_snapshot
from whystall.tools.host.hybrid_io_advise import tool as hybrid_io_advise
from whystall.tools.host.page_cache import tool as page_cache
from whystall.tools.profiles.cpu_profile import tool as cpu_profile
from whystall.tools.profiles.flame_graph import tool as flame_graph
from whystall.tools.profiles.flamegraph_diff import tool as flamegraph_diff
from whystall.tools.profiles.heat_map import tool as heat_map
from whystall.tools.ranks.compare_runs import tool as compare_runs
from whystall.tools.ranks.slow_node_check import tool as slow_node_check
from whystall.tools.recording.collector import Engine

# In order of preference; the first that can serve a collector does.
ENGINES: Sequence[Callable[[], Engine]] = (EbpfEngine, FtraceBpfEngine, BccEngine, TracefsEngine, ProcfsEngine)


TOOLS: Sequence[ModuleType] = (
    host_snapshot,
    fileslower,
    syscall_time,
    biolatency,
    offcputime,
    page_cache,
    ftrace_capture,
    host_bound,
    hybrid_io_advise,
    interrupts,
    runqlat,
    slow_node_check,
    compare_runs,
    cpu_profile,
    flame_graph,
    flamegraph_diff,
    heat_map,
)


def registry() -> Registry:
    """Return a registry with every tool."""
    tools = Registry()
    for module in TOOLS:
        tools.add(module.TOOL)
    return tools
