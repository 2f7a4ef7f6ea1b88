"""Waits without Python frames are taken to be where the same wait is otherwise, if there is no doubt."""

from __future__ import annotations

import pytest

from whystall.tools.host.common.missing_frames import complete_places
from whystall.tools.host.common.places import NOWHERE, place_of_texts
from whystall.tools.host.common.timelines import Timeline, Wait

NATIVE = "[libc.so.6+0x85e50]"
NAMES = ("syscall", "path", "fstype", "object", "context", "waker_comm", "waker_syscall", "ran_comm")
A, B, MISSING = "emit (log.py:3)", "flush (log.py:9)", ""


def wait(number: int, line: str, lock: int = 64) -> Wait:
    start = number * 100
    words = dict.fromkeys(NAMES, "") | {"syscall": "futex"}
    frames = (NATIVE, line) if line else (NATIVE,)
    numbers = {"asked_ns": -1, "waker_pid": 0, "waker_tid": 0, "ran_pid": -1, "lock": lock}
    times = {"start_ns": start, "awake_ns": start + 50, "end_ns": start + 50}
    place = place_of_texts(frames)
    return Wait(**times, **words, **numbers, state="S", kernel=(), place=place, open=False, seeded=False)


@pytest.mark.parametrize(
    ("known", "lock", "line"),
    [
        ((A, A), 64, A),
        ((A, B), 64, NATIVE),  # it could be either
        ((A, A), 128, NATIVE),  # another lock
    ],
)
def test_a_wait_without_frames_is_where_the_same_wait_is_otherwise(
    known: tuple[str, ...], lock: int, line: str
) -> None:
    waits = [wait(number, text) for number, text in enumerate(known)]
    thread = Timeline(1, 1, "job", waits=[*waits, wait(9, MISSING, lock)])
    complete_places([thread])
    assert [one.place.line for one in thread.waits] == [*known, line]


@pytest.mark.parametrize(("seeded", "known", "line"), [(True, (A, A), A), (True, (A, B), ""), (False, (A, A), "")])
def test_a_wait_that_began_before_the_recording_needs_no_native_frame_and_no_descriptor(
    seeded: bool, known: tuple[str, str], line: str
) -> None:
    waits = [wait(number + 1, text)._replace(object="socket:[7]") for number, text in enumerate(known)]
    first = wait(0, MISSING)._replace(place=NOWHERE, seeded=seeded)
    thread = Timeline(1, 1, "job", waits=[first, *waits])
    complete_places([thread])
    assert thread.waits[0].place.line == line
