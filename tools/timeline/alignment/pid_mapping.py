"""Read a file that maps thread ids of a container to those of the host: a profile from a container has only the former.

Formats: MindStudio's ``pid_mapping.json`` (``{"4711": {"NSpid": "17"}}``: host id to an object with ``NSpid``), the
same without objects (``{"4711": 17}``), and lines of two numbers, ``4711 17``, separated by blanks, ``,``, ``:`` or
``=``. In the last two nothing states which side is the host's; it is the one with more ids of the trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from whystall.tools.contract.errors import ErrorCode, ToolError

_SIZE_LIMIT = 64 << 20
_PAIR = re.compile(r"\s*(\d+)\s*[\s,:=]\s*(\d+)\s*")
_NUMBERS = range(1, 1 << 31)


def read(path: Path, tids: Collection[int]) -> dict[int, int]:
    """Return the number in its container of each thread, by its number on the host. `tids`: those in the trace.

    Raises `ToolError` (bad_argument) when the file cannot be read as a mapping, or leaves open which side is which.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise _bad(path, f"cannot be read ({error.strerror})") from None
    if len(raw) > _SIZE_LIMIT:
        raise _bad(path, "is too big for a mapping")
    text = raw.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return _host_first(path, _pairs_of_lines(path, text), tids)
    if not isinstance(content, dict):
        raise _bad(path, "is no mapping")
    if any(isinstance(entry, dict) for entry in content.values()):
        return {host: inner for host, inner in (_nspid(path, *item) for item in content.items()) if host != inner}
    return _host_first(path, [(_number(path, host), _number(path, inner)) for host, inner in content.items()], tids)


def _nspid(path: Path, host: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, dict) or "NSpid" not in entry:
        raise _bad(path, f"has no NSpid for {host}")
    # as in /proc/PID/status: the innermost namespace is last
    inner = str(entry["NSpid"]).split()
    return _number(path, host), _number(path, inner[-1] if inner else "")


def _pairs_of_lines(path: Path, text: str) -> list[tuple[int, int]]:
    pairs = []
    for line in text.splitlines():
        line = line.partition("#")[0]
        if not line.strip():
            continue
        match = _PAIR.fullmatch(line)
        if match is None:
            raise _bad(path, f"has a line that is not two numbers: {line[:60]!r}")
        pairs.append((_number(path, match[1]), _number(path, match[2])))
    if not pairs:
        raise _bad(path, "is empty")
    return pairs


def _host_first(path: Path, pairs: Iterable[tuple[int, int]], tids: Collection[int]) -> dict[int, int]:
    pairs, known = list(pairs), set(tids)
    left, right = (len({pair[side] for pair in pairs} & known) for side in (0, 1))
    if left == right != 0:
        raise _bad(path, "does not show which of its numbers are the host's")
    turned = pairs if left >= right else [(second, first) for first, second in pairs]
    return dict(turned)


def _number(path: Path, value: Any) -> int:
    text = str(value)
    if not re.fullmatch(r"\d{1,10}", text) or int(text) not in _NUMBERS:
        raise _bad(path, f"has {text[:40]!r} where a thread's number should be")
    return int(text)


def _bad(path: Path, why: str) -> ToolError:
    return ToolError(
        ErrorCode.BAD_ARGUMENT,
        f"pid mapping {path} {why}",
        'give the pid_mapping.json of the recording, or JSON of the form {"HOST_PID": {"NSpid": "CONTAINER_PID"}}',
    )
