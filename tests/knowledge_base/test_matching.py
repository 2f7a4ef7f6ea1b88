"""Searching by words, and matching a case with past incidents: what is found, what is refused, and why."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import checkpoint, finding

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.evidence import Evidence, evidence_from, evidence_of
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Culprit, Diagnosis, Incident, Words
from whystall.knowledge_base.signatures import GENERIC_KINDS
from whystall.knowledge_base.store import KnowledgeBase
from whystall.knowledge_base.tokens import terms
from whystall.tools.contract.kinds import KINDS


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(tmp_path / "k.db") as base:
        yield base


def own(id: str = "mine", **changes: object) -> Incident:
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


def caused_by(cause: str) -> Diagnosis:
    return checkpoint(cause=cause, chain=[], findings=[], culprit=Culprit(comm="train"))


# --- search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("训练 写检查点 卡住 GPU 空闲", "checkpoint"),
        ("checkpoint fsync blocks training", "checkpoint"),
        ("NCCL 看门狗 超时 保存", "checkpoint-nccl-timeout-torchtune"),
        ("容器 CPU 配额 限流", "kubernetes-cfs-throttling"),
        ("pod throttled nr_throttled", "kubernetes-cfs-throttling"),
        ("随机数 getrandom", "random-bytes-from-the-kernel"),
        ("共享内存 总线错误", "shm-too-small-bus-error"),
        ("SIGBUS in dataloader, /dev/shm", "shm-too-small-bus-error"),
        ("GIL", "serving-gil-contention-vllm"),
        ("分词器 fork 死锁", "tokenizer-fork-deadlock"),
        ("云盘 突发 变慢", "cloud-volume-burst-credits"),
    ],
)
def test_both_languages_find_the_incident(kb: KnowledgeBase, question: str, expected: str) -> None:
    found = [m.incident for m in kb.search(question, limit=3)]
    assert any(id.startswith(expected) for id in found[:2]), found


def test_a_question_in_one_language_finds_an_incident_told_in_the_other(kb: KnowledgeBase) -> None:
    kb.add_incident(own(symptom=Words(en="zzz the checkpoint hangs", zh="zzz"), title=Words(en="zzz", zh="zzz")))
    found = {m.incident: m.shared for m in kb.search("检查点 卡住", limit=50)}
    assert {"word:checkpoint", "word:hang"} <= set(found["mine"])


HOSTILE = [
    "",
    "   ",
    "\0",
    "a\0b",
    '"',
    "it's",
    "AND",
    "x OR",
    "NOT checkpoint",
    "copy-on-write",
    "title:copy",
    "words : fsync",
    "C++ a.b num_workers=2 GPU 100% x*",
    "NEAR(a b, 2)",
    "{words grams}: x",
    "^fsync + x",
    "(((((",
    "'; DROP TABLE incidents; --",
    "\udcff\ud800",
    "😀",
    "，。！",
    "的",
    "checkpoint " * 20_000,
    "检查点" * 5_000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_read_as_a_query(kb: KnowledgeBase, text: str) -> None:
    assert len(kb.search(text, limit=3)) <= 3


def test_random_text_never_raises(kb: KnowledgeBase) -> None:
    dice = random.Random(7)
    pool = "ab_ \"'()*:^-+{}\0\n\\ANDORNOT检查点，ß\u202e\udcff"
    for _ in range(500):
        kb.search("".join(dice.choices(pool, k=dice.randrange(60))))


def test_operators_are_words(kb: KnowledgeBase) -> None:
    kb.add_incident(own(symptom=Words(en="near the reactor", zh="近")))
    assert [m.incident for m in kb.search("NEAR")] == ["mine"]
    assert kb.search("qwertyuiop") == []


def test_rare_words_are_found_in_a_long_text(kb: KnowledgeBase) -> None:
    kb.add_incident(own())
    seen = Counter(word for i in curated() for word in set(terms(i.symptom.en + " " + i.fix.en).words))
    common = [word for word, count in seen.items() if count > 1 and not word.startswith("c_")]
    assert len(common) > 100
    assert "mine" in [m.incident for m in kb.search(" ".join([*common, "frobnicator"]), limit=100)]


# --- matching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", sorted(load_causes()))
def test_every_cause_matches_its_incidents(kb: KnowledgeBase, cause: str) -> None:
    found = kb.match(caused_by(cause))
    assert found
    assert [m.rank for m in found] == list(range(1, len(found) + 1))
    for match in found:
        assert (match.how, match.known) == ("evidence", False)  # a cause is no incident
        assert f"cause:{cause}" in match.shared
        assert kb.get_incident(match.incident).cause == cause


def test_the_system_call_ranks_and_is_said(kb: KnowledgeBase) -> None:
    random_bytes = caused_by("kernel_cpu_in_syscall").model_copy(update={"culprit": Culprit(syscall="getrandom")})
    first, second, *_ = kb.match(random_bytes)
    assert first.incident == "random-bytes-from-the-kernel"
    assert first.shared[0] == "cause+op:kernel_cpu_in_syscall:getrandom"
    assert (first.how, first.known) == ("signature", False)  # many faults have this cause in this call
    assert second.shared == ["cause:kernel_cpu_in_syscall"]


def test_nothing_shared_means_no_match(kb: KnowledgeBase) -> None:
    blocked = finding("offcpu.blocked", words={"syscall": "read"}, window_pct=40)
    told = "checkpoint fsync disk dataloader slow hang cpu memory lock"  # words alone are no reason
    unknown = checkpoint(cause=None, culprit=None, chain=[], findings=[blocked], symptom=told)
    assert kb.search(told)
    assert kb.match(unknown) == []


def test_without_a_cause_a_telling_kind_and_words_match(kb: KnowledgeBase) -> None:
    case = checkpoint(
        cause=None,
        culprit=None,
        chain=[],
        findings=[finding("file.slow_metadata", window_pct=8)],
        symptom="启动时导入很慢",
    )
    found = kb.match(case)
    assert {(m.how, m.known) for m in found} == {("evidence", False)}
    assert all(m.shared[0] == "kind:file.slow_metadata" for m in found)
    assert "python-import-storm-shared-fs" in [m.incident for m in found]


def test_an_incident_of_another_cause_is_not_offered(kb: KnowledgeBase) -> None:
    told = "GPUs starve, data set does not fit the page cache, slow reads"
    assert kb.get_incident(kb.search(told)[0].incident).cause == "page_cache_thrash"
    reads = finding("file.slow_read", window_pct=6)
    case = checkpoint(cause="kernel_cpu_in_syscall", symptom=told, culprit=None, chain=[], findings=[reads])
    assert {kb.get_incident(m.incident).cause for m in kb.match(case)} == {"kernel_cpu_in_syscall"}


def test_generic_kinds_are_kinds() -> None:
    assert set(KINDS) >= GENERIC_KINDS
    assert any(p.kind not in GENERIC_KINDS for c in load_causes().values() for p in c.primary)


def test_a_resolved_ticket_is_recognised(kb: KnowledgeBase) -> None:
    ticket = kb.draft_ticket(checkpoint(symptom="loss of time every fifth step"))
    kb.resolve_ticket(ticket.id, "moved checkpoints to local NVMe")
    again = checkpoint("/data/ckpt/chk_000999.bin", id="d2")
    first = kb.match(again)[0]
    assert first.incident == "ticket-1"
    assert [key.partition(":")[0] for key in first.shared[:2]] == ["fault", "finding"]
    lesson = kb.get_incident("ticket-1")
    assert lesson.origin == "ticket"
    assert lesson.fix.en == "moved checkpoints to local NVMe"
    elsewhere = kb.match(checkpoint("/elsewhere/model.pt", comm="other", id="d3"))
    assert not any(key.startswith(("fault:", "finding:")) for match in elsewhere for key in match.shared)
