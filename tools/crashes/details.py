"""Read process, kernel, taint, modules and memory out of the lines of a kernel's crash report. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from whystall.tools.contract.text import clean

# `CPU: 0 UID: 0 PID: 298 Comm: python3 Tainted: G        W  OE      6.12.23 #1 PREEMPT`, `Not tainted 5.2.0-rc5+ #4`
_CPU = re.compile(
    r"CPU: (?P<cpu>\d+) (?:UID: \d+ )?PID: (?P<pid>\d{1,10}) Comm: (?P<comm>.{1,64}?) (?:Kdump: loaded )?"
    r"(?:Not tainted|Tainted: (?P<taint>[A-Z](?:[A-Z ]{0,40}[A-Z])?)) {1,12}(?P<kernel>\d[\w.+~-]*)?"
)
_PROCESS = (
    # `INFO: task udevd:5612 blocked for more than 143 seconds.`
    re.compile(r"INFO: task (?P<comm>.{1,64}):(?P<pid>\d{1,10}) (?:blocked|can't die)"),
    # `watchdog: BUG: soft lockup - CPU#1 stuck for 134s! [python3:4569]`
    re.compile(r"stuck for \d+s! \[(?P<comm>.{1,64}):(?P<pid>\d{1,10})\]"),
    # `Read of size 4 by task python3/4676`, `BUG: scheduling while atomic: python3/21395/0x00000201`
    re.compile(r"by task (?P<comm>[^/]{1,64})/(?P<pid>\d{1,10})"),
    re.compile(r"(?:code|atomic): (?P<comm>[^/]{1,64})/(?P<pid>\d{1,10})"),
    # `Process python3 (pid: 948, stack limit = 0x239be54a)`
    re.compile(r"Process (?P<comm>.{1,64}) \(pid: (?P<pid>\d{1,10})"),
)
_MODULES = re.compile(r"Modules linked in:(?P<names>.*)")
_NAME = re.compile(r"^[a-zA-Z0-9_]{1,64}(?:\([A-Z+-]{1,8}\))?$")
_MOST_MODULES = 400
# the letters of a module that is not the kernel's own, or is being loaded or unloaded
_FLAGS = re.compile(r"\([A-Z+-]+\)$")


class Details(NamedTuple):
    """What a report states. `pid` -1: unknown; `foreign`: modules that are not part of the kernel (flags O, P, E)."""

    comm: str = ""
    pid: int = -1
    taint: str = ""
    kernel: str = ""
    modules: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


def details(texts: Sequence[str]) -> Details:
    """Return what the lines of one report state; each the first time."""
    found = Details()
    for text in texts:
        if found.pid < 0:
            for pattern in _PROCESS:
                if (process := pattern.search(text)) is not None:
                    found = found._replace(comm=clean(process["comm"], 64), pid=int(process["pid"]))
                    break
        if not found.kernel and (cpu := _CPU.search(text)) is not None:
            found = found._replace(taint="".join((cpu["taint"] or "").split()), kernel=clean(cpu["kernel"] or "", 100))
            if found.pid < 0:
                found = found._replace(comm=clean(cpu["comm"], 64), pid=int(cpu["pid"]))
        if not found.modules and (linked := _MODULES.search(text)) is not None:
            names = [name for name in linked["names"].split("[last")[0].split() if _NAME.match(name)][:_MOST_MODULES]
            foreign = [name for name in names if re.search(r"\([A-Z+-]*[OPE]", name)]
            found = found._replace(
                modules=tuple(_FLAGS.sub("", name) for name in names),
                foreign=tuple(_FLAGS.sub("", name) for name in foreign),
            )
    return found
