"""The worst moments of host_bound, and the page that shows them."""

from __future__ import annotations

import pytest
from recordings import Scene
from sched_scenes import DISPATCH, GREEDY, PERIOD, WORK, machine, times

from whystall.prompts.render import words
from whystall.tools.host.host_bound import tool as host_bound
from whystall.tools.host.host_bound.moments import moments, timeline
from whystall.tools.recording.store import Recording
from whystall.tools.views.bubble_data import Bubble, Part
from whystall.tools.views.bubbles import bubbles_page


def recording(*, profiled: bool) -> Recording:
    """A neighbour is in the way once in a hundred wakes, ever longer."""
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, "greedy")
    free = 0.0
    for number, at in enumerate(times()):
        late = 5.0
        if number % 100 == 99:
            late = number * 3.0
            cpus.run(0, GREEDY, at - 50, at + late, "R")
        cpus.wake(DISPATCH, at, 0).run(0, DISPATCH, at + late, at + late + WORK)
        asked = at + late + 45
        start = max(asked + 4, free)
        free = start + PERIOD - 60
        if profiled:
            launch(scene, number, asked, start, free)
    return cpus.fill(scene).build(without=[] if profiled else ["profile"])


def launch(scene: Scene, number: int, asked: float, start: float, end: float) -> None:
    row = {"pid": 0, "tid": DISPATCH, "correlation": number, "step": -1, "stream": 7}
    for kind, begin, stop, device in (("launch", asked - 9, asked, -1), ("kernel", start, end, 0)):
        span = {"start_ns": int(begin * 1000), "end_ns": int(stop * 1000)}
        scene._add("profile.activities", **span, kind=kind, name=kind, device=device, **row)


@pytest.mark.parametrize("profiled", [False, True])
def test_the_longest_come_first_with_who_was_in_the_way(profiled: bool) -> None:
    facts = host_bound.extract(recording(profiled=profiled), host_bound.Params())
    worst = moments(facts, 5)
    assert len(worst) == 5
    lengths = [one.end_ns - one.start_ns for one in worst]
    assert lengths == sorted(lengths, reverse=True)
    first = worst[0]
    assert first.tids == (DISPATCH, GREEDY)
    assert first.device == (0 if profiled else -1)
    assert (first.shares[0].reason, first.shares[0].who) == ("no_cpu", f"greedy ({GREEDY})")
    assert sum(share.ns for share in first.shares) == first.end_ns - first.start_ns
    assert moments(facts, 2) == worst[:2]


def test_nothing_to_show_is_nothing() -> None:
    cpus, scene = machine()
    facts = host_bound.extract(cpus.fill(scene).build(without=["profile"]), host_bound.Params())
    assert moments(facts) == []


@pytest.mark.parametrize("profiled", [False, True])
def test_the_page_can_draw_them(profiled: bool) -> None:
    made = recording(profiled=profiled)
    facts = host_bound.extract(made, host_bound.Params())
    said = words("en")
    bubbles = [
        Bubble(one.start_ns, one.end_ns, said["reasons"][one.shares[0].reason], one.tids, (Part("x", 1, "running"),))
        for one in moments(facts)
    ]
    page = bubbles_page(timeline(made, facts), bubbles, said["bubbles_page"], lang="en", heading="worst")
    assert page.startswith("<!doctype html>") or page.lower().startswith("<!doctype html>")
    assert "another thread had its CPU" in page
    assert "greedy" in page
