"""The examples' cgroups, where the programs of this folder find them: they start by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

from _cgroups import PERIOD_US, Cgroup

__all__ = ["PERIOD_US", "Cgroup"]
