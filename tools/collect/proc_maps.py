"""Find the file mapped at an address of another process, for msync."""

from __future__ import annotations

from typing import NamedTuple

from whystall.tools.collect import proc_parse as parse


class MappedFile(NamedTuple):
    """A mapped file; `offset`: the file position of the address."""

    path: str
    dev: str
    ino: int
    offset: int
    deleted: bool


def mapped_file(pid: int, address: int, root: str = "/proc") -> MappedFile | None:
    """Return the file mapped at `address` of process `pid` now; None for anonymous memory, or if it is unknown."""
    try:
        with open(f"{root}/{pid}/maps", "rb") as maps:
            for line in maps:
                found = _match(line, address)
                if found is not None:
                    return found
    except OSError:
        return None
    return None


def _match(line: bytes, address: int) -> MappedFile | None:
    # "7f00-7f10 rw-s 00000000 08:01 1234   /path"; only a newline in the path is escaped (\012)
    fields = line.rstrip(b"\n").split(None, 5)
    if len(fields) < 6 or not fields[5].startswith(b"/"):
        return None
    start, end = (int(part, 16) for part in fields[0].split(b"-"))
    if not start <= address < end:
        return None
    major, minor = (int(part, 16) for part in fields[3].split(b":"))
    path, deleted = parse.link_path(fields[5].replace(rb"\012", b"\n"))
    return MappedFile(path, f"{major}:{minor}", int(fields[4]), address - start + int(fields[2], 16), deleted)
