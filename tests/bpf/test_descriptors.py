"""Room for the timers of many CPUs."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from whystall.bpf.collectors import samples

FOREVER = resource.RLIM_INFINITY
Limits = Callable[[int, int], tuple[int, int]]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """What becomes of limits, soft and hard, when a thousand descriptors are wanted."""

    def after(soft: int, hard: int) -> tuple[int, int]:
        held = [(soft, hard)]
        monkeypatch.setattr(resource, "getrlimit", lambda _which: held[-1])
        monkeypatch.setattr(resource, "setrlimit", lambda _which, new: held.append(new))
        samples.raise_open_files(1000)
        return held[-1]

    return after


@pytest.mark.parametrize("hard", [4096, FOREVER])
def test_a_low_limit_is_raised_as_far_as_needed(hard: int, limits: Limits) -> None:
    soft, kept = limits(256, hard)
    assert soft == 1000
    assert kept == hard


@pytest.mark.parametrize("enough", [(1 << 16, 1 << 16), (FOREVER, FOREVER)])
def test_one_that_leaves_room_is_left_alone(enough: tuple[int, int], limits: Limits) -> None:
    assert limits(*enough) == enough


def test_what_the_system_grants_is_the_most(limits: Limits) -> None:
    assert limits(256, 512) == (512, 512)
