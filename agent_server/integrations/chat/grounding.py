"""Check a model's chat answer against the results of its functions. Pure.

A sentence is kept if every number, name, time, id, state and machine part in it occurs in the results. Rejecting too
much is harmless: plain answers replace what is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whystall.agent_server.diagnosis.grounding.names import address, unknown, without_names
from whystall.agent_server.diagnosis.grounding.numerals import Numeral, blanked, read
from whystall.prompts.escape import Safe, markdown

LIMIT = 1500
"""Maximum characters of an answer."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d{1,2}[.)、])\s+")
_EMPHASIS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|\+\d\d:\d\d)?)?|\d\d:\d\d(?::\d\d)?", re.A)
_UNITS = {"s": ("time", 1.0), "ms": ("time", 1e-3), "pct": ("pct", 1.0), "bytes": ("size", 1.0)}
# Word before a number, and the names of result values that the number may then come from.
_ROLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(?:tickets?|incidents?|工单|事件单|故障单|#) *(?:no\.?|number|号|编号)? *[#＃]?$", ("ticket", "other")),
    (r"(?:pid|process|进程|進程) *(?:id|号)? *[:：=]? *$", ("pid", "pids")),
    (r"(?:rank|ranks) *$", ("rank",)),
)
_STATES = {
    "open": r"\bopen\b|未处理|打开着",
    "acknowledged": r"\backnowledged\b|处理中|已认领",
    "resolved": r"\bresolved\b|已(?:经)?解决",
    "closed": r"\bclosed\b|已(?:经)?关闭",
}
_NAMED_TICKET = re.compile(r"(?:tickets?|工单|#) *[#＃]?(?P<id>\d{1,9})", re.I | re.A)
# Parts of a machine and of a job; a sentence may mention only those in the results.
_PARTS = (
    r"\b(?:disks?|ssds?|nvme|block devices?|spindles?)\b|磁盘|硬盘|云盘",
    r"\b(?:storage|file ?systems?|nfs|lustre|fsync|io|i/o)\b|存储|文件系统|读写",
    r"\b(?:network\w*|nccl|hccl|rdma|infiniband|switch(?:es)?|links?|nic)\b|网络|网卡|链路|交换机|通信",
    r"\b(?:cpu|cpus|cores?|throttl\w*|quota)\b|处理器|核|限流|配额",
    r"\b(?:memory|ram|swap\w*|oom|reclaim\w*|page cache)\b|内存|换页|交换分区",
    r"\b(?:gpus?|npus?|accelerators?|cuda|kernels?|hbm|xid)\b|显卡|显存|加速卡",
    r"\b(?:locks?|deadlock\w*|mutex|gil|futex)\b|死锁|锁",
    r"\b(?:data ?loaders?|data loading|checkpoint\w*|saving)\b|数据加载|检查点",
    r"\b(?:driver|firmware|hardware|power|temperature|thermal|overheat\w*)\b|驱动|固件|硬件|温度|过热|供电",
)
_VERDICT = re.compile(r"\b(?:healthy|confirmed|likely|inconclusive)\b|健康|已确认|很可能", re.I)
# Values written by strangers; they are evidence only for sentences about a ticket.
_UNTRUSTED = frozenset({"title", "last_comment", "resolution", "asked", "name", "program", "tried", "matched"})
# Values that repeat the model's own arguments; only words that the person used count as evidence.
_ECHOES = frozenset({"asked", "tried", "matched"})
_WORD = re.compile(r"[^\s,;:()\[\]\"'`，。；：（）]+")
_PART = 3
_ASCII_WORD = re.compile(r"[\w.-]+", re.A)
_CLAIMS = re.compile(
    r"\b(?:i|we)(?:'ve| have| just|'ll| will)? (?:now |already |just |been )*"
    r"(?:resolved?|closed?|acknowledged?|assign(?:ed)?|"
    r"silenced?|muted?|killed?|restart(?:ed)?|reboot(?:ed)?|fix(?:ed)?|reopen(?:ed)?|changed?|updated?|deleted?|"
    r"stopp?(?:ed)?|escalated?|notified|paged?|contacted)\b"
    r"|(?:我|已|已经)(?:已经?|刚刚?|帮[你您]|为[你您])*(?:关闭了|解决了|认领了|转交了?|静默了?|重启了?|杀掉|修复了|通知了?|升级了)",
    re.I,
)
_ON_CALL = re.compile(r"on[ -]?call|on duty|值班|负责人", re.I)
_NOBODY = re.compile(r"\b(?:nobody|no one|no-one|none|not set up|no schedules?)\b|无人|没有人?|未设置", re.I)
_PERSON_ZH = re.compile(r"(?:是|为|由|找|联系|叫|和|与|、) *([\u4e00-\u9fff]{2,4})(?=[。，、！？；和与来负]|的|$)")
_NOT_PERSON = frozenset(("谁", "无人", "没有人", "我们", "他们", "值班", "未知", "无", "空缺", "哪位"))
_QUIET = re.compile(r"\d[\d:.,%-]*")
# Conversational phrases outside the vocabulary of findings.
_TALK = re.compile(
    r"\b(?:which|this|that|the|no|each|any|another|every|only) one\b"
    r"|\b(?:you|yours?|me|my|we|us|our|please|tomorrow|duty|hi|hello|thanks|sorry|i['’]m|i['’]ve|let['’]s)\b",
    re.I,
)
_LINK = re.compile(r"https?://|www\.|\]\(", re.I)


