"""The examples' log of acts, where the programs of this folder find it: they start by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

from _workload import Workload

__all__ = ["Workload"]
