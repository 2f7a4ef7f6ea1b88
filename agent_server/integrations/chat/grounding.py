"""Whether what a model says in a chat is in what its functions returned. Pure.

A sentence stays if every number, name, time, id and state in it occurs there, and if it speaks of no part of a machine
that they do not speak of. What is struck is replaced by plain answers: a sentence too few is no harm.
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
"""Characters of an answer; it is read on a phone."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d{1,2}[.)、])\s+")
_EMPHASIS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|\+\d\d:\d\d)?)?|\d\d:\d\d(?::\d\d)?", re.A)
_UNITS = {"s": ("time", 1.0), "ms": ("time", 1e-3), "pct": ("pct", 1.0), "bytes": ("size", 1.0)}
# What a number counts, as the word before it says, and the names of values that may be cited so.
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
# Parts of a machine and of a job: what is said of one must have been said by a function.
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
# What strangers wrote: it tells what a ticket is called, and nothing of this machine.
_STRANGERS = frozenset({"title", "last_comment", "resolution", "asked", "name", "program", "tried", "matched"})
# What a function says back of its arguments, which the model wrote: known of it is only what a person had said.
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
_DUTY = re.compile(r"on[ -]?call|on duty|值班|负责人", re.I)
_NOBODY = re.compile(r"\b(?:nobody|no one|no-one|none|not set up|no schedules?)\b|无人|没有人?|未设置", re.I)
_PERSON_ZH = re.compile(r"(?:是|为|由|找|联系|叫|和|与|、) *([\u4e00-\u9fff]{2,4})(?=[。，、！？；和与来负]|的|$)")
_NOT_PERSON = frozenset(("谁", "无人", "没有人", "我们", "他们", "值班", "未知", "无", "空缺", "哪位"))
_QUIET = re.compile(r"\d[\d:.,%-]*")
# Plain talk, which the words of findings do not know.
_TALK = re.compile(
    r"\b(?:which|this|that|the|no|each|any|another|every|only) one\b"
    r"|\b(?:you|yours?|me|my|we|us|our|please|tomorrow|duty|hi|hello|thanks|sorry|i['’]m|i['’]ve|let['’]s)\b",
    re.I,
)
_LINK = re.compile(r"https?://|www\.|\]\(", re.I)


@dataclass(frozen=True)
class Grounded:
    """What is left of an answer, a line for each sentence kept, escaped; and the sentences that were struck."""

    kept: list[Safe] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)


def ground(answer: str, results: Sequence[Mapping[str, Any]], said: str = "") -> Grounded:
    """`answer` without the sentences that `results` do not carry. `said`: what the person said, in this message and
    before, which may be said back.
    """
    known = _Known(results, said)
    kept: list[Safe] = []
    struck: list[str] = []
    for sentence in _sentences(answer[:LIMIT]):
        if known.carries(sentence):
            kept.append(inert(sentence))
        else:
            struck.append(sentence)
    return Grounded(kept, struck)


def was_said(word: str, said: str) -> bool:
    """Whether a person who said `said` used `word`: a number or a short word as such, others also within a longer one,
    as Chinese has no blanks.
    """
    word, said = word.casefold(), said.casefold()
    if word.isascii() and (len(word) < _PART or word.isdigit() or _QUIET.fullmatch(word)):
        return any(word == known.strip(".-") for known in _ASCII_WORD.findall(said))
    return word in said


def inert(sentence: str) -> Safe:
    """`sentence` as Markdown without markup: what might be some stands in code, word by word."""
    first, *others = sentence.split()
    # A number with a dot begins a list only where a line begins.
    return Safe(" ".join([markdown(first), *(word if _QUIET.fullmatch(word) else markdown(word) for word in others)]))


def _sentences(answer: str) -> Iterator[str]:
    for line in answer.splitlines():
        for part in _SENTENCE.split(_BULLET.sub("", line)):
            plain = _EMPHASIS.sub("", part).replace("`", "").strip()
            if plain:
                yield plain


