"""Typed features of findings and of cards."""

from __future__ import annotations

from typing import Any

import pytest
from making import checkpoint, finding

from whystall.knowledge_base.features import TYPES, distinctive, normalized, of_card, of_diagnosis, of_finding, unknown
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.signatures import GENERIC_KINDS


def test_a_diagnosis_yields_its_features() -> None:
    assert of_diagnosis(checkpoint()) == [
        "kind:file.slow_sync",
        "op:write",
        "op:fsync",
        "file:bin",
        "period:3",
        "frame:ext4_sync_file",
        "program:train",
    ]


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("file.slow_read", {"words": {"filesystem": "nfs4", "operations": "pread64"}}, {"fs:nfs", "op:pread"}),
        ("file.slow_read", {"words": {"filesystem": "fuse.s3fs"}}, {"fs:fuse", "fs:s3fs"}),
        ("file.slow_read", {"subject": {"path": "/dev/shm/queue"}}, {"place:shm"}),
        ("block.slow_io", {"subject": {"device": "nvme0n1"}}, {"device:nvme"}),
        ("cgroup.cpu_throttled", {"subject": {"cgroup": "/kubepods.slice/x"}, "quota_cpus": 3.5}, {"quota:4"}),
        ("cgroup.cpu_throttled", {"subject": {"cgroup": "/kubepods.slice/x"}}, {"cgroup:kubepods"}),
        ("cpu.neighbour", {"subject": {"comm": "dcgm-exporter"}}, {"neighbour:dcgm-exporter"}),
        ("irq.steal", {"words": {"interrupt": "NET_RX"}}, {"irq:net_rx"}),
        ("offcpu.lock_wait", {"words": {"code": "save (/srv/x/train.py:212)"}}, {"code:save@train.py"}),
        ("offcpu.blocked", {"words": {"kernel_path": "nfs_wait_bit.isra.0 < vfs_read"}}, {"frame:nfs_wait_bit"}),
        ("rank.mismatch", {"words": {"what": "size", "operation": "all_reduce"}}, {"mismatch:size"}),
        ("rank.mismatch", {"words": {"operation": "all_reduce"}}, {"collective:allreduce"}),
        (
            "path.wait",
            {"words": {"wait": "queue", "role": "data_loader", "root_wait": "running", "function": "f (a/train.py:4)"}},
            {"wait:queue", "role:data_loader", "root:running", "code:f@train.py"},
        ),
        ("path.running", {"words": {"mode": "garbage_collection"}}, {"mode:garbage_collection"}),
    ],
)
def test_a_finding_yields(kind: str, changes: dict[str, Any], expected: set[str]) -> None:
    assert expected <= set(of_finding(finding(kind, **changes)))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("offcpu.blocked", {"kernel_path": "vfs_fsync < ksys_read < schedule_timeout"}),
        ("offcpu.blocked", {"code": "wait (/usr/lib/python3.11/threading.py:324)"}),
        ("offcpu.blocked", {"code": "<module> (train.py:3)"}),
        ("offcpu.blocked", {"code": "\0 nonsense"}),
        ("path.running", {"mode": "user"}),
    ],
)
def test_what_is_in_every_case_is_left_out(kind: str, words: dict[str, str]) -> None:
    assert list(of_finding(finding(kind, words=words))) == []


def test_distinctive_and_supporting_features_differ() -> None:
    for feature in (
        "op:fsync",
        "kind:file.slow_sync",
        "frame:jbd2_log_wait_commit",
        "cause:lock_wait",
        "irq:net_rx",
        "wait:dns",
    ):
        assert distinctive(feature), feature
    for feature in (
        "op:read",
        "op:futex",
        "fs:ext4",
        "device:nvme",
        "file:bin",
        "period:3",
        "program:train",
        "wait:lock",
        "x",
        "",
    ):
        assert not distinctive(feature), feature
    assert not any(distinctive(f"kind:{kind}") for kind in GENERIC_KINDS)


def test_given_features_are_normalized() -> None:
    assert normalized(["op:pwrite64", " FS : NFS4 ", "kind:file.slow_sync", "device:NVMe"]) == [
        "op:pwrite",
        "fs:nfs",
        "kind:file.slow_sync",
        "device:nvme",
    ]
    odd = ["", ":", "op:", "kind:gremlins", "colour:blue", "sig:finding:1", "cause:lock_wait", "\0"]
    assert normalized(odd) == []
    assert unknown(["op:fsync", *odd]) == odd


def test_values_are_short_and_plain() -> None:
    [value] = normalized(["frame:" + "é\x1b[31m'\"; DROP" * 50])
    assert len(value) <= 90
    assert value.isprintable()
    assert not set(value) & set(" '\";\x1b")


def test_curated_cards_say_only_what_is_known() -> None:
    for incident in curated():
        assert unknown(incident.features) == [], incident.id
        assert all(f.partition(":")[0] in {*TYPES, "kind", "cause"} for f in of_card(incident)), incident.id
