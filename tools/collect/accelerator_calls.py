"""The functions of accelerators' libraries that are probed (`accelerator_calls.yaml`), and where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

from whystall.bpf.elf_symbols import functions_named
from whystall.bpf.functions import Probe, place
from whystall.bpf.python_code import call_record
from whystall.bpf.symbols import executed_files

_SUFFIX = r"(?:_v[0-9]+)?(?:_ptsz|_ptds|_spt)?"


class EntryPoint(NamedTuple):
    """A function. `number`: from 1; `files`: beginnings of the names of libraries; `frame`: the text of its frame,
    ``GPU: wait for stream (cuStreamSynchronize)``; `waits`: it returns when the device has done its work."""

    number: int
    name: str
    files: tuple[str, ...]
    frame: str
    waits: bool


@lru_cache(maxsize=1)
def entry_points() -> tuple[EntryPoint, ...]:
    """Return the functions of the list."""
    found: list[EntryPoint] = []
    for group in yaml.safe_load(Path(__file__).with_name("accelerator_calls.yaml").read_bytes()):
        for name in group["names"]:
            frame = f"{group['device']}: {group['what']} ({name})"
            found.append(EntryPoint(len(found) + 1, name, tuple(group["files"]), frame, group.get("waits", False)))
    return tuple(found)


def frame_records() -> list[bytes]:
    """Return records of code objects that name the functions in Python stacks."""
    return [call_record(one.number, one.frame) for one in entry_points()]


class Libraries:
    """The libraries that were found so far, each searched once."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], bool] = {}

    def search(self, pid: int) -> tuple[bool, list[Probe]]:
        """Return whether a process executes such a library, and probes on the functions of those that are new."""
        uses, probes = False, []
        for (path, identity), paths in executed_files(pid).items():
            wanted = [one for one in entry_points() if os.path.basename(path).startswith(one.files)]
            if not wanted:
                continue
            if identity not in self._files:
                usable = next((one for one in paths if os.access(one, os.R_OK)), paths[0])
                new = list(probes_in(usable, wanted))
                self._files[identity] = bool(new)
                probes += new
            uses = uses or self._files[identity]
        return uses, probes


def probes_in(path: str, wanted: Iterable[EntryPoint]) -> Iterable[Probe]:
    """Yield a probe for each function of `wanted` in a file; of several names at one place one."""
    by_name = {one.name: one for one in wanted}
    names = re.compile(f"(?:{'|'.join(sorted(by_name, key=len, reverse=True))}){_SUFFIX}".encode())
    seen: set[int] = set()
    for symbol, start in sorted(functions_named(path, names).items()):
        if start not in seen:
            seen.add(start)
            offset, emulated = place(path, start)
            yield Probe(path, offset, by_name[re.sub(f"{_SUFFIX}$", "", symbol)].number, emulated=emulated)
