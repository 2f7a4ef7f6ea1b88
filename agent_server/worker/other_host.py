"""Ask another host of the fleet for the state of its hardware, where an alert names it and no process.

Its gpu_health reads the driver's messages, GPUs and counters there; its known_fix compares the versions there with the
Xids that the alert names. Without a victim no cause is named.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from whystall.agent_server.diagnosis.causes import HARDWARE_TOOL
from whystall.agent_server.diagnosis.hardware import hardware_diagnosis
from whystall.agent_server.ticketing.host_reports import diagnosis_of
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.result import ToolResult
from whystall.tools.host.gpu_health.data import Data
from whystall.tools.host.known_fix.tool import Data as KnownFixes

if TYPE_CHECKING:
    from whystall.agent_server.fleet.answers import Answer

RunOnHost = Callable[[str, str, Mapping[str, Any], float], "Awaitable[Answer | None]"]
"""Gets a host, a tool, its arguments and the seconds that it observes; returns the host's answer, None if it may not be
asked."""

_KNOWN_FIXES = "known_fix"
_MOST_XIDS, _MOST_FIXES = 16, 3
_log = logging.getLogger("whystall.work")


async def hardware_of(
    host: str, xids: Sequence[int], symptom: str, seconds: float, run: RunOnHost
) -> tuple[Diagnosis | None, Answer | None]:
    """Return the diagnosis of what `host` reads of its hardware, and the answer; no diagnosis without a valid one.

    `xids`: that the alert names. Raises `ToolError` if the list of hosts is unreadable.
    """
    answer = await run(host, HARDWARE_TOOL, {"duration": seconds}, seconds)
    if answer is None or answer.status != "answered" or answer.reply is None:
        return None, answer
    try:
        result = ToolResult[Data].model_validate(answer.reply)
        diagnosis = diagnosis_of(hardware_diagnosis(result, host, symptom), host)
    except ValidationError:
        _log.warning("host %s: its %s is malformed", host, HARDWARE_TOOL)
        return None, answer
    if not xids:
        return diagnosis, answer
    return diagnosis.model_copy(update={"known_fixes": await _known_fixes(host, xids, run)}), answer


async def _known_fixes(host: str, xids: Sequence[int], run: RunOnHost) -> list[Any]:
    """Return the known defects of the versions on `host` that show in `xids`; none without a valid answer."""
    numbers = [str(code) for code in dict.fromkeys(xids) if 0 < code < 1000][:_MOST_XIDS]
    answer = await run(host, _KNOWN_FIXES, {"xid": numbers}, 0.1)
    if answer is None or answer.status != "answered" or answer.reply is None:
        _log.warning("host %s: no answer to %s", host, _KNOWN_FIXES)
        return []
    try:
        found = ToolResult[KnownFixes].model_validate(answer.reply).data
    except ValidationError:
        _log.warning("host %s: its %s is malformed", host, _KNOWN_FIXES)
        return []
    return [*found.relevant[:_MOST_FIXES], *found.possible[:_MOST_FIXES]]
