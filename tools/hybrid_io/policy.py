"""Settings of the policy that makes requests buffered or direct; it is implemented in ``src/policy.c``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

from whystall.tools.hybrid_io import layout, library

_SIZES = 1 << 62


class Policy(NamedTuple):
    """Settings. Sizes are bytes. The defaults are those of ``hy_policy_default()``; a test compares them.

    ``mode`` is ``auto``, or ``buffered`` or ``direct`` for every request that can (for measuring).
    From ``read_direct_bytes`` and ``write_direct_bytes`` on a request goes direct (measured by benchmarks/hybrid_io.py;
    autoIO, FAST'24, and Lustre 2.17 do from 2 to 8 MiB on); once the page cache holds ``direct_share`` of its limit,
    from ``pressure_direct_bytes`` on.
    The limit is ``limit_share`` of min(cgroup limit, memory) less other memory than page cache, or ``limit_bytes``.
    Data that is read again and fits stays buffered (``keep_reread``); so do, at their first read, files of up to
    ``keep_file_bytes`` that fit in half of the remaining space.
    ``refresh_ns`` and ``refresh_bytes`` bound the age of the known pressure.
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
        """Return it as a C struct. Raises ``ValueError`` for invalid settings."""
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
    """Return a policy from a policy, settings by name, a mode, or None (the default). Raises ``ValueError``."""
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
    """Use of the page cache in bytes: of the cgroup with the least space left; without limits, of the host."""

    limit_bytes: int
    """Its limit."""
    cgroup_limit_bytes: int | None
    """The smallest limit of the cgroup and its ancestors; None: none."""
    memory_bytes: int
    cached_bytes: int
    """File pages of all processes."""
    active_bytes: int
    """Those used more than once recently."""
    other_bytes: int
    """Other memory: anonymous, and the kernel's."""
    own_bytes: int
    """Data that this process keeps in the cache to read it again later."""
    cgroup_version: int
    """cgroup version 1 or 2; 0: values of the host."""


def pressure() -> Pressure:
    """Return the current pressure. Raises `library.Unavailable`."""
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
    """``buffered`` or ``direct``, and the reason, one of `layout.REASONS`."""

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
    """Return what the policy decides for one request of `size` bytes, without I/O.

    `op`: ``read`` or ``write``; `flags`: of `layout.FLAGS`; `reread_bytes`: bytes of the request read before;
    `rest_bytes`: bytes of the file from its start on (default: all). Raises `library.Unavailable`.
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
