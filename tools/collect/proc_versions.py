"""Read the versions of the kernel, drivers and of the libraries that processes have loaded; the collector `versions`.

Of a process only names are used (files mapped, directories of installed packages), and constants in the binaries of
Python and glibc. All of it is foreign text: what is no version is left out, and every read is bounded. Files of network
file systems are not touched, since that may block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from whystall.bpf.regular_files import open_regular
from whystall.tools.collect.tables import VERSIONS, filled
from whystall.tools.contract.text import clean
from whystall.tools.known_fixes.catalogue import components
from whystall.tools.known_fixes.versions import UnknownVersion, parsed, upstream_kernel
from whystall.tools.node.mounts import REMOTE, mountinfo
from whystall.tools.recording.collector import Capture

_MOST_PROCESSES = 64
_MOST_LINES = 20_000
_MOST_ENTRIES = 20_000
_MOST_PLACES = 16
_MOST_ADAPTERS = 64
_MELLANOX = "0x15b3"  # vendor of PCI
# 28.39.3560
_FIRMWARE = re.compile(r"(\d{1,3}\.\d{1,3}\.\d{1,5})\s*$")
_MOST_BYTES = 32 << 20
_SMALL = 4096
_NO_PID = -1
# 7f1c4a000000-7f1c4a2d6000 r-xp 00000000 08:01 262188   /usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5
_MAPPED = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) \d+ +(/.*)$")
_PACKAGES = re.compile(rb"^(.*/(?:site|dist)-packages)/")
# nvidia_nccl_cu12-2.21.5.dist-info, torch-2.7.0+cu126.dist-info
_INSTALLED = re.compile(r"^([A-Za-z0-9_.]{1,100})-([A-Za-z0-9_.+!]{1,64})\.dist-info$")
_LIBRARY = re.compile(r"^(.{1,60}?)\.so\.(\d{1,4}(?:\.\d{1,4}){2,3})$")
_OLD_GLIBC = re.compile(r"^libc-(\d{1,2}\.\d{1,3})\.so$")
_GLIBC = re.compile(rb"GNU C Library \(.{1,100}?\) (?:stable|development) release version (\d\.\d{1,3})")
_PYTHON_FILE = re.compile(r"^(?:libpython|python)(3\.\d{1,2})t?d?(?:\.so\.1\.0)?$")
# NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
_NVIDIA = re.compile(r"Module.*?\s(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")
# component, where, path, pattern
_FILES = (
    ("nvidia_driver", "driver", "/proc/driver/nvidia/version", _NVIDIA),
    ("nvidia_driver", "driver", "/sys/module/nvidia/version", re.compile(r"^(\d{3}\.\d{1,3}(?:\.\d{1,3})?)")),
)
_IN_PROCESS = (
    ("rocm", "file", "/opt/rocm/.info/version", re.compile(r"^(\d{1,2}\.\d{1,2}\.\d{1,2})")),
    (
        "cann",
        "file",
        "/usr/local/Ascend/ascend-toolkit/latest/version.cfg",
        re.compile(r"runtime_running_version=\[(\d[\w.]{0,40})"),
    ),
    ("cann", "file", "/usr/local/Ascend/latest/version.cfg", re.compile(r"version=\[?(?:[\w.]+:)?(\d[\w.]{0,40})")),
)


class Row(NamedTuple):
    """A version of a component. `pid`: of the process, -1: of the host; `where`: kernel, driver, package, library,
    binary or file; `vendor_built`: a vendor may have changed it."""

    component: str
    version: str
    where: str
    pid: int
    vendor_built: bool


class Versions:
    """Reads once. `root`: where the host's file system is; `proc`: its /proc."""

    def __init__(self, pids: Iterable[int] = (), root: str = "", proc: str = "/proc") -> None:
        self._pids, self._root, self._proc = sorted(set(pids)), root, proc
        self._unread: set[int] = set()
        self._binaries: dict[tuple[int, int], str] = {}

    def rows(self) -> list[Row]:
        """Return the versions of the host and of the processes, each once per process."""
        rows = [*self._kernel(), *self._stated(_FILES, self._root, _NO_PID), *self._adapters()]
        for pid in self._pids[:_MOST_PROCESSES]:
            try:
                rows += self._process(pid)
            except OSError:
                self._unread.add(pid)
        return list(dict.fromkeys(rows))

    def read(self) -> Capture:
        """Return the capture."""
        rows = self.rows()
        unread = len(self._unread) + max(0, len(self._pids) - _MOST_PROCESSES)
        return Capture(
            tables=filled(VERSIONS, versions=[tuple(row) for row in rows]),
            hooks=["/proc/PID/maps"],
            seen=len(rows),
            kept=len(rows),
            lost=0,
            proven=any(row.component == "kernel" for row in rows),
            not_seen=[("versions_unread", f"{unread} of {len(self._pids)}")] if unread else [],
        )

    def _kernel(self) -> Iterator[Row]:
        name = os.uname()
        release = self._small(f"{self._proc}/sys/kernel/osrelease") or name.release
        version = self._small(f"{self._proc}/sys/kernel/version") or name.version
        try:
            found, vendor = upstream_kernel(release, version, self._small(f"{self._proc}/version_signature"))
        except UnknownVersion:
            return
        yield Row("kernel", found, "kernel", _NO_PID, vendor)

    def _adapters(self) -> Iterator[Row]:
        """Return the firmware of ConnectX adapters (Documentation/ABI/stable/sysfs-class-infiniband, fw_ver)."""
        top = f"{self._root}/sys/class/infiniband"
        try:
            names = sorted(os.listdir(top))[:_MOST_ADAPTERS]
        except OSError:  # no RDMA device
            return
        for name in names:
            if self._small(f"{top}/{name}/device/vendor").strip() != _MELLANOX:
                continue
            if found := _FIRMWARE.match(self._small(f"{top}/{name}/fw_ver")):
                yield Row("connectx_firmware", found[1], "driver", _NO_PID, False)

    def _process(self, pid: int) -> list[Row]:
        remote = self._remote(pid)
        top = f"{self._proc}/{pid}/root"
        rows: list[Row] = list(self._stated(_IN_PROCESS, top, pid))
        places: dict[bytes, None] = {}
        for dev, path in self._mapped(pid):
            name = os.fsdecode(path.rpartition(b"/")[2])
            rows += _named(name, pid)
            if (found := _PACKAGES.match(path)) and dev not in remote and len(places) < _MOST_PLACES:
                places.setdefault(found[1])
            if dev not in remote:
                rows += self._in_binary(name, f"{top}{os.fsdecode(path)}", pid)
        for place in places:
            rows += self._installed(f"{top}{os.fsdecode(place)}", pid)
        return rows

    def _mapped(self, pid: int) -> list[tuple[bytes, bytes]]:
        """Return the distinct (device, path) of files that a process has mapped."""
        found: dict[tuple[bytes, bytes], None] = {}
        with open(f"{self._proc}/{pid}/maps", "rb") as maps:
            for number, line in enumerate(maps):
                if number >= _MOST_LINES:
                    self._unread.add(pid)
                    break
                if one := _MAPPED.match(line.rstrip(b"\n")):
                    found.setdefault((one[1], one[2]))
        return list(found)

    def _remote(self, pid: int) -> frozenset[bytes]:
        """Return the devices of network file systems, as maps writes them (hexadecimal)."""
        with open(f"{self._proc}/{pid}/mountinfo", "rb") as file:
            mounts = mountinfo(file.read(_MOST_BYTES))
        found = set()
        for mount in mounts:
            major, _, minor = mount.dev.partition(":")
            if mount.fstype.startswith(REMOTE) and major.isdigit() and minor.isdigit():
                found.add(f"{int(major):02x}:{int(minor):02x}".encode())
        return frozenset(found)

    def _installed(self, place: str, pid: int) -> Iterator[Row]:
        """Yield the packages whose dist-info is in the directory `place`."""
        try:
            directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    if number >= _MOST_ENTRIES:
                        self._unread.add(pid)
                        break
                    if (one := _INSTALLED.match(entry.name)) and (name := component_of(one[1])):
                        yield from _row(name, one[2], "package", pid)
        finally:
            os.close(directory)

    def _in_binary(self, name: str, path: str, pid: int) -> Iterator[Row]:
        """Yield the version that the binary of Python or glibc has as a constant."""
        if python := _PYTHON_FILE.match(name):
            # linkers share the end of strings: what stands before it may belong to another one (/opt/python-3.11.7)
            pattern = re.compile(rb"(?<![\d.])(" + re.escape(python[1].encode()) + rb"\.\d{1,2})\+?\0")
            component = "python"
        elif name == "libc.so.6":
            pattern, component = _GLIBC, "glibc"
        else:
            return
        try:
            with open(open_regular(path, os.O_NOFOLLOW), "rb") as file:
                state = os.fstat(file.fileno())
                key = (state.st_dev, state.st_ino)
                if key not in self._binaries:
                    found = {one.decode("ascii") for one in pattern.findall(file.read(_MOST_BYTES))}
                    self._binaries[key] = found.pop() if len(found) == 1 else ""
        except OSError:
            return
        if text := self._binaries[key]:
            yield from _row(component, text, "binary", pid, vendor=component == "glibc")

    def _stated(self, files: Iterable[tuple[str, str, str, re.Pattern[str]]], top: str, pid: int) -> Iterator[Row]:
        done: set[str] = set()
        for component, where, path, pattern in files:
            if component not in done and (found := pattern.search(self._small(top + path))):
                done.add(component)
                yield from _row(component, found[1], where, pid)

    def _small(self, path: str) -> str:
        """Return the beginning of a small regular file; empty if it cannot be read."""
        try:
            with open(open_regular(path), "rb") as file:
                return file.read(_SMALL).decode("utf-8", "replace")
        except OSError:
            return ""


def component_of(package: str) -> str:
    """Return the component of a Python distribution (nvidia_nccl_cu12: nccl); empty for others."""
    name = package.lower().replace("-", "_").replace(".", "_")
    for component, about in components().items():
        if any(re.fullmatch(rf"{re.escape(known)}(?:_cu\d{{2}})?", name) for known in about.packages):
            return component
    return ""


def _named(name: str, pid: int) -> Iterator[Row]:
    """Yield the version in the name of a mapped library."""
    if old := _OLD_GLIBC.match(name):
        yield from _row("glibc", old[1], "library", pid, vendor=True)
    elif one := _LIBRARY.match(name):
        for component, about in components().items():
            if one[1] in about.libraries:
                yield from _row(component, one[2], "library", pid)


def _row(component: str, version: str, where: str, pid: int, vendor: bool = False) -> Iterator[Row]:
    try:
        parsed(version)
    except UnknownVersion:
        return
    yield Row(component, clean(version), where, pid, vendor)
