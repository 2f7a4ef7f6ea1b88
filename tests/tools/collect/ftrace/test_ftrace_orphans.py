"""Whose instance is whose, by its name."""

from __future__ import annotations

import os
import subprocess

import pytest

from whystall.tools.collect.ftrace.instance import orphans, start_ticks


def test_an_instance_is_an_orphan_when_its_maker_is_dead_or_another() -> None:
    own, ticks = os.getpid(), start_ticks(os.getpid())
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = [
        f"whystall-{own}-{ticks}-0",
        f"whystall-{own}-{ticks + 1}-0",
        f"whystall-{gone.pid}-{ticks}-17",
        "whystall-4194305-1-0",
    ]
    assert orphans(names) == names[1:]


@pytest.mark.parametrize(
    "name",
    ["foo", "whystall", "whystall-", "whystall-1", "whystall-x-1-0", "whystall-9999999-1-0-x", "awhystall-1-1-0", ""],
)
def test_what_is_not_ours_is_left_alone(name: str) -> None:
    assert orphans([name]) == []


def test_the_start_of_a_process_is_its_own() -> None:
    other = subprocess.Popen(["sleep", "60"])
    assert start_ticks(other.pid) >= start_ticks(os.getpid()) > 0
    other.kill()
    other.wait()
    assert start_ticks(other.pid) == -1
