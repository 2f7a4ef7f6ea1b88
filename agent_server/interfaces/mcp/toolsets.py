"""Toolsets: which tools a server lists together. Order is that of the list.

A client puts the whole list into the context of its model with every request, so that the default has only what the
diagnosis of a stall needs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whystall.tools.contract.errors import ErrorCode, ToolError

CORE = "core"
"""The toolset that is listed by default."""
ALL = "all"
TOOLSETS: dict[str, tuple[str, ...]] = {
    CORE: (
        *("diagnose", "diagnose_start", "diagnose_result", "find_job", "host_snapshot", "critical_path", "offcputime"),
        *("cpu_profile", "lock_wait", "python_stacks", "host_bound", "fileslower", "kb_search", "artifact_read"),
    ),
    "ranks": ("slow_node_check", "hang", "collective_live", "compare_runs", "cluster_topology"),
    "profiles": ("flame_graph", "flamegraph_diff", "heat_map", "history"),
    "io": ("biolatency", "syscall_time", "page_cache", "hybrid_io_advise"),
    "system": (
        *("net_latency", "runqlat", "interrupts", "memory_growth", "gpu_health", "ftrace_capture", "crash_analyse"),
        "known_fix",
    ),
    "serving": ("inference_latency",),
    "ticketing": ("ticket_draft", "kb_similar", "kb_record", "kb_feedback"),
    "fleet": ("fleet",),
}


def toolset_of(tool: str) -> str | None:
    """Return the toolset of `tool`; None for an unknown tool."""
    return next((name for name, tools in TOOLSETS.items() if tool in tools), None)


def listed(tools: Collection[str], chosen: Sequence[str] = ()) -> list[str]:
    """Return which of `tools` are listed for `chosen` tools and toolsets (none: `CORE`).

    Raises `ToolError` (bad_argument) for an unknown name, or a toolset without any of `tools`.
    """
    toolsets = [name for name, members in TOOLSETS.items() if set(members) & set(tools)]
    for name in chosen:
        if name not in (ALL, *toolsets, *tools):
            message = f"no tool or toolset is called {name!r}"
            remedy = f"valid: {', '.join([ALL, *toolsets])}, or names of tools: {', '.join(sorted(tools))}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
    wanted = set(chosen or (CORE,))
    ordered = [(toolset, tool) for toolset, members in TOOLSETS.items() for tool in members if tool in tools]
    return [tool for toolset, tool in ordered if wanted & {ALL, toolset, tool}]


def unknown(tool: str, offered: Collection[str]) -> ToolError:
    """Return the error for a call of `tool`, which is not `offered`: what is, and how to get the other toolsets."""
    toolset = toolset_of(tool)
    message = f"no tool is called {tool!r}"
    if toolset is not None:
        message = f"this server does not offer {tool!r}, which is in the toolset {toolset}"
    others = [name for name, tools in TOOLSETS.items() if not set(tools) & set(offered)]
    more = f"; toolsets not offered: {', '.join(others)}; `whystall serve --tools all` offers every tool"
    return ToolError(ErrorCode.NOT_FOUND, message, f"valid: {', '.join(offered)}{more if others else ''}")
