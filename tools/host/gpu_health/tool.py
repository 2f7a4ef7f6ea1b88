"""gpu_health: is the hardware under a job in order, and what has its driver reported?"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.tools.collect.log_file import FILE
from whystall.tools.collect.nvml_engine import accelerators_here
from whystall.tools.collect.options import DeviceLogOptions
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host.gpu_health import cards, counters, gpus, messages
from whystall.tools.host.gpu_health.concerns import RECENT_S, concerning
from whystall.tools.host.gpu_health.data import Data
from whystall.tools.node.sxid_catalogue import UNKNOWN
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_MOST_FINDINGS = 40
_COLLECTORS = (messages.COLLECTOR, counters.COLLECTOR, gpus.COLLECTOR, cards.COLLECTOR)


class Params(LiveParams):
    """Parameters of gpu_health. All GPUs and ports of the host are judged, whatever the target."""

    kernel_log: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="a kernel log to judge instead: dmesg, syslog, journal"),
    ] = None
    cards: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=4096,
            description="file or directory to judge instead: output of npu-smi info, amd-smi or rocm-smi (JSON)",
        ),
    ] = None
    first_look: Annotated[
        bool,
        Field(description="the kernel log of the last hour; GPUs and counters where accelerators have a driver"),
    ] = False


def _needs(params: Params) -> list[Need]:
    if params.kernel_log is not None:
        return [Need(messages.COLLECTOR)]
    if params.cards is not None:
        return [Need(cards.COLLECTOR)]
    if params.first_look:
        others = (counters.COLLECTOR, gpus.COLLECTOR, cards.COLLECTOR) if accelerators_here() else ()
        recent = DeviceLogOptions(recent_s=RECENT_S)
        return [Need(messages.COLLECTOR, recent), *(Need(name, optional=True) for name in others)]
    return [Need(messages.COLLECTOR), *(Need(name, optional=True) for name in _COLLECTORS[1:])]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the messages of drivers, the state of GPUs and the counters of the host, as far as they were recorded.

    Raises `ToolError` (missing_collector) if none of them was.
    """
    data, found, seen, spots = Data(), list[Finding](), 0, list[tuple[str, str]]()
    window_ns = recording.manifest.window_ns
    missing = [name for name in _COLLECTORS if not recording.has(name)]
    if len(missing) == len(_COLLECTORS):
        recording.table(f"{messages.COLLECTOR}.events")  # raises: there is nothing to judge
    if params.kernel_log is None and params.cards is None and not params.first_look:
        rare = {cards.COLLECTOR}  # most hosts have no such accelerator, and older recordings no such collector
        spots += [("less_told", name) for name in missing if name not in {*recording.manifest.left_out, *rare}]
    if recording.has(messages.COLLECTOR):
        judged, until = messages.messages_of(recording), messages.ends(recording)
        data.messages = [messages.row_of(one, until) for one in judged]
        data.log = messages.log_rows(recording)
        held = recording.manifest
        log = held.id if held.collectors[messages.COLLECTOR].engine == FILE else ""
        found += [concerning(messages.finding_of(one, until, window_ns, log), recording) for one in judged]
        seen += sum(row.lines for row in data.log)
        if not any(row.messages for row in data.log) and not params.first_look:
            spots.append(("no_driver_messages", ""))
        unknown = sorted({one.code for one in judged if one.switch is not None and one.meaning == UNKNOWN})
        if unknown:
            spots.append(("switch_codes", ", ".join(unknown[:8])))
    if recording.has(gpus.COLLECTOR):
        of_gpus, data.gpus = gpus.judged(recording)
        found += of_gpus
        data.processes = gpus.process_rows(recording)
        data.links = gpus.link_rows(recording.table(f"{gpus.COLLECTOR}.links"), gpus.models_of(recording))
        seen += len(data.gpus)
    if recording.has(cards.COLLECTOR):
        of_cards, data.cards = cards.judged(recording)
        found += of_cards
        seen += len(data.cards)
    if recording.has(counters.COLLECTOR):
        rows, ports = counters.counter_rows(recording), counters.port_rows(recording)
        found += counters.judged(rows, ports, window_ns)
        data.counters, data.ports = rows, ports
        seen += len(rows) + len(ports)
    found.sort(key=lambda one: -one.severity.rank)
    totals = {name: len(getattr(data, name)) for name in Data.model_fields}
    cut = {name: getattr(data, name)[: params.top] for name in Data.model_fields}
    return Judgement(findings=found[:_MOST_FINDINGS], data=Data(**cut), seen=seen, totals=totals, not_seen=spots)


TOOL = Tool(
    name="gpu_health",
    title="Health of GPUs and links",
    description="Xid and SXid of the kernel log with NVIDIA's actions; GPU clocks, memory, PCIe, NVLink; port errors.",
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            "gpu.health",
            *("gpu.xid", "gpu.switch", "gpu.throttled", "gpu.memory", "gpu.pcie", "gpu.recovery", "gpu.nvlink"),
            *(
                "gpu.lost",
                "host.memory",
                "host.machine_check",
                "host.thermal",
                "port.errors",
                "port.pauses",
                "port.slow",
            ),
        }
    ),
)
