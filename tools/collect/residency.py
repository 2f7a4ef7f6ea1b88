"""Measure the page cache of a file: cachestat(2), else mincore(2).

cachestat exists since Linux 6.5 (commit cf264e1329fb), with number 451 on every architecture but alpha. It counts
cached, dirty, written-back and evicted pages, and of the evicted those so recent that a read would count them as part
of the working set. On older kernels mincore counts cached pages, but only of files that the caller owns or may write;
others it reports as fully resident (Linux 5.2, commit 134fca9063ad), unless the caller has CAP_FOWNER. cachestat
refuses such files.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import NamedTuple

from whystall.bpf.privileges import held

_CACHESTAT = 451
_WINDOW = 1 << 30
"""Bytes of a file per call of mincore: a vector of 256 KiB."""
PAGE = mmap.PAGESIZE


class Residency(NamedTuple):
    """Bytes of one file; -1 if unknown."""

    cached: int
    dirty: int = -1
    writeback: int = -1
    evicted: int = -1
    recently_evicted: int = -1


class _Range(ctypes.Structure):
    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


_COUNTS = ("cache", "dirty", "writeback", "evicted", "recently_evicted")


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _COUNTS]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def _last_error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def cachestat(descriptor: int) -> Residency:
    """Measure the whole file. Raises OSError: ENOSYS before Linux 6.5, EPERM for another user's file, EOPNOTSUPP on
    hugetlbfs."""
    whole, found = _Range(0, 0), _Stat()  # a length of 0: to the end
    arguments = (ctypes.c_long(descriptor), ctypes.byref(whole), ctypes.byref(found), ctypes.c_long(0))
    if _libc.syscall(ctypes.c_long(_CACHESTAT), *arguments) != 0:
        raise _last_error()
    return Residency(*(getattr(found, name) * PAGE for name in _COUNTS))


def _mincore_is_exact(descriptor: int) -> bool:
    """Return whether the kernel lets us count (can_do_mincore), with its checks in its order."""
    if os.fstat(descriptor).st_uid == os.geteuid() or "CAP_FOWNER" in held():
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def mincore(descriptor: int, size: int) -> Residency:
    """Count the cached pages of the first `size` bytes. Raises OSError: EPERM if the kernel would report all as cached,
    ENODEV if the file system has no mappings."""
    if not _mincore_is_exact(descriptor):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    cached = 0
    vector = ctypes.create_string_buffer(_WINDOW // PAGE)
    for start in range(0, size, _WINDOW):
        length = min(_WINDOW, size - start)
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
        if address == _MAP_FAILED:
            raise _last_error()
        try:
            if _libc.mincore(address, length, vector) != 0:
                raise _last_error()
        finally:
            _libc.munmap(address, length)
        pages = -(-length // PAGE)
        cached += sum(page & 1 for page in vector.raw[:pages])
    return Residency(cached * PAGE)


def residency(descriptor: int, size: int, fstype: str = "") -> Residency:
    """Return `cachestat`, or `mincore` if the kernel has none, and on overlayfs: the pages of its files belong to the
    layer below, which mincore follows and cachestat does not."""
    if fstype != "overlay":
        try:
            return cachestat(descriptor)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
    return mincore(descriptor, size)
