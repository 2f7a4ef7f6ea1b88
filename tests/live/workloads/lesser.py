"""Commands that run as somebody with less: fewer capabilities, fewer files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65534
TREE = Path(__file__).parents[3]


def as_nobody(capabilities: Iterable[str], *, mounts: Iterable[str] = (), held: Path) -> list[str]:
    """What to put before a command so that uid 65534 runs it with exactly `capabilities` (``CAP_BPF``), which its
    children keep, and can reach this interpreter and this tree, wherever they lie. `mounts`: shell commands run first,
    as root, in mounts of its own. `held`: an empty directory for mounts.
    """
    have = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)])
    who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    who += [f"--inh-caps={have}", f"--ambient-caps={have}", f"--bounding-set={have}"]
    steps = [*mounts, *_opened({Path(sys.base_prefix), Path(sys.prefix), TREE}, held), 'exec "$@"']
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", "\n".join(steps), "sh", *who, "--"]


def _opened(places: Iterable[Path], held: Path) -> Iterable[str]:
    """Directories that only their owner may enter are covered by ones that everybody may, with `places` in them."""
    closed: dict[Path, list[Path]] = {}
    for place in sorted({place.resolve() for place in places}):
        for parent in reversed(place.parents):
            if not parent.stat().st_mode & 1:
                closed.setdefault(parent, []).append(place)
                break
    for number, (parent, inside) in enumerate(closed.items()):
        hold = shlex.quote(str(held / str(number)))
        yield f"mkdir -p {hold} && mount --bind {shlex.quote(str(parent))} {hold}"
        yield f"mount -t tmpfs -o mode=0755 whystall-test {shlex.quote(str(parent))}"
        for place in inside:
            target = shlex.quote(str(place))
            yield f"mkdir -p {target} && mount --bind {hold}/{shlex.quote(str(place.relative_to(parent)))} {target}"
