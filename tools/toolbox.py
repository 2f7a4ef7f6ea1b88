"""List all tools and all engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from whystall.tools import host, profiles
from whystall.tools.collect.bcc.engine import BccEngine
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.ftrace.bpf_engine import FtraceBpfEngine
from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.registry import Registry
from whystall.tools.ranks.compare_runs import tool as compare_runs
from whystall.tools.ranks.slow_node_check import tool as slow_node_check
from whystall.tools.recording.collector import Engine

# In order of preference; the first that can serve a collector does.
ENGINES: Sequence[Callable[[], Engine]] = (EbpfEngine, FtraceBpfEngine, BccEngine, TracefsEngine, ProcfsEngine)
# Packages in which every module or package but `common` is one tool.
_TOOL_PACKAGES: Sequence[ModuleType] = (host, profiles)


def registry() -> Registry:
    """Return a registry with every tool: all found in the tool packages, and those of ranks."""
    tools = Registry()
    for package in _TOOL_PACKAGES:
        for _, name, is_package in iter_modules(package.__path__, f"{package.__name__}."):
            if not name.endswith(".common"):
                tools.add(import_module(f"{name}.tool" if is_package else name).TOOL)
    tools.add(slow_node_check.TOOL)
    tools.add(compare_runs.TOOL)
    return tools
