"""Search by words, and matching of a case with past incidents."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from making import checkpoint, coverage, finding, own, victim

from whystall.knowledge_base import feedback, seeding
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.evidence import Evidence, evidence_from, evidence_of
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import (
    Assessment,
    CauseState,
    Culprit,
    Diagnosis,
    Feedback,
    Incident,
    Match,
    Verdict,
    Words,
)
from whystall.knowledge_base.signatures import GENERIC_KINDS
from whystall.knowledge_base.store import KnowledgeBase
from whystall.knowledge_base.tokens import terms
from whystall.tools.contract.kinds import KINDS


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base as it is when it was just made: making one takes longer than most of these tests."""
    path = tmp_path_factory.mktemp("shipped") / "k.db"
    KnowledgeBase(path).close()
    return path


@pytest.fixture
def kb(tmp_path: Path, shipped: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(Path(shutil.copy(shipped, tmp_path / "k.db"))) as base:
        yield base


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


def test_a_question_in_one_language_finds_an_incident_in_the_other(kb: KnowledgeBase) -> None:
    kb.cards.add(own(symptom=Words(en="zzz the checkpoint hangs", zh="zzz"), title=Words(en="zzz", zh="zzz")))
    found = {m.incident: m.shared for m in kb.search("检查点 卡住", limit=50)}
    assert {"word:checkpoint", "word:hang"} <= set(found["mine"])


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ("ｃｈｅｃｋｐｏｉｎｔ　ＦＳＹＮＣ ｂｌｏｃｋｓ ｔｒａｉｎｉｎｇ", "checkpoint fsync blocks training"),
        ("訓練寫檢查點時卡住，顯卡空閒", "训练写检查点时卡住，显卡空闲"),
        ("容器 CPU 配額 限流", "容器 CPU 配额 限流"),
        ("check\u200bpoint \ufefffsync", "checkpoint fsync"),
    ],
)
def test_other_forms_of_a_character_find_the_same(kb: KnowledgeBase, typed: str, plain: str) -> None:
    found = kb.search(plain)
    assert found
    assert [(m.incident, m.weak) for m in kb.search(typed)] == [(m.incident, m.weak) for m in found]


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
    kb.cards.add(own(symptom=Words(en="near the reactor", zh="近")))
    assert "mine" in [m.incident for m in kb.search("NEAR")]
    assert kb.search("qwertyuiop") == []


def test_rare_words_are_found_in_a_long_text(kb: KnowledgeBase) -> None:
    kb.cards.add(own())
    seen = Counter(word for i in curated() for word in set(terms(i.symptom.en + " " + i.fix.en).words))
    common = [word for word, count in seen.items() if count > 1 and not word.startswith("c_")][:400]
    assert len(common) > 100
    assert "mine" in [m.incident for m in kb.search(" ".join([*common[:80], "frobnicator"]), limit=1000)]


# --- matching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", sorted(load_causes()))
def test_every_cause_matches_its_incidents(kb: KnowledgeBase, cause: str) -> None:
    found = kb.match(caused_by(cause))
    assert found
    assert [m.rank for m in found] == list(range(1, len(found) + 1))
    for match in found:
        assert (match.how, match.known) == ("evidence", False)  # a cause is no incident
        assert f"cause:{cause}" in match.shared
        assert kb.cards.get(match.incident).cause == cause


def test_a_shared_system_call_raises_the_rank_and_is_shown(kb: KnowledgeBase) -> None:
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


def test_a_fault_that_no_tool_measures_is_recognised_when_it_is_told_again(kb: KnowledgeBase) -> None:
    told = "each rank logs Gizmo 4711 and the fan of the loom stops; the loom is cold"
    blocked = finding("offcpu.blocked", words={"syscall": "read"}, window_pct=40)
    case = {"cause": None, "culprit": None, "verdict": Verdict.INCONCLUSIVE, "chain": [], "findings": [blocked]}
    first = kb.remember(checkpoint(id="a1", symptom=told, **case), ticket=True)
    assert first.matches == []
    assert first.ticket is not None
    card = kb.tickets.resolve(first.ticket, "oil the loom", "ann").card
    again = "Gizmo 4711 in the log of a rank; the loom is cold, its fan stops"
    other = finding("offcpu.blocked", words={"syscall": "poll"}, subject={"comm": "other"}, window_pct=50)
    match = kb.match(checkpoint(id="a2", symptom=again, victim=victim(7, 7), **(case | {"findings": [other]})))[0]
    assert (match.incident, match.how, match.known, match.weak) == (card, "text", False, False)
    # With a cause, or with one of the card ruled out, words are no reason.
    assert card not in [m.incident for m in kb.match(checkpoint(id="a3", symptom=again))]
    put(kb, kb.cards.get(card or "").model_copy(update={"cause": "slow_device"}))
    out = checkpoint(id="a4", symptom=again, **(case | {"findings": [other]}))  # `slow_device` is ruled out
    assert kb.match(out) == []


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
    assert kb.cards.get(kb.search(told)[0].incident).cause == "page_cache_thrash"
    reads = finding("file.slow_read", window_pct=6)
    case = checkpoint(cause="kernel_cpu_in_syscall", symptom=told, culprit=None, chain=[], findings=[reads])
    assert {kb.cards.get(m.incident).cause for m in kb.match(case)} == {"kernel_cpu_in_syscall"}


