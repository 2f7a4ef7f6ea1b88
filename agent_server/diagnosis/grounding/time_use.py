"""Check what a time or share was spent on by the words next to it. Pure."""

from __future__ import annotations

import re

OF_VICTIM = "victim."
"""Prefix of the names of facts about the victim."""
OF_CALLS = "calls."
"""Prefix of the names of shares of the time of calls, not of the window."""
WAITED = "waited."
"""Prefix of the names of shares of the window that were spent waiting."""
RAN = "ran."
"""Prefix of the names of shares of the window that were spent running."""

_ABOUT = r"[ :=约为是占了达]*(?:(?:about|around|roughly|only|just|nearly|almost|some|a total of|for) )*$"
# Words next to a number for what the time was spent on, and the facts that they exclude.
_RAN = (
    *("run_s", "user_s", "user_pct", "oncpu_s", "oncpu_pct", f"{OF_CALLS}oncpu_pct", f"{OF_VICTIM}user_pct"),
    *(f"{RAN}window_pct", "running_pct"),
)
_WAITED = (
    "waiting_pct",
    *("wait_s", "block_io_s", "throttled_s", f"{WAITED}window_pct", "runnable_pct", "blocked_pct"),
    *(f"{whose}{how}_pct" for whose in (OF_CALLS, OF_VICTIM) for how in ("blocked", "sleep", "runnable", "idle")),
)
_SHARE = r"^(?: of [\w ]{1,30}?)?(?: is| was| are| were)?(?: spent)?"
_SPENT = (
    (
        re.compile(
            rf"(?:\b(?:queues?|queued|waits|waited|waiting|blocked|throttled)|等待|阻塞|排队)(?: for)?{_ABOUT}", re.I
        ),
        re.compile(rf"^ (?:of )?(?:waiting|queueing)\b|{_SHARE} (?:waiting|blocked|asleep|off the cpu)\b", re.I),
        _RAN,
    ),
    (
        re.compile(rf"(?:\b(?:ran|runs|running|computed|computes|computing)|运行|计算)(?: for)?{_ABOUT}", re.I),
        re.compile(rf"^ of (?:running|computing)\b|{_SHARE} (?:running|computing|on (?:the|a|its) cpu)\b", re.I),
        (*_WAITED, "system_s", "system_pct"),
    ),
    (
        re.compile(rf"(?:\b(?:system|kernel) (?:cpu )?time|系统态(?:时间)?)(?: is| was| takes| of| at)?{_ABOUT}", re.I),
        re.compile(r"^ (?:of |in )?(?:system|kernel) (?:cpu )?time\b|^ in the kernel\b|^ ?的?(?:系统态)", re.I),
        ("user_s", "user_pct", "run_s", "wait_s", "block_io_s", f"{OF_VICTIM}user_pct"),
    ),
)
_USER = (
    re.compile(rf"(?:\buser (?:cpu )?time|\buser space|用户态(?:时间)?)(?: is| was| takes| of| at)?{_ABOUT}", re.I),
    re.compile(r"^ (?:of |in )?user[ -](?:cpu |time|space|mode|code)|^ ?的?(?:用户态)", re.I),
)
_IS_USER = ("user_s", "user_pct", f"{OF_VICTIM}user_pct", f"{OF_CALLS}oncpu_pct", "run_s")


def contradicts(metric: str, before: str, after: str) -> bool:
    """Return whether the words next to a number exclude that it is the fact called `metric`."""
    if any(pattern.search(part) for pattern, part in zip(_USER, (before, after), strict=True)):
        return metric not in _IS_USER
    for ahead, behind, others in _SPENT:
        if ahead.search(before) or behind.search(after):
            return metric in others
    return False
