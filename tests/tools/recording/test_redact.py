"""What leaves the host names nobody, and says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recordings import PID, Scene

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.judging import judge
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.toolbox import registry

SECRETS = (
    "acme-secret-model",
    "fraudnet",
    "tenant",
    "90210555",
    "wizardlog",
    "projectx",
    "nodealpha",
    "mylib_private",
    "weirdcomm",
    "nvmesecret",
    "whyreason",
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def secretive() -> Recording:
    scene = Scene().thread(comm="fraudnet", user=50, blocked=40).thread(PID + 1, "weirdcomm", user=20)
    for step in range(4):
        base = f"/mnt/tenant90210555/acme-secret-model/step-{step}"
        scene.call(1 + 3 * step, 900, "fsync", f"{base}/fraudnet_{step}.bin", size=1 << 24)
        scene.call(0.1 + 3 * step, 400, "fsync", "/var/wizardlog/90210555", tid=PID + 1)
        scene.wait(2 + 3 * step, 300, "futex", lock=7, waker=(PID, PID + 1, "weirdcomm"))
    scene.wait(1, 50, "read", stack=("mylib_private::run()", "main"))
    scene.tables["stacks"][-1]["kernel"] = False
    scene.process(PID, "fraudnet", cpu=50, cgroup="/projectx/pod90210555").cgroup("/projectx/pod90210555")
    scene.disk("nvmesecret", busy=97, await_ms=90).requests("nvmesecret", "write", 90, 40)
    target = Target(everything=False, pid=PID, comm="fraudnet", cgroup="/projectx/pod90210555", pids=[PID])
    recording = scene.build(host="nodealpha", target=target)
    for entry in recording.manifest.collectors.values():
        entry.why = "whyreason"
        entry.not_seen = [BlindSpot(code="sampled", detail="whyreason")]
    return recording


def findings(recording: Recording) -> list[Finding]:
    every: list[Tool[Any, Any]] = registry().all()
    tools = [t for t in every if all(recording.has(n.collector) or n.optional for n in t.needs(t.params()))]
    return [f for tool in tools for f in judge(tool, recording, tool.params()).findings]


def shape(finding: Finding) -> tuple[Any, ...]:
    named = {key for key, value in finding.subject.model_dump().items() if value is not None}
    open_words = {
        k: v for k, v in finding.attributes.items() if k in ("operations", "syscall", "state", "open", "lock")
    }
    return (finding.kind, finding.polarity, finding.severity, finding.metrics, finding.interval, named, open_words)


@pytest.mark.thorough
def test_the_findings_are_the_same() -> None:
    recording = secretive()
    hidden = redact(recording)
    assert hidden.manifest.redacted
    assert [shape(f) for f in findings(hidden)] == [shape(f) for f in findings(recording)]
    assert [f for f in findings(recording) if f.metrics.get("period_s")], "the series was recognised"


def test_no_name_is_left_in_what_is_written(tmp_path: Path) -> None:
    recording = secretive()
    plain, hidden = tmp_path / "plain", tmp_path / "hidden"
    recording.save(plain)
    redact(recording).save(hidden)
    read = Recording.open(hidden, COLLECTORS)
    text = json.dumps({name: frame.to_dicts() for name, frame in read.tables().items()}, ensure_ascii=False)
    text += read.manifest.model_dump_json() + "".join(p.name for p in hidden.iterdir())
    raw = b"".join(p.read_bytes() for p in hidden.iterdir())
    control = json.dumps({n: f.to_dicts() for n, f in Recording.open(plain, COLLECTORS).tables().items()})
    control += recording.manifest.model_dump_json()
    for secret in SECRETS:
        assert secret in control, "the test looks for what is there"
        assert secret not in text
        assert secret.encode() not in raw


def test_equal_names_stay_equal_and_two_redactions_share_none() -> None:
    recording = secretive()
    one, two = redact(recording), redact(recording)
    calls, threads = one.table("syscalls.calls"), one.table("proc.threads")
    assert set(calls["comm"]) == set(threads["comm"])
    assert one.manifest.target.comm in set(calls["comm"])
    assert one.manifest.target.cgroup in set(one.table("proc.cgroups")["cgroup"])
    assert not set(calls["comm"]) & set(two.table("syscalls.calls")["comm"])
    assert recording.table("syscalls.calls")["comm"].unique().sort().to_list() == ["fraudnet", "weirdcomm"]


def test_what_is_no_secret_stays() -> None:
    hidden = redact(secretive())
    frames = hidden.table("switches.stacks").filter(kernel=True)["frames"].explode().to_list()
    assert "ext4_sync_file" in frames
    assert set(hidden.table("syscalls.calls")["syscall"]) == {"fsync"}
    assert set(hidden.table("syscalls.files")["fstype"]) == {"ext4"}
