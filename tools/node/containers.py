"""Which containers and pods processes run in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from whystall.tools.contract.text import clean
from whystall.tools.node.cgroups import Grouped, group_of, grouped, path_of
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.node.pods import Pods
from whystall.tools.node.vantage import PROC

SHORT = 12
"""Characters of a container's id that are shown, as its runtimes do."""
_MOST = 20_000
_ASKED = 4  # processes of a container whose pod has no name that are asked for it
_ID = re.compile(r"(?:[a-z-]{1,20}://|container:)?(?P<id>[0-9a-f]{12,64})")
Inert = Annotated[str, AfterValidator(clean)]


class Container(BaseModel):
    """A container, or (without `id`) a pod's own control group. `pod`: ``NAMESPACE/NAME``, or only its name. `pids`: by
    the node's number, the one inside it has (0: not known).
    """

    model_config = ConfigDict(extra="forbid")

    id: Inert | None = None
    runtime: Inert | None = None
    pod: Inert | None = None
    pod_uid: Inert | None = None
    pids: dict[int, int] = Field(default_factory=dict)

    @property
    def place(self) -> str:
        """One short phrase: ``pod ml/train-0``, ``pod 7e57ab1e-...``, ``container 3f4a3f4a3f4a``."""
        return place(self.id, self.pod or self.pod_uid)


def place(container: str | None, pod: str | None) -> str:
    """What to call the place of a process in one short phrase; empty where it is in neither."""
    if pod:
        return f"pod {pod}"
    return f"container {container[:SHORT]}" if container else ""


class Containers:
    """Remembers where processes ran, for `told` when they are gone. Costs a small file per process, some 10 us."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._view: CgroupView | None = None
        self._pods = Pods(proc)
        self._looked: set[int] = set()
        self._found: dict[tuple[str | None, str | None], Container] = {}
        self._of: dict[int, Container] = {}
        self._paths: dict[int, str] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Look where those of `pids` are that are not known yet."""
        for pid in pids:
            if pid in self._looked or pid <= 0 or len(self._looked) >= _MOST:
                continue
            self._looked.add(pid)
            group = self._grouped(pid)
            if group.container is None and group.pod_uid is None:
                continue
            key = (group.container, group.pod_uid)
            if key not in self._found:
                self._found[key] = Container(id=group.container, runtime=group.runtime, pod_uid=group.pod_uid)
            entry = self._of[pid] = self._found[key]
            entry.pids[pid] = number_inside(self._proc / str(pid))
            if entry.pod is None and len(entry.pids) <= _ASKED:
                entry.pod = self._pods.name(group.pod_uid, group.container, pid)

    def of(self, pid: int) -> Container | None:
        """Where `pid` is; None outside of containers, or where it cannot be seen."""
        self.look([pid])
        return self._of.get(pid)

    def find(self, named: str, pids: Iterable[int]) -> list[tuple[int, Container, str]]:
        """Those of `pids` that run in what `named` means (see `asked`), with the path of its control group."""
        kind, name = asked(named) or ("", "")
        found = []
        for pid in pids:
            entry = self.of(pid)
            if entry is None:
                continue
            if kind == "container" and entry.id is not None and entry.id.startswith(name):
                found.append((pid, entry, group_of(self._paths[pid], entry.id)))
            elif kind == "pod" and entry.pod_uid and name in (entry.pod_uid, *_called(entry.pod)):
                found.append((pid, entry, group_of(self._paths[pid], entry.pod_uid)))
        return found

    def told(self, pids: Collection[int]) -> list[Container]:
        """The containers of those of `pids` that were looked at, with these processes only."""
        wanted = set(pids)
        found = []
        for entry in self._found.values():
            if mine := {pid: inside for pid, inside in sorted(entry.pids.items()) if pid in wanted}:
                found.append(entry.model_copy(update={"pids": mine}))
        return found

    def _grouped(self, pid: int) -> Grouped:
        try:
            raw = (self._proc / str(pid) / "cgroup").read_bytes()
        except OSError:
            return Grouped()
        if self._view is None:
            self._view = CgroupView(self._proc)
        text = self._view.lines(raw).decode("utf-8", "replace")
        self._paths[pid] = path_of(text)
        return grouped(text)


def asked(text: str) -> tuple[str, str] | None:
    """What is meant by words for a place: (``container``, id or its beginning) or (``pod``, ``NAMESPACE/NAME``, name or
    uid). Written as people have them: ``pod:NAMESPACE/NAME``, ``containerd://ID`` (kubectl), an id of 12 or more
    characters. None: it is neither.
    """
    if text.startswith("pod:") and len(text) > len("pod:"):
        return "pod", text.removeprefix("pod:")
    found = _ID.fullmatch(text)
    return ("container", found["id"]) if found is not None else None


def _called(pod: str | None) -> tuple[str, ...]:
    return (pod, pod.rpartition("/")[2]) if pod else ()


def number_inside(directory: Path) -> int:
    """The number that a process has in its own PID namespace; 0 where the kernel does not tell (before 4.1)."""
    try:
        for line in (directory / "status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        return 0
    return 0
