"""Profiles sent to a real HTTP server that decodes them, and what is counted when one refuses, hangs or is another."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pprof_receiver import Receiver
from watch_status import HOSTILE, status, write_status

from whystall.agent_server.profile_push import pushes
from whystall.agent_server.profile_push.push import jobs_of, send, series_of
from whystall.agent_server.profile_push.receivers import Series
from whystall.agent_server.settings.sections.profiles import ProfilesSettings
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import host_name
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.recorded import recording_of
from whystall.tools.stacks.writers.pprof import Taken, write_pprof


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def settings(url: str, **more: Any) -> ProfilesSettings:
    return ProfilesSettings.model_validate({"url": url, "timeout_s": 1.0, **more})


def job(name: str) -> list[Series]:
    builder = Builder()
    event = builder.event("cpu", "ns", 50.0)
    builder.frame("unused", "other.py", 1, "python")
    frames = [builder.frame("main", "a.py", 3, "python"), builder.frame(clean(HOSTILE), "b.py", 7, "python")]
    builder.sample(builder.stack(frames), event, 150.0)
    file = io.BytesIO()
    write_pprof(builder.profile("ebpf"), 0, file, Taken(10**18, 60 * 10**9, 50))
    return [Series({"__name__": "process_cpu", "service_name": name}, file.getvalue())]


@pytest.mark.parametrize("kind", ["pyroscope", "parca"])
def test_a_profile_arrives_with_its_time_and_lines(receiver: Receiver, kind: str) -> None:
    known = settings(receiver.url, kind=kind, user="12", tenant="team-a", token={"env": "X"})
    assert anyio.run(send, known, "s3cret", [job(clean(HOSTILE))]) == (1, 0, "")
    (one,) = receiver.stored
    assert one.labels["service_name"] == clean(HOSTILE)
    assert receiver.headers[0]["Authorization"] == "Basic MTI6czNjcmV0"
    assert receiver.headers[0]["X-Scope-OrgID"] == "team-a"
    assert (one.profile.time_nanos, one.profile.duration_nanos, one.profile.period) == (10**18, 60 * 10**9, 50)
    assert one.weight_through((clean(HOSTILE), "b.py", 7)) == one.weight_through(("main", "a.py", 3)) == 150
    assert "unused" not in one.profile.string_table


def test_each_job_gets_its_own_samples_and_unknown_processes_none(receiver: Receiver) -> None:
    builder = Builder()
    event = builder.event("cpu-clock", "ns", 50.0)
    for pid, name, weight in ((7, "first", 100.0), (8, "second", 50.0), (9, "foreign", 350.0), (17, "first_too", 50.0)):
        stack = builder.stack([builder.frame(name, "a.py", 1, "python")])
        builder.sample(stack, event, weight, thread=builder.thread(pid, pid, "python3"))
    recording = recording_of(builder.profile("ebpf"))
    made = list(series_of(recording, {7: "a", 8: "b", 17: "a"}, {"host": "forged", "zone": "z"}))
    assert anyio.run(send, settings(receiver.url), "", made) == (2, 0, "")
    first, second = receiver.stored
    assert [one.labels["service_name"] for one in (first, second)] == ["a", "b"]
    assert (first.labels["zone"], first.labels["host"]) == ("z", clean(host_name(), 80))
    assert first.weight_through(("first", "a.py", 1)) == 100
    assert first.weight_through(("first_too", "a.py", 1)) == 50
    assert sorted(filter(None, second.profile.string_table)) == [
        "[kernel.kallsyms]",
        "a.py",
        "cpu",
        "nanoseconds",
        "second",
    ]
    assert "Authorization" not in receiver.headers[0]


def _full(receiver: Receiver) -> None:
    receiver.refuse = 507


def _wrong(receiver: Receiver) -> None:
    receiver.page = True


def _grpc(receiver: Receiver) -> None:
    receiver.grpc_status = 8


@pytest.mark.parametrize(
    ("kind", "make", "reason", "requests"),
    [
        ("pyroscope", _full, "server_error: HTTP 507", 2),
        ("pyroscope", _wrong, "not Pyroscope's", 2),
        ("parca", _wrong, "not Parca's", 2),
        ("parca", _grpc, "gRPC status 8: no room", 2),
        ("pyroscope", lambda one: one.released.clear(), "timeout", 1),
    ],
)
def test_what_is_refused_is_counted_with_its_reason(
    receiver: Receiver, kind: str, make: Callable[[Receiver], None], reason: str, requests: int
) -> None:
    make(receiver)
    sent, failed, error = anyio.run(send, settings(receiver.url, kind=kind), "s3cret", [job("a"), job("b")])
    assert (sent, failed) == (0, 2)
    assert reason in error
    assert "\x1b" not in error
    assert receiver.requests == requests, "a receiver that hangs is asked once"


def test_names_of_jobs_are_inert(tmp_path: Path) -> None:
    write_status(tmp_path, status(HOSTILE))
    (name,) = jobs_of(tmp_path / "watch", 0, 1).values()
    assert name == clean(f"{HOSTILE}0", 80)
    assert name.isprintable()


@pytest.mark.thorough
def test_spans_that_cannot_be_sent_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "LAG_NS", 0)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_status(tmp_path, status())
    with pushes.ProfilePushes(0.2, tmp_path / "watch") as running:
        end = time.monotonic() + 60
        while running.state()["spans_lost"] < 2 and time.monotonic() < end:
            time.sleep(0.05)
        state = running.state()
    assert state["spans_lost"] >= 2
    assert state["spans_sent"] == 0
    assert state["error"]
