"""The external programs that whystall runs: a closed list of command lines. Standard library only.

Every child that is not whystall itself is started with words from here, without a shell. What varies is a number, a
path or a name that was checked, and can never be taken for an option. What builds our own objects (clang) is no
business of a running whystall and not listed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Value = int | str | Sequence[int] | Sequence[str] | None
Word = str | tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """`places`: possible paths of the program, the first existing one is used; a bare name is searched on the PATH.

    `words`: the arguments; a word in braces is a value. A tuple of words is left out if its value is None, and repeated
    for every element of a sequence. A value with a question mark is a switch: it adds no text itself.
    """

    places: tuple[str, ...]
    words: tuple[Word, ...] = ()


def _bcc(tool: str, *words: Word) -> Command:
    """Return a tool of BCC at the paths of Fedora, RHEL, openEuler (and BCC itself), and of Debian and Ubuntu."""
    return Command((f"/usr/share/bcc/tools/{tool}", f"/usr/sbin/{tool}-bpfcc", f"/usr/bin/{tool}-bpfcc"), words)


_EVERY_SECOND = "1"

COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        # Without -d, -P: those count into a hash of 64 entries and drop what does not fit in silence (see `known`).
        "bcc.biolatency": _bcc("biolatency", "-D", "-T", _EVERY_SECOND),
        "bcc.cachestat": _bcc("cachestat", _EVERY_SECOND),
        "bcc.fileslower": _bcc("fileslower", ("-p", "{pid}"), "{min_ms}"),
        "bcc.hardirqs": _bcc("hardirqs", "-N", "-T", _EVERY_SECOND),
        "bcc.offcputime": _bcc("offcputime", ("-p", "{pid}"), "-d", "--stack-storage-size", "{stacks}"),
        "bcc.runqlat": _bcc("runqlat", "-T", ("-p", "{pid}"), _EVERY_SECOND),
        "bcc.softirqs": _bcc("softirqs", "-N", "-T", _EVERY_SECOND),
        # the system's python, which BCC is installed for
        "bcc.own": Command(("/usr/bin/python3",), ("-I", "-u", "{program}")),
        # which versions of a package its sources offer; both read only
        "apt.versions": Command(("apt-cache",), ("madison", "{package}")),
        "pip.versions": Command(
            ("pip3", "pip"),
            ("--disable-pip-version-check", "--no-input", "index", "versions", "--retries", "1", "{package}"),
        ),
        # state of accelerators; all read only
        "amd-smi.metric": Command(("amd-smi", "/opt/rocm/bin/amd-smi"), ("metric", "--json")),
        "amd-smi.static": Command(("amd-smi", "/opt/rocm/bin/amd-smi"), ("static", "--asic", "--bus", "--json")),
        "npu-smi.info": Command(("npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi"), ("info",)),
        # without --showxgmierr: reading that count clears it
        "rocm-smi": Command(
            ("rocm-smi", "/opt/rocm/bin/rocm-smi"),
            ("--showtemp", "--showpower", "--showuse", "--showmeminfo", "vram", "--showbus", "--json"),
        ),
        # messages of the kernel since it started, one JSON object a line
        "journalctl.kernel": Command(
            ("journalctl",),
            (
                *("--dmesg", "--boot", "--no-pager", "--quiet", "--output", "json", "--output-fields"),
                "MESSAGE,SYSLOG_FACILITY,_TRANSPORT,_SOURCE_MONOTONIC_TIMESTAMP",
                ("--since", "{since}"),
            ),
        ),
        "py-spy": Command(
            ("py-spy",),
            (
                *("record", "--pid", "{pid}", "--rate", "{hz}", "--format", "raw", "--nonblocking"),
                *("--duration", "unlimited", "--output", "{output}"),
            ),
        ),
        # Text of a fixed format: the JSON of squeue changes with each version of Slurm's data parser.
        "squeue": Command(
            ("squeue",),
            (
                *("--noheader", "--format", "%i|%A|%T|%N|%j", "--states", "running,suspended,completing,pending"),
                *(("--jobs", "{jobs}"), ("--name", "{name}")),
            ),
        ),
        "trace-cmd.clock": Command(("trace-cmd",), ("dump", "--clock", "-i", "{input}")),
        "trace-cmd.report": Command(("trace-cmd",), ("report", "-t", "-N", "-i", "{input}", ("--cpu", "{cpus}"))),
        "trace-cmd.record": Command(
            ("trace-cmd",),
            (
                *("record", "-q", "-B", "{instance}", "-o", "{output}", "-C", "{clock}", "-b", "{kilobytes}"),
                *("-M", "{mask}", ("-e", "{events}"), ("-P", "{threads}"), ("-c", "{children?}"), ("{probe}",)),
            ),
        ),
    }
)


def program(name: str) -> str | None:
    """Return the program of command `name` on this host; None if it is not installed."""
    for place in COMMANDS[name].places:
        if not place.startswith("/"):
            found = shutil.which(place)
            if found:
                return found
        elif os.access(place, os.X_OK):
            return place
    return None


def argv(name: str, path: str | None = None, /, **values: Value) -> list[str]:
    """Return the command line `name` with these `values`; `path`: its program, if known.

    Raises `FileNotFoundError` if the program is not installed; `ValueError` for values that are not the command's,
    or that could be taken for something else.
    """
    command = COMMANDS[name]
    found = path or program(name)
    if found is None:
        raise FileNotFoundError(command.places[0].rpartition("/")[2])
    unused = set(values)
    words = [found]
    for word in command.words:
        group = word if isinstance(word, tuple) else (word,)
        wanted = next((w.strip("{?}") for w in group if w.startswith("{")), None)
        if wanted is None:
            words += group
            continue
        value = values[wanted] if wanted in values or not isinstance(word, tuple) else None
        unused.discard(wanted)
        each: Sequence[int] | Sequence[str] = ()
        if isinstance(value, (int, str)):
            each = [str(value)]
        elif value is not None:
            each = value
        for one in each:
            words += [_safe(str(one)) if w.startswith("{") else w for w in group if not w.endswith("?}")]
    if unused:
        raise ValueError(f"{name} has no {', '.join(sorted(unused))}")
    return words


def _safe(word: str) -> str:
    if not word or word.startswith("-") or "\0" in word:
        raise ValueError(f"not a word for a command line: {word!r}")
    return word
