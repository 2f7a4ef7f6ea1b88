"""The specification of one BPF collector: what it needs of the BPF object, and how its result is read.

A new collector takes a subclass of `Collector` in ``bpf/collectors/``, listed in ``bpf/collectors/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from whystall.bpf.capture import Followed, Records, Stack
from whystall.bpf.libbpf import Link, Object, Program


@dataclass(frozen=True)
class Setup:
    """What a session hands to its collectors before the object is loaded."""

    variants: Mapping[str, bool]
    """Which newer features of the kernel are used (`whystall.bpf.session.kernel_variants`)."""
    forced: Mapping[str, bool]
    """`whystall.bpf.session.SessionConfig.variants`."""
    targets: Callable[[], frozenset[int] | None]
    """Return the current target processes, followed children included; None: all processes."""
    stacks: dict[int, Stack]
    """The session's stacks by id; a collector may add its own."""


@dataclass(frozen=True)
class Window:
    """What a session hands to its collectors after detaching."""

    made: Object
    end: int
    records: Records
    lost: Mapping[str, list[int]]
    seen: dict[str, int]
    """Counts of events; a collector may add its own."""


class Collector:
    """One collector for one session. A subclass overrides what it needs."""

    maps: ClassVar[tuple[str, ...]] = ()
    """Maps that only its own programs use; a session without it does not create them."""
    shared_maps: ClassVar[tuple[str, ...]] = ()
    """Maps that programs of other collectors refer to, too; without a collector that needs them they get one entry."""
    hints: ClassVar[tuple[str, ...]] = ()
    """Programs that only add detail: runs skipped because of recursion do not count as losses."""
    start_iterators: ClassVar[tuple[str, ...]] = ()
    """Programs that walk all threads when counting starts."""
    stop_iterators: ClassVar[tuple[str, ...]] = ()
    """Programs that walk all threads when counting stops."""
    bytes_per_thread: ClassVar[int] = 0
    """Bytes per thread that the last walk may write into the ring buffer."""

    def prepare(self, setup: Setup) -> None:
        """Find out what the kernel offers; called first."""
        self.setup = setup

    def programs(self) -> Sequence[str]:
        """Return the programs to attach, in this order."""
        return ()

    def needed_maps(self) -> Iterable[str]:
        """Return its maps that this kernel's variants use."""
        return (*self.maps, *self.shared_maps)

    def map_sizes(self) -> Mapping[str, int]:
        """Return the number of entries of maps whose default in the object does not fit."""
        return {}

    def constants(self) -> Mapping[str, int]:
        """Return its members of ``struct config``."""
        return {}

    def record_handlers(self) -> Mapping[int, Callable[[bytes], object]]:
        """Return, by record type, functions that process records on arrival; other records are kept for `read`."""
        return {}

    def loaded(self, made: Object) -> None:
        """Fill maps, after the object is loaded and before programs are attached."""

    def attach(self, program: Program) -> list[Link]:
        """Attach one of `programs`."""
        return [program.attach()]

    def followed(self, found: Sequence[Followed]) -> None:
        """Handle processes that are newly followed because they wake traced threads, before their threads are
        listed."""

    def poll(self) -> None:
        """Do periodic work while the window runs."""

    def read(self, window: Window) -> object:
        """Return the result, of a type unique to this collector; called after detaching."""
        raise NotImplementedError
