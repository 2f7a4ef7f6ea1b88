"""List all engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whystall.tools.collect.bcc.engine import BccEngine
from whystall.tools.collect.cards.engine import CardsEngine
from whystall.tools.collect.collective_engine import CollectiveEngine
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.ftrace.bpf_engine import FtraceBpfEngine
from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine
from whystall.tools.collect.nvml_engine import NvmlEngine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.collect.serving.engine import ServingEngine
from whystall.tools.recording.collector import Engine

# In order of preference; the first that can serve a collector does.
ENGINES: Sequence[Callable[[], Engine]] = (
    EbpfEngine,
    CollectiveEngine,
    FtraceBpfEngine,
    BccEngine,
    TracefsEngine,
    ProcfsEngine,
    NvmlEngine,
    CardsEngine,
    ServingEngine,
)
