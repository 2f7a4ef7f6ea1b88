"""Typed references in a text: codes that name a fault wherever they appear (``xid:79``, ``errno:ENOSPC``,
``signal:SIGBUS``), and names of functions, settings and files.

An error reported by its number, its name or its message yields the same reference. Numbers and messages of errors and
signals are those of Linux (errno(3), strerror(3), signal(7)); an exit status above 128 is a signal (bash(1)). Xid:
NVIDIA's "GPU Debug Guidelines"; work completion statuses: ``enum ibv_wc_status`` of rdma-core (verbs.h); CUDA names:
``cudaError_t`` and ``CUresult`` of the CUDA headers; NCCL names: ``ncclResult_t`` of nccl.h.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator
from functools import cache

_MOST = 64  # distinct references read of one text
_READ = 200_000  # characters read of one text
NAME = "name:"
_XID = re.compile(
    r"(?<![a-z])(s?)xid\b(?:\s*\([^)\n]{0,40}\))?[\s:=#]*(?:codes?|errors?|错误|故障|报错)?[\s:=#]*(\d{1,5})", re.I
)
_ERRNO_NAME = re.compile(r"\bE[A-Z0-9]{2,14}\b")
_ERRNO_NUMBER = re.compile(r"(?:\berrno\W{1,3}|\bos error |\boserror:? )-?(\d{1,3})\b", re.I)
_SIGNAL_NAME = re.compile(r"\bSIG[A-Z]{3,6}\b")
_SIGNAL_NUMBER = re.compile(r"(?:\bsignal|信号)[\s:=]*(\d{1,2})\b|\bkill -(9|15)\b", re.I)
_EXIT = re.compile(
    r"(?:\bexit(?:ed)?[ _-]?(?:code|status|with(?: code)?)?|\bexitcode"
    r"|\breturn ?code|\bwith code|退出码|返回码)[\s:=]*(-?\d{1,3})\b",
    re.I,
)
_COMPLETION = re.compile(r"\bcompletion\b[^\n]{0,80}?\b(?:error|status)[\s:=]*(\d{1,2})\b", re.I)
_CUDA_NUMBER = re.compile(r"\bcuda(?: runtime| driver)? (?:error|failure)(?: code)?[\s:=#]*\(?(\d{1,4})\b", re.I)
_NAMED = re.compile(
    r"\b(cuda(?:Error|_ERROR_)\w{3,40}|CUDA_ERROR_\w{3,40}|nccl\w{3,20}Error|HCCL_\w*ERR\w*|E[A-Z]\d{4})\b"
)
_HTTP = re.compile(r"\b(?:http(?:/\d(?:\.\d)?)?|status(?: code)?|code|error)[\s:=\"']{1,3}([45]\d\d)\b", re.I)
_MESSAGES = (
    (re.compile(r"\bsegmentation fault|\bsegfault|段错误", re.I), "signal:SIGSEGV"),
    (re.compile(r"\bbus error|总线错误", re.I), "signal:SIGBUS"),
    (re.compile(r"\boom-?killed\b|\bout of memory: killed process|\boom[- _]kill", re.I), "signal:SIGKILL"),
    (re.compile(r"illegal memory access", re.I), "cuda:illegaladdress"),
    (re.compile(r"fallen off the bus|掉卡", re.I), "xid:79"),
    (re.compile(r"uncorrectable (?:\w+ )?ecc|ecc uncorrectable", re.I), "cuda:eccuncorrectable"),
    (re.compile(r"system not yet initiali[sz]ed", re.I), "cuda:systemnotready"),
    (
        re.compile(r"nccl[^\n]{0,30}?(?:time-?d?[ -]?out|超时)|collective operation timeout|集合通信超时", re.I),
        "nccl:timeout",
    ),
    (re.compile(r"hccl[^\n]{0,30}?(?:time-?d?[ -]?out|超时)", re.I), "hccl:timeout"),
    (re.compile(r"cuda out of memory|显存不足|爆显存", re.I), "cuda:memoryallocation"),
)
_CUDA_NUMBERS = {"2": "memoryallocation", "700": "illegaladdress", "214": "eccuncorrectable", "802": "systemnotready"}
# Names of code: with ``::``, an underscore, a capital after lower case, or the file of a stack frame. Names like
# PyTorch are products.
_CODE_NAME = re.compile(
    r"\b(?:[A-Za-z]\w*::\w+(?:::\w+)*|[A-Za-z_]+_\w+|[a-z]+[A-Z][a-z]\w*|\w+\.(?:py|cc|cpp|cu|c|h|so))\b"
)
_SHORTEST = 6
_HEX = re.compile(r"[0-9a-f]{6,}|\d+", re.I)
# Words of a message, not codes.
_NO_ERRNO = frozenset({"ERROR", "ERR", "END", "EXIT", "ECC", "EFA", "EKS", "EBS", "EFS", "EOF", "ETCD", "EXT4", "ENV"})


def references(text: str) -> list[str]:
    """Return the distinct codes and names in `text`, in order, as ``type:value``; names have the type ``name``."""
    read = text[:_READ]
    found: dict[str, None] = {}
    for reference in (*_codes(read), *_names(read)):
        found[reference] = None
        if len(found) == _MOST:
            break
    return list(found)


def is_code(reference: str) -> bool:
    """Return whether `reference` is a code: one that names a fault by itself."""
    return not reference.startswith(NAME)


def is_specific(reference: str) -> bool:
    """Return whether `reference` is a code of few faults; errors of the operating system and
    of libraries have many causes.
    """
    return is_code(reference) and not reference.startswith(("errno:", "signal:", "http:", "nccl:", "hccl:"))


def _codes(text: str) -> Iterator[str]:
    for match in _XID.finditer(text):
        yield f"{match[1].lower()}xid:{int(match[2])}"
    numbers, names = _errors()
    for match in _ERRNO_NAME.finditer(text):
        if match[0] in names:
            yield f"errno:{match[0]}"
    for match in _ERRNO_NUMBER.finditer(text):
        if int(match[1]) in numbers:
            yield f"errno:{numbers[int(match[1])]}"
    for message in _messages(text.lower()):
        yield f"errno:{_by_message()[message]}"
    for match in _SIGNAL_NAME.finditer(text):
        if match[0] in signal.Signals.__members__:
            yield f"signal:{match[0]}"
    for match in _SIGNAL_NUMBER.finditer(text):
        yield from _signal(int(match[1] or match[2]))
    for match in _EXIT.finditer(text):
        status = int(match[1])
        yield from _signal(-status if status < 0 else status - 128)
    for match in _COMPLETION.finditer(text):
        yield f"wc:{int(match[1])}"
    for match in _CUDA_NUMBER.finditer(text):
        yield f"cuda:{_CUDA_NUMBERS.get(match[1], match[1])}"
    for match in _NAMED.finditer(text):
        name = match[1].lower()
        kind = "nccl" if name.startswith("nccl") else "cuda" if name.startswith("cuda") else "errcode"
        value = re.sub(r"^cuda_?error_?", "", name).replace("_", "") if kind == "cuda" else name
        yield f"{kind}:{value}"
    for match in _HTTP.finditer(text):
        yield f"http:{match[1]}"
    for pattern, reference in _MESSAGES:
        if pattern.search(text):
            yield reference


def _names(text: str) -> Iterator[str]:
    for match in _CODE_NAME.finditer(text):
        name = match[0].strip("_")
        if len(name) >= _SHORTEST and not _NAMED.fullmatch(name) and not _HEX.fullmatch(name) and len(name) <= 80:
            yield f"{NAME}{name.lower()}"


def _signal(number: int) -> Iterator[str]:
    if 0 < number < 32:
        yield f"signal:{signal.Signals(number).name}"


def _messages(lower: str) -> list[str]:
    """Return the messages of errors in the text `lower`, in order; of two that overlap, the first or longer one."""
    # One search per message takes a tenth of the time of a pattern of all.
    held = [message for message in _by_message() if message in lower]
    if not held:
        return []
    return re.findall("|".join(map(re.escape, sorted(held, key=len, reverse=True))), lower)


@cache
def _errors() -> tuple[dict[int, str], frozenset[str]]:
    """Return the names of errors by number, and all names."""
    numbers = {number: name for number, name in errno.errorcode.items() if name not in _NO_ERRNO}
    return numbers, frozenset(numbers.values())


@cache
def _by_message() -> dict[str, str]:
    """Return the names of errors by their message in lower case; single words are too common to be a code."""
    found = {os.strerror(number).lower(): name for number, name in errno.errorcode.items()}
    return {message: name for message, name in found.items() if " " in message and message not in _COMMON_MESSAGES}


# Messages that sentences contain by accident.
_COMMON_MESSAGES = frozenset(
    {"no such process", "not a directory", "is a directory", "file exists", "invalid argument"}
)
