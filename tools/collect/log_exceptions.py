"""Find uncaught Python exceptions in a log that ranks of a job write to. Pure.

Lines of a log, with the label that torch puts before them (``_distributed_excepthook`` in
torch/distributed/distributed_c10d.py), and that of a launcher::

    [rank2]: Traceback (most recent call last):
    [rank2]:   File "/srv/train.py", line 41, in step
    [rank2]:     loss = model(batch)
    [default2]:[rank2]: ValueError: bad batch

Labels of launchers: ``[default2]:`` (torchrun --tee), ``2: `` (srun --label), ``[1,2]<stderr>:`` (mpirun --tag-output).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from whystall.tools.collect.frames import Call
from whystall.tools.collect.python_merge import label
from whystall.tools.contract.text import PATH_LIMIT, clean

LOG_BYTES = 64 << 10
"""How much of the end of a log is read."""
_LINE = 2_000
_FRAMES = 64
_LABEL = re.compile(
    r"(?:\[(?!rank)[a-z]+\d+\]:|\s{0,6}(?P<task>\d{1,7}): |\[\d+,(?P<process>\d{1,7})\](?:<std\w+>)?:\s?)?"
    r"(?:\[rank(?P<rank>\d{1,7})\]:\s?)?"
)
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<name>.+)')
_END = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<message>.*))?")


# What ranks report when another one has ended or is late: gloo (transport/tcp/pair.cc), NCCL (ProcessGroupNCCL.cpp and
# ncclGetErrorString), TCPStore, torchrun (SignalException).
_OF_OTHERS = re.compile(
    r"connection (?:was )?(?:likely )?(?:closed|reset|refused)|broken pipe|closed by peer|socket (?:timeout|closed)"
    r"|timed out|pair closure|remote process exited|ncclRemoteError|communicator was aborted|watchdog"
    r"|DistNetworkError|DistStoreError|SignalException|KeyboardInterrupt",
    re.IGNORECASE,
)


class LoggedException(NamedTuple):
    """The last uncaught exception of a rank.

    `rank`: by the labels of the lines, -1 without; `line`: where its traceback begins in the text, counted from 0;
    `frames`: ``step (train.py:41)``, the innermost first; `of_other`: ranks raise it when another one has ended.
    """

    rank: int
    line: int
    exception: str
    message: str
    frames: tuple[str, ...]
    of_other: bool


def logged_exceptions(text: bytes) -> list[LoggedException]:
    """Return the last exception of each rank in `text`, in the order of their tracebacks."""
    last = {one.rank: one for one, _ in exceptions(text)}
    return sorted(last.values(), key=lambda one: one.line)


def exceptions(text: bytes) -> Iterator[tuple[LoggedException, int]]:
    """Yield each exception in `text` when its traceback ends, and the number of the line after it."""
    open_: dict[int, tuple[int, list[str]]] = {}
    for number, raw in enumerate(text.splitlines()):
        line = raw[:_LINE].decode("utf-8", "backslashreplace").rstrip()
        head = _LABEL.match(line)
        if head is None:
            continue  # never: every part may be missing
        rank = int(head["rank"] or head["task"] or head["process"] or -1)
        line = line[head.end() :]
        if line.endswith(_BEGIN):
            open_[rank] = (number, [])
        elif rank in open_ and line and not line[0].isspace():
            began, frames = open_.pop(rank)
            if frames and (end := _END.fullmatch(line)) is not None:
                kept = tuple(frames[: -_FRAMES - 1 : -1])
                of_other = bool(_OF_OTHERS.search(line))
                kind, message = clean(end["type"]), clean(end["message"] or "")
                yield LoggedException(rank, began, kind, message, kept, of_other), number + 1
        elif rank in open_ and (frame := _FRAME.fullmatch(line)) is not None:
            call = Call(clean(frame["name"]), clean(frame["file"], PATH_LIMIT), int(frame["line"]), "python")
            open_[rank][1].append(label(call))
