"""Check that the names in a sentence are those of the findings it cites. Pure.

A name is anything but a plain word: a path, command, function, device, address, or quoted text. Names of the findings
are blanked first; what then looks like a name, or is no English word, is unknown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from whystall.agent_server.diagnosis.grounding.numerals import read
from whystall.bpf import syscalls
from whystall.knowledge_base.components import path_codes_of
from whystall.knowledge_base.lexicon import plain_word
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import KINDS, Mechanism
from whystall.tools.node.containers import SHORT
from whystall.tools.toolbox import registry

_QUOTED = re.compile(
    r"`+([^`]*)`+|\"([^\"]*)\"|“([^”]*)”|「([^」]*)」|『([^』]*)』|《([^》]*)》|‘([^’]*)’|"
    r"(?<![A-Za-z0-9])'([^']*)'(?![A-Za-z0-9])"
)
# Characters allowed besides letters and digits; Markdown, shells and mark-up need others.
_PUNCTUATION = set(" .,;:!?()'\"-–—/%+=&~≈≥≤<>→×…·“”‘’、，。；：！？（）《》「」『』%−")
_ACRONYM = re.compile(r"(?:CPU|GPU|NPU|PID|TID|IRQ)S?|IO|RAM|ID|PSI|OK|NUMA|OS|FS|VS|I|A")
_FORM = re.compile(r"p50|p99|99th|i/o|read/write|and/or|open/close|e\.g|i\.e|etc|vs|incl|approx|resp|cf")
_PREFIXES = ("re", "pre", "non", "un", "sub", "co", "de", "inter", "intra", "multi", "semi", "per")
_ENDINGS = ("'s", "’s", "n't", "n’t", "s'")
_OF_KIND = {
    "file.slow_sync": "fsync fsyncs fdatasync msync sync sync_file_range",
    "file.slow_read": "read pread pread64 readv preadv",
    "file.slow_write": "write pwrite pwrite64 writev pwritev",
    "file.slow_metadata": "open openat stat statx rename unlink mkdir close getdents",
    "offcpu.lock_wait": "futex futexes",
    "offcpu.preempted": "preempt",
}
# Common names of the codes of rows of critical paths.
_OF_CODE = {
    "interpreter_lock": "GIL",
    "garbage_collection": "GC gc",
    "dns": "DNS",
    "socket": "TCP recv recvfrom recvmsg",
    "socket_full": "TCP send sendto sendmsg",
    "events": "epoll epoll_wait poll select",
    "sleep": "nanosleep clock_nanosleep",
    "lock": "futex mutex",
    "queue": "futex",
    "queue_full": "futex",
    "barrier": "OpenMP",
    "child": "wait4 waitpid",
    "stopped": "SIGSTOP SIGTSTP",
    "traced": "ptrace",
    "page_fault": "mmap",
    "file_lock": "flock fcntl",
}
# 10.0.0.7, 10.0.0.7:5432, fe80::1
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?|[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}", re.IGNORECASE)
_CODED = ("wait", "root_wait", "main_wait", "mode", "role")  # attributes of paths that are codes
# train (812), train (813 of 812), save (train.py:212)
_IN_PARENTHESES = re.compile(r"(\S+) \(([^()\s]+)")
_CALLED = re.compile(
    r"\b(?:system calls?|syscalls?|calls? to|calling|in|inside)\s+([a-z][a-z0-9_]+)(?=[.,;:)]|$| (?:calls?|system|"
    r"syscalls?)\b)|\b([a-z][a-z0-9_]+) (?:system calls?|syscalls?)\b|([a-z][a-z0-9_]+)\s?(?:系统)?调用",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\b(?:named|titled|nicknamed)\s+(\S+)|(?:名为|名叫|叫做|称为)\s*(\S+)", re.IGNORECASE)
# The owner of a process in Chinese, whose names have no capitals.
_OWNER = re.compile(r"(?<![\u4e00-\u9fff])([\u4e00-\u9fff]{2,4})的(?:进程|任务|程序|作业|脚本|服务)")
_OWNERS = frozenset(
    ("其他", "其它", "别的", "相邻", "邻居", "训练", "竞争", "同一", "自己", "目标", "受害", "空闲", "繁忙", "可运行")
)
_TOKEN = re.compile(r"[A-Za-z0-9_/@\\.:'’#*-]*[A-Za-z0-9_][A-Za-z0-9_/@\\.:'’#*()-]*")
_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\u3000-\u303f]")


def names(findings: Iterable[Finding]) -> set[str]:
    """Return every name in `findings`, complete and in the parts that people use."""
    found: set[str] = set()
    for finding in findings:
        subject = finding.subject
        found |= _of_path(subject.path) if subject.path else set()
        for name in (subject.comm, subject.host, subject.cgroup, subject.container, subject.pod):
            found |= {name} if name else set()
        if subject.cgroup:
            found |= _of_path(subject.cgroup)
        if subject.container:
            found.add(subject.container[:SHORT])
        if subject.pod:
            found |= set(subject.pod.split("/"))
        if subject.device:
            found |= {subject.device, f"/dev/{subject.device}"}
        on_path = finding.kind.startswith("path.")
        for value in _path_values(finding) if on_path else finding.attributes.values():
            found |= _of_value(value)
        if on_path:
            found |= {name for code in path_codes_of(finding) for name in _OF_CODE.get(code, "").split()}
        found |= set(_OF_KIND.get(finding.kind, "").split())
        found |= {"O_DIRECT"} if "direct" in finding.attributes else set()
    return {name for name in found if _is_name(name)}


def _path_values(finding: Finding) -> Iterator[str]:
    """Yield the names in the attributes of a row of a critical path: commands, functions, files, objects, calls."""
    for name, value in finding.attributes.items():
        if name in ("chain", "by", "root_by", "waiter"):
            for match in _IN_PARENTHESES.finditer(value):
                yield from match.groups()
        elif name == "main":
            yield value.partition(" ")[2]
        elif name not in _CODED and not (name == "detail" and finding.attributes.get("wait") == "cpu"):
            yield value


def calls(findings: Iterable[Finding]) -> set[str]:
    """Return the system calls that `findings` name, as people write them."""
    values = (f.attributes.get(name, "") for f in findings for name in ("syscall", "operations"))
    found = {call for value in values for call in re.split(r"\W+", value) if call}
    return found | {call.removesuffix("64") for call in found} | {f"{call}()" for call in found}


def numbers_in(findings: Iterable[Finding]) -> set[int]:
    """Return the integers in the attributes of `findings`: threads, CPUs, ranks, lines; ``2-5`` stands for all four."""
    found: set[int] = set()
    for finding in findings:
        for value in finding.attributes.values():
            found |= {int(digits) for digits in re.findall(r"(?<![A-Za-z0-9_.])\d{1,9}(?![A-Za-z0-9_])", value)}
            for low, high in re.findall(r"(?<![\w.])(\d{1,5})-(\d{1,5})(?![\w.])", value):
                found |= set(range(int(low), int(high) + 1)) if int(high) - int(low) < 10_000 else set()
    return found


def without_names(text: str, known: Collection[str], *, words: bool = True) -> str:
    """Return `text` with the names `known` blanked; without `words`, not names that look like plain words.

    A name of several words counts only in quotes: a file could be named like a sentence.
    """
    # Ignoring case, these letters would equal others: the dotless i is no i.
    flags = 0 if re.search("[ıİſ\u212a]", text) else re.IGNORECASE
    for name in sorted(known, key=len, reverse=True):
        if not words and re.fullmatch(r"[A-Za-z]+", name):
            continue
        if " " in name:
            text = re.sub(rf"(?<=[`\"“「『《‘']){re.escape(name)}(?=[`\"”」』》’'])", " ", text)
            continue
        pattern = rf"(?<![A-Za-z0-9_./\\-]){re.escape(name)}(?![A-Za-z0-9_]|:\d|://|[./@\\-]+[A-Za-z0-9_*])"
        text = re.sub(pattern, " ", text, flags=flags)
    return text


def without_ours(text: str) -> str:
    """Return `text` without names of our own vocabulary: kinds, metrics, attributes, tools."""
    return _ours().sub(" ", text)


def address(text: str) -> str | None:
    """Return the first path, address or option in `text`, from which known names were removed."""
    found = re.search(
        r"(?<![\w.])(?:~|\.{1,2})?/[\w.~-][^\s,;，；。]*|\w+://\S*|[\w.+-]+@[\w.-]+|(?<!\S)--?[A-Za-z][\w-]*", text
    )
    return found.group(0) if found else None


def unknown(text: str) -> str | None:
    """Return the first name in `text`, from which known names and numbers were removed; None without any."""
    setting = re.search(r"[A-Za-z_]\w*\s?=\s?[A-Za-z_]\w*", text)
    if setting is not None:
        return setting.group(0)
    owner = _OWNER.search(text)
    if owner is not None and owner[1] not in _OWNERS:
        return owner[1]
    for match in _QUOTED.finditer(text):
        inside = next(part for part in match.groups() if part is not None)
        if re.search(r"\w", inside):
            return inside.strip()
    for match in _NAMED.finditer(text):
        return match[1] or match[2]
    for char in text:
        if not _allowed(char):
            return char
    for match in _CALLED.finditer(text):
        call = next(part for part in match.groups() if part is not None)
        if call.lower() in _syscalls():
            return call
    return next(_strange(text), None)


def _strange(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(_CJK.sub(" ", text)):
        token = re.sub(r"(?<![A-Za-z])[Ii]/[Oo](?![A-Za-z])", "IO", match.group(0)).strip(".:'’-#*")
        if re.search(r"\w\(\)?$|\w\(\w", token):
            yield token
            continue
        token = token.strip("()").strip(".:'’-")
        if not token or _FORM.fullmatch(token.lower()):
            continue
        if re.search(r"[0-9_@\\#*]|://|[A-Za-z0-9][.:][A-Za-z0-9]", token):
            yield token
            continue
        parts = token.split("/")
        if len(parts) > 2 or "" in parts:
            yield token
            continue
        for word in (w for part in parts for w in re.split(r"[-()]", part)):
            if word and not _plain(word) and not (word.lower() in _PREFIXES and "-" in token):
                yield word


def _plain(word: str) -> bool:
    for ending in _ENDINGS:
        if word.lower().endswith(ending):
            word = word[: -len(ending)] + (
                "n" if ending.startswith("n") and not plain_word(word[: -len(ending)].lower()) else ""
            )
            break
    if len(word) == 1:
        return word in "aAiIsStdDR"
    if _ACRONYM.fullmatch(word.upper()) and (word[:-1].isupper() or word.islower()):
        return True
    return (word[1:].islower() or word.islower()) and plain_word(word.lower())


def _allowed(char: str) -> bool:
    if char in _PUNCTUATION or (char.isascii() and char.isalnum()) or char in "_@\\/#*":
        return True
    return _CJK.match(char) is not None or unicodedata.category(char) == "Nd"


def _is_name(name: str) -> bool:
    """Return whether `name` may be blanked without hiding anything else: it has a letter, and is no quantity."""
    if _ADDRESS.fullmatch(name):
        return True
    if len(name) < 2 or not re.search(r"[A-Za-z\u4e00-\u9fff]", name):
        return False
    numbers = read(name)
    return not (numbers and numbers[0].start == 0 and numbers[-1].end == len(name))


def _of_path(path: str) -> set[str]:
    parts = [part for part in path.split("/") if part]
    found = {path, *(parts[-1:] if parts else [])}
    for depth in range(1, len(parts)):
        head = "/" + "/".join(parts[:depth]) if path.startswith("/") else "/".join(parts[:depth])
        found |= {head, head + "/", "/".join(parts[depth:])}
    return found


def _of_value(value: str) -> set[str]:
    """Return the value of an attribute and its parts.

    Values are such as ``a < b``, ``fsync+write``, ``save (train.py:212)``, ``kworker (12)``.
    """
    found = {value} if " " not in value else set()
    found |= {f.partition("_")[0] for f in re.findall(r"(?<!\w)_*([a-z][a-z0-9]+_\w+)", value)}  # ext4, fuse, nfs
    for part in re.split(r"\s*[<+;|,\s]\s*", value):
        part = part.strip("()[]")
        if not part:
            continue
        found |= {part, part.removesuffix("64")} | (_of_path(part) if "/" in part else set())
        place = re.fullmatch(r"(.+):(\d+)", part)
        if place:
            found |= {place[1], place[1].rpartition("/")[2]}
        if re.fullmatch(r"[A-Za-z_][\w.]*", part):
            found |= {f"{part}()", part.rpartition(".")[2]}
    return found


@cache
def _syscalls() -> frozenset[str]:
    return frozenset(syscalls.names("x86_64").values())


@cache
def _ours() -> re.Pattern[str]:
    known = {*KINDS, *(m.value for m in Mechanism if "_" in m.value), *(tool.name for tool in registry().all())}
    known |= {name for spec in KINDS.values() for name in (*spec.metrics, *spec.attributes) if "_" in name}
    ordered = sorted(known, key=len, reverse=True)
    return re.compile(rf"(?<![A-Za-z0-9_./-])(?:{'|'.join(map(re.escape, ordered))})(?![A-Za-z0-9_]|[./-]\w)")