def test_generic_kinds_are_kinds() -> None:
    assert set(KINDS) >= GENERIC_KINDS
    assert any(p.kind not in GENERIC_KINDS for c in load_causes().values() for p in c.primary)


def test_a_resolved_ticket_is_recognised(kb: KnowledgeBase) -> None:
    ticket = kb.tickets.draft(checkpoint(symptom="loss of time every fifth step"))
    kb.tickets.resolve(ticket.id, "moved checkpoints to local NVMe", "ann")
    again = checkpoint("/data/ckpt/chk_000999.bin", id="d2")
    first = kb.match(again)[0]
    assert first.incident == "ticket-1"
    assert [key.partition(":")[0] for key in first.shared[:2]] == ["fault", "finding"]
    lesson = kb.cards.get("ticket-1")
    assert lesson.origin == "ticket"
    assert lesson.fix.en == "moved checkpoints to local NVMe"
    elsewhere = kb.match(checkpoint("/elsewhere/model.pt", comm="other", id="d3"))
    assert not any(key.startswith(("fault:", "finding:")) for match in elsewhere for key in match.shared)


# --- stages and states --------------------------------------------------------------------------------------------


def like(id: str, of: Diagnosis, **changes: object) -> Incident:
    """A card with the evidence of `of`."""
    known = evidence_of(of)
    told = [f for f in known.features if not f.startswith("kind:")]
    kinds = [f.partition(":")[2] for f in known.features if f.startswith("kind:")]
    return own(id, cause=of.cause, signatures=list(known.signatures), features=told, kinds=kinds, **changes)


def found(kb: KnowledgeBase, diagnosis: Diagnosis) -> dict[str, Match]:
    return {m.incident: m for m in kb.match(diagnosis)}


def put(kb: KnowledgeBase, *cards: Incident) -> None:
    with kb._file.write() as db:
        for card in cards:
            put_incident(db, card)


@pytest.mark.parametrize(("state", "known"), [("reviewed", True), ("draft", False)])
def test_only_a_reviewed_card_is_known(kb: KnowledgeBase, state: str, known: bool) -> None:
    put(kb, like("mine", checkpoint(), state=state))
    first = kb.match(checkpoint(id="d2"))[0]
    assert (first.incident, first.how, first.known, first.state) == ("mine", "signature", known, state)
    assert first.fix == (own().fix if known else None)


def test_a_retired_card_is_found_by_nothing(kb: KnowledgeBase) -> None:
    put(kb, like("mine", checkpoint()))
    assert "mine" in found(kb, checkpoint(id="d2"))
    put(kb, like("mine", checkpoint(), state="retired"))
    assert "mine" not in found(kb, checkpoint(id="d2"))
    assert kb.search("frobnicator") == []
    assert kb.cards.get("mine").state == "retired"


def test_imported_drafts_do_not_hide_reviewed_cards(kb: KnowledgeBase) -> None:
    drafts = [like(f"foreign{n}", checkpoint(), state="draft", origin="user") for n in range(120)]
    put(kb, like("mine", checkpoint()), *drafts)
    first, *others = kb.match(checkpoint(id="d2"))
    assert (first.incident, first.known) == ("mine", True)
    assert not any(m.known for m in others)


def test_the_same_fault_counts_more_than_the_same_sort_of_fault(kb: KnowledgeBase) -> None:
    elsewhere = checkpoint("/elsewhere/model.pt", comm="other", id="d1")
    put(kb, like("another-job", elsewhere), like("same-job", checkpoint()))
    matches = kb.match(checkpoint("/data/ckpt/chk_000999.bin", id="d3"))
    assert (matches[0].incident, matches[0].known) == ("same-job", True)
    assert all(not m.known for m in matches[1:])
    assert [m.rank for m in matches] == list(range(1, len(matches) + 1))


