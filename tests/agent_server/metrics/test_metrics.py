"""The metrics of the watcher and the database: bounded, whatever jobs are called, and nothing that no longer holds."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from watch_status import HOSTILE, status

from whystall.agent_server.metrics.families import Family, text
from whystall.agent_server.metrics.of_server import info, server_families
from whystall.agent_server.metrics.of_watch import watch_families
from whystall.agent_server.metrics.stall_seconds import NEW_S, StallSeconds
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.times import now
from whystall.tools.contract.findings import Finding, Interval, Polarity, Subject

_LABEL = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"whystall_[a-z_]+(?:\{{{_LABEL}(?:,{_LABEL})*\}})? [0-9.e+-]+")


class Clock:
    """Seconds that only the test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def values(families: list[Family], name: str) -> dict[tuple[str, ...], float]:
    (found,) = [one for one in families if one.name == f"whystall_{name}"]
    return {tuple(labels.values()): value for labels, value in found.samples}


def test_every_line_is_a_sample_or_a_comment_whatever_the_job_is_called() -> None:
    clock = Clock()
    stalls = StallSeconds(clock)
    stalls.add(HOSTILE, 3, "file_lock_held", 2.25)
    clock.now = NEW_S
    made = text([info(), *watch_families(status(HOSTILE, stalls=list(stalls.rows())), time.time())])
    for line in made.encode("utf-8").decode().splitlines():
        assert line.startswith("# ") or _SAMPLE.fullmatch(line), line
    assert "whystall_watch_tickets_total 2.0" in made
    assert made.endswith("\n")
    assert 'cause="file_lock_held"} 2.25' in made
    assert 'whystall_watch_step_seconds{job_name="x' in made


def test_a_sign_that_stays_away_is_counted_as_a_stall_that_was_noticed() -> None:
    found = values(
        watch_families(status("job", counts={"signal": 2, "gap": 1, "why_no_fault": 3}), time.time()),
        "watch_noticed_total",
    )
    assert found == {("gap",): 1, ("signal",): 2}


def test_the_number_of_series_is_bounded() -> None:
    clock = Clock()
    stalls = StallSeconds(clock)
    for number in range(5000):
        stalls.add(f"job{number % 150}", number % 999, f"cause{number % 70}", 1.0)
    assert {seconds for *_, seconds in stalls.rows()} == {0.0}, "Prometheus would not count a first value"
    clock.now = NEW_S
    rows = list(stalls.rows())
    assert len({job for job, _, _, _ in rows}) <= 101
    assert len({cause for _, _, cause, _ in rows}) <= 51
    assert len(rows) < 2000 + 101 * 51
    assert sum(seconds for *_, seconds in rows) == 5000
    assert len(text(watch_families(status(jobs=900, stalls=rows), time.time())).splitlines()) < 8000


def test_the_gauges_of_a_dead_watcher_are_left_out() -> None:
    for dead in (status(running=False), status(written=time.time() - 300)):
        found = watch_families(dead, time.time())
        assert values(found, "watch_running") == {(): 0.0}
        assert values(found, "watch_stall_seconds_total")[("llama", "3", "file_lock_held")] == 42.5
        assert not [one for one in found if one.name == "whystall_watch_stalled"]
    assert values(watch_families(None, 0), "watch_running") == {(): 0.0}
    assert values(watch_families({"running": True, "jobs": 3}, 0), "watch_running") == {(): 0.0}


def diagnosis(id: str, lost_ms: float) -> Diagnosis:
    late = Finding(
        kind="rank.late",
        subject=Subject(type="rank", rank=3, host="gpu03"),
        interval=Interval(start_ns=0, end_ns=1),
        metrics={"lost_ms": lost_ms},
        polarity=Polarity.ABNORMAL,
    )
    return Diagnosis(
        id=id, created=now(), target="pid 7", verdict=Verdict.CONFIRMED, cause="slow_rank_host", findings=[late]
    )


def test_the_database_is_counted(tmp_path: Path) -> None:
    with Stores(tmp_path / "kb.db") as kb:
        kb.remember(diagnosis("a", 10.0), ticket=True)
        kb.remember(diagnosis("b", 250.0), ticket=False)
        found = server_families(kb, time.time())
        later = server_families(kb, time.time() + 7200)
    assert values(found, "diagnoses_total") == {("confirmed", "slow_rank_host"): 2.0}
    assert sum(values(found, "tickets").values()) == 1.0
    assert values(found, "collective_lateness_seconds") == {("3", "gpu03"): pytest.approx(0.25)}
    assert values(later, "collective_lateness_seconds") == {}
