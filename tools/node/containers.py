"""Find the containers and pods that processes run in."""

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
"""Characters of a container's id that are shown, as container runtimes do."""
_MOST = 20_000
_NAMING_PIDS = 4  # processes of a container through which its pod's name is looked up
_ID = re.compile(r"(?:[a-z-]{1,20}://|container:)?(?P<id>[0-9a-f]{12,64})")
Inert = Annotated[str, AfterValidator(clean)]


class Container(BaseModel):
    """A container, or (without `id`) a pod's own control group. `pod`: ``NAMESPACE/NAME``, or only its name. `pids`:
    pid on the node to pid inside the container (0: unknown).
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
    """Return the place of a process as one short phrase; empty for one in neither a container nor a pod."""
    if pod:
        return f"pod {pod}"
    return f"container {container[:SHORT]}" if container else ""


class Containers:
    """Remembers the containers of processes, also after these exit. Reads a small file per process, some 10 us."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._view: CgroupView | None = None
        self._pods = Pods(proc)
        self._tried: set[int] = set()
        self._found: dict[tuple[str | None, str | None], Container] = {}
        self._of: dict[int, Container] = {}
        self._paths: dict[int, str] = {}

    def locate(self, pids: Iterable[int]) -> None:
        """Find the containers of those of `pids` that were not located before."""
        for pid in pids:
            if pid in self._tried or pid <= 0 or len(self._tried) >= _MOST:
                continue
            self._tried.add(pid)
            group = self._grouped(pid)
            if group.container is None and group.pod_uid is None:
                continue
            key = (group.container, group.pod_uid)
            if key not in self._found:
                self._found[key] = Container(id=group.container, runtime=group.runtime, pod_uid=group.pod_uid)
            entry = self._of[pid] = self._found[key]
            entry.pids[pid] = number_inside(self._proc / str(pid))
            if entry.pod is None and len(entry.pids) <= _NAMING_PIDS:
                entry.pod = self._pods.name(group.pod_uid, group.container, pid)

    def of(self, pid: int) -> Container | None:
        """Return the container of `pid`; None for a process in no container, or an unreadable one."""
        self.locate([pid])
        return self._of.get(pid)

    def find(self, named: str, pids: Iterable[int]) -> list[tuple[int, Container, str]]:
        """Return those of `pids` that run in the container or pod `named` (see `parse_place`), each with its container
        and the path of that control group.
        """
        kind, name = parse_place(named) or ("", "")
        found = []
        for pid in pids:
            entry = self.of(pid)
            if entry is None:
                continue
            if kind == "container" and entry.id is not None and entry.id.startswith(name):
                found.append((pid, entry, group_of(self._paths[pid], entry.id)))
            elif kind == "pod" and entry.pod_uid and name in (entry.pod_uid, *_pod_names(entry.pod)):
                found.append((pid, entry, group_of(self._paths[pid], entry.pod_uid)))
        return found

    def located(self, pids: Collection[int]) -> list[Container]:
        """Return the containers of those of `pids` that were located, with these processes only."""
        wanted = set(pids)
        found = []
        for entry in self._found.values():
            if inside := {pid: number for pid, number in sorted(entry.pids.items()) if pid in wanted}:
                found.append(entry.model_copy(update={"pids": inside}))
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


def parse_place(text: str) -> tuple[str, str] | None:
    """Parse the name of a container or pod: ``pod:NAMESPACE/NAME``, ``containerd://ID`` (as kubectl prints it), or an
    id of 12 or more characters.

    Return (``container``, id or its beginning) or (``pod``, ``NAMESPACE/NAME``, name or uid); None for anything else.
    """
    if text.startswith("pod:") and len(text) > len("pod:"):
        return "pod", text.removeprefix("pod:")
    found = _ID.fullmatch(text)
    return ("container", found["id"]) if found is not None else None


def _pod_names(pod: str | None) -> tuple[str, ...]:
    return (pod, pod.rpartition("/")[2]) if pod else ()


def number_inside(directory: Path) -> int:
    """Return a process's pid in its own PID namespace; 0 where the kernel does not report it (before 4.1)."""
    try:
        for line in (directory / "status").read_bytes().splitlines():
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        return 0
    return 0