def case_of(
    cause: str = "cpu_contention", host: str = "node1", comm: str = "python3", id: str = "d1", **culprit: object
) -> Diagnosis:
    """A case of `comm` on `host`, of whose culprit only that is known."""
    file = {"path": culprit["path"]} if "path" in culprit else {}
    kind, words = ("file.slow_read", {}) if file else ("offcpu.blocked", {"syscall": str(culprit.get("syscall", ""))})
    waits = finding(kind, subject={"comm": comm, **file}, words={k: v for k, v in words.items() if v}, window_pct=40)
    return checkpoint(
        id=id, cause=cause, culprit=Culprit.model_validate({"comm": comm, **culprit}), chain=["f1"], findings=[waits],
        victim=victim().model_copy(update={"comm": comm}), assessments=[],
        coverage=[coverage().model_copy(update={"host": host})],
    )  # fmt: skip


SAME_ON_ITS_HOST = [
    {"comm": "vllm"},
    {"cause": "slow_device", "device": "sda"},
    {"cause": "slow_device", "comm": "vllm", "device": "sda", "path": "/data/shards/s_1.tar"},  # another disk there
    {"cgroup": "/slurm/job_17"},
    {"cause": "lock_wait", "syscall": "futex", "code": "save (/srv/train.py:212)"},
    {"cause": "slow_file_read", "path": "/tmp/cache/a.bin"},
]


@pytest.mark.parametrize("what", SAME_ON_ITS_HOST)
def test_what_exists_on_one_host_is_known_there_only(kb: KnowledgeBase, what: dict[str, str]) -> None:
    put(kb, like("mine", case_of(**what)))
    assert found(kb, case_of(**what, id="d2"))["mine"].known
    assert not any(m.known for m in kb.match(case_of(**what, host="node2", id="d3")))


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"cause": "kernel_cpu_in_syscall", "syscall": "getrandom"},
        {"cgroup": "/user.slice/user-0.slice/session-3.scope"},
        {"cause": "metadata_stall", "path": "/usr/lib/python3.11/site-packages/torch/__init__.py"},
        {"cause": "slow_file_read", "path": "/dev/shm/torch_17_1"},
    ],
)
def test_what_any_job_may_have_is_no_known_incident(kb: KnowledgeBase, what: dict[str, str]) -> None:
    put(kb, like("mine", case_of(**what)))
    here = found(kb, case_of(**what, id="d2"))["mine"]
    assert (here.how, here.known, here.fix) == ("signature", False, None)
    assert not any(m.known for m in kb.match(case_of(**what, host="node2", id="d3")))


@pytest.mark.parametrize("type", ["rank", "job"])
def test_of_ranks_a_host_and_the_work_of_its_rank_are_the_same(kb: KnowledgeBase, type: str) -> None:
    def case(host: str | None, work: str, id: str) -> Diagnosis:
        who = victim().model_copy(update={"type": type, "host": host, "rank": 2 if host else None, "comm": ""})
        return case_of("slow_rank_compute", id=id, name=work).model_copy(update={"victim": who})

    first = "node7" if type == "rank" else None
    put(kb, like("mine", case(first, "aten::matmul", "d1")))
    assert found(kb, case(first, "aten::matmul", "d2"))["mine"].known == (type == "rank")
    assert not found(kb, case(first, "AddmmBackward0", "d3"))["mine"].known
    assert not found(kb, case("node8", "aten::matmul", "d4"))["mine"].known


def test_a_guess_and_a_rejected_card_are_not_known(kb: KnowledgeBase) -> None:
    put(kb, like("mine", checkpoint()))
    assert found(kb, checkpoint(id="d2", verdict=Verdict.LIKELY))["mine"].known
    assert not found(kb, checkpoint(id="d2", verdict=Verdict.INCONCLUSIVE))["mine"].known
    unexplained = found(kb, checkpoint(id="d2", verdict=Verdict.INCONCLUSIVE, cause=None))["mine"]
    assert (unexplained.how, unexplained.known) == ("signature", False)
    with kb._file.write() as db:
        for n in range(3):
            feedback.put(db, Feedback(incident="mine", diagnosis=f"w{n}", verdict="wrong", at="2026-01-01T00:00:00Z"))
    assert not found(kb, checkpoint(id="d2"))["mine"].known


@pytest.mark.parametrize(
    "contradicting",
    [
        {"cause": "slow_device"},
        {"cause": None, "assessments": [Assessment(cause="sync_checkpoint_write", state=CauseState.RULED_OUT)]},
    ],
)
def test_what_contradicts_is_no_match(kb: KnowledgeBase, contradicting: dict[str, object]) -> None:
    put(kb, like("mine", checkpoint()))
    assert "mine" in found(kb, checkpoint(id="d2", cause=None, culprit=None))
    assert "mine" not in found(kb, checkpoint(id="d2", **contradicting))


