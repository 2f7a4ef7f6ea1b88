"""A continuous recording gives memory back when it is scarce, and grows again when it is plentiful."""

from __future__ import annotations

import pytest

from whystall.tools.collect.continuous_memory import MemoryGuard, MemoryLook, MemoryState, own_bytes, stalled_share

S = 1_000_000_000
MIB = 1 << 20
PLENTY = MemoryState(0.0, 0.6, 40 * MIB)


class Run:
    """A guard whose memory and clock are set."""

    def __init__(self) -> None:
        self.now, self.state = S, PLENTY
        self.guard = MemoryGuard(128 * MIB, lambda: self.state, lambda: self.now)

    def go(self, seconds: int, state: MemoryState) -> list[str]:
        self.state = state
        done = []
        for _ in range(seconds):
            self.now += S
            done.append(self.guard.check())
        return [one for one in done if one]


@pytest.mark.parametrize("scarce", [MemoryState(0.2, 0.5, 0), MemoryState(0.0, 0.03, 0)])
def test_it_shrinks_once_while_memory_is_scarce_and_grows_when_it_was_plentiful_for_long(scarce: MemoryState) -> None:
    run = Run()
    assert run.go(60, PLENTY) == []
    assert run.go(60, scarce) == ["shrink"]
    assert "memory was scarce" in run.guard.note
    assert run.go(200, PLENTY) == []
    assert run.go(60, MemoryState(0.05, 0.5, 0)) == []  # neither scarce nor plentiful
    assert run.go(290, PLENTY) == []
    assert run.go(20, PLENTY) == ["grow"]
    assert run.guard.note == ""
    assert run.go(60, scarce) == ["shrink"]


def test_above_its_own_limit_it_frees_caches_and_then_shrinks() -> None:
    run = Run()
    large = MemoryState(0.0, 0.6, 200 * MIB)
    assert run.go(50, large) == ["free"]
    assert run.go(300, PLENTY) == []
    assert run.go(100, large) == ["free", "shrink"]
    assert "200 MiB" in run.guard.note


def test_pressure_and_own_memory_are_read() -> None:
    assert stalled_share(b"some avg10=12.50 avg60=3.10 avg300=0.70 total=812345\nfull avg10=9.00") == 0.125
    assert stalled_share(b"some avg10=x") == stalled_share(b"") == 0.0
    assert own_bytes(b"RssAnon:\t  1024 kB\nRssFile:\t  999 kB\nRssShmem:\t  1 kB\n") == MIB + 1024
    state = MemoryLook()()
    assert 0 <= state.stalled <= 1
    assert 0 < state.available <= 1
    assert state.own_bytes > MIB