@dataclass(frozen=True)
class Grounded:
    """The sentences of an answer: kept ones, escaped, and rejected ones."""

    kept: list[Safe] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)


def ground(answer: str, results: Sequence[Mapping[str, Any]], person_text: str = "") -> Grounded:
    """Split `answer` into supported and rejected sentences. `person_text`: the person's messages."""
    evidence = _Evidence(results, person_text)
    kept: list[Safe] = []
    rejected: list[str] = []
    for sentence in _sentences(answer[:LIMIT]):
        if evidence.supports(sentence):
            kept.append(_escaped(sentence))
        else:
            rejected.append(sentence)
    return Grounded(kept, rejected)


def mentioned(word: str, person_text: str) -> bool:
    """Return whether `person_text` contains `word`: numbers and short words as a whole, others also inside a word,
    since Chinese has no blanks.
    """
    word, person_text = word.casefold(), person_text.casefold()
    if word.isascii() and (len(word) < _PART or word.isdigit() or _QUIET.fullmatch(word)):
        return any(word == known.strip(".-") for known in _ASCII_WORD.findall(person_text))
    return word in person_text


def _escaped(sentence: str) -> Safe:
    """Return `sentence` as Markdown, with each word that could be markup in a code span."""
    first, *others = sentence.split()
    # A number with a dot begins a list only where a line begins.
    return Safe(" ".join([markdown(first), *(word if _QUIET.fullmatch(word) else markdown(word) for word in others)]))


def _sentences(answer: str) -> Iterator[str]:
    for line in answer.splitlines():
        for part in _SENTENCE.split(_BULLET.sub("", line)):
            plain = _EMPHASIS.sub("", part).replace("`", "").strip()
            if plain:
                yield plain


