"""Run all checks of this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from whystall.agent_server.doctor.accelerators import accelerators
from whystall.agent_server.doctor.bcc import bcc, headers
from whystall.agent_server.doctor.containers import container
from whystall.agent_server.doctor.hybrid import hybrid_io
from whystall.agent_server.doctor.kernel import btf, kernel, kprobes, lockdown
from whystall.agent_server.doctor.model import model
from whystall.agent_server.doctor.place import cgroups, delay_accounting, proc, tracefs
from whystall.agent_server.doctor.programs import clang, libbpf, objects, trace_cmd
from whystall.agent_server.doctor.report_model import Check, Health
from whystall.agent_server.doctor.rights import capabilities, privilege, ptrace, symbols
from whystall.agent_server.doctor.serving import serving
from whystall.agent_server.doctor.settings import settings
from whystall.agent_server.doctor.stacks import py_spy, python_frames, sampling
from whystall.agent_server.doctor.storage import database
from whystall.agent_server.doctor.view import Lang, View
from whystall.agent_server.doctor.watching import watching

_GROUPS: Mapping[str, Sequence[Callable[[View], Check]]] = {
    "kernel": (kernel, btf, lockdown, kprobes, delay_accounting),
    "rights": (privilege, capabilities, sampling, ptrace, symbols),
    "surroundings": (container, proc, cgroups, tracefs),
    "programs": (libbpf, objects, clang, bcc, headers, trace_cmd),
    "python": (python_frames, py_spy),
    "devices": (accelerators,),
    "own": (hybrid_io, database, model, settings, watching),
}


def examine(lang: Lang = "en") -> Health:
    """Run all checks. Reads; loads one BPF program of seven instructions and drops it; attaches nothing."""
    view = View(lang=lang)
    checks = [look(view).model_copy(update={"group": group}) for group, looks in _GROUPS.items() for look in looks]
    found = serving()
    return Health(
        checks=checks,
        engines=found.engines,
        collectors=found.collectors,
        tools=found.tools,
        order=found.order,
        refused=_said(view, found.refused),
        why={tool: _said(view, why) for tool, why in found.why.items()},
    )


def _said(view: View, reasons: Mapping[str, str]) -> dict[str, str]:
    return {engine: view.reason(reason) for engine, reason in reasons.items()}
