"""Severity from words of all senders and from texts."""

from __future__ import annotations

import pytest

from whystall.knowledge_base.classify.severities import severity_of, severity_of_word
from whystall.tools.contract.findings import Severity

CRITICAL, MAJOR, MINOR, INFO = Severity.CRITICAL, Severity.MAJOR, Severity.MINOR, Severity.INFO


@pytest.mark.parametrize(
    ("word", "severity"),
    [
        *[
            (word, CRITICAL)
            for word in (
                "critical",
                "page",
                "P1",
                "sev1",
                "SEV-1",
                "1 - Critical",
                "Blocker",
                "Disaster",
                "严重",
                "紧急",
                "紧急（P0）",
                "嚴重",
                "Ｐ１",
                "一级",
                "1",
            )
        ],
        *[(word, MAJOR) for word in ("error", "High", "P2", "sev2", "2 - High", "major", "高", "优先级：高", "2")],
        *[(word, MINOR) for word in ("warning", "medium", "P3", "low", "普通", "中", "3", "4")],
        *[(word, INFO) for word in ("info", "none", "P5", "Trivial", "debug", "提示", "5")],
        *[(word, None) for word in ("", "unknown", "Not classified", "banana", "42", "🔥", "${severity}")],
    ],
)
def test_words_of_senders(word: str, severity: Severity | None) -> None:
    assert severity_of_word(word) == severity


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("URGENT: login node is gone", CRITICAL),
        ("all training jobs are stuck since noon", CRITICAL),
        ("所有任务都挂了，请处理", CRITICAL),
        ("【紧急】存储不可用", CRITICAL),
        ("not urgent, please have a look", INFO),
        ("不着急，有空的时候看一下", INFO),
        ("想问一下怎么提交多机任务", INFO),
    ],
)
def test_severity_is_read_from_the_text(text: str, severity: Severity) -> None:
    found = severity_of("", text)
    assert (found.value, found.by) == (severity.value, "rule:severity-words")
    assert found.because


@pytest.mark.parametrize(
    "text",
    [
        "page faults on the critical path",
        "error 404 in a log line",
        "please raise our quota",
        "显卡报错",
        "no crash, no xid",
        "",
    ],
)
def test_without_severity_words_the_default_is_used(text: str) -> None:
    found = severity_of("", text)
    assert (found.value, found.by, found.confidence) == ("minor", "default", 0.0)


def test_the_senders_value_precedes_the_text_if_it_is_known() -> None:
    assert severity_of("low", "URGENT all jobs are down").by == "label:severity"
    assert severity_of("low", "URGENT all jobs are down").value == "minor"
    assert severity_of("banana", "URGENT all jobs are down").value == "critical"


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("Kernel panic - not syncing: Fatal exception in interrupt on node-7", CRITICAL),
        ("node-7 内核崩溃", CRITICAL),
        ("checkpoint files are corrupted after the power cut", CRITICAL),
        ("迁移之后数据丢失", CRITICAL),
        ("the shared file system is down", CRITICAL),
        ("training hangs after step 400", MAJOR),
        ("服务卡住不动了", MAJOR),
        ("GPU 3 is lost, nvidia-smi lists seven", MAJOR),
        ("one of eight ranks died and the job stopped", MAJOR),
        ("one of 64 workers crashed, the others are fine", MINOR),
        ("其他节点正常，只有一台卡住", MINOR),
        ("epochs are slower since Tuesday", MINOR),
        ("how do I run a job on two nodes", INFO),
    ],
)
def test_what_happened_is_graded_by_impact(text: str, severity: Severity) -> None:
    found = severity_of("", text)
    assert found.value == severity.value
    assert found.by.startswith("rule:")
    assert found.because
    assert 0 < found.confidence < 1


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, GPU has fallen", CRITICAL),
        ("Xid 119 in dmesg", MAJOR),
        ('DCGM_FI_DEV_XID_ERRORS{gpu="3",Hostname="node7"} 79', CRITICAL),
        ("DCGM_FI_DEV_XID_ERRORS value: 119", MAJOR),
        ("xid=48", MAJOR),
        ("Xid errors 13 and 79", CRITICAL),
        ("dmesg 里有 Xid 31", MINOR),
    ],
)
def test_an_xid_counts_by_the_action_that_the_catalogue_asks_for(text: str, severity: Severity) -> None:
    found = severity_of("", text)
    assert (found.value, found.by) == (severity.value, "rule:xid-catalogue")


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("[P2] gpfs waiters > 300 s on nsd07", MAJOR),
        ("Requester: team-7 | Impact: High | iteration time doubled", MAJOR),
        ("优先级：高，读数据变慢", MAJOR),
        ("slurmctld 没响应，影响所有业务方", CRITICAL),
        ("是不是挂了", MAJOR),
        ("the node rebooted by itself", MAJOR),
        ("hello team, where do I see our GPU hours", INFO),
        ("想问下有没有现成的镜像", INFO),
    ],
)
def test_what_people_write_is_graded(text: str, severity: Severity) -> None:
    assert severity_of("", text).value == severity


@pytest.mark.parametrize("text", ["Xid 999", "Xid 1", "no Xid 79 was seen", "xid"])
def test_an_unknown_or_denied_xid_decides_nothing(text: str) -> None:
    assert severity_of("", text).by == "default"


def test_the_sender_precedes_what_happened() -> None:
    assert severity_of("info", "Kernel panic - not syncing").value == "info"
    assert severity_of("", "not urgent: one job hangs").value == "info"
