"""Which way requests go: the settings of the policy, and the policy itself, which exists once, in ``src/policy.c``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

from whystall.tools.hybrid_io import layout, library

_SIZES = 1 << 62


class Policy(NamedTuple):
    """Settings. Sizes are bytes. The defaults are those of ``hy_policy_default()``; a test compares them.

    ``mode`` is ``auto``, or ``buffered`` or ``direct`` for everything that can go that way (for measuring).
    From ``read_direct_bytes`` and ``write_direct_bytes`` on a request goes direct (measured by benchmarks/hybrid_io.py;
    autoIO, FAST'24, and Lustre 2.17 do from 2 to 8 MiB on); once the page cache holds ``direct_share`` of its limit,
    from ``pressure_direct_bytes`` on.
    The limit is ``limit_share`` of min(cgroup limit, memory) less what is no page cache, or ``limit_bytes``.
    What is read again and fits stays buffered (``keep_reread``), and so do files of up to ``keep_file_bytes`` that fit
    in half of the room that is left, the first time already.
    ``refresh_ns`` and ``refresh_bytes`` bound how old the known pressure may be.
    """

    mode: str = "auto"
    read_direct_bytes: int = 1 << 20
    write_direct_bytes: int = 512 << 10
    pressure_direct_bytes: int = 256 << 10
    limit_share: float = 0.80
    direct_share: float = 0.95
    limit_bytes: int = 0
    refresh_ns: int = 20_000_000
    refresh_bytes: int = 16 << 20
    keep_reread: bool = True
    keep_file_bytes: int = 64 << 20

    def struct(self) -> layout.Policy:
        """As the engine takes it. Raises ``ValueError`` for what it would refuse."""
        if self.mode not in layout.MODES:
            raise ValueError(f"mode is {' or '.join(layout.MODES)}, not {self.mode!r}")
        for name in ("limit_share", "direct_share"):
            share = getattr(self, name)
            if not isinstance(share, (int, float)) or not 0 < share <= 1:
                raise ValueError(f"{name} is above 0 and at most 1, not {share!r}")
        made = layout.Policy(abi=layout.ABI, mode=layout.MODES.index(self.mode), keep_reread=bool(self.keep_reread))
        made.limit_share, made.direct_share = self.limit_share, self.direct_share
        for name in self._fields:
            if not name.endswith(("_bytes", "_ns")):
                continue
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= _SIZES:
                raise ValueError(f"{name} is a number from 0 to 2^62, not {value!r}")
            setattr(made, name, value)
        return made


def policy_of(wanted: Policy | Mapping[str, object] | str | None) -> Policy:
    """A policy from itself, from settings by name, from a mode, or the default. Raises ``ValueError``."""
    if wanted is None:
        return Policy()
    if isinstance(wanted, Policy):
        return wanted
    if isinstance(wanted, str):
        return Policy(mode=wanted)
    if not isinstance(wanted, Mapping):
        raise ValueError(f"a policy is a Policy, a mode, or settings by name, not {wanted!r}")
    unknown = set(wanted) - set(Policy._fields)
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise ValueError(f"no such setting of a policy: {names}; there are {', '.join(Policy._fields)}")
    return Policy(**wanted)  # type: ignore[arg-type]  # checked where the struct is made


class Pressure(NamedTuple):
    """How full the page cache is, in bytes: of the cgroup with the least room left; without limits, of the host."""

    limit_bytes: int
    """What it may hold."""
    cgroup_limit_bytes: int | None
    """The smallest limit of the cgroup and its ancestors; None: there is none."""
    memory_bytes: int
    cached_bytes: int
    """File pages, of everybody."""
    active_bytes: int
    """Of these, used more than once lately."""
    other_bytes: int
    """What is no file page: anonymous memory, the kernel's own."""
    own_bytes: int
    """What this process keeps in the cache to read it again, and has not read again yet."""
    cgroup_version: int
    """1 or 2; 0: the host's numbers."""


def pressure() -> Pressure:
    """As it is now. Raises `library.Unavailable`."""
    now = layout.Pressure()
    library.load().hy_pressure_now(ctypes.byref(now))
    return _pressure(now)


def _pressure(now: layout.Pressure) -> Pressure:
    limit = now.cgroup_limit_bytes
    return Pressure(
        now.limit_bytes,
        None if limit == (1 << 64) - 1 else limit,
        now.memory_bytes,
        now.cached_bytes,
        now.active_bytes,
        now.other_bytes,
        now.own_bytes,
        now.cgroup_version,
    )


class Choice(NamedTuple):
    """Which way a request would go: ``buffered`` or ``direct``, and one of `layout.REASONS`."""

    way: str
    reason: str


def choose(
    op: str,
    size: int,
    file_bytes: int,
    state: Pressure,
    settings: Policy | None = None,
    *,
    reread_bytes: int = 0,
    rest_bytes: int | None = None,
    flags: tuple[str, ...] = (),
) -> Choice:
    """What the policy does with one request of `size` bytes; nothing is read or written.

    `op` is ``read`` or ``write``, `flags` of `layout.FLAGS`; `reread_bytes` of the request were read before,
    `rest_bytes` of the file lie from its start on (all of them, unless told). Raises `library.Unavailable`.
    """
    request = layout.Request(
        op=layout.OPS.index(op),
        flags=sum(1 << layout.FLAGS.index(flag) for flag in flags),
        bytes=size,
        file_bytes=file_bytes,
        reread_bytes=reread_bytes,
        rest_bytes=file_bytes if rest_bytes is None else rest_bytes,
    )
    now = layout.Pressure(
        limit_bytes=state.limit_bytes,
        memory_bytes=state.memory_bytes,
        cached_bytes=state.cached_bytes,
        active_bytes=state.active_bytes,
        other_bytes=state.other_bytes,
        own_bytes=state.own_bytes,
    )
    made = (settings or Policy()).struct()
    chosen = library.load().hy_choose(ctypes.byref(made), ctypes.byref(request), ctypes.byref(now))
    return Choice("direct" if chosen.way else "buffered", layout.REASONS[chosen.reason])
