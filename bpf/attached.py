"""A loaded BPF object with its attached programs and its ring buffer: the base of `Session` and `TraceSession`.

Nothing outlives the process: all attachments are file descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from types import TracebackType
from typing import Protocol

from whystall.bpf import layout as lay
from whystall.bpf.build import object_path
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import Link, Object, Program

MAX_TARGETS = 1024


class _Closable(Protocol):
    def close(self) -> None: ...


class AttachedObject:
    """Use it as a context manager, or call `close`."""

    _ring: _Closable | None

    def __init__(self) -> None:
        self._object: Object | None = None
        self._ring = None
        self._links: list[Link] = []
        self._programs: list[Program] = []
        self._live = lay.Live()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach and free everything; idempotent, at any point."""
        self._detach()
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        self._live = lay.Live()  # the shared one is freed with the object
        self._programs = []
        made, self._object = self._object, None
        if made is not None:
            made.close()

    def _open(self, kind: str, targets: Collection[int] | None) -> Object:
        """Open the object `kind` (of `build.KINDS`) for 1 to 1024 target processes, or for all."""
        if targets is not None and not 1 <= len(targets) <= MAX_TARGETS:
            raise BpfError("bad_config", f"{len(targets)} targets", f"give 1 to {MAX_TARGETS}, or none for all")
        path = object_path(os.uname().machine, kind)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BpfError("object_missing", f"{path.name} is missing", "build it: make build") from error
        self._object = Object(data, path.name)
        return self._object

    def _loaded(self) -> Object:
        if self._object is None:
            raise BpfError("read_failed", "the session is not open", "load it first")
        return self._object

    def _detach(self) -> None:
        while self._links:
            self._links.pop().close()

    def _misses(self) -> int:
        """Return how often a program did not run because it was already running, since it was attached."""
        return sum(program.recursion_misses() for program in self._programs)
