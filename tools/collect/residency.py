"""What is in the page cache of files that others have open: cachestat(2), else mincore(2).

cachestat is a system call since Linux 6.5 (commit cf264e1329fb) and has the same number, 451, on every architecture
but alpha. It counts pages in the cache, dirty ones, ones under writeback, ones evicted, and of these the ones evicted
so lately that the kernel would take them for a part of the working set if they were read again. On older kernels
mincore tells cached pages only, and only of files that the caller owns or may write: of others it says that all is
resident (Linux 5.2, commit 134fca9063ad); CAP_FOWNER makes anybody an owner. Newer kernels refuse cachestat for such
files likewise.
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
"""mincore is asked about so much of a file at a time: a vector of 256 KiB, and no mapping larger than this."""
PAGE = mmap.PAGESIZE


class Residency(NamedTuple):
    """Bytes of one file; -1 where not known."""

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


def cachestat(descriptor: int) -> Residency:
    """The whole file's pages. OSError: ENOSYS before Linux 6.5, EPERM where it is a stranger's file, EOPNOTSUPP for
    files of hugetlbfs."""
    whole, found = _Range(0, 0), _Stat()  # a length of 0: to the end
    arguments = (ctypes.c_long(descriptor), ctypes.byref(whole), ctypes.byref(found), ctypes.c_long(0))
    if _libc.syscall(ctypes.c_long(_CACHESTAT), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return Residency(*(getattr(found, name) * PAGE for name in _COUNTS))


def _told_the_truth(descriptor: int) -> bool:
    """Whether mincore would: what the kernel asks (can_do_mincore), in its order."""
    if os.fstat(descriptor).st_uid == os.geteuid() or "CAP_FOWNER" in held():
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def mincore(descriptor: int, size: int) -> Residency:
    """Cached bytes of the first `size` bytes, whole pages. OSError: EPERM where the kernel would not say the truth,
    ENODEV where the file system has no mappings."""
    if not _told_the_truth(descriptor):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    cached = 0
    vector = ctypes.create_string_buffer(_WINDOW // PAGE)
    for start in range(0, size, _WINDOW):
        length = min(_WINDOW, size - start)
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            if _libc.mincore(address, length, vector) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            _libc.munmap(address, length)
        pages = -(-length // PAGE)
        cached += sum(page & 1 for page in vector.raw[:pages])
    return Residency(cached * PAGE)


def residency(descriptor: int, size: int, fstype: str = "") -> Residency:
    """`cachestat`, or `mincore` where the kernel has none, and on overlayfs: its files have no pages of their own,
    those of the layer below are what is mapped, but not what cachestat counts."""
    if fstype != "overlay":
        try:
            return cachestat(descriptor)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
    return mincore(descriptor, size)
