"""What is kept of samples, and the timers they come from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from whystall.bpf import layout as lay
from whystall.bpf import perf_events
from whystall.bpf.samples import Place, SampleLog


def record(at: int, place: Place) -> bytes:
    kstack, ustack, pystack = place.kstack, place.ustack, place.pystack
    return lay.unpacker(lay.SampleRecord).pack(
        lay.RECORD_SAMPLE, place.collects, at, kstack, ustack, pystack, place.tgid, place.tid
    )


A, B = Place(10, 11, 0, 5, 0), Place(10, 12, (1 << 64) - 1, 0, 7, True)


def test_a_new_place_is_told_once() -> None:
    log = SampleLog()
    assert [log.add(record(at, place)) for at, place in enumerate((A, B, A))] == [A, B, None]
    kept = log.samples()
    assert list(kept.at) == [0, 1, 2]
    assert [kept.places[number] for number in kept.place] == [A, B, A]
    assert kept.one_in == 1


def test_beyond_its_bound_it_thins_by_chance_and_shares_stay_true() -> None:
    log, count = SampleLog(most=10_000, seed=5), 100_000
    for at in range(count):  # A at every other: dropping every other one would leave a single place
        log.add(record(at, A if at % 2 else B))
    kept = log.samples()
    assert kept.one_in == 16
    assert len(kept.at) <= 10_000
    assert list(kept.at) == sorted(kept.at)
    assert len(kept.at) * kept.one_in == pytest.approx(count, rel=0.1)
    share = sum(kept.places[number] == A for number in kept.place) / len(kept.place)
    assert share == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("text", "cpus"), [("0-1\n", [0, 1]), ("0,2-4,9\n", [0, 2, 3, 4, 9]), ("0", [0])])
def test_cpus_that_are_off_are_left_out(tmp_path: Path, text: str, cpus: list[int]) -> None:
    source = tmp_path / "online"
    source.write_text(text)
    assert perf_events.online_cpus(source) == cpus


@pytest.mark.parametrize(
    ("number", "code", "remedy"),
    [
        (errno.EACCES, "no_privilege", "CAP_PERFMON"),
        (errno.EMFILE, "attach_failed", "ulimit -n"),
        (errno.EOPNOTSUPP, "attach_failed", "CONFIG_PERF_EVENTS"),
        (errno.EINVAL, "attach_failed", "report"),
    ],
)
def test_a_refusal_says_what_to_do(number: int, code: str, remedy: str) -> None:
    error = perf_events._refused(number, 3)
    assert error.code == code
    assert "CPU 3" in error.message
    assert os.strerror(number) in error.message
    assert remedy in error.remedy