def test_a_card_whose_findings_were_all_measured_and_normal_is_no_match(kb: KnowledgeBase) -> None:
    put(kb, own(kinds=["file.slow_sync"], features=["op:msync"]))
    told = {"features": ["op:msync"], "symptom": "the frobnicator waits"}
    normal = finding("file.slow_sync", polarity="normal", window_pct=1)
    odd = evidence_from([finding("file.slow_sync", window_pct=30)], **told)
    assert "mine" in [m.incident for m in kb.similar(odd)]
    assert "mine" not in [m.incident for m in kb.similar(evidence_from([normal], **told))]


def test_words_alone_are_no_reason_and_unlike_evidence_is_none(kb: KnowledgeBase) -> None:
    assert kb.similar(Evidence(symptom="the checkpoint blocks training in fsync")) == []
    many = ["kind:file.slow_sync", "kind:offcpu.lock_wait", "kind:memory.swap", "kind:irq.steal", "kind:link.slow"]
    put(kb, own(kinds=["file.slow_sync"]))
    assert "mine" in [m.incident for m in kb.similar(Evidence(features=("kind:file.slow_sync",)), limit=100)]
    nearest = kb.similar(Evidence(features=tuple(many)), limit=100)
    assert len(nearest) == 3  # named, and as no more than that
    assert all((m.weak, m.known, m.fix) == (True, False, None) for m in nearest)


def test_nothing_known_of_a_case_matches_nothing(kb: KnowledgeBase) -> None:
    assert kb.similar(Evidence()) == []
    assert kb.similar(evidence_from(features=["", ":", "op:", "nonsense:x", "kind:nonsense", "\0"])) == []


def test_the_checks_that_decided_and_did_not_run_are_named(kb: KnowledgeBase) -> None:
    put(kb, like("mine", checkpoint(), checks=["fileslower", "syscall_time", "cpu_profile"]))
    assert found(kb, checkpoint(id="d2"))["mine"].unchecked == ["syscall_time", "cpu_profile"]  # fileslower ran
    given = kb.similar(evidence_from(features=evidence_of(checkpoint()).features, ran=["cpu_profile"]))
    assert next(m.unchecked for m in given if m.incident == "mine") == ["fileslower", "syscall_time"]


def test_the_later_one_goes_first_only_where_evidence_is_equal(kb: KnowledgeBase) -> None:
    case = checkpoint("/elsewhere/x.bin", comm="other", created="2026-01-10T00:00:00Z", culprit=None, chain=[])
    bare = {"signatures": [], "symptom": Words(en="zzz", zh="zzz")}
    twins = [like(id, case).model_copy(update=bare) for id in ("older", "newer")]
    less = like("less", case).model_copy(update={**bare, "features": [], "kinds": []})
    put(kb, *twins, less)
    with kb._file.write() as db:
        for id, seen in [("older", "2025-06-01"), ("newer", "2026-01-09"), ("less", "2026-01-10")]:
            db.execute("INSERT INTO occurrences VALUES (?, 'diagnosis:x', ?, '')", [id, f"{seen}T00:00:00Z"])

    def order() -> list[str]:
        return [
            m.incident for m in kb.similar(evidence_of(case), limit=100) if m.incident in ("older", "newer", "less")
        ]

    assert order() == ["newer", "older", "less"]
    with kb._file.write() as db:
        db.execute("UPDATE occurrences SET seen = '2026-01-10T00:00:00Z' WHERE incident = 'older'")
    assert order() == ["older", "newer", "less"]


def test_a_flagged_card_ranks_below_equals_and_is_marked(kb: KnowledgeBase) -> None:
    put(kb, like("twin", checkpoint()), like("mine", checkpoint()))
    assert kb.match(checkpoint(id="d2"))[0].incident == "mine"  # of equals the later one
    with kb._file.write() as db:
        for n in range(12):
            feedback.put(db, Feedback(incident="mine", diagnosis=f"w{n}", verdict="wrong", at="2026-01-01T00:00:00Z"))
    first, second, *others = kb.match(checkpoint(id="d2"))
    assert (first.incident, first.record.flagged) == ("twin", False)
    assert (second.incident, second.record.flagged) == ("mine", True)
    assert others
    assert {m.how for m in others} <= {"signature", "evidence"}


# --- the index ----------------------------------------------------------------------------------------------------


