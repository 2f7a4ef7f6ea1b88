"""Extract a program's name and its distinguishing words from a command line, without secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystall.tools.contract.text import clean

LIMIT = 16 << 10
"""Maximum bytes of a command line."""
_WORDS = 64
_WORD = 200

_INTERPRETER = re.compile(r"^(?:python[0-9.]*|pypy[0-9.]*|bash|sh|dash|zsh|ksh|perl|ruby|node|julia|Rscript)$")
_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*$")
# Options of interpreters with a separate argument.
_TAKES_NEXT = frozenset({"-X", "-W", "-Q", "--check-hash-based-pycs", "-o", "-O"})
AGENTS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""The names of torchrun."""
LAUNCHERS = AGENTS | frozenset(
    (
        *("bash", "sh", "dash", "zsh", "ksh", "fish", "su", "sudo", "env", "nohup", "timeout", "setsid", "nice"),
        *("time",),
        *("taskset", "numactl", "stdbuf", "strace", "tini", "dumb-init", "catatonit", "pause", "sleep", "tee"),
        *("accelerate", "deepspeed", "horovodrun"),
        *("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orted", "prted", "prte", "prterun", "srun"),
        *("slurmstepd", "slurm_script", "msrun", "colossalai", "composer", "runuser", "unshare", "nsenter", "gdb"),
    )
)
"""Programs that only start others."""
_SECRET = re.compile(
    r"pass(?:word|wd|phrase)?$|secret|token(?!s|iz|_?(?:len|limit|num|count|size|type))|api[-_]?key|access[-_]?key"
    r"|private[-_]?key|credential|auth|(?:^|[-_])key$|cookie|signature",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(
    r"^(?:sk-|ghp_|gho_|github_pat_|glpat-|hf_|xox[abp]-|AKIA|ASIA|eyJ)[\w.-]{8,}$|://[^/@\s]+:[^/@\s]+@|^Bearer\s"
    r"|^(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+=]{32,}$",
)


def argv(raw: bytes) -> list[str]:
    """Split the content of /proc/PID/cmdline (``python3\\0train.py\\0``); one that was overwritten has one argument."""
    parts = raw[:LIMIT].rstrip(b"\0").split(b"\0")
    return [clean(part, 4096) for part in parts] if raw.strip(b"\0") else []


def program(arguments: Sequence[str], comm: str) -> str:
    """Return the script or module, else the executable, without directory; `comm` without arguments."""
    if not arguments:
        return comm
    path = arguments[0].split(" ")[0].lstrip("-")
    # ``nginx: worker process`` is a title; a program executed by its descriptor has no name here.
    first = comm if path.startswith(("/proc/", "/dev/fd/")) else _leaf(path).rstrip(":") or comm
    if not _INTERPRETER.match(first):
        return clean(first, _WORD)
    rest = iter(arguments[1:])
    for argument in rest:
        if argument in ("-c", "-e") or (re.fullmatch(r"-[a-zA-Z]*c", argument) and not argument.startswith("--")):
            return first
        if argument == "-m" and _PYTHON.match(first):
            return clean(next(rest, first), _WORD)
        if argument in _TAKES_NEXT:
            next(rest, None)
        elif argument.startswith("-"):
            continue
        else:
            by_descriptor = argument.startswith(("/dev/fd/", "/proc/"))
            return first if by_descriptor else clean(_leaf(argument) or first, _WORD)
    return first


def words(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments that are no options, and values of options; without program text (``-c``) and secrets."""
    found = dict.fromkeys(word[:_WORD] for word in _words(arguments) if word and not _LOOKS_SECRET.search(word))
    return tuple(found)[:_WORDS]


def _words(arguments: Sequence[str]) -> Iterator[str]:
    interpreted = bool(arguments) and _INTERPRETER.match(_leaf(arguments[0])) is not None
    skip = False
    script = False  # whether the script was passed; later options are its own
    for place, argument in enumerate(arguments):
        if skip:
            skip = False
            continue
        if interpreted and not script and place and argument in ("-c", "-e", "-lc", "-ic"):
            return
        name, equals, value = argument.partition("=")
        if equals and re.fullmatch(r"-{0,2}[\w.-]+", name):
            if not _SECRET.search(name):
                yield value
        elif argument.startswith("-"):
            skip = bool(_SECRET.search(argument))
        else:
            script = script or place > 0
            yield argument


def _leaf(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
