"""Detect containers, pods and own namespaces, and what they hide."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import View
from whystall.tools.contract.text import clean
from whystall.tools.node.cgroups import grouped

# Inode numbers of the initial namespaces, fixed by include/linux/proc_ns.h.
INITIAL = {"cgroup": 0xEFFFFFFB, "pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
_LAYERED = ("overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs")
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True)
class Situation:
    """`runtime`: of our container (``docker``, ``podman``, ``kubernetes``...), empty on the host. `own`: those of the
    namespaces ``pid``, ``user`` and ``cgroup`` that are not the host's. `name`: the container's id or the pod's name.
    """

    runtime: str = ""
    name: str = ""
    own: frozenset[str] = frozenset()

    @property
    def kubernetes(self) -> bool:
        """Whether this is a pod."""
        return self.runtime == "kubernetes"


def situation(view: View) -> Situation:
    """Detect it from namespaces, marks of container runtimes and our control group."""
    group = grouped("\n".join(view.lines("/proc/self/cgroup")))
    environment = _environment(view)
    own = frozenset(kind for kind, initial in INITIAL.items() if _namespace(view, kind) not in (None, initial))
    if "pid" not in own and _files_of_the_host(view):
        return Situation(own=own)
    if "KUBERNETES_SERVICE_HOST" in environment or group.pod_uid or view.exists(_ACCOUNT):
        return Situation("kubernetes", _pod(view, environment) or (group.container or "")[:12], own)
    name = (group.container or "")[:12]
    if view.exists("/run/.containerenv"):
        return Situation("podman", name, own)
    if view.exists("/.dockerenv"):
        return Situation("docker", name, own)
    if group.container:
        return Situation(group.runtime or "container", name, own)
    return Situation(environment.get("container", ""), name, own)


def container(view: View) -> Check:
    """Check which things of the host a container hides, with the setting that shows them."""
    here = situation(view)
    found = _described(view, here)
    if not here.own - {"cgroup"}:
        return view.ok("container", found)
    if "pid" in here.own:
        return view.limited("container", found, view.say("container.pid_means"), share_pids(view, here))
    return view.limited("container", found, view.say("container.user_means"), leave_user_namespace(view, here))


def leave_user_namespace(view: View, here: Situation) -> str:
    """Return how to run with capabilities that the kernel accepts."""
    if here.kubernetes:
        return view.say("container.user_fix_kubernetes")
    if here.runtime == "podman":
        return "sudo podman run --privileged --pid=host ..."
    if here.runtime:
        return view.say("container.user_fix_runtime")
    return view.say("container.user_fix")


def share_pids(view: View, here: Situation) -> str:
    """Return how to run in the host's PID namespace."""
    if here.kubernetes:
        return view.say("container.pid_fix_kubernetes")
    if here.runtime in ("docker", "podman"):
        return f"{here.runtime} run --pid=host ..."
    return view.say("container.pid_fix")


def _described(view: View, here: Situation) -> str:
    parts = [view.say("container.in", place=f"{here.runtime} {here.name}".strip()) if here.runtime else ""]
    if here.runtime and "pid" not in here.own:
        parts.append(view.say("container.host_pids"))
    if here.own:
        names = ", ".join(view.say(f"container.namespaces.{kind}") for kind in sorted(here.own))
        parts.append(view.say("container.own", names=names))
    return view.say("semicolon").join(part for part in parts if part) or view.say("container.host")


def _namespace(view: View, kind: str) -> int | None:
    """Return the inode number of our namespace; None if the kernel has none of the kind."""
    try:
        link = os.readlink(view.path(f"/proc/self/ns/{kind}"))
    except OSError:
        return None
    number = re.fullmatch(rf"{kind}:\[(\d+)\]", link)
    return int(number[1]) if number else None


def _files_of_the_host(view: View) -> bool:
    """Return whether process 1, which must be the host's, has our root. If its root is unreadable, an overlay root is a
    container's; marks alone (/.dockerenv) also exist in machines made from an image.
    """
    try:
        return os.readlink(view.path("/proc/1/ns/mnt")) == os.readlink(view.path("/proc/self/ns/mnt"))
    except OSError:
        root = [fields[2] for line in view.lines("/proc/self/mounts") if (fields := line.split(" "))[1:2] == ["/"]]
        return not (root and root[-1] in _LAYERED)


def _environment(view: View) -> dict[str, str]:
    raw = view.read_bytes("/proc/self/environ") or b""
    pairs = (clean(entry).partition("=") for entry in raw.split(b"\0") if entry)
    return {key: value for key, _, value in pairs}


def _pod(view: View, environment: dict[str, str]) -> str:
    """Return ``namespace/name``: a pod's host name is its name unless it shares the host's."""
    space, name = view.read(_ACCOUNT), environment.get("POD_NAME") or environment.get("HOSTNAME") or ""
    return f"{space}/{name}" if space and name else name
