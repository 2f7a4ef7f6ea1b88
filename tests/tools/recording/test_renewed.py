"""The processes of a target as they are when a further window begins."""

from __future__ import annotations

import os
import subprocess

from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.target import renewed, resolve


def test_children_that_started_since_belong_to_a_target_that_follows() -> None:
    alone, family = (resolve(TargetParams(pid=os.getpid(), children=children)) for children in (False, True))
    with subprocess.Popen(["sleep", "30"]) as child:
        try:
            assert child.pid in renewed(family).pids
            assert renewed(alone) == alone
        finally:
            child.kill()


def test_a_target_that_has_ended_stays_as_it_was() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        target = resolve(TargetParams(pid=child.pid, children=True))
        child.kill()
    assert renewed(target) == target
