"""The specification of one collector of the kernel side: what it needs of the BPF object, and how its result is read.

A new collector takes a subclass of `Collector` in ``bpf/collectors/``, listed in ``bpf/collectors/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from whystall.bpf.capture import Records, Stack
from whystall.bpf.libbpf import Link, Object, Program


@dataclass(frozen=True)
class Setup:
    """What a session hands to its collectors before the object is loaded."""

    variants: Mapping[str, bool]
    """Which newer features of the kernel are used (`whystall.bpf.session.kernel_variants`)."""
    forced: Mapping[str, bool]
    """`whystall.bpf.session.SessionConfig.variants`."""
    targets: Callable[[], frozenset[int] | None]
    """The target processes now, with those that were followed; None: all processes."""
    stacks: dict[int, Stack]
    """The session's stacks by id, to which a collector may add its own."""


@dataclass(frozen=True)
class Window:
    """What a session hands to its collectors when the hooks are gone."""

    made: Object
    end: int
    records: Records
    lost: Mapping[str, list[int]]
    seen: dict[str, int]
    """Counts of events, to which a collector may add its own."""


class Collector:
    """One collector for one session. A subclass overrides what it needs."""

    maps: ClassVar[tuple[str, ...]] = ()
    """Maps that only its own programs name; a session without it does not create them."""
    shared_maps: ClassVar[tuple[str, ...]] = ()
    """Maps that programs of other collectors name too; they get one entry where no collector needs them."""
    start_iterators: ClassVar[tuple[str, ...]] = ()
    """Programs that walk all threads when counting starts."""
    stop_iterators: ClassVar[tuple[str, ...]] = ()
    """Programs that walk all threads when counting stops."""
    bytes_per_thread: ClassVar[int] = 0
    """What the last walk may write into the ring buffer for each thread."""

    def prepare(self, setup: Setup) -> None:
        """Find out what the kernel offers; the first call of all."""
        self.setup = setup

    def programs(self) -> Sequence[str]:
        """Return the programs to attach, in this order."""
        return ()

    def needed_maps(self) -> Iterable[str]:
        """Return those of its maps that this kernel's variants use."""
        return (*self.maps, *self.shared_maps)

    def map_sizes(self) -> Mapping[str, int]:
        """Return the entries of maps that need others than the object's own number."""
        return {}

    def constants(self) -> Mapping[str, int]:
        """Return the members of ``struct config`` that it sets."""
        return {}

    def record_handlers(self) -> Mapping[int, Callable[[bytes], object]]:
        """Return, by type, the functions that take ring buffer records as they arrive; others are kept for `read`."""
        return {}

    def loaded(self, made: Object) -> None:
        """Fill maps: the object is loaded, and nothing is attached yet."""

    def attach(self, program: Program) -> list[Link]:
        """Attach one of `programs`."""
        return [program.attach()]

    def poll(self) -> None:
        """Do what is due now and then while the window runs."""

    def read(self, window: Window) -> object:
        """Return the result, of a type that no other collector has; the hooks are gone."""
        raise NotImplementedError