def counts(kb: KnowledgeBase) -> tuple[dict[str, int], dict[str, int]]:
    with kb._file.read() as db:
        kept = dict(db.execute("SELECT feature, cards FROM feature_counts").fetchall())
        real = dict(db.execute("SELECT feature, count(*) FROM features GROUP BY feature").fetchall())
        real[""] = db.execute("SELECT count(*) FROM incidents").fetchone()[0]
    return kept, real


def test_counts_follow_the_cards(kb: KnowledgeBase) -> None:
    dice = random.Random(11)
    ids = [f"c{n}" for n in range(12)]
    for _ in range(60):
        id = dice.choice(ids)
        told = [f"op:{dice.choice(['fsync', 'msync', 'mmap'])}", f"fs:{dice.choice(['nfs', 'xfs'])}"]
        state = dice.choice(["reviewed", "draft", "retired"])
        if dice.random() < 0.3:
            with kb._file.write() as db:
                db.execute("DELETE FROM incidents WHERE id = ?", [id])
        else:
            put(kb, own(id, features=told, state=state, signatures=["xid:79"], cause="lock_wait"))
    kept, real = counts(kb)
    assert kept == real
    with kb._file.write() as db:
        db.execute("DELETE FROM incidents")
    assert {f: n for f, n in counts(kb)[0].items() if n} == {}
    assert kb.search("checkpoint") == []


def test_a_changed_glossary_reaches_cards_that_were_stored_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KnowledgeBase(tmp_path / "k.db") as kb:
        kb.cards.add(own())
        with kb._file.write() as db:
            db.execute("UPDATE incidents SET symptom = '', later = '', concepts = '' WHERE id = 'mine'")
        assert kb.search("frobnicator") == []
    monkeypatch.setattr(seeding, "index_hash", lambda: "newer")
    with KnowledgeBase(tmp_path / "k.db") as kb:
        assert [m.incident for m in kb.search("frobnicator")] == ["mine"]
        assert counts(kb)[0] == counts(kb)[1]


def test_a_key_put_on_a_card_by_a_person_matches_exactly(kb: KnowledgeBase) -> None:
    put(kb, own(signatures=["xid:79"]))
    [match] = kb.similar(Evidence(signatures=("xid:79", "xid:80")))
    assert (match.how, match.shared, match.known) == ("signature", ["xid:79"], True)
    assert kb.similar(Evidence(signatures=("xid:7",))) == []


# --- any text -----------------------------------------------------------------------------------------------------


def _texts(count: int) -> Iterator[str]:
    """Text of all sorts: words of cards, operators, other planes and halves of characters."""
    dice = random.Random(3)
    bits = [*terms(" ".join(i.symptom.en for i in curated())).words[:80], "AND", "OR", "NOT", "NEAR(", "*", '"', "^"]
    bits += [
        "\0",
        "\udc80",
        "\U0001f600",
        "检查点",
        "卡住",
        ":",
        "symptom:",
        "-",
        "(",
        "c_",
        "_",
        "%",
        "'",
        ";",
    ]
    for _ in range(count):
        yield dice.choice(["", " ", "\n"]).join(dice.choices(bits, k=dice.randrange(40)))


def test_any_symptom_text_changes_only_the_order(kb: KnowledgeBase) -> None:
    put(kb, like("mine", checkpoint()))
    plain = evidence_of(checkpoint(id="d2"))
    expected = {m.incident for m in kb.similar(plain, limit=100)}
    for text in _texts(60):
        matches = kb.similar(replace(plain, symptom=text), limit=100)
        assert {m.incident for m in matches} == expected
        for match in kb.search(text, limit=3):
            assert (match.how, match.known, match.unchecked == match.unchecked) == ("text", False, True)
            assert match.shared


def test_a_hundred_thousand_different_words_are_few_queries(kb: KnowledgeBase) -> None:
    asked = 0

    def count(statement: str) -> None:
        nonlocal asked
        asked += statement.startswith("SELECT")

    kb._file._connection.set_trace_callback(count)
    kb.search(" ".join(f"w{n}" for n in range(100_000)))
    kb._file._connection.set_trace_callback(None)
    assert 0 < asked < 600


def test_a_question_that_shares_one_common_word_is_not_answered(kb: KnowledgeBase) -> None:
    for question in ("git lfs quota exceeded", "slurm 任务一直 pending", "loss goes nan at step 3000"):
        assert all(m.weak for m in kb.search(question)), question
    for question in (
        "one thread of the trainer is 100% sys time in getrandom, no disk io at all",
        "某个核被 NET_RX 软中断打满，绑在上面的线程比别的慢",
    ):
        assert not kb.search(question)[0].weak, question
