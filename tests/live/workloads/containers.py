"""Containers as Kubernetes has them made: runc, an overlay for a root, volumes bound, control groups of a pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

LOGS = Path("/var/log/pods")
CAPABILITIES = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG")


class Box:
    """A running container. `pid`: its first process, as the node numbers it; `id`, `pod_uid`: its names."""

    def __init__(self, state: Path, id: str, pod_uid: str, log: Path) -> None:
        self._state = state
        self.id = id
        self.pod_uid = pod_uid
        self.log = log
        self.pid = int((state / f"{id}.pid").read_text())

    def run(self, *argv: str | Path) -> str:
        """What `argv` prints inside."""
        told = subprocess.run(
            ["runc", "--root", self._state, "exec", self.id, *map(str, argv)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        return told.stdout


@contextmanager
def box(
    place: Path,
    argv: Sequence[str | Path],
    *,
    number: int,
    volumes: Sequence[tuple[Path, str]] = (),
    files: Sequence[tuple[Path, str]] = (),
    sidecar: bool = False,
) -> Iterator[Box]:
    """Run `argv` in a pod of its own until the block ends. `files` are copied in, `volumes` bound. `sidecar`: with the
    node's processes, no control groups but its own, and only the capabilities that whystall wants.
    """
    id, pod_uid = f"c{os.getpid():07x}" * 7 + f"{number:08x}", f"7e57ab1e-8c56-4d0b-9a4b-{number:02x}{os.getpid():010x}"
    bundle, upper, state = place / f"bundle{number}", place / f"upper{number}", place / "state"
    for directory in (bundle / "rootfs", upper, state):
        directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        _mount(undo, "tmpfs", "whystall-test", upper, "size=64m")
        for name in ("up", "work"):
            (upper / name).mkdir()
        _mount(undo, "overlay", "overlay", bundle / "rootfs", f"lowerdir=/,upperdir={upper}/up,workdir={upper}/work")
        for source, target in files:
            copy = bundle / "rootfs" / target.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
        subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
        config = json.loads((bundle / "config.json").read_text())
        _configure(config, argv, f"/kubepods/burstable/pod{pod_uid}/{id}", volumes, sidecar=sidecar)
        (bundle / "config.json").write_text(json.dumps(config))
        undo.callback(_groups_gone, f"kubepods/burstable/pod{pod_uid}")
        log = place / f"log{number}"
        with log.open("wb") as out:
            arguments = [
                str(state),
                "run",
                "--detach",
                "--pid-file",
                str(state / f"{id}.pid"),
                "--bundle",
                str(bundle),
                id,
            ]
            run = ["runc", "--root", *arguments]
            subprocess.run(run, check=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        undo.callback(subprocess.run, ["runc", "--root", str(state), "delete", "--force", id], check=True)
        yield Box(state, id, pod_uid, log)


@contextmanager
def named(pod: str, uid: str) -> Iterator[None]:
    """The kubelet's directory of logs of a pod, ``NAMESPACE_NAME``, as long as the block lasts."""
    fresh = not LOGS.exists()
    directory = LOGS / f"{pod}_{uid}"
    directory.mkdir(parents=True)
    try:
        yield
    finally:
        directory.rmdir()
        if fresh:
            LOGS.rmdir()


def _configure(
    config: dict[str, Any],
    argv: Sequence[str | Path],
    group: str,
    volumes: Sequence[tuple[Path, str]],
    *,
    sidecar: bool,
) -> None:
    process, linux = config["process"], config["linux"]
    process |= {"terminal": False, "args": [*map(str, argv)], "env": [*process["env"], "WHYSTALL_HOME=/run/whystall"]}
    config["root"]["readonly"] = False
    config["hostname"] = "in-the-pod"
    linux["cgroupsPath"] = group
    config["mounts"] += [
        {"destination": target, "type": "bind", "source": str(source), "options": ["rbind", "rw"]}
        for source, target in volumes
    ]
    if sidecar:
        kinds = [space for space in linux["namespaces"] if space["type"] not in ("pid", "cgroup")]
        linux["namespaces"] = [*kinds, {"type": "cgroup"}]
        sets = ("bounding", "effective", "permitted", "inheritable", "ambient")
        process["capabilities"] = {name: [*CAPABILITIES] for name in sets}
        # what the image holds is not the node's
        config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != "/sys/fs/cgroup"]
        config["mounts"].append({"destination": "/var/log", "type": "tmpfs", "source": "tmpfs"})


def _mount(undo: ExitStack, kind: str, source: str, place: Path, options: str) -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, source, place], check=True)
    undo.callback(subprocess.run, ["umount", str(place)], check=True)


def _groups_gone(group: str) -> None:
    """Remove what runc leaves: the pod's own group, and the kubelet's where nothing else is in them."""
    for root in [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]:
        directory = root / group
        while directory != root:
            try:
                directory.rmdir()
            except OSError:
                break  # not of this hierarchy, or another's
            directory = directory.parent


PYTHON = sys.executable
