"""How bad somebody says it is: the words of all senders on one scale of four.

Of a word that a sender gave in a field of its own the whole word counts; in a text only words that say nothing else.
"""

from __future__ import annotations

import re

from whystall.knowledge_base.tickets.models import Decision
from whystall.knowledge_base.tokens import plain
from whystall.tools.contract.findings import Severity

# Alertmanager by convention (critical, page, warning, info, none), PagerDuty (critical, error, warning, info; urgency
# high, low; priorities P1 to P5), Grafana and GitLab (critical to info, unknown), Jira (Blocker, Highest to Lowest,
# Trivial), syslog (emergency to debug), ServiceNow and Zabbix (1 - Critical, Disaster to Not classified), sev0 to sev5;
# of desks in Chinese.
_WORDS: dict[Severity, str] = {
    Severity.CRITICAL: "critical crit page paging pager fatal emergency emerg alert panic disaster blocker highest urgent severe outage down "
    "p0 p1 s0 s1 sev0 sev1 sev-0 sev-1 priority1 严重 紧急 致命 特急 非常紧急 最高 灾难 一级 重大 红色 一类 故障级",
    Severity.MAJOR: "error err major high p2 s2 sev2 sev-2 important average priority2 错误 主要 重要 高 较高 二级 橙色 加急 高级",
    Severity.MINOR: "warning warn minor medium moderate normal low notice p3 p4 s3 s4 sev3 sev4 sev-3 sev-4 priority3 priority4 "
    "警告 告警 次要 中 一般 普通 低 较低 三级 四级 黄色 中级 低级 提醒",
    Severity.INFO: "info information informational none debug ok trivial lowest p5 s5 sev5 sev-5 priority5 cosmetic ticket "
    "信息 提示 通知 最低 五级 蓝色 无 咨询",
}
_KNOWN = {word: severity for severity, words in _WORDS.items() for word in words.split()}
# A bare number is a rank, 1 the worst, wherever somebody fills in a priority ("1 - Critical" has the word beside it).
_RANKS = {
    "0": Severity.CRITICAL,
    "1": Severity.CRITICAL,
    "2": Severity.MAJOR,
    "3": Severity.MINOR,
    "4": Severity.MINOR,
    "5": Severity.INFO,
}
_PART = re.compile(r"sev-?\d|[a-z]+\d?|\d+|[\u4e00-\u9fff]+")

# What a text itself says of how bad it is. "page" is a part of memory there, "error" of any log line, "critical" of a
# path, "high" of a latency: these say nothing.
_IN_TEXT: tuple[tuple[Severity, str, str], ...] = (
    (
        Severity.CRITICAL,
        r"(?:p[01]|sev-?[01]|s[01]) (?:incident|outage|ticket|issue)|(?<![a-z0-9])(?:sev-?[01]|p0)(?![a-z0-9])|"
        r"(?:^|[\[(【])\s*p1\s*(?:[\])】:]|\b)|\burgent(?:ly)?\b|\bemergency\b|\basap\b|\boutage\b|\bproduction (?:is )?(?:down|stopped|blocked)\b|"
        r"\b(?:all|every|entire|whole) (?:training |of the |of our |the )?(?:jobs?|nodes?|cluster|users?|services?|runs?|hosts?)\b[^.]{0,40}"
        r"\b(?:down|stopped|failed|failing|dead|stuck|hang|hung|unreachable|affected|blocked)\b|\b(?:entire|whole) cluster\b|\bdata loss\b",
        r"紧急|十万火急|特急|加急|严重故障|生产(?:环境)?(?:全部|已经|都)?(?:中断|停|挂)|全部(?:任务|作业|节点|用户)?(?:都)?(?:挂|停|失败|卡死|中断|不可用|受影响)|"
        r"(?:所有|全部|整个)(?:训练)?(?:任务|作业|节点|用户|集群|服务|机器)(?:都|全)?[^。,]{0,12}(?:挂|停|失败|卡|中断|不可用|连不上|受影响)|大面积|数据丢失|线上(?:故障|事故)|尽快处理",
    ),
    (
        Severity.INFO,
        r"\bno (?:rush|hurry)\b|\bnot urgent\b|\blow priority\b|\bwhen(?:ever)? you (?:have|find) time\b|\bjust (?:a question|curious|wondering|asking)\b|\bfyi\b|\bcosmetic\b",
        r"不(?:着急|急|紧急)|有空(?:的时候|时)?(?:看|帮)|低优先级|仅供参考|顺便问|想问一下|想咨询|请教",
    ),
)
_PATTERNS = tuple((s, re.compile(f"{en}|{zh}")) for s, en, zh in _IN_TEXT)
_DENIED = re.compile(r"(?:\bnot?\b|\bn't|不|非|没有?|别|未)[\s\w]{0,8}$")


def of_word(word: str) -> Severity | None:
    """What a sender's own word means (``page``, ``SEV-1``, ``1 - Critical``, ``严重``); None for no known word."""
    lower = plain(word).strip()
    if lower in _KNOWN:
        return _KNOWN[lower]
    parts = _PART.findall(lower)
    found = [_KNOWN[part] for part in parts if part in _KNOWN]
    if found:
        return max(found, key=lambda s: s.rank)
    ranks = [part for part in parts if part.isdigit()]
    return _RANKS.get(ranks[0]) if len(ranks) == 1 and len(parts) <= 2 else None


def severity_of(source: str, text: str) -> Decision:
    """The severity of a report that somebody calls `source`, whose words are `text`."""
    said = of_word(source) if source.strip() else None
    if said is not None:
        return Decision(value=said.value, by="label:severity", because=[f"word:{plain(source).strip()[:40]}"])
    lower = plain(text)
    mildest: Severity | None = None
    words: list[str] = []
    for severity, pattern in reversed(_PATTERNS):  # what says that it can wait is heard before what is shouted
        found = next(
            (m for m in pattern.finditer(lower) if not _DENIED.search(lower[max(0, m.start() - 12) : m.start()])), None
        )
        if found is not None:
            mildest, words = severity, [f"word:{' '.join(found[0].split())[:40]}"]
            break
    if mildest is not None:
        return Decision(value=mildest.value, by="rule:severity-words", confidence=0.8, because=words)
    return Decision(value=Severity.MINOR.value, by="default", confidence=0.0)
