"""Whether the settings hold together; nothing is imported for it where there are none."""

from __future__ import annotations

from datetime import datetime, timezone

from whystall.agent_server.health import Check, State
from whystall.tools.contract.errors import ToolError

_MEANS = "alerts, trackers, chats and schedules do not work"


def settings() -> Check:
    """What `whystall config check` says, in short."""
    from whystall.agent_server.settings.load import SECTIONS
    from whystall.agent_server.settings.sources import config_path, given

    try:
        values = given(SECTIONS)
    except ToolError as error:
        return Check(name="settings", state=State.LIMITED, found=error.message, means=_MEANS, fix=error.remedy)
    if values.path is None and not values.variables:
        found = f"none ({config_path()[0]}): alerts, trackers and chats are off"
        return Check(name="settings", state=State.OK, found=found)
    from whystall.agent_server.settings.check import check

    faults = check(values, datetime.now(timezone.utc)).faults
    found = str(values.path or "environment")
    if not faults:
        return Check(name="settings", state=State.OK, found=found)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Check(
        name="settings", state=State.LIMITED, found=faults[0] + more, means=_MEANS, fix="see `whystall config check`"
    )