class _Known:
    """What functions returned, by what it may be cited for."""

    def __init__(self, results: Sequence[Mapping[str, Any]], said: str) -> None:
        self._said = said
        self._values: list[tuple[str, str, float]] = []  # name, dimension, value
        self._strings: set[str] = set()
        self._own: set[str] = set()
        self._states: dict[str, str] = {}
        for result in results:
            self._take("", result)
        self._text, self._ours = " ".join(sorted(self._strings)), " ".join(sorted(self._own))
        self._moments = {
            part for text in self._strings for m in _MOMENT.findall(text) for part in (m, *re.split("[T ]", m))
        }
        self._names = {name for text in self._strings for name in _names_of(text)}

    def carries(self, sentence: str) -> bool:
        """Whether everything in `sentence` that could be wrong was returned."""
        if _LINK.search(sentence) or _CLAIMS.search(sentence):
            return False
        if not self._speaks_of_parts(sentence) or not self._states_right(sentence) or not self._duty_right(sentence):
            return False
        text = _MOMENT.sub(lambda m: " " if self._has_moment(m[0]) else m[0], sentence)
        if _MOMENT.search(text):
            return False
        text = _TALK.sub(" ", without_names(text, self._names))
        if address(text) is not None or any(not self._holds(said, text) for said in read(text)):
            return False
        return unknown(blanked(text)) is None

    def _take(self, name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            if isinstance(value.get("ticket"), str) and isinstance(value.get("state"), str):
                self._states[value["ticket"]] = value["state"]
            for key, inner in value.items():
                self._take(str(key), inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._take(name, inner)
            self._values.append((name, "bare", float(len(value))))
        elif isinstance(value, bool) or value is None:
            return
        elif isinstance(value, (int, float)):
            dim, factor = _UNITS.get(name.rpartition("_")[2], ("bare", 1.0)) if "_" in name else ("bare", 1.0)
            self._values.append((name, dim, float(value) * factor))
        else:
            text = self._echo(str(value)) if name in _ECHOES else str(value)
            self._strings.add(text)
            self._own |= set() if name in _STRANGERS else {text}
            if text.isascii() and text.isdigit() and len(text) < 16:
                self._values.append((name, "bare", float(text)))
            else:
                self._values += [
                    (name, said.dim, (low + high) / 2) for said in read(text) for low, high in said.spans[:1]
                ]

    def _echo(self, text: str) -> str:
        """The words of `text` that the person said."""
        return " ".join(word for word in _WORD.findall(text) if was_said(word, self._said))

    def _has_moment(self, text: str) -> bool:
        return text in self._moments or any(known.startswith(text) for known in self._moments)

    def _holds(self, said: Numeral, text: str) -> bool:
        """Whether a value that was returned rounds to the number, and is of what it is said to be."""
        before = text[: said.start].rstrip() + " "
        cited = self._cites(text)
        allowed = next((names for pattern, names in _ROLES if re.search(pattern, before.rstrip(), re.I)), None)
        plain = ("bare", "count", "pid", "rank", "unit")
        for name, dim, value in self._values:
            if (allowed is not None and name not in allowed) or (name in _STRANGERS and not cited):
                continue
            if said.dim != dim and not (said.dim in plain and dim in plain):
                continue
            if any(low <= value <= high for low, high in said.spans):
                return True
        return False

    def _speaks_of_parts(self, sentence: str) -> bool:
        if _VERDICT.search(sentence) and not _VERDICT.search(self._ours):
            return False
        text = self._text if self._cites(sentence) else self._ours
        return all(re.search(part, text, re.I) for part in _PARTS if re.search(part, sentence, re.I))

    def _cites(self, sentence: str) -> bool:
        """Whether it names a ticket, of which strangers may be quoted."""
        return any(match["id"] in self._states for match in _NAMED_TICKET.finditer(sentence))

    def _states_right(self, sentence: str) -> bool:
        """A ticket that is named is in the state that is named."""
        ids = [match["id"] for match in _NAMED_TICKET.finditer(sentence)]
        if len(ids) != 1:
            return True
        said = [state for state, pattern in _STATES.items() if re.search(pattern, sentence, re.I)]
        return not said or self._states.get(ids[0]) in said

    def _duty_right(self, sentence: str) -> bool:
        """Who is said to be on call was returned; nobody else is named."""
        if not _DUTY.search(sentence):
            return True
        left = without_names(sentence, self._names)
        for match in _PERSON_ZH.finditer(left):
            if match[1] not in _NOT_PERSON:
                return False
        return left != sentence or _NOBODY.search(sentence) is not None


def _names_of(text: str) -> Iterator[str]:
    """`text` as a name, whole where it is one word, and its words that are no plain ones."""
    if len(text) > 300:
        text = text[:300]
    for word in (text, *re.split(r"[\s,;:()\[\]\"'`，。；：（）]+", text)):
        word = word.strip(".")
        if len(word) > 1 and not word.isdigit() and re.search(r"[A-Za-z\u4e00-\u9fff]", word):
            yield word
