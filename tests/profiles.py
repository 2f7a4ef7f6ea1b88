"""An accelerator profile written down by hand."""

from __future__ import annotations

from typing import Any

import polars as pl

from whystall.tools.timeline.profile import ACTIVITIES, STEPS, Profile


def profile_of(*activities: tuple[Any, ...], steps: tuple[tuple[Any, ...], ...] = ()) -> Profile:
    """Of rows (start, end, kind, name, pid, tid, device, stream, correlation, step), and steps (start, end, step, pid,
    tid)."""
    tables = {
        "activities": pl.DataFrame(list(activities), schema=ACTIVITIES, orient="row").sort("start_ns"),
        "steps": pl.DataFrame(list(steps), schema=STEPS, orient="row").sort("start_ns"),
    }
    return Profile(tables, clock="mono", source="kineto")
