"""Loads what ``whystall serve`` loads late, once for all servers that `chain_child` forks."""

from __future__ import annotations

from importlib import import_module

from whystall.agent_server.outbound import client

_TOOLS = (
    "host.biolatency",
    "host.fileslower.tool",
    "host.host_bound.tool",
    "host.host_snapshot.tool",
    "host.interrupts",
    "host.lock_wait.tool",
    "host.net_latency.tool",
    "host.offcputime",
    "host.page_cache.tool",
    "host.python_stacks",
    "host.runqlat",
    "host.syscall_time",
    "profiles.cpu_profile.tool",
    "profiles.flame_graph.tool",
    "profiles.flamegraph_diff.tool",
    "profiles.heat_map.tool",
)
_SERVER = (
    "diagnosis.model_driver",
    "diagnosis.store_diagnosis",
    "integrations.alerts.groups",
    "integrations.chat.chat_task",
    "integrations.chat_vendors.dingtalk",
    "integrations.chat_vendors.feishu",
    "integrations.pictures.verdict",
    "integrations.trackers.delivery_worker",
    "integrations.trackers.polling",
    "interfaces.cli.command_tree",
    "interfaces.cli.commands.serve",
    "interfaces.mcp.server",
    "interfaces.web.alerts",
    "interfaces.web.chat",
    "interfaces.web.serve",
    "interfaces.web.trackers",
    "worker.alert_groups",
    "worker.clock_watch",
    "worker.escalation",
    "worker.retention",
    "worker.service",
    "worker.triage_notifier",
)
for _name in [*(f"tools.{tool}" for tool in _TOOLS), *(f"agent_server.{part}" for part in _SERVER)]:
    import_module(f"whystall.{_name}")
for _name in ("certifi", "httpcore", "msgspec", "numpy", "polars", "resvg_py", "rich.console"):
    import_module(_name)
client._trusted()  # reads the certificates: 0.2 s of processor time
