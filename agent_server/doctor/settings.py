"""Check the settings; imports nothing for it if there are none."""

from __future__ import annotations

from datetime import datetime, timezone

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import ENGLISH, View
from whystall.agent_server.settings.load import SECTIONS
from whystall.agent_server.settings.sources import config_path, read_settings
from whystall.tools.contract.errors import ToolError


def settings(view: View = ENGLISH) -> Check:
    """Return the result of `whystall config check` in short."""
    means = view.say("settings.means")
    try:
        values = read_settings(SECTIONS)
    except ToolError as error:
        return view.limited("settings", error.message, means, error.remedy)
    if values.path is None and all(key[0] == "llm" for key in values.variables):  # `model` checks these
        return view.ok("settings", view.say("settings.none", path=config_path()[0]))
    from whystall.agent_server.doctor.settings_check import check

    faults = check(values, datetime.now(timezone.utc)).faults
    found = str(values.path or view.say("settings.environment"))
    if not faults:
        return view.ok("settings", found)
    more = view.say("settings.more", count=len(faults) - 1) if len(faults) > 1 else ""
    return view.limited("settings", faults[0] + more, means, view.say("settings.fix"))
