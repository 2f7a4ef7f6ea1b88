"""Classification by rules, incidents, words, or unknown; every field has what decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import checkpoint

from whystall.knowledge_base.classify.centroids import work_orders
from whystall.knowledge_base.classify.classifier import reclassified
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.classify.rules import UNKNOWN, categories, judge
from whystall.knowledge_base.models import Lang, Verdict
from whystall.knowledge_base.store import KnowledgeBase
from whystall.knowledge_base.ticket_models import Classification, Decision, Human, Ticket
from whystall.tools.contract.findings import Severity


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(tmp_path_factory.mktemp("kb") / "k.db") as base:
        yield base


def told(kb: KnowledgeBase, text: str, **fields: object) -> Classification:
    report = Report.model_validate({"origin": "work_order", "title": text, "created": "2026-01-01T00:00:00Z", **fields})
    return kb.classifier.classify(report).classification


@pytest.mark.thorough
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(("half", "right", "wrong"), [("tuned", 0.95, 0.02), ("held_out", 0.9, 0.04)])
def test_work_orders_of_the_catalogue(kb: KnowledgeBase, lang: Lang, half: str, right: float, wrong: float) -> None:
    orders = getattr(work_orders(lang), half)
    found = [(order.category, told(kb, order.text).category.value) for order in orders]
    assert len(found) >= 50
    assert sum(truth == given for truth, given in found) / len(found) >= right
    assert sum(given not in (truth, UNKNOWN) for truth, given in found) / len(found) <= wrong


def test_the_catalogue_has_every_category_and_what_is_unknown() -> None:
    for lang in ("en", "zh"):
        for half in ("tuned", "held_out"):
            counts = Counter(order.category for order in getattr(work_orders(lang), half))
            assert set(counts) == {*categories(), UNKNOWN}
            assert min(counts.values()) >= 3
    texts = [
        order.text for lang in ("en", "zh") for h in ("tuned", "held_out") for order in getattr(work_orders(lang), h)
    ]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("rank 37's PCIe link trained at Gen1 x16 after swap", "accelerator"),
        ("watchdog: BUG: soft lockup - CPU#47 stuck for 23s! [python3:9921]", "software"),
        ("/mnt/lustre 上 ls 一下要一分钟，MDS 负载很高", "storage"),
        ("所有节点 ssh 超时，是不是交换机重启了", "network"),
        ("堡垒机登不进去，动态口令错误", "access"),
        ("NVMe percentage_used 97 on node-3", "storage"),
        ("srun: error: Unable to create step: Requested nodes are busy", "scheduling"),
        ("py-spy 看全卡在 threading.Lock acquire", "lock"),
    ],
)
def test_the_heaviest_rule_is_of_the_right_category(text: str, first: str) -> None:
    assert judge(text)[0].category == first


def test_a_rule_returns_the_matched_words(kb: KnowledgeBase) -> None:
    found = told(kb, "host-88 报 Xid 79，显卡掉了")
    assert found.category.value == "accelerator"
    assert found.category.by == "rule:gpu-fault"
    assert "word:xid" in found.category.because
    assert found.component.value == "accelerator-fault"
    assert 0 < found.category.confidence <= 1


def test_a_cause_is_pointed_at_and_its_tools_are_named(kb: KnowledgeBase) -> None:
    report = Report(
        origin="work_order",
        title="Training stalls for 20 s every time a checkpoint is written to /mnt/nas, GPUs idle meanwhile",
        created="2026-01-01T00:00:00Z",
    )
    found = kb.classifier.classify(report)
    assert found.classification.cause is not None
    assert found.classification.cause.value == "sync_checkpoint_write"
    assert found.classification.cause.confidence < 1
    assert found.checks
    assert not any(match.weak or match.known for match in found.matches)


def test_one_incident_alone_does_not_decide(kb: KnowledgeBase) -> None:
    text = "validation dataloader workers do not come back from cv2.imdecode once in a while, linux only"
    assert not any(standing.weight >= 2 for standing in judge(text))
    found = told(kb, text).category
    assert (found.value, found.confidence) == (UNKNOWN, 0.0)
    assert "lock" in found.rivals


@pytest.mark.parametrize(
    "text",
    [
        "we could not resolve this with the vendor",
        "our time is limited",
        "the driver of this project is on leave",
        "memory of the last meeting",
        "please switch to the new template",
        "the account manager asked",
        "an exporter asked for the form",
    ],
)
def test_an_ambiguous_word_decides_nothing(kb: KnowledgeBase, text: str) -> None:
    assert told(kb, text).category.value == UNKNOWN


def test_the_nearest_incident_without_a_cause_is_no_cause(kb: KnowledgeBase) -> None:
    free = kb.cards.get("xid-63-row-remap-pending")
    assert free.cause is None
    found = kb.classifier.classify(
        Report(
            origin="work_order",
            title=free.title.en or "",
            description=free.symptom.en or "",
            created="2026-01-01T00:00:00Z",
        )
    )
    assert found.matches[0].incident == free.id
    assert found.classification.category.value == "accelerator"
    assert found.classification.cause is None
    assert found.checks == []


def test_the_severity_follows_the_text_and_the_xid_label(kb: KnowledgeBase) -> None:
    assert told(kb, "Kernel panic - not syncing on node-7").severity.value == "critical"
    assert told(kb, "GPU error", origin="alert", labels={"xid": "79"}).severity.value == "critical"
    assert (
        told(kb, "GPU error", origin="alert", labels={"xid": "79"}, source_severity="warning").severity.value == "minor"
    )


@pytest.mark.parametrize(
    "text",
    [
        "training is slow",
        "任务失败",
        "please help",
        "it hangs",
        "asdf",
        "我的任务凌晨三点挂了",
        "!!!",
        "12345",
        "\u202e\u200b",
    ],
)
def test_what_does_not_tell_is_unknown_and_by_default(kb: KnowledgeBase, text: str) -> None:
    found = told(kb, text)
    assert (found.category.value, found.category.by, found.category.confidence) == (UNKNOWN, "default", 0.0)
    assert found.component.value == UNKNOWN
    assert found.cause is None


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("this is not a network problem, the network is fine", "network"),
        ("the disk is fine and no space problem either, GPU 3 shows Xid 79", "storage"),
        ("没有 OOM，内存正常，就是保存很慢", "memory"),
        ("显卡是好的，网络没问题，读数据集很慢", "network"),
    ],
)
def test_negated_words_do_not_match(kb: KnowledgeBase, text: str, never: str) -> None:
    assert told(kb, text).category.value != never


def test_rules_that_are_even_decide_nothing_alone(kb: KnowledgeBase) -> None:
    found = told(kb, "x509 error and the invoice is wrong").category
    assert found.value == UNKNOWN
    assert {"access", "inquiry"} <= set(found.rivals)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("NodeFilesystemAlmostOutOfSpace", "storage"),
        ("NodeRAIDDegraded", "storage"),
        ("CPUThrottlingHigh", "cpu"),
        ("HostOomKillDetected", "memory"),
        ("InfiniBandLinkDown", "network"),
        ("GPUXidError", "accelerator"),
        ("KubeQuotaExceeded", "scheduling"),
        ("KubePodCrashLooping", "software"),
        ("KubeClientCertificateExpiration", "access"),
        ("KubePodNotReady", UNKNOWN),
        ("HighRequestLatency", UNKNOWN),
    ],
)
def test_names_of_alerts_are_words_written_together(kb: KnowledgeBase, name: str, category: str) -> None:
    assert told(kb, name, origin="alert", labels={"alertname": name}).category.value == category


def test_what_is_given_stands(kb: KnowledgeBase) -> None:
    given = {
        "category": Decision(value="network", by="rule:route"),
        "severity": Decision(value="info", by="rule:route"),
    }
    found = told(kb, "no space left on device /data", given=given, source_severity="critical")
    assert (found.category.value, found.severity.value) == ("network", "info")
    assert found.source_severity == "critical"


def test_hostile_text_is_only_text(kb: KnowledgeBase) -> None:
    for text in (
        "'; DROP TABLE tickets; --",
        '" OR 1=1 NEAR(',
        "{{7*7}} ${jndi:ldap://x}",
        "<script>alert(1)</script>",
        "@all /close",
    ):
        assert told(kb, text).category.by in ("default", "incidents", "words") or told(kb, text).category.because


def test_confirmed_examples_teach_words(tmp_path: Path) -> None:
    with KnowledgeBase(tmp_path / "k.db") as kb:
        text = "zorblatt frobnicator reports quux underrun on the blinkenlight panel"
        assert told(kb, text).category.value == UNKNOWN
        for n in range(3):
            kb.classifier.centroids.learn(f"zorblatt frobnicator quux underrun blinkenlight case {n}", "accelerator")
        found = told(kb, text).category
        assert (found.value, found.by) == ("accelerator", "words")
        assert found.confidence < 0.8
        assert kb.classifier.centroids.examples() == {"accelerator": 3}


def test_learning_bit_by_bit_is_learning_at_once(tmp_path: Path) -> None:
    texts = [(o.text, o.category) for o in work_orders("en").held_out if o.category != UNKNOWN]
    likes = []
    for name, order in (("a", texts), ("b", texts[::-1])):
        with KnowledgeBase(tmp_path / f"{name}.db") as kb:
            for text, category in order:
                kb.classifier.centroids.learn(text, category)
            likes.append(
                {like.category: like.cosine for like in kb.classifier.centroids.nearest("slow reads of shards")}
            )
    assert likes[0].keys() == likes[1].keys()
    assert all(likes[0][name] == pytest.approx(likes[1][name]) for name in likes[0])


# --- what follows from a diagnosis ------------------------------------------------------------------------------------


def ticket(severity: Decision, category: Decision) -> Ticket:
    told_of = Classification(category=category, component=Decision(value=UNKNOWN, by="default"), severity=severity)
    return Ticket(
        id="1",
        created="2026-01-01T00:00:00Z",
        updated="2026-01-01T00:00:00Z",
        origin="alert",
        dedup_key="2:x",
        severity=Severity(severity.value),
        category=category.value,
        component=UNKNOWN,
        classification=told_of,
        human=Human(title="x"),
    )


def test_a_diagnosis_decides_and_names_its_findings() -> None:
    diagnosis = checkpoint()
    words = Decision(value="network", by="rule:links", confidence=0.8)
    fields = reclassified(ticket(Decision(value="minor", by="default", confidence=0), words), diagnosis)
    found = fields["classification"]
    assert (fields["category"], found.category.by) == ("storage", "diagnosis")
    assert found.category.rivals == ["network"]
    assert found.cause.value == diagnosis.cause
    assert all(code.startswith("finding:") for code in found.category.because)


def test_what_a_person_set_stays_and_a_sender_is_not_contradicted_downwards() -> None:
    person = Decision(value="network", by="person:ann")
    worst = Decision(value="critical", by="label:severity")
    fields = reclassified(ticket(worst, person), checkpoint())
    assert fields["category"] == "network"
    assert fields["severity"] is Severity.CRITICAL
    assert fields["classification"].severity == worst


def test_a_diagnosis_without_a_cause_changes_nothing() -> None:
    default = Decision(value="minor", by="default", confidence=0)
    for update in ({"cause": None}, {"verdict": Verdict.HEALTHY}):
        assert reclassified(ticket(default, default), checkpoint().model_copy(update=update)) == {}


@pytest.mark.parametrize(
    ("text", "category", "component", "cause"),
    [
        ("HostEdacUncorrectableErrorsDetected", "software", "device", "hardware_error"),
        ("HostEdacCorrectableErrorsDetected", "software", "device", None),  # healthy hosts have some
        ("KubeNodeNotReady", "software", "node", None),
        ("GPU 3 has double bit ECC errors", "accelerator", "accelerator-fault", None),
    ],
)
def test_memory_of_a_host_is_no_accelerator(
    kb: KnowledgeBase, text: str, category: str, component: str, cause: str | None
) -> None:
    found = told(kb, text)
    assert (found.category.value, found.component.value) == (category, component)
    assert (found.cause.value if found.cause else None) == cause
