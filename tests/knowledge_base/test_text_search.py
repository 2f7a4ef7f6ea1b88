"""Search by text: what decides, long texts, confidence."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import own

from whystall.knowledge_base import confidence as module
from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.confidence import Signals, answers, confidence
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Words
from whystall.knowledge_base.passages import passages
from whystall.knowledge_base.store import KnowledgeBase
from whystall.knowledge_base.tokens import stem
from whystall.tools.contract.errors import ToolError

# A log that has nothing to do with any card: words of a vocabulary of its own, and codes of no card.
_PARTS = ["brn", "quil", "zet", "vorm", "hask", "plim", "drev", "oot", "skal", "wib"]


def log(lines: int, seed: int = 1) -> str:
    dice = random.Random(seed)
    names = ["".join(dice.choices(_PARTS, k=3)) for _ in range(200)]
    common = ["help", "system", "buffer", "limited", "driver", "memory", "file", "error", "state", "process", "read"]
    return "\n".join(
        f"[{n}.{dice.randrange(10**6)}] {dice.choice(names)}: {' '.join(dice.choices(names + common * 6, k=9))} {n:#x}"
        for n in range(lines)
    )


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shipped") / "k.db"
    KnowledgeBase(path).close()
    return path


@pytest.fixture
def kb(tmp_path: Path, shipped: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(Path(shutil.copy(shipped, tmp_path / "k.db"))) as base:
        yield base


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Xid 79", "fallen off the bus"),
        ("显卡掉卡怎么办", "Xid 79"),
        ("ENOSPC /dev/shm", "/dev/shm"),
        ("CUDA error: an illegal memory access", "illegal memory access"),
        ("NCCL timeout", "NCCL"),
        ("NCCL watchdog timeout", "NCCL"),
    ],
)
def test_a_short_precise_question_is_answered(kb: KnowledgeBase, question: str, expected: str) -> None:
    first = kb.search(question)[0]
    card = kb.cards.get(first.incident)
    assert expected in f"{card.title.en} {card.symptom.en} {card.root_cause.en} {card.fix.en}"
    assert not first.weak


@pytest.mark.parametrize(
    "question", ["Xid 48", "exit code 132", "help, the system is limited", "job failed", "机器坏了"]
)
def test_an_unknown_code_and_common_words_are_not_answered(kb: KnowledgeBase, question: str) -> None:
    assert all(match.weak for match in kb.search(question))


@pytest.mark.parametrize("lines", [5, 50, 2_000])
def test_no_length_of_a_log_makes_an_answer(kb: KnowledgeBase, lines: int) -> None:
    for seed in range(3):
        assert all(match.weak for match in kb.search(log(lines, seed)))


def test_a_report_is_found_before_and_after_a_long_log(kb: KnowledgeBase) -> None:
    report = "DataLoader worker is killed by signal: Bus error, in docker, df shows /dev/shm full with 64M"
    assert not kb.search(report)[0].weak
    for text in (f"{report}\n{log(200)}", f"{log(200)}\n{report}"):
        assert kb.search(text)[0].incident == "shm-too-small-bus-error"


def test_a_code_of_the_text_finds_its_card_and_is_the_first_reason(kb: KnowledgeBase) -> None:
    with kb._file.write() as db:
        put_incident(db, own(signatures=["xid:48"], symptom=Words(en="zzz qqq", zh="zzz")))
    first = kb.search("the node printed Xid (PCI:0000:3b:00): 48 tonight")[0]
    assert (first.incident, first.shared[0]) == ("mine", "xid:48")


def test_confidence_falls_with_the_rank_and_decides(kb: KnowledgeBase) -> None:
    found = kb.search("all ranks wait while rank 0 saves the checkpoint", limit=20)
    sure = [match.confidence for match in found]
    assert all(value is not None and 0 <= value <= 1 for value in sure)
    assert sure == sorted(sure, reverse=True)
    assert [match.weak for match in found] == sorted(match.weak for match in found)
    assert [m.model_dump() for m in kb.search("all ranks wait while rank 0 saves the checkpoint", limit=20)] == [
        m.model_dump() for m in found
    ]


def test_another_form_of_a_word_is_the_same(kb: KnowledgeBase) -> None:
    kb.cards.add(own(symptom=Words(en="the zorbulator stopped frobbing", zh="zzz"), title=Words(en="zorb", zh="zzz")))
    assert kb.search("zorbulators stop to frob")[0].incident == "mine"
    assert [stem(word) for word in ("hangs", "hanging", "stopped", "retries", "cache", "caches", "nr_open", "bus")] == [
        "hang", "hang", "stop", "retry", "cach", "cach", "nr_open", "bus",
    ]  # fmt: skip


def test_common_words_say_little() -> None:
    said = [informativeness(stem(word)) for word in ("help", "system", "buffer", "driver", "nccl")]
    assert said == sorted(said)
    assert said[0] < 0.2
    assert said[-1] == 1.0


def test_a_short_text_is_one_passage_and_a_long_one_few() -> None:
    assert [p.text for p in passages("a b\nc")] == ["a b\nc"]
    assert [p.text for p in passages("")] == [""]
    text = f"first line\n{log(300)}\nNVRM: Xid 79\n{log(300, 2)}"
    found = passages(text)
    assert len(found) <= 4
    assert found[0].text.startswith("first line")
    assert any("xid:79" in passage.references for passage in found[1:])
    assert len(passages("x" * 500_000)) <= 4


def test_the_stored_calibration_is_complete_and_a_broken_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing, all_of_it = (Signals(x, x, 3 * x, x / 2, x, 0, 0, 0, 0, 0, 0, 0) for x in (0.0, 1.0))
    assert confidence(nothing) < 0.05
    assert not answers(confidence(nothing))
    assert answers(confidence(all_of_it))
    file = tmp_path / "confidence.yaml"
    file.write_text("source: x\nanswer_from: 0.5\nintercept: 0\nweights: {coverage: 1}\n", "utf-8")
    monkeypatch.setattr(module, "catalog", lambda name: file)
    module._calibration.cache_clear()
    with pytest.raises(ToolError, match="each signal"):
        confidence(nothing)
    module._calibration.cache_clear()


def first(kb: KnowledgeBase, text: str) -> str | None:
    return next((match.incident for match in kb.search(text)), None)


def test_counts_kept_between_searches_are_of_the_cards_there_are_now(tmp_path: Path, kb: KnowledgeBase) -> None:
    text = "the quillwib of the zethask is stuck"
    before = kb.search(text)
    with KnowledgeBase(kb.path) as other:  # another process, as far as the file is concerned
        title = Words(en="Stuck quillwib of a zethask", zh="卡住")
        other.cards.add(own("quillwib", title=title, symptom=title))
    found = kb.search(text)
    assert "quillwib" not in [match.incident for match in before]
    assert found[0].incident == "quillwib"
    with KnowledgeBase(kb.path) as fresh:  # which has counted nothing yet
        assert fresh.search(text) == found
    kb.cards.retire("quillwib", "a trial")
    assert kb.search(text) == before


def test_counts_within_a_transaction_are_of_its_cards(kb: KnowledgeBase) -> None:
    text = "the quillwib of the zethask is stuck"
    before = kb.search(text)
    title = Words(en="Stuck quillwib of a zethask", zh="卡住")
    with kb.transaction():
        kb.cards.add(own("quillwib", title=title, symptom=title))
        assert first(kb, text) == "quillwib"
        kb.cards.retire("quillwib", "a trial")
        assert kb.search(text) == before
    assert kb.search(text) == before


def test_the_index_is_merged_after_a_large_import(kb: KnowledgeBase) -> None:
    def segments() -> int:
        with kb._file.read() as db:
            return int(db.execute("SELECT count(DISTINCT segid) FROM incidents_fts_idx").fetchone()[0])

    for number in range(3):
        kb.cards.add(own(f"one-{number}"))
    assert segments() > 1
    lines = [own(f"many-{number}", source=str(number)).model_dump_json() for number in range(60)]
    assert kb.cards.import_(io.BytesIO("\n".join(lines).encode())).added == 60
    assert segments() == 1
