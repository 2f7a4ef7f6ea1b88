"""Find the names of this node's pods in its own files, without access to the cluster.

* the kubelet's logs: ``/var/log/pods/NAMESPACE_POD_UID`` (pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory);
* the runtime's files: the annotations in the bundle's ``config.json`` of containerd
  (``io.kubernetes.cri.sandbox-name``, ``-namespace``; pkg/cri/annotations) and CRI-O (``io.kubernetes.pod.*``), the
  labels in Docker's ``config.v2.json``;
* the container itself, last: its host name is its pod's unless the pod gave itself another, and the namespace lies
  beside its service account's token. Its processes may have written them, so they are used for that container only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from whystall.tools.node.mounts import REMOTE, below, mountinfo
from whystall.tools.node.vantage import PROC, host_name, node_path

_LOGS = "/var/log/pods"
_BUNDLES = (
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json",
    "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json",
    "/var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json",
    "/run/containers/storage/overlay-containers/{}/userdata/config.json",  # CRI-O
    "/var/lib/docker/containers/{}/config.v2.json",
)
_NAMES = (
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"),
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name"),
)
_BUNDLE_BYTES = 1 << 20
_NAMESPACE = "run/secrets/kubernetes.io/serviceaccount/namespace"
_HOSTNAME = "etc/hostname"
# Names of Kubernetes follow RFC 1123: a label for a namespace, a subdomain for a pod
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


class Pods:
    """Finds and caches names. Reads a few small files of the node, blocking."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._root = node_path("/", proc)
        self._by_uid: dict[str, str] = {}
        self._known: dict[tuple[str | None, str | None], str | None] = {}
        self._listed = False

    def name(self, uid: str | None, container: str | None, pid: int | None = None) -> str | None:
        """Return ``NAMESPACE/NAME`` of the pod `uid` with the given `container` and process `pid`; only ``NAME`` if the
        namespace is unknown; None if the name is unknown, or without a pod.
        """
        key = (uid, container)
        if self._known.get(key) is None:
            self._known[key] = (
                self._from_logs(uid)
                or (self._from_runtime(container) if container is not None else None)
                or (self._from_container(pid) if uid is not None and pid is not None else None)
            )
        return self._known[key]

    def _from_logs(self, uid: str | None) -> str | None:
        if uid is None:
            return None
        self._list()
        return self._by_uid.get(uid)

    def _list(self) -> None:
        if self._listed:
            return
        self._listed = True
        try:
            entries = os.listdir(self._root / _LOGS.lstrip("/"))
        except OSError:
            return
        for entry in entries:
            namespace, _, rest = entry.partition("_")
            pod, _, uid = rest.partition("_")
            if uid and _LABEL.fullmatch(namespace) and _SUBDOMAIN.fullmatch(pod):
                self._by_uid[uid] = f"{namespace}/{pod}"

    def _from_runtime(self, container: str) -> str | None:
        if not re.fullmatch(r"[0-9a-f]{12,64}", container):
            return None
        for pattern in _BUNDLES:
            raw = _content(self._root, pattern.format(container).lstrip("/"), _BUNDLE_BYTES)
            if raw is not None and (name := _annotated(raw)) is not None:
                return name
        return None

    def _from_container(self, pid: int) -> str | None:
        """Return the name from the container's own files. The node's host name (hostNetwork) does not count."""
        root = self._proc / str(pid) / "root"
        if _remote(self._proc / str(pid) / "mountinfo", (_HOSTNAME, _NAMESPACE)):
            return None
        raw = _content(root, _HOSTNAME, 4096)
        name = (raw or b"").strip().decode("ascii", "replace")
        if not _SUBDOMAIN.fullmatch(name) or name == host_name(self._proc):
            return None
        raw = _content(root, _NAMESPACE, 4096)
        namespace = (raw or b"").strip().decode("ascii", "replace")
        return f"{namespace}/{name}" if _LABEL.fullmatch(namespace) else name


def _annotated(raw: bytes) -> str | None:
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    for notes in _notes(config):
        for namespace, pod in _NAMES:
            names = notes.get(namespace), notes.get(pod)
            if all(isinstance(name, str) for name in names):
                where, what = str(names[0]), str(names[1])
                if _LABEL.fullmatch(where) and _SUBDOMAIN.fullmatch(what):
                    return f"{where}/{what}"
    return None


def _notes(bundle: Any) -> Iterator[dict[Any, Any]]:
    """Yield the annotations of an OCI bundle, or the labels of Docker."""
    if isinstance(bundle, dict):
        config = bundle.get("Config")
        for notes in (bundle.get("annotations"), config.get("Labels") if isinstance(config, dict) else None):
            if isinstance(notes, dict):
                yield notes


def _content(root: Path, path: str, most: int) -> bytes | None:
    """Read at most `most` bytes of the regular file `path` below `root`, without following links: an absolute one could
    lead from an untrusted `root` to our own files.
    """
    descriptor = -1
    try:
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        *directories, leaf = path.split("/")
        for part in directories:
            above = descriptor
            descriptor = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            os.close(above)
        above = descriptor
        descriptor = os.open(leaf, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        os.close(above)
        # a pipe would block, and opening a device may have effects
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        place, descriptor = descriptor, os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(place)
        return os.read(descriptor, most)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _remote(table: Path, paths: Iterable[str]) -> bool:
    """Return whether one of `paths` may be on a network file system; True also if unknown."""
    try:
        mounts = mountinfo(table.read_bytes())
    except OSError:
        return True
    for path in paths:
        above = [m for m in mounts if below(b"/" + path.encode(), m.point) is not None]
        if not above or max(above, key=lambda m: len(m.point)).fstype.startswith(REMOTE):
            return True
    return False