class _Evidence:
    """The results of functions, indexed by kind."""

    def __init__(self, results: Sequence[Mapping[str, Any]], person_text: str) -> None:
        self._person_text = person_text
        self._values: list[tuple[str, str, float]] = []  # name, dimension, value
        self._strings: set[str] = set()
        self._trusted: set[str] = set()
        self._states: dict[str, str] = {}
        for result in results:
            self._add("", result)
        self._text, self._trusted_text = " ".join(sorted(self._strings)), " ".join(sorted(self._trusted))
        self._moments = {
            part for text in self._strings for m in _MOMENT.findall(text) for part in (m, *re.split("[T ]", m))
        }
        self._names = {name for text in self._strings for name in _names_of(text)}

    def supports(self, sentence: str) -> bool:
        """Return whether everything checkable in `sentence` is in the results."""
        if _LINK.search(sentence) or _CLAIMS.search(sentence):
            return False
        if not (self._parts_supported(sentence) and self._states_match(sentence) and self._on_call_supported(sentence)):
            return False
        text = _MOMENT.sub(lambda m: " " if self._has_moment(m[0]) else m[0], sentence)
        if _MOMENT.search(text):
            return False
        text = _TALK.sub(" ", without_names(text, self._names))
        if address(text) is not None or any(not self._has_number(number, text) for number in read(text)):
            return False
        return unknown(blanked(text)) is None

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            if isinstance(value.get("ticket"), str) and isinstance(value.get("state"), str):
                self._states[value["ticket"]] = value["state"]
            for key, inner in value.items():
                self._add(str(key), inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._add(name, inner)
            self._values.append((name, "bare", float(len(value))))
        elif isinstance(value, bool) or value is None:
            return
        elif isinstance(value, (int, float)):
            dim, factor = _UNITS.get(name.rpartition("_")[2], ("bare", 1.0)) if "_" in name else ("bare", 1.0)
            self._values.append((name, dim, float(value) * factor))
        else:
            text = self._person_words(str(value)) if name in _ECHOES else str(value)
            self._strings.add(text)
            self._trusted |= set() if name in _UNTRUSTED else {text}
            if text.isascii() and text.isdigit() and len(text) < 16:
                self._values.append((name, "bare", float(text)))
            else:
                self._values += [(name, n.dim, (low + high) / 2) for n in read(text) for low, high in n.spans[:1]]

    def _person_words(self, text: str) -> str:
        """Return the words of `text` that the person used."""
        return " ".join(word for word in _WORD.findall(text) if mentioned(word, self._person_text))

    def _has_moment(self, text: str) -> bool:
        return text in self._moments or any(known.startswith(text) for known in self._moments)

    def _has_number(self, number: Numeral, text: str) -> bool:
        """Return whether a result value of the right kind rounds to the number."""
        before = text[: number.start].rstrip() + " "
        cited = self._cites_ticket(text)
        allowed = next((names for pattern, names in _ROLES if re.search(pattern, before.rstrip(), re.I)), None)
        plain = ("bare", "count", "pid", "rank", "unit")
        for name, dim, value in self._values:
            if (allowed is not None and name not in allowed) or (name in _UNTRUSTED and not cited):
                continue
            if number.dim != dim and not (number.dim in plain and dim in plain):
                continue
            if any(low <= value <= high for low, high in number.spans):
                return True
        return False

    def _parts_supported(self, sentence: str) -> bool:
        if _VERDICT.search(sentence) and not _VERDICT.search(self._trusted_text):
            return False
        text = self._text if self._cites_ticket(sentence) else self._trusted_text
        return all(re.search(part, text, re.I) for part in _PARTS if re.search(part, sentence, re.I))

    def _cites_ticket(self, sentence: str) -> bool:
        """Return whether the sentence names a known ticket, whose texts it may then quote."""
        return any(match["id"] in self._states for match in _NAMED_TICKET.finditer(sentence))

    def _states_match(self, sentence: str) -> bool:
        """Return whether a named ticket has the named state."""
        ids = [match["id"] for match in _NAMED_TICKET.finditer(sentence)]
        if len(ids) != 1:
            return True
        states = [state for state, pattern in _STATES.items() if re.search(pattern, sentence, re.I)]
        return not states or self._states.get(ids[0]) in states

    def _on_call_supported(self, sentence: str) -> bool:
        """Return whether only people in the results are said to be on call."""
        if not _ON_CALL.search(sentence):
            return True
        left = without_names(sentence, self._names)
        for match in _PERSON_ZH.finditer(left):
            if match[1] not in _NOT_PERSON:
                return False
        return left != sentence or _NOBODY.search(sentence) is not None


def _names_of(text: str) -> Iterator[str]:
    """Yield `text` and its words as possible names."""
    if len(text) > 300:
        text = text[:300]
    for word in (text, *re.split(r"[\s,;:()\[\]\"'`，。；：（）]+", text)):
        word = word.strip(".")
        if len(word) > 1 and not word.isdigit() and re.search(r"[A-Za-z\u4e00-\u9fff]", word):
            yield word
