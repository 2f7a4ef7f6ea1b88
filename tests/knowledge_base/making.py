"""Findings, victims and diagnoses for tests."""

from __future__ import annotations

from typing import Any

from whystall.knowledge_base.models import (
    Assessment,
    CauseState,
    Culprit,
    Diagnosis,
    Incident,
    Match,
    Step,
    Verdict,
    Victim,
    Words,
)
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.result import BlindSpot, CollectorCoverage, Coverage

PID, TID = 4242, 4243
PATH = "/data/ckpt/chk_000120.bin"


def victim(tid: int = TID, pid: int = PID) -> Victim:
    """A thread that loses 40 % of its time."""
    return Victim(
        pid=pid,
        tid=tid,
        comm="train",
        chosen_by="main_thread",
        user_pct=55,
        system_pct=5,
        runnable_pct=0,
        blocked_pct=35,
        idle_pct=5,
        lost_pct=40,
    )


def finding(
    kind: str,
    *,
    polarity: str = "abnormal",
    words: dict[str, str] | None = None,
    subject: dict[str, Any] | None = None,
    severity: str = "major",
    id: str = "f1",
    **metrics: float,
) -> Finding:
    """A finding of `kind`, on the victim where the kind is about a thread, a process or a file."""
    type_ = KINDS[kind].subject
    who: dict[str, Any] = {"type": type_}
    if type_ in {"thread", "file"}:
        who |= {"pid": PID, "tid": TID, "comm": "train"}
    if type_ == "process":
        who |= {"pid": PID, "comm": "train"}
    if type_ == "file":
        who["path"] = PATH
    if type_ == "device":
        who["device"] = "loop7"
    if type_ == "cgroup":
        who["cgroup"] = "/job"
    return Finding(
        id=id,
        kind=kind,
        subject=Subject(**(who | (subject or {}))),
        interval=Interval(start_ns=0, end_ns=10_000_000_000),
        metrics=metrics,
        attributes=words or {},
        severity=Severity(severity),
        polarity=Polarity(polarity),
    )


def coverage(*not_seen: tuple[str, str]) -> Coverage:
    """A ten-second window on a target."""
    return Coverage(
        recording="r1",
        host="node7",
        kernel="6.18.0",
        start="2025-01-01T00:00:00Z",
        window_s=10.0,
        requested_s=10.0,
        target="pid 4242 (train)",
        collectors=[
            CollectorCoverage(
                name="syscalls",
                engine="ebpf",
                why="BTF is there",
                hooks=["tp_btf/sys_enter"],
                seen=12345,
                kept=12,
                lost=0,
                proven=True,
            )
        ],
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in not_seen],
    )


def checkpoint(path: str = PATH, comm: str = "train", **changes: Any) -> Diagnosis:
    """A confirmed diagnosis of a synchronous checkpoint write, as the investigation makes them."""
    who = {"path": path, "comm": comm}
    sync = finding(
        "file.slow_sync",
        id="fileslower-1",
        subject=who,
        words={"operations": "write, fsync"},
        count=3,
        total_ms=3690,
        p50_ms=1230,
        p99_ms=1300,
        max_ms=1300,
        window_pct=36.9,
        blocked_pct=97,
        runnable_pct=0,
        oncpu_pct=3,
        period_s=3.2,
        episodes=3,
        episode_ms=1230,
        episode_max_ms=1300,
        episode_bytes=50 * 1024 * 1024,
    )
    off = finding(
        "offcpu.blocked",
        id="offcputime-1",
        subject=who,
        words={"syscall": "fsync", "state": "D", "kernel_path": "ext4_sync_file < vfs_fsync"},
        count=3,
        total_ms=3600,
        max_ms=1290,
        window_pct=36,
    )
    device = finding("block.slow_io", id="biolatency-1", polarity="normal", p50_ms=1, max_ms=3, count=90)
    values: dict[str, Any] = {
        "id": "d1",
        "created": "2025-01-01T00:00:12Z",
        "target": "pid 4242 (train)",
        "symptom": "",
        "verdict": Verdict.CONFIRMED,
        "cause": "sync_checkpoint_write",
        "severity": Severity.CRITICAL,
        "victim": victim(),
        "culprit": Culprit(
            pid=PID,
            tid=TID,
            comm=comm,
            path=path,
            syscall="fsync",
            operations="write, fsync",
            kernel_path="ext4_sync_file < vfs_fsync",
            count=3,
            latency_ms=1230,
            max_ms=1300,
            period_s=3.2,
            window_pct=36.9,
        ),
        "explained_pct": 92.3,
        "chain": ["fileslower-1", "offcputime-1"],
        "assessments": [
            Assessment(
                cause="sync_checkpoint_write",
                state=CauseState.SUPPORTED,
                explained_pct=92.3,
                for_=["fileslower-1", "offcputime-1"],
                by=["fileslower", "offcputime"],
            ),
            Assessment(cause="slow_device", state=CauseState.RULED_OUT, against=["biolatency-1"], by=["biolatency"]),
        ],
        "findings": [sync, off, device],
        "steps": [
            Step(
                tools=["fileslower", "offcputime", "biolatency"],
                why="first_look",
                window_s=10,
                findings=["fileslower-1", "offcputime-1", "biolatency-1"],
                status={"fileslower": "ok", "offcputime": "ok", "biolatency": "ok"},
            )
        ],
        "coverage": [coverage(("mmap_faults", ""))],
    }
    return Diagnosis(**(values | changes))


def match() -> Match:
    """A past incident with a reason."""
    return Match(
        incident="sync-checkpoint-gemini",
        title=Words(en="Checkpoints stall training", zh="检查点使训练停顿"),
        how="signature",
        shared=["cause:sync_checkpoint_write"],
        rank=1,
    )


def own(id: str = "mine", **changes: object) -> Incident:
    """A card of the user's own, of no known cause."""
    text = Words(en="The frobnicator waits", zh="等待")
    values: dict[str, object] = {
        "id": id,
        "title": text,
        "symptom": text,
        "cause": None,
        "root_cause": text,
        "fix": text,
        "source": "me",
    }
    return Incident.model_validate(values | changes)
