"""Start a diagnoser with the rights of a scenario: as another user, or without capabilities."""

from __future__ import annotations

import pwd
import shlex
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.faults.case import CaseError
from benchmarks.faults.scenario import HERE, Rights

_NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def command_prefix(rights: Rights) -> list[str]:
    """Return what starts a command with these rights; nothing if they are those of the runner."""
    if rights == Rights():
        return []
    drop = ["setpriv", *(_NO_CAPABILITIES if rights.capabilities == "none" else ())]
    user = pwd.getpwnam(rights.user)
    if user.pw_uid == 0:
        return drop
    drop += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "env", "HOME=/tmp"]
    hidden = hidden_directories([Path(sys.base_prefix), Path(sys.prefix), HERE.parents[1]])
    if not hidden:
        return drop
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", _uncover(hidden), "sh", *drop]


def hidden_directories(needed: Iterable[Path]) -> dict[Path, Path]:
    """Return the directories that only their owner may search, by what is needed below them.

    Raises CaseError if two things are needed below one.
    """
    found: dict[Path, Path] = {}
    for path in {path.resolve() for path in needed}:
        for above in [*reversed(path.parents), path]:
            if not above.stat().st_mode & stat.S_IXOTH:
                if above in found or above == path:
                    raise CaseError(f"{above} is not accessible to other users")
                found[above] = path
                break
    return found


def _uncover(hidden: dict[Path, Path]) -> str:
    """Return a script that replaces each hidden directory by one that shows only what is needed, then runs the rest.

    It runs in a mount namespace of its own: nothing changes for the host or the case.
    """
    lines = ["set -e"]
    for directory, needed in hidden.items():
        above, below = shlex.quote(str(directory)), shlex.quote(str(needed))
        # The path is not canonicalised, so that "." stays the covered directory.
        lines += [f"cd {below}", f"mount -t tmpfs -o mode=755 none {above}", f"mkdir -p {below}"]
        lines.append(f"mount -c --bind . {below}")
    return "\n".join([*lines, f"cd {shlex.quote(str(HERE.parents[1]))}", 'exec "$@"'])
