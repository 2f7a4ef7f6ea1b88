"""On which disk, and where mounted, the files of a recording are."""

from __future__ import annotations

from collections.abc import Iterable

from whystall.tools.contract.findings import Finding
from whystall.tools.recording.store import Recording

_TABLES = ("switches.files", "syscalls.files", "page_cache.files", "residency.files")


class FileDevices:
    """Finds a file's disk by the device number of its file system.

    Those without a disk of their own (overlay, btrfs, network, tmpfs) have none here. A number of a stacked disk (dm-0,
    md0) is that disk, not the ones below.
    """

    def __init__(self, recording: Recording) -> None:
        self._devs: dict[str, set[str]] = {}
        for name in _TABLES:
            table = recording.find(name)
            if table is not None:
                for path, dev in table.select("path", "dev").unique().iter_rows():
                    self._devs.setdefault(path, set()).add(dev)
        self._disks = _pairs(recording, "proc.partitions", "dev", "device")
        self._disks |= _pairs(recording, "proc.disks", "dev", "device")
        self._mounts = _pairs(recording, "proc.filesystems", "dev", "path")

    def of(self, paths: Iterable[str]) -> dict[str, str]:
        """Return ``device`` and ``mount`` of files, as far as known and the same for all of them."""
        files = list(paths)
        devs = {dev for path in files for dev in self._devs.get(path, {""})}
        if len(devs) != 1:
            return {}
        (dev,) = devs
        found = {"device": self._disks[dev]} if dev in self._disks else {}
        mount = self._mounts.get(dev, "")
        if mount and all(f"{path}/".startswith(mount.rstrip("/") + "/") for path in files):
            found["mount"] = mount
        return found

    def placed(self, finding: Finding) -> Finding:
        """Return `finding` with the place of the file in its attribute ``object``."""
        path = finding.attributes.get("object", "")
        found = self.of([path]) if path.startswith("/") else {}
        return finding.model_copy(update={"attributes": finding.attributes | found}) if found else finding


def _pairs(recording: Recording, table: str, key: str, value: str) -> dict[str, str]:
    found = recording.find(table)
    return dict(found.select(key, value).unique(maintain_order=True).iter_rows()) if found is not None else {}
