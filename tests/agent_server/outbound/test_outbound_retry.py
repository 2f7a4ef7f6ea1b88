"""How long a busy server asks to wait, in the ways that servers say it."""

from __future__ import annotations

import pytest

from whystall.agent_server.outbound.retry import LONGEST_ASKED_S, backoff_s, queue_backoff_s, requested_wait_s

_USED_UP = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "0"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 99 Oct 99999999 07:28:00 GMT"}, None),
        ({**_USED_UP, "x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({**_USED_UP, "x-ratelimit-reset-requests": "1.5s"}, 1.5),
        ({**_USED_UP, "x-ratelimit-reset-tokens": "59"}, 59.0),
        ({**_USED_UP, "x-ratelimit-reset-tokens": "6m0s?"}, None),
        ({"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "1h"}, None),
    ],
)
def test_what_headers_ask_for(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_wait_s(headers) == seconds


def test_a_date_to_come_is_waited_for() -> None:
    wait = requested_wait_s({"retry-after": "Fri, 31 Dec 2999 23:59:59 GMT"})
    assert wait is not None
    assert wait > 1e9


def test_pauses_grow_are_scattered_and_end_somewhere() -> None:
    for attempt, middle in ((0, 0.5), (1, 1.0), (2, 2.0), (4, 8.0), (50, 8.0), (5000, 8.0)):
        pauses = {backoff_s(attempt, None) for _ in range(50)}
        assert len(pauses) > 1
        assert all(0.75 * middle <= seconds <= 1.25 * middle for seconds in pauses)
    assert backoff_s(3, 0.0) == 0.0


def test_a_queue_is_patient_and_believes_no_absurd_wait() -> None:
    assert 3.75 <= queue_backoff_s(0, None) <= 6.25
    assert queue_backoff_s(5000, None) <= 1.25 * 900
    assert queue_backoff_s(0, 0.0) >= 3.75  # who asks for nothing is not asked without end
    assert queue_backoff_s(0, 1800.0) == 1800.0
    assert queue_backoff_s(0, 1e12) == queue_backoff_s(50, 86_400.0) == LONGEST_ASKED_S == 3600.0
